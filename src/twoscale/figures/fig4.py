"""Figure 4, exit policies: latency, perplexity and cross-entropy of each exit rule over its threshold."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.analysis.summaries import summarise_latency, summarise_quality
from twoscale.errors import InputError
from twoscale.figures import style

FULL_BUDGET = {"color": style.GREY, "linestyle": (0, (5, 2)), "linewidth": 0.9}
FLOOR = {"linewidth": 0.6, "linestyle": "-"}
MARKER = {"markerfacecolor": "white", "markeredgewidth": 0.9}
# A quality axis spans at least this share of its values, so that differences of no size look like none.
LEAST_SPAN = 0.05

# Panels (i) to (iii) of the paper: column -> axis label.
PANELS = {"latency_ms": "latency (ms/token)", "ppl": "perplexity", "ce": "cross-entropy (nats/token)"}


@style.look()
def draw(latency: pd.DataFrame, quality: pd.DataFrame, budget: int, run: str, text: str) -> Figure:
    """Three panels over tau: (i) latency, (ii) perplexity, (iii) cross-entropy, one line per exit criterion.

    `latency` and `quality` are the tables "exit_latency" and "exit_quality"; `budget` is the most loop steps a
    token may take: the rule `fixed` at that threshold is the dashed horizontal line. Latency is the median of
    the repeats; the thin line of the same colour is the time of the same loop steps without a criterion. Bars are
    95 % intervals: of the latency over repeats, of the quality those of its change from the full budget on the
    same sequences. Raises InputError where a table has no rows.
    """
    for name, table in (("exit_latency", latency), ("exit_quality", quality)):
        if table.empty:
            raise InputError(f"table {name}: found no row, expected at least one exit rule for Figure 4.")
    times, scores = summarise_latency(latency), summarise_quality(quality, budget)
    styles = style.criterion_styles([*times["criterion"], *scores["criterion"]])
    figure = style.new_figure(style.DOUBLE, 2.6, run, text, budget)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, (column, label)) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        table = times if column == "latency_ms" else scores
        _draw_criteria(axes, table, column, styles)
        for full in table.loc[(table["criterion"] == "fixed") & (table["threshold"] == budget), column]:
            axes.axhline(full, zorder=1, **FULL_BUDGET)
        axes.set_xscale("log")
        axes.set_xlabel(r"exit threshold $\tau$")
        axes.set_ylabel(label)
        axes.set_title(style.panel_number(number), loc="left")
    for axes in panels[1:]:
        _widen(axes)
    panels[0].set_ylim(bottom=0)
    handles = {style.criterion_name(criterion): Line2D([], [], **looks, **MARKER) for criterion, looks in styles.items()}
    handles[f"full budget, $K = {budget}$"] = Line2D([], [], **FULL_BUDGET)
    handles["thin: same loops, no rule"] = Line2D([], [], color=style.GREY, **FLOOR)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def _draw_criteria(axes: Axes, table: pd.DataFrame, column: str, styles: dict[str, dict]) -> None:
    for criterion, looks in styles.items():
        rows = table[table["criterion"] == criterion].sort_values("threshold")
        low, high = (np.exp(rows[bound]) if column == "ppl" else rows[bound] for bound in ("low", "high"))
        # an interval of resampled medians or means need not hold the value itself
        bars = np.maximum([rows[column] - low, high - rows[column]], 0)
        axes.errorbar(rows["threshold"], rows[column], yerr=bars, elinewidth=0.8, capsize=1.5, **looks, **MARKER)
        if column == "latency_ms":
            axes.plot(rows["threshold"], rows["baseline_ms"], color=looks["color"], zorder=1, **FLOOR)


def _widen(axes: Axes) -> None:
    """Open the y range to LEAST_SPAN of its centre where it is narrower."""
    low, high = axes.get_ylim()
    centre, half = (low + high) / 2, (high - low) / 2
    half = max(half, LEAST_SPAN / 2 * abs(centre))
    axes.set_ylim(centre - half, centre + half)
