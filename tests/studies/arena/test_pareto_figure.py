"""The figure of quality against cost: what it shows of tables with known content, and its caption."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from tests.figures import LOOPS, RUN, exit_tables, legend_texts, one_sentence, render_caption
from tests.studies.arena.samples import draw_pareto
from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.arena import figure_pareto as pareto


def test_there_is_a_line_per_criterion_with_all_loop_steps_at_zero():
    figure = draw_pareto()
    for axes in figure.axes:
        lines = [container.lines[0] for container in axes.containers]
        assert len(lines) == 3  # fixed, KL, mine
        for line in lines:
            np.testing.assert_allclose(
                line.get_ydata(orig=False), 0, atol=1e-12
            )  # all criteria of this table have one CE
    assert set(figure.axes[0].containers[0].lines[0].get_xdata()) == {30.0}  # median latency
    assert legend_texts(figure) == ["KL", "mine", "fixed loops"]
    assert figure.axes[0].get_ylabel().startswith(f"cross-entropy above that of {LOOPS} loops")


def test_criteria_of_other_papers_are_one_line_and_a_panel_has_six_at_most():
    others = ("cosine", "entropy", "confidence", "margin", "minp_kl")
    figure = draw_pareto(("fixed", *others, *style.CRITERION_COLOURS, "mine"))
    for axes in figure.axes:
        colours = {to_rgb(container.lines[0].get_color()) for container in axes.containers}
        assert colours == {to_rgb(c) for c in (*style.CRITERION_COLOURS.values(), style.BLACK, style.PURPLE)}
    assert legend_texts(figure)[-1] == "best of 5 other criteria"
    assert len(legend_texts(figure)) <= 6


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), min_size=1, max_size=30))
def test_the_frontier_is_the_set_of_points_that_no_other_point_beats(points):
    cost, excess = pareto.frontier(*(pd.Series(values, dtype=float) for values in zip(*points, strict=True)))
    beaten = {(x, y) for x, y in points for other in points if other != (x, y) and other[0] <= x and other[1] <= y}
    assert set(zip(cost, excess, strict=True)) == set(points) - beaten
    assert sorted(cost) == list(cost)


def test_tables_without_rows_are_refused_in_one_sentence():
    latency, quality, loops, _ = exit_tables()
    for draw in (
        lambda: pareto.draw(latency[:0], quality, loops, **RUN),
        lambda: pareto.draw(latency, quality[:0], loops, **RUN),
    ):
        with pytest.raises(InputError, match="expected at least") as error:
            draw()
        assert one_sentence(error)


def test_the_caption_says_nothing_of_slots_where_none_are_shared():
    assert "loop steps share 3 slots" in render_caption("pareto", {"exits": {"kv_slots": 3}})
    assert "share" not in render_caption("pareto")
