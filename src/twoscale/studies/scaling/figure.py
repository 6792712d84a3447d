"""Supplementary figure, scaling: quality at fixed loop counts over training."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from twoscale.base import InputError
from twoscale.figures import style

# column: (title, label)
PANELS = {
    "ppl": ("quality", "perplexity (log scale)"),
    "excess": ("cost of fewer loops", "cross-entropy above that\nat {} loops (nats/token)"),
}
CROPPED = 2  # the untrained model is left out of panel (i) if its perplexity is this many times all others


@style.look()
def draw(scaling: pd.DataFrame, *, mean_loops: float | None, context: style.FigureContext) -> Figure:
    """Two panels against the loops of every group: (i) perplexity, (ii) the cost of fewer loops in nats.

    One line per checkpoint; bands are 95 % intervals over documents.

    Args:
        scaling: Table of this name.
        mean_loops: Mean of the loop counts in training, or the published one, the dotted vertical line; `None` for a
            recorded model, where only the last group has these loops.
        context: Its loop steps K are the largest loop count.

    Raises InputError for a table without rows.
    """
    if scaling.empty:
        raise InputError("table scaling: found no rows, expected at least one checkpoint for the figure.")
    styles = style.checkpoint_palette(scaling["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 2.7, context)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, (column, (title, label))) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        _draw_checkpoints(axes, scaling, column, styles)
        further = {} if mean_loops is None else style.mark_trained(axes, mean_loops, context)
        style.scale_loops(axes, scaling["loops"])
        where = "of the last group" if mean_loops is None else "in every group"
        axes.set_xlabel(f"loops {where} (log scale)")
        axes.set_ylabel(label.format(context.loops))
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
    _scale_perplexity(panels[0], scaling)
    panels[1].axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    style.checkpoint_legend(figure, styles, context, further)
    return figure


def _scale_perplexity(axes: Axes, scaling: pd.DataFrame) -> None:
    """A logarithmic axis; an untrained model far above the others is outside, with its value at the edge."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: style.grouped(round(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    trained = scaling[scaling["iteration"] > 0]
    untrained = scaling.loc[scaling["iteration"] == 0, "ppl"]
    if trained.empty or untrained.empty or untrained.min() < CROPPED * trained["ppl"].max():
        return
    axes.set_ylim(0.9 * trained["ppl_low"].min(), 1.4 * trained["ppl_high"].max())
    last = style.grouped(round(untrained.iloc[-1]))
    corner: style.Look = {"transform": axes.transAxes, "ha": "right", "va": "top"}
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # hides the line of the loops in training
    axes.text(0.98, 0.97, f"untrained: {last} (above)", **corner, bbox=behind)


def _draw_checkpoints(axes: Axes, scaling: pd.DataFrame, column: str, styles: dict[int, dict]) -> None:
    for iteration, rows in scaling.groupby("iteration"):
        axes.plot(rows["loops"], rows[column], **styles[iteration])
        bounds = (rows[f"{column}_low"], rows[f"{column}_high"])
        axes.fill_between(rows["loops"], *bounds, color=styles[iteration]["color"], alpha=0.12, linewidth=0)
