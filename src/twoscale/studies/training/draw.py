"""Figure of training: loss, learning rate, gradient norm and loop counts by iteration."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from twoscale.base import InputError
from twoscale.figures import style

_SMOOTHED_SHARE = 1 / 50  # of the iterations, which a running mean spans, at least five
_UPPER, _LOWER = 2.4, 1.6  # heights of the two rows in inches
_MARGIN = 0.5  # height of the legend and footer around them
_TOP_AXIS = 17  # from the top of a panel to the label of the axis there, in points
_ROUND = (1, 2, 5, 10)  # distances of ticks, times a power of ten
_SMALL = 6.5  # font size beside the panels

_MEAN_COLOUR, _HELD_OUT_COLOUR = (looks["color"] for looks in style.series_styles(2))
# One mark per iteration, rasterized: as vectors, tens of thousands of them would be megabytes.
_EACH: style.Look = {"color": "0.72", "linewidth": 0.5, "rasterized": True, "zorder": 1}
_MEAN: style.Look = {"color": _MEAN_COLOUR, "linewidth": 1.2}
_HELD_OUT: style.Look = {
    "color": _HELD_OUT_COLOUR,
    "linestyle": "none",
    "marker": "o",
    "markersize": 4.5,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
    "zorder": 3,
    "clip_on": False,
}
_CLIP: style.Look = {"color": "0.15", "linewidth": 0.9, "linestyle": (0, (1, 1.5))}
_EXPECTED: style.Look = {"color": "0.15", "linewidth": 0.8, "linestyle": (0, (4, 2))}


@style.look()
def draw_training(
    training: pd.DataFrame,
    training_loops: pd.DataFrame,
    *,
    mean_loops: float,
    grad_clip: float,
    context: style.FigureContext,
) -> Figure:
    """Above, loss (nats per token), learning rate and gradient norm; below, loop counts by group.

    A model without groups has only the upper row. `mean_loops` is the parameter r of the loop
    sampler, whose counts have the mean r + 1; the loop steps K of `context` are those of the
    held-out loss.
    """
    if training.empty:
        raise InputError(
            "table training: found no rows, expected at least one iteration for the training"
            " figure."
        )
    groups = list(training_loops["group"].unique())
    heights = [_UPPER, _LOWER] if groups else [_UPPER]
    figure = Figure(figsize=(style.DOUBLE, sum(heights) + _MARGIN), layout="constrained")
    # the loop counts differ between iterations, so the footer has r instead of K
    footer = [f"r = {mean_loops:g} mean loop steps"] if groups else []
    style.write_footer(figure, context, *footer)
    rows = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    cells = rows[0].subgridspec(2, 2, width_ratios=(1.4, 1))
    loss = figure.add_subplot(cells[:, 0])
    rate = figure.add_subplot(cells[0, 1])
    gradient = figure.add_subplot(cells[1, 1])
    _draw_loss(loss, training)
    _draw_rate(rate, training)
    _draw_gradient(gradient, training, grad_clip)
    for axes in (loss, rate, gradient):
        _scale_iterations(axes, training)
    rate.set_xlabel("")
    rate.tick_params(labelbottom=False)
    width = style.grouped(window(len(training)))
    looks = {
        "one iteration": {"color": _EACH["color"], "linewidth": 0.8},
        f"mean of {width} iterations": _MEAN,
        f"held out, {context.loops} loops" if groups else "held out": _HELD_OUT,
        f"clipped at {grad_clip:g}": _CLIP,
    }
    if groups:
        expected = mean_loops + 1
        _draw_lower_row(rows[1], training_loops, expected)
        looks[f"$r + 1 = {expected:g}$ loops"] = _EXPECTED
    style.legend_above(figure, {name: Line2D([], [], **look) for name, look in looks.items()})
    return figure


def sentence(table: pd.DataFrame) -> str:
    """The last held-out loss of the table "training"."""
    measured = table.dropna(subset="held_out_loss").iloc[-1]
    loss = f"{measured['held_out_loss']:.3f} nats per token"
    return f"Held-out loss {loss} after {measured['iteration']:.0f} iterations."


def window(iterations: int) -> int:
    """Number of iterations that a running mean spans in a run of `iterations`."""
    return max(5, round(iterations * _SMOOTHED_SHARE))


def smooth(values: pd.Series) -> pd.Series:
    """The running mean around each iteration; null where its window extends beyond an end."""
    return values.rolling(window(len(values)), center=True).mean()


def _draw_lower_row(row: SubplotSpec, training_loops: pd.DataFrame, expected: float) -> None:
    """The loop counts of each group, panels (iv) and on."""
    by_group = training_loops.groupby("group", sort=False)
    panels = row.subgridspec(1, len(by_group)).subplots(sharey=True, squeeze=False)[0]
    for number, (axes, (group, rows)) in enumerate(zip(panels, by_group, strict=True), start=4):
        _draw_counts(axes, rows["iteration"], rows["loops"], expected)
        _scale_iterations(axes, rows)
        style.name_panel(axes, number, f"loop steps, group {style.group_name(group)}")
    panels[0].set_ylim(bottom=0)  # after the last panel, when the shared axis no longer grows


def _draw_each_and_mean(axes: Axes, iterations: pd.Series, values: pd.Series) -> None:
    axes.plot(iterations, values, **_EACH)
    axes.plot(iterations, smooth(values), **_MEAN)


def _draw_loss(axes: Axes, log: pd.DataFrame) -> None:
    """Loss and held-out loss, with a second axis for the tokens seen, which grow linearly."""
    _draw_each_and_mean(axes, log["iteration"], log["loss"])
    axes.plot(log["iteration"], log["held_out_loss"], **_HELD_OUT)
    axes.set_ylabel("nats/token")
    last = log.iloc[-1]
    per_iteration = last["tokens_seen"] / last["iteration"]
    top = axes.secondary_xaxis(
        "top", functions=(lambda n: n * per_iteration, lambda tokens: tokens / per_iteration)
    )
    top.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=_ROUND))
    top.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
    top.set_xlabel("tokens seen")
    axes.set_title("(i)  loss", loc="left", y=1, pad=_TOP_AXIS)


def _draw_rate(axes: Axes, log: pd.DataFrame) -> None:
    """The learning rate in units of its power of ten; matplotlib prints that over the title."""
    power = math.floor(math.log10(log["learning_rate"].max()))
    axes.plot(log["iteration"], log["learning_rate"] / 10.0**power, color=_MEAN_COLOUR)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=_ROUND))
    style.name_panel(axes, 2, "learning rate", f"× 1e{power}")


def _draw_gradient(axes: Axes, log: pd.DataFrame, grad_clip: float) -> None:
    norm = log["gradient_norm"]
    _draw_each_and_mean(axes, log["iteration"], norm)
    axes.axhline(grad_clip, **_CLIP)
    if norm.max() > 10 * norm.min() > 0:
        axes.set_yscale("log")
        style.label_powers(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    style.name_panel(axes, 3, "gradient norm")


def _draw_counts(axes: Axes, iterations: pd.Series, counts: pd.Series, expected: float) -> None:
    """Loop counts over training, and their histogram at the right."""
    opacity = min(0.5, max(0.05, 300 / len(counts)))  # overlapping points show their density
    axes.scatter(
        iterations, counts, s=2, linewidths=0, color="0.3", alpha=opacity, rasterized=True, zorder=1
    )
    axes.plot(iterations, smooth(counts), **_MEAN)
    place = (1.03, 0, 0.19, 1)  # left, bottom, width, height in units of the panel
    beside = axes.inset_axes(place, sharey=axes)
    edges: Any = np.arange(0.5, counts.max() + 1)  # one bin per count
    beside.hist(counts, bins=edges, orientation="horizontal", color=_EACH["color"])
    beside.tick_params(axis="y", left=False, labelleft=False)
    beside.spines[["left", "right", "bottom"]].set_visible(False)
    beside.spines["top"].set_visible(True)
    beside.xaxis.tick_top()
    beside.xaxis.set_label_position("top")
    beside.set_xlabel("iterations", fontsize=_SMALL, labelpad=1)
    beside.tick_params(axis="x", labelsize=_SMALL, pad=1)
    beside.xaxis.set_major_locator(MaxNLocator(nbins=1, steps=_ROUND, integer=True))
    for panel in (axes, beside):
        panel.axhline(expected, **_EXPECTED)


def _scale_iterations(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_xlim(0, log["iteration"].iloc[-1])
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=_ROUND, integer=True))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda iteration, _: style.grouped(round(iteration)))
    )
