"""The jobs of the study: the tables of the run under every seed."""

import pytest

from tests.small import job_row, of, project
from twoscale.base import InputError
from twoscale.studies.seeds.study import JOBS


def drift(**config):
    """The input "drift" of the comparison."""
    return job_row(JOBS, "compare_seeds").files(project(**config))["drift"]


def test_the_tables_of_all_seeds_are_refused_in_one_sentence_where_there_is_one():
    assert drift(seeds=[1337, 7]) == [
        "results/tiny/tables/drift_sequences.parquet",
        "results/tiny-seed7/tables/drift_sequences.parquet",
    ]
    for seeds in ([], [1337]):
        with pytest.raises(InputError, match=r"^results/seeds\.md: run tiny has one seed, expected further ones"):
            drift(seeds=seeds)(of())
    with pytest.raises(InputError, match=r"^results/seeds\.md: run tiny has 0 looped groups"):
        drift(seeds=[7], model={"groups": []})(of())


def test_the_report_has_the_figure_only_where_there_are_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seeds = tmp_path / "results" / "tiny" / "tables" / "seeds.parquet"
    seeds.parent.mkdir(parents=True)
    seeds.touch()
    assert "results/tiny/figures/seeds.svg" not in project().report.pictures(of())
    assert "results/tiny/figures/seeds.svg" in project(seeds=[7]).report.pictures(of())
