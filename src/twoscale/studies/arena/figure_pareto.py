"""Supplementary figure, Pareto: quality against latency and against loops of the paper's exit criteria."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from twoscale.base import InputError
from twoscale.claims.bootstrap import OPERATING_POINT, summarise_latency, summarise_quality
from twoscale.claims.exits import criterion_name
from twoscale.figures import style
from twoscale.studies.arena.figure import LINEAR

# x axis of each panel: column -> title, label
PANELS = {
    "latency_ms": ("quality against latency", "latency (ms/token, log scale)"),
    "loops": ("quality against loops", "evaluations per token and group (mean, log scale)"),
}
FIXED: style.Look = {"color": style.BLACK, "linestyle": (0, (5, 2)), "linewidth": 1, "marker": "|", "markersize": 5}
LINE: style.Look = {"markersize": 3.5, "linewidth": 1.2}
FRONTIER: style.Look = {"color": "0.8", "linewidth": 3, "solid_joinstyle": "round", "zorder": 0}


@style.look()
def draw(
    exit_latency: pd.DataFrame, exit_quality: pd.DataFrame, exit_loops: pd.DataFrame, *, context: style.FigureContext
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops: one line per exit criterion along its thresholds.

    The criteria of the paper and those of the user are in colour, with 95 % intervals over documents. The broad grey
    line is the frontier of all other criteria: their points that no other of them beats in both quantities.

    Quality is the cross-entropy minus that at all `context.loops` loop steps, which the criterion `fixed` has to
    contain. Fixed loop counts are the dashed line.

    Args:
        exit_latency, exit_quality, exit_loops: Tables of these names, of the dense grid.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without rows.
    """
    for name, table in {"exit_latency": exit_latency, "exit_quality": exit_quality}.items():
        if table.empty:
            raise InputError(f"table {name}: found no rows, expected at least one exit criterion for the figure.")
    times = summarise_latency(exit_latency)[[*OPERATING_POINT, "latency_ms"]]
    points = summarise_quality(exit_quality, exit_loops, context.loops).merge(times, on=OPERATING_POINT)
    full = points.loc[(points["criterion"] == "fixed") & (points["threshold"] == context.loops), "ce"].item()
    points = points.sort_values("threshold").assign(excess=points["ce"] - full)
    colours = style.criterion_colours(exit_quality["criterion"])
    others = [name for name, colour in colours.items() if colour == style.OTHERS]
    coloured = style.criterion_styles(name for name in colours if name not in others)
    styles = {"fixed": FIXED} | {name: look | LINE for name, look in coloured.items()}
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    of_others = points[points["criterion"].isin(others)]
    for number, (axes, (column, (title, label))) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        axes.plot(*frontier(of_others[column], of_others["excess"]), **FRONTIER)
        _draw_criteria(axes, points, column, styles)
        _scale(axes)
        axes.set_xlabel(label)
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
    panels[0].set_ylabel(f"cross-entropy above that of {context.loops} loops\n(nats/token, linear within ±{LINEAR:g})")
    handles = {criterion_name(name): Line2D([], [], **look) for name, look in styles.items() if name != "fixed"}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    if others:
        handles[f"best of {len(others)} other criteria"] = Line2D([], [], **FRONTIER)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def frontier(cost: pd.Series, excess: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Cost and excess of the points that no other point beats, from low to high cost; their excess falls."""
    order = np.lexsort((excess, cost))
    cost, excess = cost.to_numpy()[order], excess.to_numpy()[order]
    least_before = np.minimum.accumulate(np.r_[np.inf, excess[:-1]])
    return cost[excess < least_before], excess[excess < least_before]


def _draw_criteria(axes: Axes, points: pd.DataFrame, column: str, styles: dict[str, dict]) -> None:
    """Excess cross-entropy over `column`, one line with intervals per criterion."""
    for criterion, looks in styles.items():
        rows = points[points["criterion"] == criterion]
        bars = np.maximum([rows["ce"] - rows["low"], rows["high"] - rows["ce"]], 0)
        axes.errorbar(rows[column], rows["excess"], yerr=bars, elinewidth=0.6, **looks)


def _scale(axes: Axes) -> None:
    """A logarithmic x axis, and a y axis that is linear within `LINEAR` nats of 0, logarithmic beyond."""
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.yaxis.set_major_locator(FixedLocator(style.SIGNED_POWERS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.power_name(value)))
