"""The figure of path independence: what it shows of tables with known content."""

import pytest

from tests.figures import ITERATIONS, render_caption
from tests.studies.path_independence.samples import draw
from twoscale.base import InputError
from twoscale.config import checked, preset


def test_there_is_a_line_per_varied_group_and_the_share_of_changed_predictions():
    figure = draw()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["group 4", "group 5–6", "all groups"]
    distance, divergence, changed = figure.axes
    assert distance.get_yscale() == divergence.get_yscale() == "log"
    assert list(distance.get_lines()[0].get_ydata()) == [3.0] * len(ITERATIONS)
    assert list(changed.get_lines()[0].get_ydata()) == [0.25] * len(ITERATIONS)


def test_rounding_errors_are_drawn_at_the_edge_of_a_marked_range():
    floor = 16 * 2.0**-52
    figure = draw(q05=0.0, q50=1e-16)
    distance = figure.axes[0]
    assert list(distance.get_lines()[0].get_ydata()) == [floor] * len(ITERATIONS)
    low, high = distance.patches[0].get_y(), distance.patches[0].get_y() + distance.patches[0].get_height()
    assert low < high == pytest.approx(floor)
    assert distance.get_ylim()[0] < floor
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries[-1] == "rounding errors, below 4e-15"
    assert not draw().axes[0].patches


def test_a_model_without_groups_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="expected at least one"):
        draw(groups=())


def test_the_caption_has_the_values_of_the_config():
    config = checked(preset("demo"))
    tokens = config.sequences("path_independence") * config.model.context_length
    assert f"The same {tokens} held-out tokens" in render_caption("path_independence")
