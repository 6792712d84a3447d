"""The jobs of the study and its figure: what they read, and which runs have none."""

import json

import pytest

from tests.small import job_row, of, project, without_projection
from twoscale.base import InputError
from twoscale.figures.catalogue import figures
from twoscale.studies.adapter_init.study import JOBS

STARTS = next(figure for figure in figures() if figure.name == "adapter_init")


def test_a_figure_that_compares_the_runs_of_a_study_reads_one_table_and_quotes_their_config():
    mine = project(adapter_init={"overrides": {"train": {"iterations": 10}}})
    assert mine.report.figure_inputs(STARTS) == {"adapter_init": ["results/tiny/tables/adapter_init.parquet"]}
    assert json.loads(mine.report.figure_slice(STARTS)({}))["runs"] == ["tiny"]
    assert mine.report.caption(STARTS)(of(), output=None)["config"].train.iterations == 10


def test_the_runs_of_the_starts_are_labelled_in_the_order_of_their_tables():
    mine = project(seeds=[5], adapter_init={"shares": [0.25]})
    assert job_row(JOBS, "compare_adapter_init").files(mine)["training"] == [
        f"results/{run}/tables/training.parquet" for run in mine.study("adapter_init")
    ]
    labels = json.loads(job_row(JOBS, "compare_adapter_init").config(mine)(of()))["runs"]
    assert [(label["share"], label["seed"]) for label in labels] == [(0.25, 1337), (0.25, 5), (None, 1337), (None, 5)]
    assert {(label["state_init"], label["sandwich"]) for label in labels} == {("noise", "post_residual")}


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ({"model": {"groups": []}}, "has 0 looped groups, expected at least 1"),
        (without_projection(), "has a model without a projection, expected model.injection: projection"),
    ],
)
def test_a_run_that_has_no_starts_says_why(user, problem):
    mine = project(**user)
    assert mine.report.figure_files("adapter_init") == []
    for refuse, name in (
        (job_row(JOBS, "compare_adapter_init").files(mine)["training"], "md"),
        (mine.report.figure_inputs(STARTS)["adapter_init"], "pdf"),
    ):
        with pytest.raises(InputError, match=rf"results/adapter_init\.{name}: run tiny {problem}\."):
            refuse(of())
