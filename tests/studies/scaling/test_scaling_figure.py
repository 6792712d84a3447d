"""The figure of quality against loops: what it shows of a table with known content."""

import pytest

from tests.figures import legend_texts, one_sentence, render_caption
from tests.studies.scaling.samples import draw, scaling_table
from twoscale.base import InputError
from twoscale.config import checked, preset
from twoscale.figures import style
from twoscale.studies.scaling import figure as scaling


def test_there_is_a_line_with_band_per_checkpoint_and_marks_the_loops_of_training():
    figure = draw()
    quality, excess = figure.axes
    assert [len(axes.collections) for axes in figure.axes] == [3, 3]
    assert list(quality.get_lines()[1].get_ydata()) == pytest.approx([10, 9.5, 9 + 1 / 6])
    assert list(excess.get_lines()[2].get_ydata()) == pytest.approx([0.1, 0.05, 0.1 / 6])
    assert legend_texts(figure) == ["0 (untrained)", "50", "600", "trained: 3 loops"]
    assert figure.get_supxlabel().endswith("K = 6 loop steps")


def test_the_loops_of_a_published_model_are_not_called_those_of_training():
    context = style.FigureContext("huginn", "text", 6, published=True)
    table = scaling_table()
    figure = scaling.draw(table[table["iteration"] == 0], mean_loops=3, context=context)
    assert legend_texts(figure)[-1] == "published: 3 loops"
    assert "loop count in training" not in render_caption("scaling", {"preset": "ouro-1.4b"})


def test_an_untrained_model_far_above_the_others_is_a_number_in_the_panel_of_perplexity():
    table = scaling_table()
    assert not draw(table).axes[0].texts
    table.loc[table["iteration"] == 0, "ppl"] = 5000.0
    quality = draw(table).axes[0]
    assert [text.get_text() for text in quality.texts] == [f"untrained: {style.grouped(5000)} (above)"]
    assert quality.get_ylim()[1] < 100


def test_a_table_without_rows_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="expected at least") as error:
        draw(scaling_table(iterations=()))
    assert one_sentence(error)


def test_the_caption_has_the_values_of_the_config():
    config = checked(preset("demo"))
    caption = render_caption("scaling")
    assert f"Computed in {config.scaling.dtype}." in caption
    assert f"{config.sequences('scaling') * config.model.context_length} tokens" in caption
