"""Supplementary figure, Pareto: quality against latency and against loops, for every exit rule."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale import style
from twoscale.errors import InputError
from twoscale.summaries import SETTING, summarise_latency, summarise_quality

# x axis of each panel: column -> label
PANELS = {"latency_ms": "latency (ms/token)", "loops": "evaluations per token and group, mean"}
FIXED = {"color": "0.35", "linestyle": (0, (5, 2)), "linewidth": 0.9, "marker": "|", "markersize": 4}
REFERENCE = {"color": "black", "linestyle": "", "marker": "*", "markersize": 7}
MARKER = {"markersize": 2.8, "linewidth": 0.9, "alpha": 0.9}
# The axis of quality ends this share of the way from the best fixed loop count to a single loop, unless the worst
# point lies below: what is past it is no trade anyone would make.
SHOWN_LOSS = 0.5


@style.look()
def draw(
    latency: pd.DataFrame, quality: pd.DataFrame, reference: pd.DataFrame, budget: int, run: str, text: str
) -> Figure:
    """Two panels, cross-entropy over (i) latency and (ii) mean loops: one line per exit rule along its thresholds.

    `latency`, `quality` and `reference` are the tables "exit_latency" and "exit_quality" of the dense grid and
    "uniform_budget". Fixed loop counts are the dashed line; the star is the reference, which has no latency
    because no decoder could run it. Raises InputError for a table without rows.
    """
    for name, table in (("exit_latency", latency), ("exit_quality", quality), ("uniform_budget", reference)):
        if table.empty:
            raise InputError(f"table {name}: found no row, expected at least one exit rule for the figure.")
    times = summarise_latency(latency)[[*SETTING, "latency_ms"]]
    points = summarise_quality(quality, budget).merge(times, on=SETTING).sort_values("threshold")
    styles = style.rule_styles(quality["rule"])
    figure = style.new_figure(style.DOUBLE, 3.3, run, text, budget)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for number, (axes, (column, label)) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        for rule, looks in {"fixed": FIXED, **{rule: looks | MARKER for rule, looks in styles.items()}}.items():
            rows = points[points["rule"] == rule]
            axes.plot(rows[column], rows["ce"], **looks)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.set_title(style.panel_number(number), loc="left")
    weights = reference["tokens"] / reference["tokens"].sum()
    panels[1].plot((reference["loops"] * weights).sum(), (reference["ce"] * weights).sum(), zorder=3, **REFERENCE)
    panels[0].set_ylabel("cross-entropy (nats/token)")
    _cut_losses(panels[0], points)
    handles = {style.rule_name(rule): Line2D([], [], **looks | MARKER) for rule, looks in styles.items()}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    handles["least budget that settles the token"] = Line2D([], [], **REFERENCE)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
    return figure


def _cut_losses(axes: Axes, points: pd.DataFrame) -> None:
    """Limits of the quality axis: from the best point, with a margin, to SHOWN_LOSS or the worst point."""
    fixed = points.loc[points["rule"] == "fixed", "ce"]
    best = points["ce"].min()
    worst = min(points["ce"].max(), best + SHOWN_LOSS * (fixed.max() - best)) if len(fixed) > 1 else points["ce"].max()
    margin = 0.05 * max(worst - best, 0.01 * abs(best))
    axes.set_ylim(best - margin, worst + margin)
