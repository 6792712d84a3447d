"""Figure 4, exit policies: latency, perplexity and cross-entropy of each exit criterion over its threshold."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from twoscale.analysis.claims_exits import PAPER_GRID
from twoscale.analysis.summaries import random_exits, summarise_latency, summarise_quality
from twoscale.errors import InputError
from twoscale.figures import style

ALL_LOOPS = {"color": style.GREY, "linestyle": (0, (5, 2)), "linewidth": 0.9}
BASELINE = {"linewidth": 0.6, "linestyle": "-"}
MARKER = {"markerfacecolor": "white", "markeredgewidth": 0.9}
# The y range of perplexity is at least this share of its values, so that negligible differences look negligible.
LEAST_SPAN = 0.05
MOST_LOSS = 0.1  # nats above full depth up to which quality is shown; lines leave the panels there
PAPER_RANGE = {"color": "0.94", "zorder": 0, "linewidth": 0}
MOST_TICKS = 5  # decades labelled on the axis of thresholds

# Panels (i) to (iii) of the paper: column -> title, axis label.
PANELS = {
    "latency_ms": ("latency", "latency (ms/token)"),
    "ppl": ("perplexity", "perplexity"),
    "ce": ("cross-entropy, enlarged", "cross-entropy (nats/token)"),
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
    """Three panels over tau: (i) latency, (ii) perplexity, (iii) cross-entropy, one line per exit criterion.

    The range of perplexity makes negligible differences look negligible. That of the cross-entropy is the range of its
    values, with a second axis of the change from full depth; the light line of the same colour shows random exits
    with as many evaluations. Both end `MOST_LOSS` nats above full depth. The criterion `fixed` at all `context.loops`
    loop steps is the dashed horizontal line. The thresholds of the paper have a grey background.
    Latency is the median of the repeats; the thin line of the same colour is the time of the same loop steps without a
    criterion. Bars are 95 % intervals: of the latency over repeats, of the
    quality those of its change from full depth on the same sequences.

    Args:
        exit_latency, exit_quality, exit_loops, exit_cost_matched: Tables of these names.
        context: Its loop steps K are the most that a token may take.

    Raises InputError if a table has no rows.
    """
    for name, table in (("exit_latency", exit_latency), ("exit_quality", exit_quality)):
        if table.empty:
            raise InputError(f"table {name}: found no row, expected at least one exit criterion for Figure 4.")
    times = summarise_latency(exit_latency)
    scores = summarise_quality(exit_quality, exit_loops, context.loops)
    styles = style.criterion_styles([*times["criterion"], *scores["criterion"]])
    styles = dict(zip(styles, style.nested(styles.values()), strict=True))
    figure = style.new_figure(style.DOUBLE, 2.7, context)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, column) in enumerate(zip(panels, PANELS, strict=True), start=1):
        table = times if column == "latency_ms" else scores
        _draw_criteria(axes, table, column, styles)
        full = table.loc[(table["criterion"] == "fixed") & (table["threshold"] == context.loops), column]
        _draw_all_loops(axes, full, column)
        _name_panel(axes, number, *PANELS[column])
        axes.axvspan(PAPER_GRID[0], PAPER_GRID[-1], **PAPER_RANGE)
    _draw_random_exits(panels[2], random_exits(exit_cost_matched), styles)
    _end_at_most_loss(panels[1:], scores)
    _widen(panels[1])
    panels[0].set_ylim(bottom=0)
    _add_legend(figure, styles, context.loops)
    return figure


def _draw_all_loops(axes: Axes, full: pd.Series, column: str) -> None:
    """The value without exits, which a table without the criterion `fixed` does not have."""
    if full.empty:
        return
    value = full.item()
    axes.axhline(value, zorder=1, **ALL_LOOPS)
    if column == "ce":
        change = axes.secondary_yaxis("right", functions=(lambda ce: ce - value, lambda change: change + value))
        change.set_ylabel("change from full depth")


def _name_panel(axes: Axes, number: int, title: str, label: str) -> None:
    axes.set_xscale("log")
    style.label_powers(axes.xaxis, MOST_TICKS)
    axes.set_xlabel(r"exit threshold $\tau$")
    axes.set_ylabel(label)
    axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")


def _draw_criteria(axes: Axes, table: pd.DataFrame, column: str, styles: dict[str, dict]) -> None:
    for criterion, looks in styles.items():
        rows = table[table["criterion"] == criterion].sort_values("threshold")
        low, high = (np.exp(rows[bound]) if column == "ppl" else rows[bound] for bound in ("low", "high"))
        # an interval of resampled medians or means need not contain the value itself
        bars = np.maximum([rows[column] - low, high - rows[column]], 0)
        axes.errorbar(rows["threshold"], rows[column], yerr=bars, elinewidth=0.8, capsize=1.5, **looks, **MARKER)
        if column == "latency_ms":
            axes.plot(rows["threshold"], rows["baseline_ms"], color=looks["color"], zorder=1, **BASELINE)


def _draw_random_exits(axes: Axes, random: pd.DataFrame, styles: dict[str, dict]) -> None:
    for criterion, rows in random.groupby("criterion"):
        rows = rows.sort_values("threshold")
        axes.plot(rows["threshold"], rows["ce"], color=styles[criterion]["color"], **style.RANDOM_EXITS)


def _end_at_most_loss(panels: Iterable[Axes], scores: pd.DataFrame) -> None:
    """Let perplexity and cross-entropy end at `MOST_LOSS` above full depth, or above the lowest without that."""
    full = scores.loc[scores["criterion"] == "fixed", "ce"]
    most = MOST_LOSS + (scores["ce"] if full.empty else full).min()
    for axes, top in zip(panels, (np.exp(most), most), strict=True):
        low, high = axes.get_ylim()
        axes.set_ylim(low, min(high, top))


def _widen(axes: Axes) -> None:
    """Extend a y range that is narrower than LEAST_SPAN of its centre."""
    low, high = axes.get_ylim()
    centre, half = (low + high) / 2, (high - low) / 2
    half = max(half, LEAST_SPAN / 2 * abs(centre))
    axes.set_ylim(centre - half, centre + half)


def _add_legend(figure: Figure, styles: dict[str, dict], max_loops: int) -> None:
    handles = {
        style.criterion_name(criterion): Line2D([], [], **looks, **MARKER) for criterion, looks in styles.items()
    }
    handles[f"full depth, $K = {max_loops}$"] = Line2D([], [], **ALL_LOOPS)
    handles["thin: same loops, no criterion"] = Line2D([], [], color=style.GREY, **BASELINE)
    handles[style.RANDOM_EXITS_LABEL] = Line2D([], [], color=style.GREY, **style.RANDOM_EXITS)
    handles[r"$\tau$ of the paper"] = Patch(**PAPER_RANGE)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
