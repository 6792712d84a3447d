"""Figure of the baselines: the looped model beside models without loops, and what the loops buy in nats."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.baselines.compare import NAMES
from twoscale.studies.baselines.runs import BASELINES, LOOPED, UNTRAINED

COLOURS = {LOOPED: style.BLUE, "parameters": style.ORANGE, "flops": style.GREEN, UNTRAINED: style.GREY}
MEAN: style.Look = {"marker": "o", "markersize": 5, "linestyle": ""}
SEED: style.Look = {"marker": "o", "markersize": 3, "linestyle": "", "markerfacecolor": "white"}
SPREAD = 0.12  # between the points of two seeds, in units of the axis


@style.look()
def draw(baselines: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Two panels: (i) cross-entropy of every trained model, (ii) its difference from the looped one with the same seed.

    Args:
        baselines: Table of this name.
        context: Its loop steps K are those of the looped model.

    Raises InputError for a table without rows.
    """
    if baselines.empty:
        raise InputError("table baselines: found no rows, expected a looped model and its baselines for the figure.")
    figure = style.new_figure(style.DOUBLE, 2.8, context)
    quality, difference = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_models(quality, baselines, [LOOPED, *BASELINES], "ce", "ce")
    _draw_models(difference, baselines, [*BASELINES], "difference", "difference")
    difference.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    quality.set_ylabel("cross-entropy (nats/token)")
    difference.set_ylabel("nats/token above looped")
    for number, (axes, title) in enumerate(((quality, "held-out text"), (difference, "what the loops buy")), start=1):
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
    handles = _handles(baselines)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def _draw_models(axes: Axes, baselines: pd.DataFrame, models: list[str], column: str, bounds: str) -> None:
    """One place per model: the mean over seeds with its interval, and beside it every seed with its own."""
    for place, model in enumerate(models):
        rows = baselines[baselines["model"] == model]
        mean, each = rows[rows["seed"].isna()].iloc[0], rows[rows["seed"].notna()]
        _draw_point(axes, place, mean, column, bounds, MEAN | {"color": COLOURS[model]})
        if len(each) > 1:
            for x, (_, row) in zip(place + SPREAD * (2 + np.arange(len(each))), each.iterrows(), strict=True):
                _draw_point(axes, x, row, column, bounds, SEED | {"color": COLOURS[model]})
    axes.set_xticks(range(len(models)), [NAMES[model].replace("same ", "same\n") for model in models])
    axes.set_xlim(-0.5, len(models) - 0.3)


def _draw_point(axes: Axes, x: float, row: pd.Series, column: str, bounds: str, look: dict) -> None:
    axes.vlines(x, row[f"{bounds}_low"], row[f"{bounds}_high"], color=look["color"], linewidth=0.9)
    axes.plot(x, row[column], **look)


def _handles(baselines: pd.DataFrame) -> dict[str, Line2D]:
    """Legend: what the points are, and the cross-entropy of the untrained model, which is far above."""
    means = baselines[baselines["seed"].isna()].set_index("model")
    handles = {"mean over seeds": Line2D([], [], color=style.GREY, **MEAN)}
    if means.loc[LOOPED, "seeds"] > 1:
        handles["one seed"] = Line2D([], [], color=style.GREY, **SEED)
    else:
        handles = {"one seed": handles["mean over seeds"]}
    if UNTRAINED in means.index:
        handles[f"untrained: {means.loc[UNTRAINED, 'ce']:.2f} nats/token"] = Line2D([], [], linestyle="")
    return handles
