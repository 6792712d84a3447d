"""Supplementary figure, Pareto: quality against latency and against loops, for every exit criterion."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.analysis.summaries import OPERATING_POINT, random_exits, summarise_latency, summarise_quality
from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.studies.arena.figure import LINEAR, scale_cost, scale_nats

# x axis of each panel: column -> title, label
PANELS = {
    "latency_ms": ("quality against latency", "latency (ms/token, log scale)"),
    "loops": ("quality against loops", "evaluations per token and group (mean, log scale)"),
}
FIXED = {"color": style.BLACK, "linestyle": (0, (5, 2)), "linewidth": 1, "marker": "|", "markersize": 5}
ORACLE = {"color": style.BLACK, "linestyle": "", "marker": "*", "markersize": 7}
FRONTIER = {"color": "0.82", "linewidth": 4, "solid_joinstyle": "round", "zorder": 0}


@style.look()
def draw(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    exit_cost_matched: pd.DataFrame,
    uniform_loops: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops: one line per exit criterion along its thresholds.

    The criteria of the paper and those of the user are in colour, with 95 % intervals over documents; other built-in
    criteria are grey. The broad line is the frontier: the points that no other point beats in both quantities.

    Quality is the cross-entropy minus that at all `context.loops` loop steps, which the criterion `fixed` has to
    contain. Fixed loop counts are the dashed line. In (ii) the light line of a colour shows random exits with as
    many evaluations as the criterion. The star is the oracle of `uniform_loops`, which has no latency
    because no decoder can run it.

    Args:
        exit_latency, exit_quality, exit_loops, exit_cost_matched: Tables of these names, of the dense grid.
        uniform_loops: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without rows.
    """
    needed = {"exit_latency": exit_latency, "exit_quality": exit_quality, "uniform_loops": uniform_loops}
    for name, table in needed.items():
        if table.empty:
            raise InputError(f"table {name}: found no row, expected at least one exit criterion for the figure.")
    times = summarise_latency(exit_latency)[[*OPERATING_POINT, "latency_ms"]]
    points = summarise_quality(exit_quality, exit_loops, context.loops).merge(times, on=OPERATING_POINT)
    full = points.loc[(points["criterion"] == "fixed") & (points["threshold"] == context.loops), "ce"].item()
    points = points.sort_values("threshold").assign(excess=points["ce"] - full)
    styles = {"fixed": FIXED} | style.emphasised_styles(exit_quality["criterion"], style.CRITERION_COLOURS)
    figure = style.new_figure(style.DOUBLE, 3.5, context)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for number, (axes, column) in enumerate(zip(panels, PANELS, strict=True), start=1):
        axes.plot(*frontier(points[column], points["excess"]), **FRONTIER)
        _draw_criteria(axes, points, column, styles)
        scale_cost(axes)
        scale_nats(axes)
        axes.set_xlabel(PANELS[column][1])
        axes.set_title(f"{style.panel_number(number)}  {PANELS[column][0]}", loc="left")
    loops, ce = np.average(uniform_loops[["loops", "ce"]], axis=0, weights=uniform_loops["tokens"])
    panels[1].plot(loops, ce - full, zorder=3, **ORACLE)
    _draw_random_exits(panels[1], random_exits(exit_cost_matched), full, styles)
    panels[0].set_ylabel(f"cross-entropy above that of {context.loops} loops\n(nats/token, linear within ±{LINEAR:g})")
    _add_legend(figure, styles)
    return figure


def frontier(cost: pd.Series, excess: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Cost and excess of the points that no other point beats, from low to high cost; their excess falls."""
    order = np.lexsort((excess, cost))
    cost, excess = cost.to_numpy()[order], excess.to_numpy()[order]
    least_before = np.minimum.accumulate(np.r_[np.inf, excess[:-1]])
    return cost[excess < least_before], excess[excess < least_before]


def _draw_criteria(axes: Axes, points: pd.DataFrame, column: str, styles: dict[str, dict]) -> None:
    """Excess cross-entropy over `column`, one line per criterion; those in grey without intervals."""
    for criterion, looks in styles.items():
        rows = points[points["criterion"] == criterion]
        bars = np.maximum([rows["ce"] - rows["low"], rows["high"] - rows["ce"]], 0)
        shown = None if style.is_grey(looks) else bars
        axes.errorbar(rows[column], rows["excess"], yerr=shown, elinewidth=0.6, **looks)


def _draw_random_exits(axes: Axes, random: pd.DataFrame, full: float, styles: dict[str, dict]) -> None:
    """The random exits of the criteria in colour, over their evaluations."""
    for criterion, rows in random.groupby("criterion"):
        if not style.is_grey(styles[criterion]):
            rows = rows.sort_values("evaluations")
            axes.plot(rows["evaluations"], rows["ce"] - full, color=styles[criterion]["color"], **style.RANDOM_EXITS)


def _add_legend(figure: Figure, styles: dict[str, dict]) -> None:
    """Criteria in colour first, then fixed loops, the frontier and the oracle, then those in grey."""
    grey = [name for name, looks in styles.items() if style.is_grey(looks)]
    names = {name: style.criterion_name(name) for name in styles if name != "fixed"}
    handles = {names[name]: Line2D([], [], **styles[name]) for name in names if name not in grey}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    handles["frontier of all points"] = Line2D([], [], **FRONTIER)
    handles["fewest loops that settle the token"] = Line2D([], [], **ORACLE)
    handles[style.RANDOM_EXITS_LABEL] = Line2D([], [], color=style.GREY, **style.RANDOM_EXITS)
    handles |= {names[name]: Line2D([], [], **styles[name]) for name in grey}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
