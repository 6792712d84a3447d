"""Supplementary figure, path independence: the effect of a loop's start on its end and on the prediction."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from twoscale.figures import style

FLOOR_EPS = 16  # a value below 16 eps is mostly rounding error
ROUNDING: style.Look = {"color": "0.88", "linewidth": 0, "zorder": 0}
# measure: (title, label)
LABELS = {
    "distance_relative": ("last states", "distance / norm of the state"),
    "kl": ("predictions", "KL divergence (nats)"),
    "agreement": ("changed predictions", "share of tokens"),
}


@style.look()
def draw(path_independence: pd.DataFrame, *, dtype: str, context: style.FigureContext) -> Figure:
    """Distance of last states, KL and changed predictions over the checkpoints, one line per varied group.

    Lines are medians over tokens and draws with bands of nine tenths, for the predictions shares. The grey range holds
    rounding errors; smaller values are drawn at its edge.

    Args:
        path_independence: Table of this name.
        dtype: Precision of the measurement, "float32" or "float64".
        context: Its loop steps K are those of the states x^K.

    Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(path_independence, "path independence")
    floor = FLOOR_EPS * float(np.finfo(dtype).eps)
    figure = style.new_figure(style.DOUBLE, 2.6, context)
    panels = figure.subplots(1, len(LABELS))
    looks = dict(zip(groups, style.nested(style.series_styles(len(groups))), strict=True))
    for number, (axes, (measure, (title, label))) in enumerate(zip(panels, LABELS.items(), strict=True), start=1):
        of_measure = path_independence[path_independence["measure"] == measure]
        _draw_measure(axes, of_measure, looks, floor, context)
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
        axes.set_ylabel(label)
    panels[-1].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    panels[-1].set_ylim(bottom=0)
    _add_legend(figure, panels[0], groups, floor)
    return figure


def _draw_measure(
    axes: Axes, of_measure: pd.DataFrame, looks: dict[str, dict], floor: float, context: style.FigureContext
) -> None:
    """One line per varied group over the checkpoints."""
    iterations = sorted(of_measure["iteration"].unique())
    places = style.scale_iterations(axes, iterations, context)
    for group, look in looks.items():
        rows = of_measure[of_measure["group"] == group].set_index("iteration").reindex(iterations)
        if (of_measure["measure"] == "agreement").all():
            axes.plot(places, 1 - rows["mean"], **look)
        else:
            _draw_quantiles(axes, places, rows, look, floor)
    if axes.patches:  # the range of rounding errors
        axes.set_ylim(bottom=floor / 10)


def _draw_quantiles(axes: Axes, places: np.ndarray, rows: pd.DataFrame, look: dict, floor: float) -> None:
    """The median with a band of nine tenths, above the rounding errors."""
    axes.set_yscale("log")
    low, median, high = (rows[name].clip(lower=floor) for name in ("q05", "q50", "q95"))
    style.band(axes, places, low, high, color=look["color"], alpha=0.12)
    axes.plot(places, median, **look)
    if (rows["q05"] < floor).any():
        axes.axhspan(floor / 10, floor, **ROUNDING)
    style.label_powers(axes.yaxis)


def _add_legend(figure: Figure, axes: Axes, groups: list[str], floor: float) -> None:
    names = ["all groups" if group == "all" else f"group {style.group_name(group)}" for group in groups]
    handles: dict[str, Artist] = dict(zip(names, axes.get_lines(), strict=True))
    if axes.get_ylim()[0] < floor:
        handles[f"rounding errors, below {style.power_name(floor)}"] = Patch(**ROUNDING)
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), title="noise varied in"
    )
