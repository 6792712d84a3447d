"""Supplementary figure, lens: what the state of every loop step predicts through the layers behind its group."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.lens.compare import summarise_lens

# column: (title, label)
PANELS = {
    "ce_change": ("cross-entropy", "nats/token above $k = {}$\n(linear within ±0.01, then log)"),
    "entropy_change": ("entropy of the prediction", "nats/token above $k = {}$\n(linear within ±0.01, then log)"),
    "rank": ("rank of the right token", "geometric mean (log scale)"),
    "lost": ("right predictions lost again", "share of all tokens"),
}
LINEAR = 1e-2  # the axes of changes are linear within this many nats, logarithmic beyond


@style.look()
def draw(lens: pd.DataFrame, *, mean_loops: float, typical_loops: int, context: style.FigureContext) -> Figure:
    """Four panels against the loop step k, one line per group: cross-entropy, entropy, rank, lost predictions.

    Args:
        lens: Table of this name.
        mean_loops: Mean of the loop counts in training, or the published one, the dotted vertical line.
        typical_loops: The loop step next to it, from which changes are counted.
        context: Its loop steps K are the last k.

    Raises InputError for a table without rows.
    """
    if lens.empty:
        raise InputError("table lens: found no rows, expected at least one group for the figure.")
    summary = summarise_lens(lens, typical_loops)
    groups = style.looped_groups(summary, "the lens")
    looks = dict(zip(groups, style.nested(style.series_styles(len(groups))), strict=True))
    figure = style.new_figure(style.DOUBLE, 4.4, context)
    panels = figure.subplots(2, 2, sharex=True)
    for number, (axes, (column, (title, label))) in enumerate(zip(panels.flat, PANELS.items(), strict=True), start=1):
        trained = style.mark_trained(axes, mean_loops, context)
        for group, look in looks.items():
            _draw_line(axes, summary[summary["group"] == group], column, look)
        axes.set_title(f"{style.panel_number(number)}  {title}{_at(summary, column, typical_loops)}", loc="left")
        axes.set_ylabel(label.format(typical_loops))
    for axes in panels[0]:
        _scale_change(axes)
    panels[1, 0].set_yscale("log")
    style.label_powers(panels[1, 0].yaxis)
    panels[1, 1].yaxis.set_major_formatter(PercentFormatter(1))
    panels[1, 1].set_ylim(bottom=-0.04 * panels[1, 1].get_ylim()[1])  # lines at zero are above the axis
    for axes in panels[1]:
        _scale_steps(axes, lens["k"])
    handles = {f"group {style.group_name(group)}": Line2D([], [], **look) for group, look in looks.items()}
    handles |= trained
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def _at(summary: pd.DataFrame, column: str, k: int) -> str:
    """For a panel of changes: the value that they start from, ", 4.21 at k = 12"; of each group where they differ."""
    if not column.endswith("_change"):
        return ""
    values = summary.loc[summary["k"] == k, column.removesuffix("_change")]
    return f", {', '.join(dict.fromkeys(f'{value:.2f}' for value in values))} at $k = {k}$"


def _scale_change(axes: Axes) -> None:
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    low, high = axes.dataLim.intervaly
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_ylim(min(2 * low, -LINEAR), max(2 * high, LINEAR))
    axes.yaxis.set_major_locator(FixedLocator(style.SIGNED_POWERS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.power_name(value)))


def _draw_line(axes: Axes, rows: pd.DataFrame, column: str, look: dict) -> None:
    """The mean over tokens against k, with the bounds over documents."""
    known = rows.dropna(subset=column)
    axes.plot(known["k"], known[column], **look)
    style.band(axes, known["k"], known[f"{column}_low"], known[f"{column}_high"], color=look["color"], alpha=0.12)


def _scale_steps(axes: Axes, steps: pd.Series) -> None:
    """A logarithmic axis with room for k = 0, labelled there and at the powers of two."""
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.7)
    axes.xaxis.set_major_locator(FixedLocator([0, *(2**n for n in range(int(steps.max()).bit_length()))]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-0.1, 1.06 * steps.max())
    axes.set_xlabel("loop step $k$ of the decoded state (log scale)")
