"""The figure of quality against cost: what it shows of tables with known content; the sections of
the study.
"""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import configs
from tests.figures import RUN, exit_tables, one_sentence
from twoscale import config
from twoscale.base import InputError
from twoscale.config.loading import paper as paper_values
from twoscale.studies.arena import draw


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), min_size=1, max_size=30))
def test_the_frontier_is_the_set_of_points_that_no_other_point_beats(points):
    cost, excess = draw.frontier(
        *(pd.Series(values, dtype=float) for values in zip(*points, strict=True))
    )
    beaten = {
        (x, y)
        for x, y in points
        for other in points
        if other != (x, y) and other[0] <= x and other[1] <= y
    }
    assert set(zip(cost, excess, strict=True)) == set(points) - beaten
    assert sorted(cost) == list(cost)


def test_tables_without_rows_are_refused_in_one_sentence():
    for empty in (0, 1):
        with pytest.raises(InputError, match="expected at least") as error:
            draw.draw_pareto(
                *(t[:0] if i == empty else t for i, t in enumerate(exit_tables()[:3])), **RUN
            )
        assert one_sentence(error)


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
    expected = paper_values()["pareto"]["criteria"] | {
        "mine": mine,
        "fixed": {"thresholds": [1, 2, 4, 10]},
    }
    assert config.plain(dense)["criteria"] == expected
    assert (dense.max_loops, dense.latency_repeats) == (
        10,
        paper_values()["pareto"]["latency_repeats"],
    )
