"""Figure 4, exit policies: latency and quality of each exit criterion over its threshold."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.markers import CARETUP
from matplotlib.patches import Patch

from twoscale.claims.bootstrap import random_exits, summarise_latency, summarise_quality
from twoscale.claims.costs import summarise_times
from twoscale.claims.exits import PAPER_GRID, criterion_name
from twoscale.figures import style

_ALL_LOOPS: style.Look = {"color": style.GREY, "linestyle": (0, (5, 2)), "linewidth": 0.9}
_BASELINE: style.Look = {"linewidth": 0.6, "linestyle": "-"}
_MARKER: style.Look = {"markerfacecolor": "white", "markeredgewidth": 0.9}
_MOST_LOSS = 0.1  # nats above full depth up to which quality is shown
# at the upper end of a panel, where a line leaves it
LEAVES: style.Look = {"marker": CARETUP, "markersize": 6, "linestyle": "", "clip_on": False}
_MARGIN = 0.05  # below the lowest value, of the range of a panel
_PAPER_RANGE: style.Look = {"color": "0.94", "zorder": 0, "linewidth": 0}
_MOST_TICKS = 5  # decades labelled on the axis of thresholds

Styles = Mapping[str, style.Look]  # of each exit criterion


@style.look()
def draw(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    exit_cost_matched: pd.DataFrame,
    exit_costs: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """Two panels over tau, one line per exit criterion.

    (i) time, a line computed from evaluations and costs, and points at medians of measured tokens;
    (ii) cross-entropy with perplexity. Thin lines are the times of the same loop steps without a
    criterion, light ones random exits with as many evaluations, and the dashed horizontal line is
    the criterion `fixed` at all `context.loops` loop steps. Bars are 95 % intervals: of measured
    times over repeats, of the quality those of its change from full depth.
    """
    style.check_rows("exit_latency", exit_latency)
    style.check_rows("exit_quality", exit_quality)
    times = _times(exit_latency, exit_loops, exit_costs)
    scores = summarise_quality(exit_quality, exit_loops, context.loops)
    styles = style.criterion_styles([*times["criterion"], *scores["criterion"]])
    styles = dict(zip(styles, style.nested(styles.values()), strict=True))
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    latency, quality = figure.subplots(1, 2)

    _draw_times(latency, times, styles)
    style.name_panel(latency, 1, "latency", "latency (ms/token)")
    _draw_criteria(quality, scores, "ce", styles)
    style.name_panel(quality, 2, "quality", "cross-entropy (nats/token)")
    for axes, table, column in ((latency, times, "time_ms"), (quality, scores, "ce")):
        is_full = (table["criterion"] == "fixed") & (table["threshold"] == context.loops)
        for full in table.loc[is_full, column]:
            axes.axhline(full, zorder=1, **_ALL_LOOPS)
        axes.set_xscale("log")
        style.label_powers(axes.xaxis, _MOST_TICKS)
        axes.set_xlabel(r"exit threshold $\tau$")
        axes.axvspan(PAPER_GRID[0], PAPER_GRID[-1], **_PAPER_RANGE)

    random = random_exits(exit_cost_matched).sort_values("threshold")
    for criterion, rows in random.groupby("criterion"):
        color = styles[criterion]["color"]
        quality.plot(rows["threshold"], rows["ce"], color=color, **style.RANDOM_EXITS)
    _limit_quality(quality, scores, random, styles)
    # matplotlib also asks for the cross-entropy at 0, before an axis has limits
    logarithm = lambda perplexity: np.log(np.maximum(perplexity, np.finfo(float).tiny))  # noqa: E731
    quality.secondary_yaxis("right", functions=(np.exp, logarithm)).set_ylabel("perplexity")
    latency.set_ylim(bottom=0)
    _add_legends(figure, styles, context.loops)
    return figure


def _draw_times(axes: Axes, times: pd.DataFrame, styles: Styles) -> None:
    """Measured times as points, and computed ones as lines, thin without decisions.

    The times are those of `_times`.
    """
    points = {name: {**look, "linestyle": ""} for name, look in styles.items()}
    _draw_criteria(axes, times, "latency_ms", points)
    for criterion, look in styles.items():
        rows = times[times["criterion"] == criterion].sort_values("threshold")
        tau = rows["threshold"]
        axes.plot(tau, rows["time_ms"], **{**look, "marker": ""})
        axes.plot(tau, rows["bare_ms"], color=look["color"], zorder=1, **_BASELINE)


def _times(
    exit_latency: pd.DataFrame, exit_loops: pd.DataFrame, exit_costs: pd.DataFrame
) -> pd.DataFrame:
    """`summarise_latency` with the computed columns time_ms and bare_ms.

    Without costs, as in earlier releases, they are those that were measured.
    """
    measured = summarise_latency(exit_latency)
    if exit_costs.empty:
        return measured.assign(time_ms=measured["latency_ms"], bare_ms=measured["baseline_ms"])
    computed = summarise_times(exit_loops, exit_costs)
    return measured.merge(computed, "left", on=["criterion", "threshold"])


def _draw_criteria(axes: Axes, table: pd.DataFrame, column: str, styles: Styles) -> None:
    for criterion, look in styles.items():
        rows = table[table["criterion"] == criterion].sort_values("threshold")
        tau, values = rows["threshold"], rows[column]
        # an interval of resampled medians or means need not contain the value itself
        bars = np.maximum([values - rows["low"], rows["high"] - values], 0)
        axes.errorbar(tau, values, yerr=bars, elinewidth=0.8, capsize=1.5, **look, **_MARKER)


def _limit_quality(axes: Axes, scores: pd.DataFrame, random: pd.DataFrame, styles: Styles) -> None:
    """End the y range at `_MOST_LOSS`, and mark where lines leave it.

    Values beyond it would stretch the range.
    """
    fixed = scores[scores["criterion"] == "fixed"]
    full_depth = (scores if fixed.empty else fixed)["ce"].min()
    most = full_depth + _MOST_LOSS
    shown = scores[scores["ce"] <= most]
    values = (shown["ce"], shown["low"], random["ce"])
    lowest = np.nanmin([column.min() for column in values])
    high = min(axes.get_ylim()[1], most)
    margin = _MARGIN * (high - lowest)
    axes.set_ylim(lowest - margin, high)
    for criterion, look in styles.items():
        rows = scores[scores["criterion"] == criterion].sort_values("threshold")
        ce = rows["ce"].to_numpy()
        tau = np.log(rows["threshold"].to_numpy())
        leaves = (ce[:-1] <= high) & (ce[1:] > high)  # between point i and the next one
        for i in np.flatnonzero(leaves):
            # the threshold at which the line crosses the upper end; its axis is logarithmic
            log_crossing = np.interp(high, ce[i : i + 2], tau[i : i + 2])
            crossing = np.exp(log_crossing)
            axes.plot(crossing, high, color=look["color"], **LEAVES)


def _add_legends(figure: Figure, styles: Styles, max_loops: int) -> None:
    """Above the panels what both have, in a row; in a panel what it alone has."""
    entries: dict[str, Artist] = {}
    for criterion, look in styles.items():
        entries[criterion_name(criterion)] = Line2D([], [], **look, **_MARKER)
    entries[f"full depth, $K = {max_loops}$"] = Line2D([], [], **_ALL_LOOPS)
    entries[r"$\tau$ of the paper"] = Patch(**_PAPER_RANGE)
    style.legend_above(figure, entries, style.legend_columns(list(entries), style.DOUBLE))

    latency, quality = figure.axes
    # one line in the colours of all criteria
    options: style.Look = {"handler_map": {tuple: HandlerTuple(None, 0)}, "handlelength": 3}
    thin = tuple(Line2D([], [], color=look["color"], **_BASELINE) for look in styles.values())
    latency.legend([thin], ["same loops, no criterion"], loc="lower left", **options)

    light = [Line2D([], [], color=look["color"], **style.RANDOM_EXITS) for look in styles.values()]
    inside: dict[str, Artist | tuple] = {"random exits": tuple(light)}
    if any(line.get_marker() == CARETUP for line in quality.get_lines()):
        looks = LEAVES | {"marker": "^", "color": style.GREY}
        inside[f"leaves at {_MOST_LOSS:g} nats lost"] = Line2D([], [], **looks)
    quality.legend(inside.values(), inside.keys(), loc="upper left", **options)
