"""The figure of training: what it shows of tables with known content, and its caption."""

import pytest

from tests.figures import legend_texts, one_sentence, render_caption
from tests.studies.training.samples import draw
from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.training import draw as drawing


@pytest.mark.parametrize(("iterations", "width"), [(3, 5), (1000, 20), (60_000, 1200)])
def test_smooths_over_a_fiftieth_of_the_run_and_no_fewer_than_five_iterations(iterations, width):
    assert drawing.window(iterations) == width
    figure = draw(iterations=iterations)
    assert f"mean of {style.grouped(width)} iterations" in legend_texts(figure)


def test_of_a_plain_model_says_nothing_of_loops():
    figure = draw(groups=())
    assert len(figure.axes) == 3
    caption = render_caption("training", {"model": {"groups": []}})
    assert not any(
        "loop" in words for words in (*legend_texts(figure), figure.get_supxlabel(), caption)
    )
    with pytest.raises(InputError, match=r"table training: .*expected at least") as error:
        draw(iterations=0)
    assert one_sentence(error)
