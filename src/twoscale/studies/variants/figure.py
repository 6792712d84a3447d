"""Supplementary figure, variants: the same model trained under several variants of the paper, last checkpoints."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from twoscale.figures import style

MEASURES = {
    "cosine": r"(a)  $\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$",
    "step_norm": r"(b)  step norm $\Vert\Delta^{(k)}\Vert_2$",
}

Styles = Mapping[str, Mapping[str, Any]]  # by variant


@style.look()
def draw(
    loop_metrics: pd.DataFrame,
    drift: pd.DataFrame,
    training: pd.DataFrame,
    *,
    reference_state: str,
    reading: str = "state",
    context: style.FigureContext,
) -> Figure:
    """One column per group: cosine and step norm over the loop; below, DLR at each boundary and the held-out loss.

    Under several seeds lines are means over seeds with the range of the seeds, and each seed has a mark in the DLR.

    Args:
        loop_metrics, drift, training: Tables of these names of all runs, with a column `run`. Runs are named
            variants/<sandwich>-<adapter_init>-<state_init>, followed by -seed<seed> under a further seed.
        reference_state: The state that counts as "x^0 of the next group" in the DLR.
        reading: What (a) and (b) are of: "state", or "direction" for steps of x / ||x||.
        context: Loop steps K of the trajectories.

    Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(loop_metrics, "the variants")
    loop_metrics, drift, training = (
        table.assign(variant=table["run"].map(variant)) for table in (loop_metrics, drift, training)
    )
    looks = styles(loop_metrics["run"].unique())
    figure = style.new_figure(style.DOUBLE, 6.4, context)
    panels = figure.subplots(1 + len(MEASURES), len(groups), squeeze=False)
    _share_y(panels[:-1])
    last = _last_checkpoint(loop_metrics)
    for row, (measure, label) in zip(
        panels[:-1], style.measures_read(loop_metrics, MEASURES, reading).items(), strict=True
    ):
        for axes, group in zip(row, groups, strict=True):
            rows = last[(last["group"] == group) & (last["measure"] == measure)]
            _draw_curves(axes, style.points_above_rounding(rows), "k", looks)
            style.scale_loop_steps(axes, 0, context.loops - 1)
        row[0].set_ylabel(label, fontsize=style.SCRIPTED)
    for axes in panels[0] if reading == "state" else ():
        axes.axhspan(*style.REPORTED_COSINE, color=style.REPORTED_BAND, linewidth=0, zorder=0)
    style.title_groups(panels[0], groups)
    panels[1, 0].set_yscale("log", nonpositive="mask")
    style.label_powers(panels[1, 0].yaxis)
    ratios = _last_checkpoint(drift[(drift["measure"] == "dlr") & (drift["reference_state"] == reference_state)])
    for axes, (boundary, rows) in zip(panels[-1], ratios.groupby("boundary", sort=False), strict=False):
        _draw_ratios(axes, rows, looks)
        axes.set_title(f"boundary {style.group_name(boundary)}")
    panels[-1, 0].set_ylabel("(c)  drift-to-loop ratio")
    _draw_losses(panels[-1, -1], training, looks)
    figure.align_ylabels(panels[:, 0])
    _add_legend(figure, looks)
    return figure


def variant(run: str) -> str:
    """The variant <sandwich>-<adapter_init>-<state_init> of a run under any seed, from its name."""
    return re.sub(r"-seed\d+$", "", run.rpartition("/")[2])


def styles(runs: Iterable[str]) -> Styles:
    """Style by variant: colour by sandwich and adapter, dashes and marker by initial state."""
    choices = {name: name.rpartition("-") for name in map(variant, runs)}
    pairs = list(dict.fromkeys(pair for pair, _, _ in choices.values()))
    starts = list(dict.fromkeys(start for _, _, start in choices.values()))
    by_start = style.series_styles(len(starts))
    return {
        name: by_start[starts.index(start)] | {"color": style.COLOURS[pairs.index(pair) % len(style.COLOURS)]}
        for name, (pair, _, start) in choices.items()
    }


def _share_y(rows: Iterable[Iterable[Axes]]) -> None:
    """One y axis for each row of panels, labelled at the left."""
    for first, *others in rows:
        for axes in others:
            axes.sharey(first)
            axes.tick_params(labelleft=False)


def _last_checkpoint(metrics: pd.DataFrame) -> pd.DataFrame:
    return metrics[metrics["iteration"] == metrics.groupby("run")["iteration"].transform("max")]


def _draw_curves(axes: Axes, metrics: pd.DataFrame, x: str, looks: Styles) -> None:
    """The column `mean` against the column `x`, one line per variant: the mean over seeds, and their range."""
    for name, look in looks.items():
        rows = metrics[metrics["variant"] == name]
        style.seed_band(axes, rows, x, look["color"])
        means = rows.groupby(x)["mean"].mean()
        axes.plot(means.index, means, **{**look, "marker": ""})


def _draw_ratios(axes: Axes, ratios: pd.DataFrame, looks: Styles) -> None:
    """The mean over tokens of each variant, with a bar over nine tenths of the tokens, and a mark for each seed."""
    for place, (name, look) in enumerate(looks.items()):
        rows = ratios[ratios["variant"] == name]
        axes.plot([place, place], rows[["q05", "q95"]].mean(), color=look["color"], linewidth=0.8)
        axes.plot(place, rows["mean"].mean(), **look)
        if len(rows) > 1:
            axes.plot([place + 0.3] * len(rows), rows["mean"], color=look["color"], marker="_", linestyle="")
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)))
    axes.set_yscale("log")
    style.label_powers(axes.yaxis)
    axes.set_xticks([])
    axes.set_xlabel("variant, in the order of the legend")


def _draw_losses(axes: Axes, training: pd.DataFrame, looks: Styles) -> None:
    measured = training.dropna(subset="held_out_loss").rename(columns={"held_out_loss": "mean"})
    _draw_curves(axes, measured, "iteration", looks)
    axes.set_title("held-out loss")
    axes.set_xlabel("iteration")
    axes.set_ylabel("nats per token")


def _add_legend(figure: Figure, looks: Styles) -> None:
    entries: dict[str, Artist] = {
        name.replace("-", ", ").replace("_", "-"): Line2D([], [], **look) for name, look in looks.items()
    }
    entries[style.REPORTED_LABEL] = Patch(color=style.REPORTED_BAND)
    title = "sandwich, adapter at initialisation, initial state"
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=3, title=title)
