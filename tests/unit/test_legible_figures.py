"""What a reader needs of every figure: letters of 6 pt, ticks that do not touch, colours that differ."""

import itertools
import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

from tests.figures import CATALOGUE, LOOPS, RUN, draw
from twoscale.figures import style

PAPER_WIDTH = 7  # inches
SEVEN, THIRTEEN = ([0, *range(50, 50 + 50 * n, 50)] for n in (7, 13))  # checkpoints

# Machado, Oliveira and Fernandes (2009), severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
# Linear RGB to XYZ of sRGB (IEC 61966-2-1).
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour):
    """Linear RGB (3,) of a colour."""
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(colour):
    """Contrast with white (WCAG 2)."""
    return 1.05 / (XYZ[1] @ linear(colour) + 0.05)


def lab(colour, vision):
    """CIELAB (3,) of a colour as seen with this vision."""
    xyz = XYZ @ np.clip(VISION[vision] @ linear(colour), 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one, other, vision):
    """Distance in CIELAB; 2.3 is just noticeable between large areas."""
    return np.linalg.norm(lab(one, vision) - lab(other, vision))


def shades(iterations):
    """Colours of the trained checkpoints."""
    palette = style.checkpoint_palette(iterations, RUN["context"])
    return [palette[iteration]["color"] for iteration in iterations if iteration > 0]


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Every figure of the catalogue by name, with its final layout; none leaves global state."""
    before = dict(mpl.rcParams)
    drawn = {name: draw(name, tmp_path_factory.mktemp(name)) for name in CATALOGUE}
    assert dict(mpl.rcParams) == before
    for figure in drawn.values():
        with style.look():
            figure.draw_without_rendering()
    return drawn


def letters(text):
    """Sizes in points of the letters of a text, with those of its formulas."""
    if not text.get_parse_math() or "$" not in text.get_text().replace(r"\$", ""):
        return [text.get_fontsize()]
    parsed = MathTextParser("path").parse(text.get_text(), dpi=72, prop=text.get_fontproperties())
    return [glyph[1] for glyph in parsed.glyphs]


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_figure_names_its_run_text_and_loops(name, figures):
    label = figures[name].get_supxlabel()
    assert re.fullmatch(r"run (demo|trial) · text (python_docs|text) · (K|r) = [0-9. …]+ (mean )?loop steps", label)
    if re.fullmatch(r"fig\d", name):
        assert label == f"run demo · text python_docs · K = {LOOPS} loop steps"


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_letter_of_a_figure_in_the_width_of_a_paper_is_smaller_than_six_points(name, figures):
    assert figures[name].get_figwidth() <= PAPER_WIDTH
    texts = [text for text in figures[name].findobj(Text) if text.get_visible() and text.get_text().strip()]
    small = {text.get_text(): min(letters(text)) for text in texts if min(letters(text)) < style.LEAST_FONT - 1e-6}
    assert len(texts) > 5
    assert not small


@pytest.mark.parametrize("name", CATALOGUE)
def test_labels_of_ticks_do_not_touch(name, figures):
    for axes in figures[name].axes:
        for axis, (low, high) in ((axes.xaxis, ("x0", "x1")), (axes.yaxis, ("y0", "y1"))):
            labels = [label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()]
            boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: getattr(box, low))
            for first, second in itertools.pairwise(boxes):
                assert getattr(first, high) < getattr(second, low)


@pytest.mark.parametrize("iterations", [(0, 50, 100, 200, 400, 600, 800, 1000), THIRTEEN, range(0, 60_001, 5000), (7,)])
def test_labels_of_the_axis_of_iterations_do_not_touch_in_the_narrowest_panel(iterations):
    with style.look():
        figure = style.new_figure(style.DOUBLE, 2, RUN["context"])
        axes = figure.subplots(1, 3)[0]
        axes.set_ylabel("label")
        places = style.scale_iterations(axes, list(iterations), RUN["context"])
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert list(places) == sorted(iterations)
    assert "log" in axes.get_xlabel()
    assert all(first.x1 < second.x0 for first, second in itertools.pairwise(boxes))


@pytest.mark.parametrize("colour", [*style.COLOURS, style.OTHERS, *shades(SEVEN), *shades(THIRTEEN)])
def test_colours_of_lines_stand_out_from_white(colour):
    assert contrast(colour) >= 3


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_the_palette_differ_under_colour_blindness(vision):
    pairs = itertools.combinations([*style.COLOURS], 2)
    assert min(distance(*pair, vision) for pair in pairs) > 15


@pytest.mark.parametrize("vision", VISION)
def test_successive_checkpoints_differ_under_colour_blindness(vision):
    assert min(distance(*pair, vision) for pair in itertools.pairwise(shades(SEVEN))) > 12


def test_successive_checkpoints_darken_however_many_there_are():
    for iterations in (SEVEN, THIRTEEN):
        lightness = [lab(shade, "normal")[0] for shade in shades(iterations)]
        assert lightness == sorted(lightness, reverse=True)


@pytest.mark.parametrize(
    ("value", "printed"), [(1e-5, "1e-5"), (0.01, "1e-2"), (0.2, "0.2"), (1, "1"), (5000, "5000"), (-0.01, "−1e-2")]
)
def test_powers_of_ten_are_printed_without_an_exponent_above_the_line(value, printed):
    assert style.power_name(value) == printed
