"""The figure of the variants: what it shows of tables with known content."""

import pytest
from matplotlib.colors import to_rgb

from tests.figures import LOOPS, ranges, render_caption
from tests.studies.variants.samples import RUNS, draw
from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.variants import figure as variants


def test_the_last_checkpoint_of_every_variant_has_a_line_in_every_panel():
    figure = draw()
    for axes in figure.axes[:4]:
        lines = [list(line.get_ydata()) for line in axes.get_lines()]
        assert lines == [[400 + place + k for k in range(LOOPS)] for place in range(len(RUNS))]
    loss = figure.axes[5].get_lines()
    assert [list(line.get_xdata()) for line in loss] == [[1, 3, 5]] * len(RUNS)


def test_the_drift_is_that_of_the_reference_state():
    marks = [line for line in draw().axes[4].get_lines() if line.get_marker() != "None"]
    assert [list(line.get_ydata()) for line in marks] == [[3.0]] * len(RUNS)


def test_sandwich_and_adapter_share_a_colour_and_the_initial_state_a_dash():
    looks = list(variants.styles(RUNS).values())
    assert to_rgb(looks[0]["color"]) == to_rgb(looks[1]["color"]) != to_rgb(looks[2]["color"])
    assert looks[0]["linestyle"] == looks[2]["linestyle"] != looks[1]["linestyle"]


def test_the_range_of_the_paper_is_visible():
    low, high = draw().axes[0].get_ylim()
    assert low <= style.REPORTED_COSINE[0] < style.REPORTED_COSINE[1] <= high


def test_one_group_has_no_boundary_and_no_group_no_figure():
    assert len(draw(groups=("3-6",), boundaries=()).axes) == 3
    with pytest.raises(InputError, match="expected at least one"):
        draw(groups=(), boundaries=())


def test_variants_under_several_seeds_are_means_with_the_range_and_a_mark_of_each():
    figure = draw(runs=(RUNS[0], f"{RUNS[0]}-seed5"))
    (line,) = figure.axes[0].get_lines()
    assert list(line.get_ydata()) == [400.5 + k for k in range(LOOPS)]
    assert ranges(figure.axes[0]) == [(400, 401 + LOOPS - 1)]
    seeds_of_ratio = [line for line in figure.axes[4].get_lines() if line.get_marker() == "_"]
    assert [list(line.get_ydata()) for line in seeds_of_ratio] == [[3.0, 3.0]]
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["post-residual, random, noise", style.REPORTED_LABEL]


def test_a_run_under_another_seed_is_of_the_same_variant_and_looks_like_it():
    run = RUNS[0]
    assert variants.variant(f"{run}-seed12") == variants.variant(run) == "post_residual-random-noise"
    looks = variants.styles([run, f"{run}-seed12"])
    assert [to_rgb(look["color"]) for look in looks.values()] == [to_rgb(style.BLUE)]


def test_the_caption_counts_the_variants():
    assert "trained 8 times" in render_caption("variants")
