"""Tables over seeds that docs keeps, and docs/seeds.md."""

import shutil

import pytest

from tests.studies.seeds.samples import seeds_table
from tests.synthetic_run import synthetic
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.claims import seeds
from twoscale.claims.findings import marked
from twoscale.claims.scale import SMALL_SCALE, Scale, Scales
from twoscale.studies.seeds import keep
from twoscale.studies.seeds import page as seeds_page

DOCS = config.PROJECT / "docs"


@pytest.fixture
def docs(tmp_path):
    shutil.copytree(DOCS / "demo-release", tmp_path / "demo-release")
    return tmp_path


def written(folder, run):
    tables.write(
        "seeds",
        seeds_table().assign(run=run, value=float("nan"), low=float("nan"), high=float("nan")),
        folder / "seeds.parquet",
    )
    return folder / "seeds.parquet"


def test_the_kept_summary_is_that_of_the_kept_tables():
    if any((DOCS / "seeds").glob("*.parquet")):
        assert keep.page(DOCS) == (DOCS / "seeds.md").read_text(encoding="utf-8"), (
            "run python -m twoscale.studies.seeds.keep"
        )


def test_a_table_is_kept_under_the_name_of_its_run_and_summarised_with_its_scale(docs, tmp_path):
    assert keep.keep(written(tmp_path, "demo"), docs) == docs / "seeds" / "demo.parquet"
    page = keep.page(docs)
    count = seeds_table()["seed"].nunique() - 1
    assert page.startswith(f"# The claims of the paper on the run demo under {count} seeds\n")
    assert "Run **demo** on Python documentation," in page
    assert f"| seeds | {count} | 1 | {count} |" in page


def test_a_table_of_a_run_without_a_release_is_refused(docs, tmp_path):
    with pytest.raises(
        InputError, match=r"seeds\.parquet: found run mine, expected one with released tables in docs: demo"
    ):
        keep.keep(written(tmp_path, "mine"), docs)


def test_the_seeds_page_counts_its_seeds_and_marks_the_verdicts_over_them():
    found = {seed: synthetic() for seed in (1, 2)}
    judged = seeds.verdicts(found)
    scales = Scales(Scale(1, 100, 12.0, 30), Scale(1000, 100, 12.0, 30)).of_seeds(2)
    page = seeds_page.page(judged, "trial", "text", [1, 2], scales)
    assert "| seeds | 2 | 1 | 2 |" in page
    assert f"| **{marked(judged[0].verdict, SMALL_SCALE)}** |" in page
    assert seeds_page.page(judged, "trial", "text", [1, 2]).startswith(
        seeds_page.summary(seeds.table(judged, "trial", [1, 2]), "text")
    )
