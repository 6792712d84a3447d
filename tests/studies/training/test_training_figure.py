"""The figure of training: what it shows of tables with known content, and its caption."""

import numpy as np
import pandas as pd
import pytest

from tests.figures import legend_texts, one_sentence, render_caption
from tests.studies.training.samples import draw, loops_table
from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.training import draw as drawing
from twoscale.studies.training.draw import sentence


def test_shows_every_iteration_its_running_mean_and_the_held_out_loss():
    figure = draw()
    assert figure.get_supxlabel() == "run demo · text python_docs · r = 2 mean loop steps"
    figure.draw_without_rendering()
    (top,) = figure.axes[0].child_axes
    assert top.get_xlabel() == "tokens seen"
    assert top.get_xlim() == pytest.approx((0, 2000))
    each, mean, held_out = figure.axes[0].get_lines()
    assert list(each.get_ydata()) == list(6 - 0.01 * np.arange(1, 101))
    known = np.isfinite(mean.get_ydata())
    assert 0 < known.sum() < 100  # no mean where the window reaches over an end
    np.testing.assert_allclose(mean.get_ydata()[known], 6 - 0.01 * mean.get_xdata()[known])
    measured = np.isfinite(held_out.get_ydata())
    assert list(held_out.get_xdata()[measured]) == [50, 100]


@pytest.mark.parametrize(("iterations", "width"), [(3, 5), (1000, 20), (60_000, 1200)])
def test_smooths_over_a_fiftieth_of_the_run_and_no_fewer_than_five_iterations(iterations, width):
    assert drawing.window(iterations) == width
    figure = draw(iterations=iterations)
    assert f"mean of {style.grouped(width)} iterations" in legend_texts(figure)


def test_shows_all_loop_counts_of_each_group_around_their_expectation():
    figure = draw()
    panels = figure.axes[3:5]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "(iv)  loop steps, group 4",
        "(v)  loop steps, group 5–6",
    ]
    for axes, group in zip(panels, ("4", "5-6"), strict=True):
        table = loops_table()
        drawn = table.loc[table["group"] == group, "loops"]
        assert list(axes.collections[0].get_offsets()[:, 1]) == list(drawn)
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] > 40  # the panels share an axis that reaches the largest count of any group
        assert list(axes.get_lines()[-1].get_ydata()) == [3, 3]
        (beside,) = axes.child_axes
        assert sum(bar.get_width() for bar in beside.patches) == len(drawn)
        assert beside.get_xlabel() == "iterations"
    assert "$r + 1 = 3$ loops" in legend_texts(figure)


def test_of_a_plain_model_says_nothing_of_loops():
    figure = draw(groups=())
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "(i)  loss",
        "(ii)  learning rate",
        "(iii)  gradient norm",
    ]
    caption = render_caption("training", {"model": {"groups": []}})
    assert not any("loop" in words for words in (*legend_texts(figure), figure.get_supxlabel(), caption))
    with pytest.raises(InputError, match=r"table training: .*expected at least") as error:
        draw(iterations=0)
    assert one_sentence(error)


@pytest.mark.parametrize(("first", "scale"), [(0.6, "linear"), (50.0, "log")])
def test_gradient_norm_is_logarithmic_only_where_it_spans_more_than_a_decade(first, scale):
    norms = np.r_[first, np.full(99, 0.5)]
    axes = draw(gradient_norm=norms).axes[2]
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < 1.0 < high  # where gradients are cut


def test_the_report_has_the_last_held_out_loss():
    table = pd.DataFrame({"iteration": [10, 20, 30], "held_out_loss": [5.0, 4.5, None]})
    assert sentence(table) == "Held-out loss 4.500 nats per token after 20 iterations."
