"""The supplementary figures of quality against loops: what they show of tables with known content."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from tests.unit.test_figures import LOOPS, RUN, exit_tables, legend_texts, one_sentence
from twoscale import tables
from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.studies.arena import figure_pareto as pareto
from twoscale.studies.scaling import figure as scaling


def scaling_table(iterations=(0, 50, 600), loops=(1, 2, 6)):
    rows = [
        {"iteration": iteration, "loops": n, "ppl": 9.0 + 1 / n, "ppl_low": 8.0, "ppl_high": 11.0}
        | {"excess": 0.1 / n, "excess_low": 0.0, "excess_high": 0.2}
        for iteration in iterations
        for n in loops
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("scaling")))


def uniform_table():
    return pd.DataFrame({"tokens": [100, 300], "loops": [2.0, 4.0], "ce": [3.0, 5.0]})


def pareto_figure(criteria=("fixed", "kl", "mine")):
    return pareto.draw(*exit_tables(criteria), uniform_table(), **RUN)


def test_scaling_has_a_line_with_band_per_checkpoint_and_marks_the_loops_of_training():
    figure = scaling.draw(scaling_table(), mean_loops=3, **RUN)
    quality, excess = figure.axes
    assert [len(axes.collections) for axes in figure.axes] == [3, 3]
    assert list(quality.get_lines()[1].get_ydata()) == pytest.approx([10, 9.5, 9 + 1 / 6])
    assert list(excess.get_lines()[2].get_ydata()) == pytest.approx([0.1, 0.05, 0.1 / 6])
    assert legend_texts(figure) == ["0 (untrained)", "50", "600", "trained: 3 loops"]
    assert figure.get_supxlabel().endswith("K = 6 loop steps")


def test_pareto_has_a_line_per_criterion_with_all_loop_steps_at_zero():
    figure = pareto_figure()
    for axes in figure.axes:
        lines = [container.lines[0] for container in axes.containers]
        assert len(lines) == 3  # fixed, KL, mine
        for line in lines:
            np.testing.assert_allclose(
                line.get_ydata(orig=False), 0, atol=1e-12
            )  # all criteria of this table have one CE
    assert set(figure.axes[0].containers[0].lines[0].get_xdata()) == {30.0}  # median latency
    others = ["fixed loops", "frontier of all points", "fewest loops that settle the token"]
    others += ["light: random exits, as many loops"]
    assert legend_texts(figure) == ["KL", "mine", *others]
    assert figure.axes[0].get_ylabel().startswith(f"cross-entropy above that of {LOOPS} loops")


def test_built_in_criteria_of_other_papers_are_grey_in_the_pareto_figure_and_one_of_the_user_is_not():
    axes = pareto_figure(("fixed", "cosine", "acceleration", "mine")).axes[0]
    colours = {to_rgb(container.lines[0].get_color()) for container in axes.containers}
    assert colours == {to_rgb(c) for c in (style.BLACK, style.IN_GREY["color"], style.GREEN, style.PURPLE)}


def test_the_random_exits_of_criteria_in_colour_are_in_the_panel_of_loops():
    times, loops = pareto_figure(("fixed", "cosine", "kl", "mine")).axes
    light = [
        [line for line in one.get_lines() if line.get_alpha() == style.RANDOM_EXITS["alpha"]] for one in (times, loops)
    ]
    assert [len(lines) for lines in light] == [0, 2]
    for line in light[1]:
        assert list(line.get_xdata()) == pytest.approx(3 * [3.5])
        assert list(line.get_ydata()) == pytest.approx(3 * [0.2])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), min_size=1, max_size=30))
def test_the_frontier_is_the_set_of_points_that_no_other_point_beats(points):
    cost, excess = pareto.frontier(*(pd.Series(values, dtype=float) for values in zip(*points, strict=True)))
    beaten = {(x, y) for x, y in points for other in points if other != (x, y) and other[0] <= x and other[1] <= y}
    assert set(zip(cost, excess, strict=True)) == set(points) - beaten
    assert sorted(cost) == list(cost)


def test_an_untrained_model_far_above_the_others_is_a_number_in_the_panel_of_perplexity():
    table = scaling_table()
    assert not scaling.draw(table, mean_loops=3, **RUN).axes[0].texts
    table.loc[table["iteration"] == 0, "ppl"] = 5000.0
    quality = scaling.draw(table, mean_loops=3, **RUN).axes[0]
    assert [text.get_text() for text in quality.texts] == [f"untrained: {style.grouped(5000)} (above)"]
    assert quality.get_ylim()[1] < 100


def test_the_star_of_the_pareto_figure_is_weighted_by_tokens_and_has_no_latency():
    times, loops = pareto_figure().axes
    stars = {axes: [line for line in axes.get_lines() if line.get_marker() == "*"] for axes in (times, loops)}
    assert not stars[times]
    (star,) = stars[loops]
    assert star.get_xdata() == pytest.approx([3.5])
    assert star.get_ydata() == pytest.approx([4.5 - 3.75])


def test_tables_without_rows_are_refused_in_one_sentence():
    latency, quality, *further = exit_tables()
    for draw in (
        lambda: scaling.draw(scaling_table(iterations=()), mean_loops=3, **RUN),
        lambda: pareto.draw(latency[:0], quality, *further, uniform_table(), **RUN),
        lambda: pareto.draw(latency, quality, *further, uniform_table()[:0], **RUN),
    ):
        with pytest.raises(InputError, match="expected at least") as error:
            draw()
        assert one_sentence(error)
