"""docs/extending.md: every recipe, applied as printed to a copy of the project, works and touches
few files.
"""

import re
import shutil
from dataclasses import dataclass

import pandas as pd
import pytest
import yaml

from tests.workflow.conftest import ROOT, Project

pytestmark = pytest.mark.runs

PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"(?:#|\{#) (\S+?)(?: \((append|in \w+)\))?(?: #\})?")
AGREEMENT = "src/twoscale/studies/agreement"
# Recipe -> the most files that it may touch
RECIPES = {"A measure per loop step": 2, "An exit criterion": 1, "A model": 2, "A study": 8}
TINY = ROOT / "workflow" / "presets" / "tiny.yaml"


@dataclass(frozen=True)
class Block:
    """One code block: the file that it names, where in it the code belongs, and the code."""

    path: str
    place: str | None  # None: the whole file; "append"; "in NAME"
    code: str

    def apply(self, project: Project) -> None:
        file = project.root / self.path
        if self.place is None:
            assert not file.exists(), f"{self.path} exists already"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.code)
        elif self.place == "append":
            file.write_text(file.read_text() + self.code)
        else:
            name = self.place.removeprefix("in ")
            text, count = re.subn(
                rf"^{name}\b.*\n",
                lambda line: line[0] + self.code,
                file.read_text(),
                count=1,
                flags=re.MULTILINE,
            )
            assert count == 1, f"{self.path} has no line that begins with {name}"
            file.write_text(text)


def recipe(heading: str) -> list[Block]:
    """The code blocks of one section of the page."""
    section = re.search(
        rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return [block(code) for code in BLOCK.findall(section[1])]


def block(code: str) -> Block:
    title, _, rest = code.partition("\n")
    path, place = TITLE.fullmatch(title).groups()
    return Block(path, place, rest)


def apply(heading: str, project: Project) -> None:
    """Apply a recipe; it touches few files, apart from the configuration and the tests."""
    blocks = recipe(heading)
    touched = {
        part.path
        for part in blocks
        if part.path != "config.yaml" and not part.path.startswith("tests/")
    }
    assert 1 <= len(touched) <= RECIPES[heading]
    for part in blocks:
        part.apply(project)


def table(project: Project, path: str) -> pd.DataFrame:
    return pd.read_parquet(project.root / "results" / path)


def test_a_measure_is_a_column_of_trajectories_and_a_row_of_loop_metrics_and_has_a_test_that_passes(
    editable,
):
    shutil.copytree(
        ROOT / "tests", editable.root / "tests", ignore=shutil.ignore_patterns("__pycache__")
    )
    apply("A measure per loop step", editable)
    editable.succeed("results/tiny/tables/loop_metrics.parquet")
    steps = table(editable, "tiny/trajectories/iteration_000020.parquet")
    assert steps.loc[steps["k"].between(1, 5), "step_ratio"].notna().any()
    assert steps.loc[steps["k"] == 0, "step_ratio"].isna().all()
    metrics = table(editable, "tiny/tables/loop_metrics.parquet")
    assert set(metrics.loc[metrics["measure"] == "step_ratio", "group"]) == {"2", "3"}
    tests = ("-k", "step_ratio", "tests/unit/test_measures.py")
    assert (
        "1 passed" in editable.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests).stdout
    )


def test_a_criterion_is_measured(editable):
    apply("An exit criterion", editable)
    editable.succeed("results/tiny/exits/exit/halving.quality.parquet")
    assert set(table(editable, "tiny/exits/exit/halving.quality.parquet")["threshold"]) == {
        0.1,
        0.5,
    }


def test_a_model_trains_a_segment_and_gives_trajectories(editable):
    apply("A model", editable)
    tiny = yaml.safe_load(TINY.read_text())
    one_segment = {"iterations": 10, "checkpoint_every": 10, "lr_decay_iterations": 10}
    editable.configure(
        **tiny | {"preset": "loop_embedding", "run": "tiny", "train": tiny["train"] | one_segment}
    )
    editable.succeed("results/tiny/trajectories/iteration_000010.parquet")
    assert table(editable, "tiny/trajectories/iteration_000010.parquet")["step_norm"].notna().any()
    assert (
        "train 0 -> 10"
        in (editable.root / "results/tiny/logs/train_segment_000010.log").read_text()
    )


def test_a_study_draws_its_figure_and_belongs_to_the_supplement_until_it_is_removed(editable):
    base = editable.root / "src/twoscale/base.py"
    names = base.read_text()
    before = editable.plan("supplementary")
    apply("A study", editable)
    added = {"measure_agreement": 1, "compare_agreement": 1, "plot_agreement": 1}
    assert editable.plan("supplementary") == before | added
    editable.succeed("results/agreement.pdf")
    assert (editable.root / "results/agreement.pdf").read_bytes().startswith(b"%PDF")
    shares = table(editable, "tiny/tables/agreement.parquet")
    assert set(shares["group"]) == {"2", "3"}
    assert (shares.loc[shares["k"] == 6, "agreement"] == 1).all()
    sequences = table(editable, "tiny/agreement/sequences.parquet")
    assert sequences["sequence"].nunique() == 2  # 64 tokens
    assert editable.plan("results/agreement.pdf") == {}
    shutil.rmtree(editable.root / AGREEMENT)
    base.write_text(names)
    assert editable.plan("supplementary") == before
