"""The sections of the study and its grid of thresholds."""

import pytest

from tests import small
from twoscale import config
from twoscale.config.loading import paper as paper_values


@pytest.mark.parametrize(
    ("key", "found", "section"),
    [
        ("data.held_out_tokens", "pareto.quality_tokens", {"quality_tokens": 1_000_448}),
        ("data.held_out_tokens", "pareto.latency_repeats", {"latency_repeats": 5000}),
        ("pareto.latency_tokens", "513", {"latency_tokens": 513}),
    ],
)
def test_text_that_is_too_short_for_the_benchmark_is_refused(key, found, section):
    small.assert_refused(key, found, pareto=section)


def test_the_dense_benchmark_has_every_criterion_and_the_loop_counts_up_to_the_maximum():
    mine = {"thresholds": [1.0], "file": "my.py", "class": "My"}
    exits = {"max_loops": 10, "criteria": {"fixed": {"thresholds": [10]}, "mine": mine}}
    dense = small.paper(exits=exits, scaling={"loops": [4, 1, 64, 2, 1]}).exit_grids["pareto"]
    expected = paper_values()["pareto"]["criteria"] | {"mine": mine, "fixed": {"thresholds": [1, 2, 4, 10]}}
    assert config.plain(dense)["criteria"] == expected
    assert (dense.max_loops, dense.latency_repeats) == (10, paper_values()["pareto"]["latency_repeats"])
