"""Supplementary figure, scaling: quality at fixed loop counts over training."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from twoscale.errors import InputError
from twoscale.figures import style

PANELS = {"ppl": "perplexity", "excess": "excess cross-entropy (nats/token)"}
TRAINED = {"color": style.GREY, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}


@style.look()
def draw(scaling: pd.DataFrame, *, mean_loops: float | None, context: style.FigureContext) -> Figure:
    """Two panels against the loops of every group: (i) perplexity, (ii) the cost of fewer loops in nats.

    One line per checkpoint; bands are 95 % intervals over documents.

    Args:
        scaling: Table of this name.
        mean_loops: Mean of the loop counts in training, the dotted vertical line; `None` for a recorded model,
            where only the last group has these loops.
        context: Its loop steps K are the largest loop count.

    Raises InputError for a table without rows.
    """
    if scaling.empty:
        raise InputError("table scaling: found no row, expected at least one checkpoint for the figure.")
    styles = style.checkpoint_palette(scaling["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 2.7, context)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, (column, label)) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        _draw_checkpoints(axes, scaling, column, styles)
        further = {} if mean_loops is None else {f"trained: {mean_loops:g} loops": _mark_trained(axes, mean_loops)}
        _scale_loops(axes, scaling["loops"])
        axes.set_xlabel("loops of the last group" if mean_loops is None else "loops in every group")
        axes.set_ylabel(label)
        axes.set_title(style.panel_number(number), loc="left")
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[0].yaxis.set_major_formatter(lambda value, _: style.grouped(round(value)))
    panels[0].yaxis.set_minor_locator(NullLocator())
    panels[1].axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    style.checkpoint_legend(figure, styles, context, further)
    return figure


def _mark_trained(axes: Axes, mean_loops: float) -> Line2D:
    return axes.axvline(mean_loops, zorder=0, **TRAINED)


def _draw_checkpoints(axes: Axes, scaling: pd.DataFrame, column: str, styles: dict[int, dict]) -> None:
    for iteration, rows in scaling.groupby("iteration"):
        axes.plot(rows["loops"], rows[column], **styles[iteration])
        bounds = (rows[f"{column}_low"], rows[f"{column}_high"])
        axes.fill_between(rows["loops"], *bounds, color=styles[iteration]["color"], alpha=0.12, linewidth=0)


def _scale_loops(axes: Axes, loops: pd.Series) -> None:
    """A logarithmic axis labelled at the powers of two."""
    axes.set_xscale("log", base=2)
    powers = [2**n for n in range(int(loops.max()).bit_length()) if loops.min() <= 2**n <= loops.max()]
    axes.xaxis.set_major_locator(FixedLocator(powers))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
