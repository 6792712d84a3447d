"""Figures: what they show of tables with known content, and what they are as files."""

import inspect
import itertools
import json
import re
from dataclasses import replace

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
    ITERATIONS,
    LOOPS,
    RUN,
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
    ranges,
    render_caption,
    saved_states,
    sites,
    under_seeds,
)
from twoscale.base import InputError
from twoscale.config import PROJECT, Config, checked, preset
from twoscale.dynamics.state_paths import project, read_states, state_paths
from twoscale.figures import fig1, fig2, fig3, fig4, fig5, style
from twoscale.jobs import command

PAPER = ("fig1", "fig2", "fig3", "fig4", "fig5")
DISTINCT = ("fig1", "fig3", "fig4")  # every kind of mark; Figures 2 and 5 consist of those of Figure 3


def assert_inside(axes, points):
    """All points (N, 2) lie within the limits of the axes."""
    low, high = np.transpose([axes.get_xlim(), axes.get_ylim()])
    assert (low < points.min(axis=0)).all()
    assert (points.max(axis=0) < high).all()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Figures drawn by another process: its folder, and whether it loaded torch."""
    folder = tmp_path_factory.mktemp("elsewhere")
    return folder, draw_elsewhere(folder, *DISTINCT)


@pytest.mark.parametrize("name", DISTINCT)
def test_the_same_tables_give_the_same_bytes_in_another_process_with_fonts_embedded(name, tmp_path, elsewhere):
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


def test_criteria_have_the_colours_of_the_paper_and_no_two_look_alike():
    others = ["step_norm_relative", "acceleration_normalized", "entropy_diff", "cosine", "argmax_stability", "mine"]
    styles = style.criterion_styles(["acceleration", "fixed", "kl", "step_norm", *others])
    hues = {name: np.argmax(to_rgb(styles[name]["color"])) for name in ("step_norm", "acceleration", "kl")}
    assert hues == {"step_norm": 2, "acceleration": 1, "kl": 0}  # blue, green, orange: red leads
    assert "fixed" not in styles
    assert len({look["marker"] for look in styles.values()}) == len(styles)


def test_fig1_principal_plane_is_found_with_fixed_signs():
    rng = np.random.default_rng(0)
    first, second = np.array([0.6, -0.8, 0]), np.array([0.8, 0.6, 0])
    weights = rng.normal(size=(40, 5, 2)) * (10, 1)
    values = weights @ np.stack([first, second]) + np.array([3, 2, 1])
    plane, shares = project(values)
    weights = weights - weights.mean(axis=(0, 1))
    np.testing.assert_allclose(np.corrcoef(plane[..., 0].ravel(), -weights[..., 0].ravel())[0, 1], 1, atol=1e-3)
    np.testing.assert_allclose(np.corrcoef(plane[..., 1].ravel(), weights[..., 1].ravel())[0, 1], 1, atol=0.1)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > 0.98


@pytest.mark.parametrize(
    ("token", "word"), [(" the", "the"), ("  ", "␣␣"), ("\n", "↵"), ("a\x00", "a\ufffd"), ("-" * 64, "-" * 11 + "…")]
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


def test_fig1_jump_from_the_start_of_a_loop_does_not_set_the_limits(tmp_path):
    states = read_states(saved_states(tmp_path / "s.safetensors", jump=1000.0))
    axes = fig1.draw(state_paths(states, "demo"), tokens=4, **RUN).axes[0]
    plane, _ = project(states.values)
    visible = plane[[site["k"] != 0 for site in states.sites]].reshape(-1, 2)
    assert_inside(axes, visible)
    assert np.ptp(axes.get_ylim()) < 0.1 * np.ptp(plane[..., 1])


def test_fig1_inset_holds_the_late_states_of_the_last_group(tmp_path):
    states = read_states(saved_states(tmp_path / "s.safetensors"))
    axes = fig1.draw(state_paths(states, "demo"), tokens=4, **RUN).axes[0]
    inset = next(child for child in axes.child_axes if "group 5–6" in child.get_title())
    plane, _ = project(states.values)
    late = plane[[site["group"] == "5-6" and site["k"] >= 1 for site in states.sites], 2]
    assert_inside(inset, late)
    assert axes.get_xlabel().startswith("PC 1 (")
    assert (inset.get_xlabel(), inset.get_ylabel()) == ("PC 1", "PC 2")


def test_fig1_names_the_one_token_in_colour_and_counts_the_others(tmp_path):
    axes = fig1.draw(paths_of(saved_states(tmp_path / "s.safetensors")), tokens=3, **RUN).axes[0]
    assert [text.get_text() for text in axes.texts] == ["“\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}”"]
    assert "2 other tokens" in [text.get_text() for text in axes.get_legend().get_texts()]
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert len(dashed) == 3  # the hand-offs of one token


@pytest.mark.parametrize("changed", [{"tokens": ["a"]}, {"sites": sites()[:-1]}])
def test_fig1_states_that_do_not_fit_their_metadata_are_refused(tmp_path, changed):
    path = saved_states(tmp_path / "s.safetensors", **changed)
    with pytest.raises(InputError, match=r"s\.safetensors: found states of shape \(17, 4, 5\)") as error:
        read_states(path)
    assert one_sentence(error)


@pytest.mark.parametrize("kind", ["missing", "broken", "other tensor", "no metadata"])
def test_fig1_a_file_that_holds_no_states_is_refused(tmp_path, kind):
    path = tmp_path / "s.safetensors"
    if kind == "broken":
        path.write_bytes(b"no tensors here")
    elif kind != "missing":
        save_file({"states" if kind == "no metadata" else "weights": np.zeros((2, 2, 2), np.float32)}, path)
    with pytest.raises(InputError, match=r"s\.safetensors: "):
        read_states(path)


def test_fig1_shows_only_what_the_states_have_in_its_legend(tmp_path):
    loops = [site | {"follows": False} for site in sites() if site["group"]]
    path = tmp_path / "states.safetensors"
    values = np.random.default_rng(0).normal(size=(len(loops), 2, 5)).astype(np.float32)
    header = {"sites": loops, "tokens": ["a", "b"], "iteration": 0, "sequence": 0}
    save_file({"states": values}, path, metadata={"twoscale": json.dumps(header)})
    figure = fig1.draw(paths_of(path), tokens=2, **RUN)
    entries = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert entries == ["last state of a loop", "1 other token"]


def test_groups_with_fewer_loop_steps_are_named_at_the_foot():
    context = style.FigureContext("mine", "prompts", LOOPS, fewest_loops=2)
    assert fig5.draw(loop_metrics(), context=context).get_supxlabel().endswith("K = 2 … 6 loop steps")


def test_fig2_shows_the_reference_state_at_each_boundary_with_one_sigma(tmp_path):
    axes = fig2.draw(drift_table(), reference_state="initial", **RUN).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["4 → 5–6", "5–6 → 7", "DLR = 1"]
    assert list(lines["4 → 5–6"].get_ydata()) == [9.0] * len(ITERATIONS)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((8.9, 9.1))
    assert f"K = {LOOPS}" in axes.get_ylabel()
    assert axes.get_xlim()[0] < 0  # the untrained model is on the axis


def test_fig3_has_a_row_per_measure_a_column_per_group_and_a_line_per_checkpoint(tmp_path):
    figure = draw("fig3", tmp_path)
    top, bottom = figure.axes[:2], figure.axes[2:]
    assert [axes.get_title() for axes in top] == ["(i)  group 4", "(ii)  group 5–6"]
    assert top[0].get_yscale() == "log"
    assert bottom[0].get_yscale() == "linear"
    assert all(len(axes.get_lines()) == len(ITERATIONS) for axes in figure.axes)
    assert list(top[0].get_lines()[0].get_ydata()) == [8, 4, 2, 1, 0.5, 0.25]
    assert list(bottom[0].get_lines()[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert legend_texts(figure) == ["0 (untrained)", "50", "600"]


@pytest.mark.parametrize("name", ["fig3", "fig5"])
def test_the_last_checkpoint_is_above_the_others_with_the_only_band(name, tmp_path):
    axes = draw(name, tmp_path).axes[-1]
    *others, last = axes.get_lines()
    assert len(others) + 1 == len(ITERATIONS)
    assert [to_rgb(band.get_facecolor()[0]) for band in axes.collections] == [to_rgb(last.get_color())]
    assert last.get_zorder() > max(line.get_zorder() for line in others)
    assert last.get_linewidth() > 1.5 * max(line.get_linewidth() for line in others)


@pytest.mark.parametrize("module", [fig3, fig5])
def test_points_that_most_tokens_do_not_have_are_left_out(module):
    table = loop_metrics(groups=("4",))
    table.loc[(table["k"] >= 4) & (table["measure"] == "cosine"), ["count", "nulls"]] = (4, 6)
    axes = module.draw(table, **RUN).axes[-1]
    assert list(axes.get_lines()[0].get_xdata()) == [1, 2, 3]


def test_fig4_has_the_criteria_of_the_table_and_all_loop_steps_as_a_line(tmp_path):
    figure = fig4.draw(*exit_tables(("fixed", "kl", "mine")), **RUN)
    assert legend_texts(figure) == ["KL", "mine", f"full depth, $K = {LOOPS}$", r"$\tau$ of the paper"]
    inside = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert inside == [["thin: same loops, no criterion"], ["light: random exits"]]
    assert [axes.get_ylabel().split(" ")[0] for axes in figure.axes] == ["latency", "cross-entropy"]
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        level = [line for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]]
        assert len(level) == 1  # `fixed` at full depth only, not at 3


def test_fig4_has_the_perplexity_as_a_second_axis_of_the_cross_entropy():
    latency, quality, loops, controls = exit_tables(("fixed", "kl"))
    quality.loc[quality["criterion"] == "kl", "ce"] += 0.05
    axes = fig4.draw(latency, quality, loops, controls, **RUN).axes[1]
    axes.figure.draw_without_rendering()
    (perplexity,) = axes.child_axes
    assert perplexity.get_ylabel() == "perplexity"
    np.testing.assert_allclose(perplexity.get_ylim(), np.exp(axes.get_ylim()))
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([3.75 + 0.05] * 3)  # by tokens


def test_fig4_shows_quality_up_to_a_tenth_of_a_nat_above_full_depth():
    """At the largest thresholds criteria lose whole nats, which would flatten everything else."""
    latency, quality, loops, controls = exit_tables(("fixed", "kl"))
    quality.loc[(quality["criterion"] == "kl") & (quality["threshold"] == 1e-2), "ce"] += 4.0
    bottom, top = fig4.draw(latency, quality, loops, controls, **RUN).axes[1].get_ylim()
    assert top == pytest.approx(3.75 + 0.1)
    assert bottom > 3.75 - 0.02


def test_fig4_has_the_mean_of_the_random_exits_of_every_criterion_in_the_panel_of_the_cross_entropy():
    axes = fig4.draw(*exit_tables(), **RUN).axes
    light = [[line for line in one.get_lines() if line.get_alpha() == style.RANDOM_EXITS["alpha"]] for one in axes]
    assert [len(lines) for lines in light] == [0, 3]
    for line in light[1]:
        assert list(line.get_xdata()) == [1e-5, 1e-3, 1e-2]
        assert list(line.get_ydata()) == pytest.approx(3 * [3.75 + 0.2])  # by tokens, over both draws


def test_fig5_covers_all_loop_steps_and_marks_the_range_of_the_paper_where_it_has_late_ones(tmp_path):
    figure = draw("fig5", tmp_path)
    assert len(figure.axes) == 2
    assert figure.axes[0].get_xlim() == (1, LOOPS - 1)
    for loops, marked in ((30, True), (29, False)):
        context = style.FigureContext("demo", "text", loops)
        assert ("paper: 0.5–0.65" in legend_texts(fig5.draw(loop_metrics(), context=context))) is marked
        written = render_caption("fig5", {"preset": "ouro-1.4b", "trajectories": {"loops": loops}})
        assert ("yellow bar" in written) is marked


def of_directions(table):
    """The table "loop_metrics" with the measures of directions, a tenth of those of states."""
    rows = table.assign(measure="direction_" + table["measure"], mean=table["mean"] / 10)
    return pd.concat([table, rows], ignore_index=True)


@pytest.mark.parametrize("module", [fig3, fig5])
def test_a_figure_of_directions_has_their_curves_and_labels_and_no_range_of_the_paper(module):
    table = of_directions(loop_metrics())
    state, default = (module.draw(table, **values, **RUN) for values in ({"reading": "state"}, {}))
    direction = module.draw(table, reading="direction", **RUN)
    for before, same, after in zip(state.axes, default.axes, direction.axes, strict=True):
        for one, two, three in zip(before.get_lines(), same.get_lines(), after.get_lines(), strict=True):
            np.testing.assert_array_equal(one.get_ydata(), two.get_ydata())
            np.testing.assert_allclose(np.divide(one.get_ydata(), 10), three.get_ydata())
    assert all(r"\hat{x}" in axes.get_ylabel() for axes in direction.axes if axes.get_ylabel())
    late = {"context": style.FigureContext("demo", "text", 30)}
    marked = ["paper: 0.5–0.65" in legend_texts(fig5.draw(table, reading=r, **late)) for r in ("state", "direction")]
    assert marked == [True, False]


@pytest.mark.parametrize("module", [fig3, fig5])
def test_the_curves_of_a_run_have_the_range_of_its_seeds_at_the_last_checkpoint(module):
    one = module.draw(loop_metrics(), **RUN)
    several = module.draw(under_seeds(loop_metrics(), 0.5, 1.25), **RUN)
    for before, after in zip(one.axes, several.axes, strict=True):
        assert [list(line.get_ydata()) for line in after.get_lines()] == [
            list(line.get_ydata()) for line in before.get_lines()
        ]
        assert ranges(before) == []
        assert len(ranges(after)) == 1
        assert len(after.collections) == len(before.collections)
    low, high = ranges(several.axes[-1])[0]
    assert (low, high) == pytest.approx((0.3, 0.75))
    assert "range of 3 seeds" in [text.get_text() for text in several.legends[0].get_texts()]
    assert "range of 3 seeds" not in [text.get_text() for text in one.legends[0].get_texts()]


def test_the_drift_of_a_run_has_the_range_of_its_seeds():
    values = {"reference_state": "first_state"} | RUN
    (one,) = fig2.draw(drift_table(), **values).axes
    (several,) = fig2.draw(under_seeds(drift_table(), 0.5, 2.0), **values).axes
    assert ranges(one) == []
    assert ranges(several) == [pytest.approx((1.5, 6.0))] * 2
    assert len(several.collections) == len(one.collections)
    assert [list(line.get_ydata()) for line in several.get_lines()] == [
        list(line.get_ydata()) for line in one.get_lines()
    ]
    assert "range of 3 seeds" in [text.get_text() for text in several.get_legend().get_texts()]


NO_FIGURES = [
    (lambda states: fig1.draw(states(groups=()), tokens=3, **RUN), "expected at least"),
    (lambda states: fig1.draw(states()[1:], tokens=3, **RUN), "table state_paths: found"),
    (lambda states: fig1.draw(states()[:0], tokens=3, **RUN), "table state_paths: found"),
    (lambda _: fig2.draw(drift_table(boundaries=()), reference_state="first_state", **RUN), "expected at least"),
    (lambda _: fig2.draw(drift_table(), reference_state="none", **RUN), "found 'none', .*first_state, initial"),
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


@pytest.mark.parametrize("name", [name for name, figure in CATALOGUE.items() if not figure.training])
def test_captions_of_a_published_model_say_nothing_of_a_training_course(name):
    written = render_caption(name, {"preset": "ouro-1.4b"})
    for words in ("untrained", "over training", "iterations", "every checkpoint", "in the training text"):
        assert words not in written


def test_fig2_of_a_published_model_has_its_boundaries_side_by_side():
    table = drift_table(boundaries=("prelude->3-6", "3-6->coda"))
    table = table[table["iteration"] == table["iteration"].min()].assign(iteration=0)
    context = style.FigureContext("huginn", "text", LOOPS, published=True)
    (axes,) = fig2.draw(table, reference_state="first_state", context=context).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["prelude → 3–6", "3–6 → coda"]
    points = [line.get_ydata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 1]
    wanted = table[(table["reference_state"] == "first_state") & (table["measure"] == "dlr")]["mean"]
    assert points == wanted.tolist()


def test_the_line_of_a_published_model_has_no_iteration_in_the_legend():
    context = style.FigureContext("huginn", "text", LOOPS, published=True)
    table = loop_metrics(groups=("3-6",))
    table = table[table["iteration"] == table["iteration"].min()].assign(iteration=0)
    assert not fig3.draw(table, context=context).legends
    (legend,) = fig5.draw(table, context=replace(context, loops=32)).legends
    assert [text.get_text() for text in legend.get_texts()] == [style.REPORTED_LABEL]


def test_the_values_of_captions_are_those_of_the_config():
    config = checked(preset("demo"))
    tokens = config.trajectory_sequences * config.model.context_length
    curves = render_caption("fig3")
    assert f"{tokens} held-out tokens" in curves
    assert f"the first of K = {config.trajectories.loops} loop steps, measured in {config.trajectories.dtype}" in curves
    exits = render_caption("fig4")
    assert f"at most {config.exits.max_loops} loop steps" in exits
    assert f"Quality: {config.quality_sequences * config.model.context_length} held-out tokens" in exits
    assert f"Computed in {config.exits.dtype}. Criteria that use predictions compute them with the head." in exits
    paths = render_caption("fig1", {"figures": {"fig1_tokens": 5}, "trajectories": {"states_sequence": 1}})
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


@pytest.mark.parametrize("figure", CATALOGUE.values(), ids=CATALOGUE)
def test_every_figure_has_a_module_that_takes_its_tables_and_values(figure):
    draw = command.function(figure.function)
    parameters = inspect.signature(draw).parameters.values()
    tables_first = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    assert sorted(tables_first) == sorted(figure.inputs)
    assert named == {*figure.values(Config()), "context"}


# --- legibility -----------------------------------------------------------------------------------------------------

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
def test_a_figure_is_legible_and_names_its_run(name, figures):
    """Letters of at least 6 points in the width of a paper, and labels of ticks that do not touch."""
    figure = figures[name]
    label = figure.get_supxlabel()
    assert re.fullmatch(r"run (demo|trial) · text (python_docs|text) · (K|r) = [0-9. …]+ (mean )?loop steps", label)
    assert figure.get_figwidth() <= PAPER_WIDTH
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert len(texts) > 5
    assert {text.get_text() for text in texts if min(letters(text)) < style.LEAST_FONT - 1e-6} == set()
    for axes in figure.axes:
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


@pytest.mark.parametrize("vision", VISION)
def test_colours_stand_out_from_white_and_differ_also_under_colour_blindness(vision):
    for colour in (*style.COLOURS, style.OTHERS, *shades(SEVEN), *shades(THIRTEEN)):
        assert contrast(colour) >= 3
    assert min(distance(*pair, vision) for pair in itertools.combinations(style.COLOURS, 2)) > 15
    assert min(distance(*pair, vision) for pair in itertools.pairwise(shades(SEVEN))) > 12


@pytest.mark.parametrize(
    ("value", "printed"), [(1e-5, "1e-5"), (0.01, "1e-2"), (0.2, "0.2"), (1, "1"), (5000, "5000"), (-0.01, "−1e-2")]
)
def test_powers_of_ten_are_printed_without_an_exponent_above_the_line(value, printed):
    assert style.power_name(value) == printed
