"""The sections of the study and its grid of thresholds."""

import pytest

from tests import configs, small
from tests.figures import render_caption
from twoscale import config
from twoscale.config.loading import paper as paper_values
from twoscale.figures.catalogue import figures


@pytest.mark.parametrize(
    ("key", "found", "section"),
    [
        ("data.held_out_tokens", "pareto.quality_tokens", {"quality_tokens": 1_000_448}),
        ("data.held_out_tokens", "pareto.latency_repeats", {"latency_repeats": 5000}),
        ("pareto.latency_tokens", "513", {"latency_tokens": 513}),
    ],
)
def test_text_that_is_too_short_for_the_benchmark_is_refused(key, found, section):
    configs.assert_refused(key, found, pareto=section)


def test_the_dense_benchmark_has_every_criterion_and_the_loop_counts_up_to_the_maximum():
    mine = {"thresholds": [1.0], "file": "my.py", "class": "My"}
    exits = {"max_loops": 10, "criteria": {"fixed": {"thresholds": [10]}, "mine": mine}}
    dense = configs.paper(exits=exits, scaling={"loops": [4, 1, 64, 2, 1]}).exit_grids["pareto"]
    expected = paper_values()["pareto"]["criteria"] | {"mine": mine, "fixed": {"thresholds": [1, 2, 4, 10]}}
    assert config.plain(dense)["criteria"] == expected
    assert (dense.max_loops, dense.latency_repeats) == (10, paper_values()["pareto"]["latency_repeats"])


@pytest.mark.parametrize(("cores", "threads"), [(None, 1), (2, 1), (11, 2), (32, 6)])
def test_the_quality_jobs_of_all_criteria_of_the_grid_share_the_cores(cores, threads):
    """The tiny preset has five criteria on the grid."""
    project = small.project()
    assert len(project.config.exit_grids["pareto"].criteria) == 5
    assert project.resources.exit_threads(cores, "pareto")(small.of()) == threads


def test_the_figure_of_quality_against_latency_reads_the_tables_of_the_dense_grid():
    figure = next(figure for figure in figures() if figure.name == "pareto")
    assert small.project().report.figure_inputs(figure)["exit_loops"] == ["results/tiny/tables/pareto_loops.parquet"]


def test_the_caption_has_the_sizes_of_the_benchmark():
    run = config.checked(config.preset("demo"))
    caption = render_caption("pareto")
    assert f"{run.pareto.quality_tokens} held-out tokens" in caption
    assert f"medians over {run.pareto.latency_repeats} repeats" in caption
