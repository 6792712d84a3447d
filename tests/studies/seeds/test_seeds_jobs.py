"""The jobs of the study: the tables of the run under every seed."""

import pytest

from tests.small import of, project
from twoscale.errors import InputError


def test_the_tables_of_all_seeds_are_refused_in_one_sentence_where_there_is_one():
    assert project(seeds=[1337, 7]).at_seeds("drift")(of()) == [
        "results/tiny/tables/drift.parquet",
        "results/tiny-seed7/tables/drift.parquet",
    ]
    for seeds in ([], [1337]):
        with pytest.raises(InputError, match=r"^results/seeds\.md: run tiny has one seed, expected further ones"):
            project(seeds=seeds).at_seeds("drift")(of())
    with pytest.raises(InputError, match=r"^results/seeds\.md: run tiny has no looped groups"):
        project(seeds=[7], model={"groups": []}).at_seeds("drift")(of())


def test_the_report_has_the_figure_only_where_there_are_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seeds = tmp_path / "results" / "tiny" / "tables" / "seeds.parquet"
    seeds.parent.mkdir(parents=True)
    seeds.touch()
    assert "results/seeds.svg" not in project().report_pictures(of())
    assert "results/seeds.svg" in project(seeds=[7]).report_pictures(of())
