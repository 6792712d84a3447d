"""Supplementary figure, Pareto: quality against latency and against loops, for every exit criterion."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from twoscale.analysis.summaries import OPERATING_POINT, summarise_latency, summarise_quality
from twoscale.errors import InputError
from twoscale.figures import style

# x axis of each panel: column -> label
PANELS = {"latency_ms": "latency (ms/token)", "loops": "evaluations per token and group, mean"}
FIXED = {"color": "0.35", "linestyle": (0, (5, 2)), "linewidth": 0.9, "marker": "|", "markersize": 4}
ORACLE = {"color": "black", "linestyle": "", "marker": "*", "markersize": 7}
MARKER = {"markersize": 2.8, "linewidth": 0.9, "alpha": 0.9}
# The y axis is linear within this many nats of the quality at all loop steps, logarithmic beyond.
LINEAR = 1e-3


@style.look()
def draw(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    uniform_loops: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops: one line per exit criterion along its thresholds.

    Quality is the cross-entropy minus that at all `context.loops` loop steps, which the criterion `fixed` has to
    contain. Fixed loop counts are the dashed line; the star is the oracle of `uniform_loops`, which has no latency
    because no decoder can run it. Bars are 95 % intervals over documents.

    Args:
        exit_latency, exit_quality, exit_loops: Tables of these names, of the dense grid of thresholds.
        uniform_loops: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without rows.
    """
    for name, table in (
        ("exit_latency", exit_latency),
        ("exit_quality", exit_quality),
        ("uniform_loops", uniform_loops),
    ):
        if table.empty:
            raise InputError(f"table {name}: found no row, expected at least one exit criterion for the figure.")
    times = summarise_latency(exit_latency)[[*OPERATING_POINT, "latency_ms"]]
    points = summarise_quality(exit_quality, exit_loops, context.loops).merge(times, on=OPERATING_POINT)
    points = points.sort_values("threshold")
    full = points.loc[(points["criterion"] == "fixed") & (points["threshold"] == context.loops), "ce"].item()
    styles = {"fixed": FIXED}
    styles |= {name: looks | MARKER for name, looks in style.criterion_styles(exit_quality["criterion"]).items()}
    figure = style.new_figure(style.DOUBLE, 3.3, context)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for number, (axes, column) in enumerate(zip(panels, PANELS, strict=True), start=1):
        _draw_criteria(axes, points.assign(excess=points["ce"] - full), column, styles)
        axes.set_title(style.panel_number(number), loc="left")
    loops, ce = np.average(uniform_loops[["loops", "ce"]], axis=0, weights=uniform_loops["tokens"])
    panels[1].plot(loops, ce - full, zorder=3, **ORACLE)
    panels[0].set_ylabel("excess cross-entropy (nats/token)")
    _add_legend(figure, styles)
    return figure


def _draw_criteria(axes: Axes, points: pd.DataFrame, column: str, styles: dict[str, dict]) -> None:
    """Excess cross-entropy over `column`, one line per criterion."""
    for criterion, looks in styles.items():
        rows = points[points["criterion"] == criterion]
        bars = np.maximum([rows["ce"] - rows["low"], rows["high"] - rows["ce"]], 0)
        axes.errorbar(rows[column], rows["excess"], yerr=bars, elinewidth=0.4, **looks)
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(PANELS[column])


def _add_legend(figure: Figure, styles: dict[str, dict]) -> None:
    handles = {
        style.criterion_name(criterion): Line2D([], [], **looks)
        for criterion, looks in styles.items()
        if criterion != "fixed"
    }
    handles["fixed loops"] = Line2D([], [], **FIXED)
    handles["fewest loops that settle the token"] = Line2D([], [], **ORACLE)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
