"""Supplementary figure, Pareto: quality against latency and against loops, for every exit criterion."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from twoscale.analysis.summaries import SETTING, summarise_latency, summarise_quality
from twoscale.errors import InputError
from twoscale.figures import style

# x axis of each panel: column -> label
PANELS = {"latency_ms": "latency (ms/token)", "loops": "evaluations per token and group, mean"}
FIXED = {"color": "0.35", "linestyle": (0, (5, 2)), "linewidth": 0.9, "marker": "|", "markersize": 4}
REFERENCE = {"color": "black", "linestyle": "", "marker": "*", "markersize": 7}
MARKER = {"markersize": 2.8, "linewidth": 0.9, "alpha": 0.9}
# The axis of quality is linear within this many nats of the full budget, logarithmic beyond.
LINEAR = 1e-3


@style.look()
def draw(
    latency: pd.DataFrame, quality: pd.DataFrame, reference: pd.DataFrame, budget: int, run: str, text: str
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops: one line per exit rule along its thresholds.

    Quality is the cross-entropy less that of the full budget, `fixed` at `budget`, which has to be in the table.

    `latency`, `quality` and `reference` are the tables "exit_latency" and "exit_quality" of the dense grid and
    "uniform_loops". Fixed loop counts are the dashed line; the star is the reference, which has no latency
    because no decoder could run it. Bars are 95 % intervals over sequences. Raises InputError for a table without rows.
    """
    for name, table in (("exit_latency", latency), ("exit_quality", quality), ("uniform_loops", reference)):
        if table.empty:
            raise InputError(f"table {name}: found no row, expected at least one exit rule for the figure.")
    times = summarise_latency(latency)[[*SETTING, "latency_ms"]]
    points = summarise_quality(quality, budget).merge(times, on=SETTING).sort_values("threshold")
    styles = style.criterion_styles(quality["criterion"])
    full = points.loc[(points["criterion"] == "fixed") & (points["threshold"] == budget), "ce"].item()
    figure = style.new_figure(style.DOUBLE, 3.3, run, text, budget)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for number, (axes, (column, label)) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        for criterion, looks in {"fixed": FIXED, **{criterion: looks | MARKER for criterion, looks in styles.items()}}.items():
            rows = points[points["criterion"] == criterion]
            bars = np.maximum([rows["ce"] - rows["low"], rows["high"] - rows["ce"]], 0)
            axes.errorbar(rows[column], rows["ce"] - full, yerr=bars, elinewidth=0.4, **looks)
        axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(label)
        axes.set_title(style.panel_number(number), loc="left")
    ideal = np.average(reference[["loops", "ce"]], axis=0, weights=reference["tokens"])
    panels[1].plot(ideal[0], ideal[1] - full, zorder=3, **REFERENCE)
    panels[0].set_ylabel("excess cross-entropy (nats/token)")
    handles = {style.criterion_name(criterion): Line2D([], [], **looks | MARKER) for criterion, looks in styles.items()}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    handles["least budget that settles the token"] = Line2D([], [], **REFERENCE)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
    return figure
