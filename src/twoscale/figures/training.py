"""Supplementary figure, training: loss, learning rate, gradient norm and loops drawn, iteration by iteration."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from twoscale import tables
from twoscale.errors import InputError
from twoscale.figures import style

# A running mean spans this share of the iterations, and no fewer than LEAST_WINDOW of them.
SMOOTHED_SHARE, LEAST_WINDOW = 1 / 50, 5
UPPER, LOWER, MARGIN = 2.4, 1.6, 0.5  # heights in inches: the two rows, and the legend and foot around them
TOP_AXIS = 17  # from the top of a panel to the label of the axis there, in points
ROUND = (1, 2, 5, 10)  # multiples of a power of ten that ticks may lie apart
HISTOGRAM = (1.02, 0, 0.14, 1)  # left, bottom, width, height in units of the panel beside it

_MEAN, _HELD_OUT = (looks["color"] for looks in style.series_styles(2))
# One mark an iteration, as an image inside the vector figure: tens of thousands of them would be megabytes.
EACH = {"color": "0.72", "linewidth": 0.5, "rasterized": True, "zorder": 1}
MEAN = {"color": _MEAN, "linewidth": 1.2}
HELD_OUT = {
    "color": _HELD_OUT,
    "linestyle": "none",
    "marker": "o",
    "markersize": 2.2,
    "markeredgewidth": 0,
    "clip_on": False,
}
CLIP = {"color": "0.15", "linewidth": 0.9, "linestyle": (0, (1, 1.5))}
EXPECTED = {"color": "0.15", "linewidth": 0.8, "linestyle": (0, (4, 2))}


@style.look()
def draw(log: pd.DataFrame, mean_loops: float, held_out_loops: int, clip: float, run: str, text: str) -> Figure:
    """Above, loss (nats per token), learning rate and gradient norm; below, a panel of loop counts per group.

    `log` is the table "training". `mean_loops` is r of the loop sampler, whose counts have the mean r + 1;
    `held_out_loops` the fixed loop count of the held-out loss; `clip` the norm to which gradients were cut.
    A model without groups has the upper row only. Raises InputError for a table without rows.
    """
    if log.empty:
        raise InputError("table training: found no row, expected at least one iteration for the training figure.")
    groups = tables.groups_of(log, "loops")
    heights = [UPPER, LOWER] if groups else [UPPER]
    figure = Figure(figsize=(style.DOUBLE, sum(heights) + MARGIN), layout="constrained")
    # The loop steps vary from iteration to iteration, so the foot has r in place of K.
    foot = f"run {run} · text {text}" + (f" · r = {mean_loops:g} mean loop steps" if groups else "")
    figure.supxlabel(foot, x=0.995, ha="right", fontsize=5.5, color=style.GREY, parse_math=False)
    rows = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    _draw_upper_row(figure, rows[0], log, clip)
    if groups:
        _draw_lower_row(rows[1], log, groups, mean_loops + 1)
    _add_legend(figure, len(log), held_out_loops, clip, mean_loops if groups else None)
    return figure


def window(iterations: int) -> int:
    """How many iterations a running mean spans in a run of that many."""
    return max(LEAST_WINDOW, round(iterations * SMOOTHED_SHARE))


def smooth(values: pd.Series) -> pd.Series:
    """The running mean around each iteration; null where its window reaches over an end."""
    return values.rolling(window(len(values)), center=True).mean()


def _draw_upper_row(figure: Figure, row: SubplotSpec, log: pd.DataFrame, clip: float) -> None:
    """The loss on the left; the learning rate over the gradient norm on the right."""
    cells = row.subgridspec(2, 2, width_ratios=(1.4, 1))
    loss, rate, gradient = (figure.add_subplot(cells[place]) for place in (np.s_[:, 0], np.s_[0, 1], np.s_[1, 1]))
    _draw_loss(loss, log)
    _draw_rate(rate, log)
    _draw_gradient(gradient, log, clip)
    for axes in (loss, rate, gradient):
        _scale_iterations(axes, log)
    rate.set_xlabel("")
    rate.tick_params(labelbottom=False)


def _draw_lower_row(row: SubplotSpec, log: pd.DataFrame, groups: list[str], expected: float) -> None:
    """The loop counts of each group, panels (iv) and on."""
    panels = row.subgridspec(1, len(groups)).subplots(sharey=True, squeeze=False)[0]
    for number, (axes, group) in enumerate(zip(panels, groups, strict=True), start=4):
        _draw_counts(axes, log["iteration"], log[f"loops_g{group}"], expected)
        _scale_iterations(axes, log)
        axes.set_title(f"{style.panel_number(number)}  loop steps, group {style.group_name(group)}", loc="left")
    panels[0].set_ylim(bottom=0)  # after the last panel: the axis they share no longer grows from here on


def _add_legend(figure: Figure, iterations: int, held_out_loops: int, clip: float, mean_loops: float | None) -> None:
    """A legend for all panels; `mean_loops` None is a model without loops."""
    loops = "" if mean_loops is None else f", {held_out_loops} loops"
    handles = {
        "one iteration": Line2D([], [], color=EACH["color"], linewidth=0.8),
        f"mean of {style.grouped(window(iterations))} iterations": Line2D([], [], **MEAN),
        f"held out{loops}": Line2D([], [], **HELD_OUT),
        f"clipped at {clip:g}": Line2D([], [], **CLIP),
    }
    if mean_loops is not None:
        handles[f"$r + 1 = {mean_loops + 1:g}$ loops"] = Line2D([], [], **EXPECTED)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))


def _draw_each_and_mean(axes: Axes, steps: pd.Series, values: pd.Series) -> None:
    axes.plot(steps, values, **EACH)
    axes.plot(steps, smooth(values), **MEAN)


def _draw_loss(axes: Axes, log: pd.DataFrame) -> None:
    """Loss and held-out loss, with a second axis for the tokens seen, of which every iteration has as many."""
    _draw_each_and_mean(axes, log["iteration"], log["loss"])
    axes.plot(log["iteration"], log["held_out_loss"], **HELD_OUT)
    axes.set_ylabel("nats/token")
    per_iteration = log["tokens_seen"].iloc[-1] / log["iteration"].iloc[-1]
    top = axes.secondary_xaxis("top", functions=(lambda step: step * per_iteration, lambda seen: seen / per_iteration))
    top.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND))
    top.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
    top.set_xlabel("tokens seen")
    axes.set_title("(i)  loss", loc="left", y=1, pad=TOP_AXIS)


def _draw_rate(axes: Axes, log: pd.DataFrame) -> None:
    """The learning rate in units of its power of ten, which would else stand where the title is."""
    power = math.floor(math.log10(log["learning_rate"].max()))
    axes.plot(log["iteration"], log["learning_rate"] / 10.0**power, color=_MEAN)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND))
    axes.set_ylabel(rf"$\times\,10^{{{power}}}$")
    axes.set_title("(ii)  learning rate", loc="left")


def _draw_gradient(axes: Axes, log: pd.DataFrame, clip: float) -> None:
    norm = log["gradient_norm"]
    _draw_each_and_mean(axes, log["iteration"], norm)
    axes.axhline(clip, **CLIP)
    if norm.max() > 10 * norm.min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.set_title("(iii)  gradient norm", loc="left")


def _draw_counts(axes: Axes, steps: pd.Series, counts: pd.Series, expected: float) -> None:
    """Loop counts over training, and beside them how often each one was drawn."""
    opacity = min(0.5, max(0.05, 300 / len(counts)))  # where points overlap, their density shows
    axes.scatter(steps, counts, s=2, linewidths=0, color="0.3", alpha=opacity, rasterized=True, zorder=1)
    axes.plot(steps, smooth(counts), **MEAN)
    beside = axes.inset_axes(HISTOGRAM, sharey=axes)
    beside.hist(counts, bins=np.arange(0.5, counts.max() + 1), orientation="horizontal", color=EACH["color"])
    beside.set_axis_off()
    for panel in (axes, beside):
        panel.axhline(expected, **EXPECTED)


def _scale_iterations(axes: Axes, log: pd.DataFrame) -> None:
    axes.set_xlim(0, log["iteration"].iloc[-1])
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: style.grouped(round(step))))
