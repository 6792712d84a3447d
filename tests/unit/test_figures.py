"""Figures: what they show of tables with known content, and what they are as files."""

import inspect
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from docutils.core import publish_doctree
from matplotlib.colors import to_rgb
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text
from safetensors.numpy import save_file

from tests.figures import (
    CATALOGUE,
    HELD_OUT,
    LOOPS,
    RUN,
    Drawings,
    assert_the_same_bytes,
    caption_source,
    draw,
    draw_elsewhere,
    drift_table,
    exit_tables,
    legend_texts,
    loop_metrics,
    one_sentence,
    paths_of,
    render_caption,
    saved_states,
    sites,
    under_seeds,
)
from twoscale.base import InputError
from twoscale.claims.verdicts import CLAIMS
from twoscale.config import PROJECT, Config, checked, merge, preset, text_label
from twoscale.dynamics.state_paths import read_states
from twoscale.figures import fig1, fig2, fig3, fig4, fig5, style
from twoscale.jobs import command

PAPER = ("fig1", "fig2", "fig3", "fig4", "fig5")
DISTINCT = (
    "fig1",
    "fig3",
    "fig4",
)  # every kind of mark; Figures 2 and 5 consist of those of Figure 3


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Figures drawn by another process: its folder, and whether it loaded torch."""
    folder = tmp_path_factory.mktemp("elsewhere")
    return folder, draw_elsewhere(folder, *DISTINCT)


@pytest.mark.parametrize("name", DISTINCT)
def test_the_same_tables_give_the_same_bytes_in_another_process_with_fonts_embedded(
    name, tmp_path, elsewhere
):
    assert_the_same_bytes(name, tmp_path, elsewhere[0])


def test_figures_need_no_torch(elsewhere):
    assert elsewhere[1] is False


def test_png_is_written_at_300_dots_per_inch_and_other_kinds_are_refused(tmp_path):
    figure = draw("fig2", tmp_path)
    style.save(figure, tmp_path / "f.png")
    width = int.from_bytes((tmp_path / "f.png").read_bytes()[16:20], "big")
    assert width == pytest.approx(300 * style.SINGLE, abs=1)
    with pytest.raises(InputError) as error:
        style.save(figure, tmp_path / "f.jpg")
    assert one_sentence(error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.png"]


def test_checkpoints_darken_over_training_and_the_untrained_model_is_dashed_grey():
    styles = style.checkpoint_palette([600, 0, 50, 200], RUN["context"])
    assert list(styles) == [0, 50, 200, 600]
    for iterations in ((50, 200, 600), SEVEN, THIRTEEN):
        lightness = [lab(shade, "normal")[0] for shade in shades(iterations)]
        assert lightness == sorted(lightness, reverse=True)
    assert styles[0]["linestyle"] != "-"
    assert len(set(to_rgb(styles[0]["color"]))) == 1


def test_checkpoints_can_be_told_apart_in_grey():
    """By a marker each; that of a line's end is none of them."""
    styles = style.checkpoint_palette(range(0, 500, 50), RUN["context"])
    markers = [styles[iteration].get("marker", "") for iteration in styles]
    assert markers[0] == markers[-1] == ""  # dashed, and thick
    assert len({*markers[1:-1]} - {"x", "X"}) == len(markers) - 2
    shown = fig5.draw(loop_metrics(), **RUN).axes[0].get_lines()[1]
    assert shown.get_marker() == styles[50]["marker"]
    assert shown.get_markevery() is not None


def test_criteria_have_the_colours_of_the_paper_and_no_two_look_alike():
    others = [
        "step_norm_relative",
        "acceleration_normalized",
        "entropy_diff",
        "cosine",
        "argmax_stability",
        "mine",
    ]
    styles = style.criterion_styles(["acceleration", "fixed", "kl", "step_norm", *others])
    hues = {
        name: np.argmax(to_rgb(styles[name]["color"]))
        for name in ("step_norm", "acceleration", "kl")
    }
    assert hues == {"step_norm": 2, "acceleration": 1, "kl": 0}  # blue, green, orange: red leads
    assert "fixed" not in styles
    assert len({look["marker"] for look in styles.values()}) == len(styles)


@pytest.mark.parametrize(
    ("token", "word"),
    [(" the", "the"), ("  ", "␣␣"), ("\n", "↵"), ("a\x00", "a\ufffd"), ("-" * 64, "-" * 11 + "…")],
)
def test_fig1_tokens_are_printed_as_short_visible_words(token, word):
    assert fig1.printable(token) == word


@pytest.mark.parametrize(
    ("tokens", "nearest"),
    [
        ([" the", " com", "pression", " API", ",", " end"], 3),  # "com" goes on with a letter
        (["_", "com", "pression", "\n"], 2),
        ([" one", "\n", "."], 0),
    ],
)
def test_fig1_names_the_nearest_whole_word(tokens, nearest):
    assert fig1.nearest_word(tokens, 2) == nearest


@pytest.mark.parametrize("module", [fig3, fig5])
def test_points_that_most_tokens_do_not_have_are_left_out_and_the_end_of_their_line_is_marked(
    module,
):
    table = loop_metrics(groups=("4",))
    late = (table["k"] >= 4) & (table["measure"] == "cosine") & (table["iteration"] == 50)
    table.loc[late, ["count", "nulls"]] = (4, 6)
    figure = module.draw(table, **RUN)
    lines = figure.axes[-1].get_lines()
    assert [list(lines[place].get_xdata()) for place in (1, -1)] == [[1, 2, 3], [3]]
    assert style.END_LABEL in legend_texts(figure)
    assert style.END_LABEL not in legend_texts(module.draw(loop_metrics(), **RUN))


@pytest.mark.parametrize(("reading", "norm"), [("state", 8.0), ("direction", 1.0)])
def test_fig3_shows_every_loop_step_and_up_to_which_norm_a_step_is_rounding(reading, norm):
    table = of_directions(loop_metrics())
    figure = fig3.draw(table, reading=reading, dtype="float32", **RUN)
    assert {axes.get_xlim() for axes in figure.axes} == {(0, LOOPS - 1)}
    floor = figure.axes[0].get_lines()[-1]
    assert list(floor.get_ydata()) == pytest.approx([16 * 2**-23 * norm] * LOOPS)
    assert "rounding floor, float32" in legend_texts(figure)
    unknown = fig3.draw(table, reading=reading, **RUN)
    assert not any("rounding floor" in text for text in legend_texts(unknown))


def test_the_rounding_floor_of_fig3_is_that_of_the_last_checkpoint():
    table = loop_metrics()
    of_last = (table["measure"] == "state_norm") & (table["iteration"] == table["iteration"].max())
    assert table["iteration"].nunique() > 1
    table.loc[of_last, "mean"] *= 3
    floor = fig3.draw(table, dtype="float32", **RUN).axes[0].get_lines()[-1]
    assert list(floor.get_ydata()) == pytest.approx([16 * 2**-23 * 24.0] * LOOPS)


@pytest.mark.parametrize("module", [fig3, fig5])
def test_a_band_of_cosines_does_not_leave_their_range_and_one_of_norms_stays_above_zero(module):
    table = loop_metrics().assign(std=100.0)
    bands = [axes.collections[-1].get_paths()[0] for axes in module.draw(table, **RUN).axes]
    ends = [(band.vertices[:, 1].min(), band.vertices[:, 1].max()) for band in bands]
    assert ends[-2:] == [(-1, 1)] * 2
    assert all(low > 0 for low, _ in ends[:-2])


def test_fig4_has_the_panels_of_the_paper_with_controls_and_the_third_is_a_change():
    figure = fig4.draw(*exit_tables(("fixed", "kl", "step_norm")), **RUN)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["(i)  latency", "(ii)  perplexity", "(iii)  cross-entropy"]
    values = {"control": (17.0, np.exp(3.95), 0.2), "criterion": (30.0, np.exp(3.75), 0.0)}
    for axes, control, criterion in zip(figure.axes, *values.values(), strict=True):
        lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
        controls, criteria = lines[:2], [line for line in lines if line.get_marker() in "os"]
        assert [line.get_ydata()[0] for line in controls] == pytest.approx([control] * 2)
        assert [line.get_ydata()[0] for line in criteria] == pytest.approx([criterion] * 2)


def test_fig4_draws_computed_times_as_lines_and_measured_ones_as_points():
    """5.5 ms outside loops, 3 evaluations of 1 + 2 ms and 4.5 of 2 + 2 ms; 30 ms were measured."""
    *others, costs = exit_tables(("fixed", "kl"))
    for table, computed, bare in ((costs, 32.5, 17.0), (costs[:0], 30.0, 29.0)):
        figure = fig4.draw(*others, table, **RUN)
        axes = figure.axes[0]
        (legend,) = figure.legends
        explained = {text.get_text() for text in legend.get_texts()}
        times = {"(i) line: computed", "(i) points: measured"}
        assert explained & times == (set() if table.empty else times)
        curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
        lines = [line.get_ydata() for line in curves if line.get_linestyle() != "None"]
        points = [line.get_ydata() for line in curves if line.get_linestyle() == "None"]
        expected = [pytest.approx([bare] * 3), pytest.approx([computed] * 3)]
        assert [list(values) for values in lines] == expected
        assert [30.0] * 3 in [list(values) for values in points]  # others are the ends of bars


def test_fig4_sets_the_bars_of_criteria_with_the_same_threshold_apart():
    axes = fig4.draw(*exit_tables(), **RUN).axes[0]
    at_first = sorted({bars.get_segments()[0][0, 0] for bars in axes.collections})
    assert len(at_first) == 3
    assert at_first[1] == pytest.approx(1e-5)
    assert np.diff(np.log10(at_first)) == pytest.approx(0.15)


def test_fig4_shows_losses_of_whole_nats_and_of_thousandths():
    latency, quality, *others = exit_tables(("fixed", "kl"))
    quality.loc[(quality["criterion"] == "kl") & (quality["threshold"] == 1e-2), "ce"] += 4.0
    perplexity, change = fig4.draw(latency, quality, *others, **RUN).axes[1:]
    assert (perplexity.get_yscale(), change.get_yscale()) == ("log", "symlog")
    assert change.get_ylim()[1] > 4


def test_fig5_covers_all_loop_steps_and_marks_the_range_of_the_paper_for_states(tmp_path):
    figure = draw("fig5", tmp_path)
    assert len(figure.axes) == 2
    assert figure.axes[0].get_xlim() == (1, LOOPS - 1)
    for reading, marked in (("state", True), ("direction", False)):
        figure = fig5.draw(of_directions(loop_metrics()), reading=reading, **RUN)
        assert (style.REPORTED_LABEL in legend_texts(figure)) is marked
        for name in ("fig3", "fig5"):
            written = render_caption(name, {"figures": {"reading": reading}})
            assert ("hatched range" in written) is marked


@pytest.mark.parametrize(
    ("data", "label"),
    [
        ({"source": "fineweb"}, "FineWeb sample-10BT"),
        ({"source": "parquet", "path": "/data/books"}, "parquet files in books/"),
        ({"source": "jsonl", "path": "/data/books.jsonl"}, "books.jsonl"),
    ],
)
def test_figures_name_the_text_by_its_source_and_not_only_by_a_folder(data, label):
    assert text_label(checked(merge(preset("demo"), {"data": data})).data) == label


def of_directions(table):
    """The table "loop_metrics" with the measures of directions, a tenth of those of states."""
    rows = table.assign(measure="direction_" + table["measure"], mean=table["mean"] / 10)
    return pd.concat([table, rows], ignore_index=True)


@pytest.mark.parametrize("changed", [{"tokens": ["a"]}, {"sites": sites()[:-1]}, None])
def test_a_file_whose_states_are_not_those_of_its_metadata_is_refused(tmp_path, changed):
    path = tmp_path / "s.safetensors"
    save_file(
        {"states": np.zeros((2, 2, 2), np.float32)}, path
    ) if changed is None else saved_states(path, **changed)
    with pytest.raises(InputError, match=r"s\.safetensors: ") as error:
        read_states(path)
    assert one_sentence(error)


def published(table):
    """The first checkpoint of a table as that of a published model."""
    return table[table["iteration"] == table["iteration"].min()].assign(iteration=0)


FEWER = {"context": style.FigureContext("demo", "prompts", LOOPS, fewest_loops=2)}
HUGINN = {"context": style.FigureContext("huginn", "text", 32, published=True)}
AROUND = ("prelude->3-6", "3-6->coda")
# Drawings of tables with known content; those of a run have been looked at
DRAWINGS = {
    "fig1": lambda folder: draw("fig1", folder),
    "fig1, loops alone": lambda folder: fig1.draw(
        paths_of(
            saved_states(
                folder / "s.safetensors",
                sites=[s | {"follows": False} for s in sites()],
                jump=1000.0,
            )
        ),
        **{"tokens": 2, **RUN},
    ),
    "fig2": lambda folder: draw("fig2", folder),
    "fig2, seeds": lambda _: fig2.draw(
        under_seeds(drift_table(), 0.5, 2.0), reference_state="initial", **RUN
    ),
    "fig2, published": lambda _: fig2.draw(
        published(drift_table(AROUND)), reference_state="first_state", **HUGINN
    ),
    "fig3": lambda folder: draw("fig3", folder),
    "fig3, seeds": lambda _: fig3.draw(under_seeds(loop_metrics(), 0.5, 1.25), **FEWER),
    "fig3, directions": lambda _: fig3.draw(
        of_directions(loop_metrics()), reading="direction", **RUN
    ),
    "fig4": lambda folder: draw("fig4", folder),
    "fig4, other criteria": lambda _: fig4.draw(*exit_tables(("fixed", "kl", "mine")), **RUN),
    "fig5": lambda folder: draw("fig5", folder),
    "fig5, seeds": lambda _: fig5.draw(under_seeds(loop_metrics(), 0.5, 1.25), **RUN),
    "fig5, directions": lambda _: fig5.draw(
        of_directions(loop_metrics()), reading="direction", **RUN
    ),
    "fig5, published": lambda _: fig5.draw(published(loop_metrics(("3-6",))), **HUGINN),
}
GOLDEN = Drawings("figures.json")


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_is_the_one_that_was_looked_at(name, tmp_path):
    """After a change that is meant: look at the figure, and `python -m tests.unit.test_figures`."""
    GOLDEN.check(name, DRAWINGS[name](tmp_path), tmp_path)


NO_FIGURES = [
    (lambda states: fig1.draw(states(groups=()), tokens=3, **RUN), "expected at least"),
    (lambda states: fig1.draw(states()[:0], tokens=3, **RUN), "table state_paths: found"),
    (
        lambda _: fig2.draw(drift_table(boundaries=()), reference_state="first_state", **RUN),
        "expected at least",
    ),
    (
        lambda _: fig2.draw(drift_table(), reference_state="none", **RUN),
        "found 'none', .*first_state, initial",
    ),
    (lambda _: fig3.draw(loop_metrics(groups=()), **RUN), "expected at least"),
    (lambda _: fig3.draw(loop_metrics(), reading="direction", **RUN), r"figures\.reading"),
    (lambda _: fig4.draw(*exit_tables(criteria=()), **RUN), "expected at least"),
    (lambda _: fig5.draw(loop_metrics(groups=()), **RUN), "expected at least"),
]


@pytest.mark.parametrize(("drawn", "match"), NO_FIGURES)
def test_tables_without_what_a_figure_shows_are_refused_in_one_sentence(drawn, match, tmp_path):
    with pytest.raises(InputError, match=match) as error:
        drawn(lambda **options: paths_of(saved_states(tmp_path / "s.safetensors", **options)))
    assert one_sentence(error)


@pytest.mark.parametrize("name", CATALOGUE)
def test_captions_name_the_run_and_ask_for_no_value_that_is_missing(name):
    written = render_caption(name, held_out={count: f"<{count}>" for count in HELD_OUT})
    assert "mine" in written
    quotes = "c.held_out" in (PROJECT / CATALOGUE[name].caption_file).read_text()
    assert [f"<{count}>" in written for count in HELD_OUT] == [quotes] * len(HELD_OUT)
    assert (f"(Fig. {name[-1]} of the paper)" in written) == (name in PAPER)


@pytest.mark.parametrize("name", CATALOGUE)
def test_captions_with_several_results_are_restructuredtext_without_warnings(name):
    written = caption_source(name, results="- Claim 3 holds.\n- Claim 4 does not hold.")
    publish_doctree(written, settings_overrides={"halt_level": 2})


@pytest.mark.parametrize(
    "name", [name for name, figure in CATALOGUE.items() if not figure.training]
)
def test_captions_of_a_published_model_say_nothing_of_a_training_course(name):
    written = render_caption(name, {"preset": "ouro-1.4b"})
    for words in (
        "untrained",
        "over training",
        "iterations",
        "every checkpoint",
        "in the training text",
    ):
        assert words not in written


def test_the_values_of_captions_are_those_of_the_config():
    config = checked(preset("demo"))
    tokens = config.trajectory_sequences * config.model.context_length
    curves = render_caption("fig3")
    assert f"{tokens} held-out tokens" in curves
    assert (
        f"All K = {config.trajectories.loops} loop steps are shown, measured in"
        f" {config.trajectories.dtype}" in curves
    )
    exits = render_caption("fig4")
    assert f"at most {config.exits.max_loops} loop steps" in exits
    assert (
        f"Quality: {config.quality_sequences * config.model.context_length} held-out tokens"
        in exits
    )
    assert (
        f"Computed in {config.exits.dtype}. Criteria that use predictions compute them with the"
        f" head." in exits
    )
    paths = render_caption(
        "fig1", {"figures": {"fig1_tokens": 5}, "trajectories": {"states_sequence": 1}}
    )
    assert "states of 5 tokens" in paths
    assert "states_sequence: 1" in paths
    assert f"after {config.train.iterations} iterations" in paths
    assert "groups 4, 5–6, 7." in paths
    assert "uses *final*" in render_caption("fig2", {"figures": {"dlr_reference_state": "final"}})


def test_the_range_over_seeds_is_in_the_captions_only_where_the_figure_shows_it():
    for name in ("fig2", "fig3", "fig5"):
        band, seeds = {"figures": {"seed_band": True}}, {"seeds": [7]}
        assert "under the seeds 1337, 7" in render_caption(name, band | seeds)
        assert "seeds" not in render_caption(name, band) + render_caption(name, seeds)


def test_figures_have_the_claims_that_the_paper_shows_in_them():
    shown = {name: CATALOGUE[name].claims for name in PAPER}
    assert shown == {
        "fig1": (1, 6),
        "fig2": (6,),
        "fig3": (1, 2, 3, 12),
        "fig4": (7, 8, 9, 10, 11, 14, 15, 16),
        "fig5": (3, 4, 5),
    }
    for claim in CLAIMS:
        named = {f"fig{number}" for number in re.findall(r"Fig\. (\d)", claim.where)}
        assert named <= {name for name in PAPER if claim.number in shown[name]}
        # claim 13 is about a sentence of the paper; a study has its figure
        assert claim.number == 13 or any(claim.number in claims for claims in shown.values())
    of_studies = {name: f.claims for name, f in CATALOGUE.items() if f.claims and name not in PAPER}
    expected = {"pareto": (10,), "path_types": (13,), "spectrum": (3, 4, 5), "adapter_init": (4,)}
    assert of_studies == {name: expected[name] for name in of_studies}


@pytest.mark.parametrize("figure", CATALOGUE.values(), ids=CATALOGUE)
def test_every_figure_has_a_module_that_takes_its_tables_and_values(figure):
    draw = command.function(figure.function)
    parameters = inspect.signature(draw).parameters.values()
    tables_first = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    assert sorted(tables_first) == sorted(figure.inputs)
    assert named == {*figure.values(Config()), "context"}


# --- legibility -----------------------------------------------------------------------------------

PAPER_WIDTH = 7  # inches
SEVEN, THIRTEEN = ([0, *range(50, 50 + 50 * n, 50)] for n in (7, 13))  # checkpoints

# Machado, Oliveira and Fernandes (2009), severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
# Linear RGB to XYZ of sRGB (IEC 61966-2-1).
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
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
def test_a_figure_is_legible_and_names_its_run(name, figures):
    """Letters of at least 6 points in the width of a paper, and labels of ticks that do not
    touch.
    """
    figure = figures[name]
    label = figure.get_supxlabel()
    assert re.fullmatch(
        r"run (demo|trial) · text (python_docs|text) · (K|r) = [0-9. …]+ (mean )?loop steps", label
    )
    assert figure.get_figwidth() <= PAPER_WIDTH
    texts = [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()
    ]
    assert len(texts) > 5
    assert {
        text.get_text() for text in texts if min(letters(text)) < style.LEAST_FONT - 1e-6
    } == set()
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, ("x0", "x1")), (axes.yaxis, ("y0", "y1"))):
            labels = [
                label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()
            ]
            boxes = sorted(
                (label.get_window_extent() for label in labels), key=lambda box: getattr(box, low)
            )
            for first, second in itertools.pairwise(boxes):
                assert getattr(first, high) < getattr(second, low)


@pytest.mark.parametrize(
    "iterations", [(0, 50, 100, 200, 400, 600, 800, 1000), THIRTEEN, range(0, 60_001, 5000), (7,)]
)
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


def test_fig2_labels_the_checkpoints_of_the_demo():
    iterations = (0, 30, 60, 120, 240, 360, 480, 600)
    tables = [drift_table().query("iteration == 0").assign(iteration=n) for n in iterations]
    figure = fig2.draw(pd.concat(tables), reference_state="first_state", **RUN)
    with style.look():
        figure.draw_without_rendering()
    labels = figure.axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == [str(iteration) for iteration in iterations]
    boxes = [label.get_window_extent() for label in labels]
    assert all(first.x1 < second.x0 for first, second in itertools.pairwise(boxes))


@pytest.mark.parametrize("vision", VISION)
def test_colours_stand_out_from_white_and_differ_also_under_colour_blindness(vision):
    for colour in (*style.COLOURS.values(), style.OTHERS, *shades(SEVEN), *shades(THIRTEEN)):
        assert contrast(colour) >= 3
    assert (
        min(distance(*pair, vision) for pair in itertools.combinations(style.COLOURS.values(), 2))
        > 15
    )
    assert min(distance(*pair, vision) for pair in itertools.pairwise(shades(SEVEN))) > 12


@pytest.mark.parametrize(
    ("value", "printed"),
    [(1e-5, "1e-5"), (0.01, "1e-2"), (0.2, "0.2"), (1, "1"), (5000, "5000"), (-0.01, "−1e-2")],
)
def test_powers_of_ten_are_printed_without_an_exponent_above_the_line(value, printed):
    assert style.power_name(value) == printed


def importing_matplotlib() -> list[str]:
    """The modules of the library that import matplotlib or seaborn."""
    source = PROJECT / "src"
    return [
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in sorted(source.rglob("*.py"))
        if re.search(r"^(from|import) (matplotlib|seaborn)", path.read_text(), re.MULTILINE)
    ]


def under_backend(backend: str, code: str, *folders: Path) -> list[str]:
    """The lines that Python code prints in a shell with this backend."""
    path = os.pathsep.join(map(str, [PROJECT / "src", *folders]))
    variables = os.environ | {"MPLBACKEND": backend, "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SAVE = """
from twoscale.figures import style
style.save(style.new_figure(3, 2, style.FigureContext("run", "text", 8)), "{}")
"""


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense"])
def test_figures_are_drawn_under_a_backend_that_is_not_installed(backend, tmp_path):
    """A kernel of Jupyter gives its own backend to all commands that a notebook runs."""
    modules = importing_matplotlib()
    assert {"twoscale.figures.style", "twoscale.replay.page"} <= {*modules}
    lines = ["import importlib, os"]
    for module in modules:
        # as the first one of a process
        lines.append(f"os.fork() or [importlib.import_module({module!r}), os._exit(0)]")
        lines.append("assert os.wait()[1] == 0")
    under_backend(backend, "\n".join(lines))
    under_backend(backend, SAVE.format(tmp_path / "a.svg"))
    under_backend("", SAVE.format(tmp_path / "b.svg"))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_backend_that_a_session_has_or_can_have_is_kept(tmp_path):
    """As in a notebook that plots with pyplot."""
    (tmp_path / "inline.py").write_text("from matplotlib.backends.backend_agg import *\n")
    shown = "import matplotlib.pyplot as plt; print(plt.get_backend())\n"
    draw = SAVE.format(tmp_path / "a.svg")
    for backend, first, expected in (
        ("module://inline", "import twoscale", "module://inline"),
        ("module://inline", "import matplotlib.pyplot, twoscale", "module://inline"),
        ("svg", "import twoscale", "svg"),
        ("svg", "import matplotlib; matplotlib.use('pdf'); import twoscale", "pdf"),
        ("", "import twoscale; import matplotlib; matplotlib.use('pdf')", "pdf"),
    ):
        code = f"import os\n{first}\n{draw}{shown}print(os.environ['MPLBACKEND'])"
        assert under_backend(backend, code, tmp_path) == [expected, backend]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        GOLDEN.write({name: drawn(Path(temporary)) for name, drawn in DRAWINGS.items()})
