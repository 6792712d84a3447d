"""Tables over seeds that docs keeps, and docs/seeds.md."""

import shutil

import pytest

from tests.studies.seeds.samples import seeds_table
from twoscale import config, tables
from twoscale.errors import InputError
from twoscale.studies.seeds import keep

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
