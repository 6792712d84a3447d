"""Figure 4, exit policies: latency, and cross-entropy with perplexity, of each exit criterion over
its threshold.
"""

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
from twoscale.claims.exits import PAPER_GRID, criterion_name
from twoscale.figures import style

ALL_LOOPS: style.Look = {"color": style.GREY, "linestyle": (0, (5, 2)), "linewidth": 0.9}
BASELINE: style.Look = {"linewidth": 0.6, "linestyle": "-"}
MARKER: style.Look = {"markerfacecolor": "white", "markeredgewidth": 0.9}
MOST_LOSS = 0.1  # nats above full depth up to which quality is shown
LEAVES: style.Look = {
    "marker": CARETUP,
    "markersize": 6,
    "linestyle": "",
    "clip_on": False,
}  # where one does
MARGIN = 0.05  # below the lowest value, of the range of a panel
PAPER_RANGE: style.Look = {"color": "0.94", "zorder": 0, "linewidth": 0}
MOST_TICKS = 5  # decades labelled on the axis of thresholds

# Panel (i) of the paper, and its panels (ii) and (iii) in one: column -> title, axis label.
PANELS = {
    "latency_ms": ("latency", "latency (ms/token)"),
    "ce": ("quality", "cross-entropy (nats/token)"),
}


@style.look()
def draw(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    exit_cost_matched: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """Two panels over tau: (i) median latency, (ii) cross-entropy with perplexity, one line per
    exit criterion.

    Thin lines are the times of the same loop steps without a criterion, light ones random exits
    with as many evaluations, and the dashed horizontal line is the criterion `fixed` at all
    `context.loops` loop steps. Bars are 95 % intervals: of the latency over repeats, of the quality
    those of its change from full depth.
    """
    style.check_rows("exit_latency", exit_latency)
    style.check_rows("exit_quality", exit_quality)
    times = summarise_latency(exit_latency)
    scores = summarise_quality(exit_quality, exit_loops, context.loops)
    styles = style.criterion_styles([*times["criterion"], *scores["criterion"]])
    styles = dict(zip(styles, style.nested(styles.values()), strict=True))
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, column) in enumerate(zip(panels, PANELS, strict=True), start=1):
        table = times if column == "latency_ms" else scores
        _draw_criteria(axes, table, column, styles)
        full = table.loc[
            (table["criterion"] == "fixed") & (table["threshold"] == context.loops), column
        ]
        if not full.empty:
            axes.axhline(full.item(), zorder=1, **ALL_LOOPS)
        axes.set_xscale("log")
        style.label_powers(axes.xaxis, MOST_TICKS)
        axes.set_xlabel(r"exit threshold $\tau$")
        style.name_panel(axes, number, *PANELS[column])
        axes.axvspan(PAPER_GRID[0], PAPER_GRID[-1], **PAPER_RANGE)
    random = random_exits(exit_cost_matched).sort_values("threshold")
    for criterion, rows in random.groupby("criterion"):
        panels[1].plot(
            rows["threshold"], rows["ce"], color=styles[criterion]["color"], **style.RANDOM_EXITS
        )
    _limit_quality(panels[1], scores, random, styles)
    # matplotlib also asks for the cross-entropy at 0, before an axis has limits
    logarithm = lambda perplexity: np.log(np.maximum(perplexity, np.finfo(float).tiny))  # noqa: E731
    panels[1].secondary_yaxis("right", functions=(np.exp, logarithm)).set_ylabel("perplexity")
    panels[0].set_ylim(bottom=0)
    _add_legend(figure, styles, context.loops)
    return figure


def _draw_criteria(axes: Axes, table: pd.DataFrame, column: str, styles: dict[str, dict]) -> None:
    for criterion, looks in styles.items():
        rows = table[table["criterion"] == criterion].sort_values("threshold")
        # an interval of resampled medians or means need not contain the value itself
        bars = np.maximum([rows[column] - rows["low"], rows["high"] - rows[column]], 0)
        axes.errorbar(
            rows["threshold"],
            rows[column],
            yerr=bars,
            elinewidth=0.8,
            capsize=1.5,
            **looks,
            **MARKER,
        )
        if column == "latency_ms":
            axes.plot(
                rows["threshold"], rows["baseline_ms"], color=looks["color"], zorder=1, **BASELINE
            )


def _limit_quality(
    axes: Axes, scores: pd.DataFrame, random: pd.DataFrame, styles: dict[str, dict]
) -> None:
    """End the y range at `MOST_LOSS`, since values beyond it would stretch it, and mark where lines
    leave it.
    """
    full = scores.loc[scores["criterion"] == "fixed", "ce"]
    most = MOST_LOSS + (scores["ce"] if full.empty else full).min()
    shown = scores[scores["ce"] <= most]
    lowest = np.nanmin([shown["ce"].min(), shown["low"].min(), random["ce"].min()])
    high = min(axes.get_ylim()[1], most)
    axes.set_ylim(lowest - MARGIN * (high - lowest), high)
    for criterion, looks in styles.items():
        rows = scores[scores["criterion"] == criterion].sort_values("threshold")
        ce, tau = rows["ce"].to_numpy(), np.log(rows["threshold"].to_numpy())
        for i in np.flatnonzero((ce[:-1] <= high) & (ce[1:] > high)):
            crossing = np.exp(np.interp(high, ce[i : i + 2], tau[i : i + 2]))
            axes.plot(crossing, high, color=looks["color"], **LEAVES)


def _add_legend(figure: Figure, styles: dict[str, dict], max_loops: int) -> None:
    """Above the panels what both have, in a row; in a panel what it alone has."""
    handles: dict[str, Artist] = {
        criterion_name(criterion): Line2D([], [], **looks, **MARKER)
        for criterion, looks in styles.items()
    }
    handles[f"full depth, $K = {max_loops}$"] = Line2D([], [], **ALL_LOOPS)
    handles[r"$\tau$ of the paper"] = Patch(**PAPER_RANGE)
    names = list(handles)
    figure.legend(
        handles.values(),
        names,
        loc="outside upper center",
        ncols=style.legend_columns(names, style.DOUBLE),
    )
    thin, light = (
        tuple(Line2D([], [], color=looks["color"], **look) for looks in styles.values())
        for look in (BASELINE, style.RANDOM_EXITS)
    )
    options: style.Look = {"handler_map": {tuple: HandlerTuple(None, 0)}, "handlelength": 3}
    figure.axes[0].legend([thin], ["same loops, no criterion"], loc="lower left", **options)
    entries: dict[str, Artist | tuple] = {"random exits": light}
    if any(line.get_marker() == CARETUP for line in figure.axes[1].get_lines()):
        entries[f"leaves at {MOST_LOSS:g} nats lost"] = Line2D(
            [], [], color=style.GREY, **LEAVES | {"marker": "^"}
        )
    figure.axes[1].legend(entries.values(), entries.keys(), loc="upper left", **options)
