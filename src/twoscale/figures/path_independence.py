"""Supplementary figure, path independence: the effect of a loop's start on its end and on the prediction."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from twoscale.figures import style

LOWEST = 1e-16  # smaller values are rounding errors of float64 and are drawn here
LABELS = {
    "distance_relative": r"$\Vert x^{(K)} - \tilde{x}^{(K)}\Vert_2 \,/\, \Vert x^{(K)}\Vert_2$",
    "kl": r"KL$(p\,\Vert\,\tilde{p})$, nats",
    "agreement": "tokens with another prediction",
}


@style.look()
def draw(path_independence: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Distance of last states, KL and changed predictions over the checkpoints, one line per varied group.

    `path_independence` is the table of this name; lines are medians over tokens and draws with bands of nine tenths,
    for the predictions shares. Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(path_independence, "path independence")
    figure = style.new_figure(style.DOUBLE, 2.5, context)
    panels = figure.subplots(1, len(LABELS))
    iterations = sorted(path_independence["iteration"].unique())
    looks = dict(zip(groups, style.series_styles(len(groups)), strict=True))
    for number, (axes, (measure, label)) in enumerate(zip(panels, LABELS.items(), strict=True), start=1):
        places = style.iteration_categories(axes, iterations, context)
        of_measure = path_independence[path_independence["measure"] == measure]
        for group, look in looks.items():
            rows = of_measure[of_measure["group"] == group].set_index("iteration").reindex(iterations)
            _draw_group(axes, places, rows, measure, look)
        axes.set_title(f"{style.panel_number(number)}  {label}")
    panels[-1].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    panels[-1].set_ylim(bottom=0)
    names = ["all groups" if group == "all" else f"group {style.group_name(group)}" for group in groups]
    handles = panels[0].get_lines()
    figure.legend(handles, names, loc="outside upper center", ncols=len(groups), title="noise varied in")
    return figure


def _draw_group(axes: Axes, places: np.ndarray, rows: pd.DataFrame, measure: str, look: dict) -> None:
    if measure == "agreement":
        axes.plot(places, 1 - rows["mean"], **look)
        return
    axes.set_yscale("log")
    low, median, high = (rows[name].clip(lower=LOWEST) for name in ("q05", "q50", "q95"))
    style.band(axes, places, low, high, color=look["color"], alpha=0.12)
    axes.plot(places, median, **look)
