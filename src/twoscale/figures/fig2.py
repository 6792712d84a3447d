"""Figure 2, cross-block drift: the drift-to-loop ratio at each boundary between groups over training."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from twoscale.errors import InputError
from twoscale.figures import style

LABEL_ROOM = 0.15  # between two labels of the step axis, as a share of its length
REFERENCE_STATE_NAMES = {
    "first_state": r"next group's $x^{(1)}$",
    "projected": r"next group's projected start",
    "final": r"next group's $x^{(K)}$",
    "initial": r"next group's $x^{(0)}$",
}


@style.look()
def draw(drift: pd.DataFrame, reading: str, budget: int, run: str, text: str) -> Figure:
    """Mean over tokens of equation 2 at each checkpoint, with a band of one standard deviation.

    `drift` is the table "drift"; `reading` says which state counts as "x^0 of the next group"; `budget` is the
    number of loop steps K, with which the ratio grows. Raises InputError for a model with fewer than two
    looped groups and for a reading that the table does not have.
    """
    if drift.empty:
        raise InputError("config key model.groups: found no two looped groups, expected at least two for Figure 2.")
    measured = drift[(drift["measure"] == "dlr") & (drift["count"] > 0)]
    known = list(measured["reference_state"].unique())
    if reading not in known:
        raise InputError(f"config key figures.dlr_reference_state: found '{reading}', expected one of {', '.join(known)}.")
    ratios = measured[measured["reference_state"] == reading]
    figure = style.new_figure(style.SINGLE, 2.6, run, text, budget)
    axes = figure.subplots()
    wide = ratios["mean"].max() > 10 * ratios["mean"].min()
    axes.set_yscale("log" if wide else "linear")
    boundaries = ratios.groupby("boundary", sort=False)
    for (boundary, rows), looks in zip(boundaries, style.series_styles(len(boundaries)), strict=True):
        numbers = (rows[name].to_numpy() for name in ("iteration", "mean", "std"))
        style.line_with_band(axes, *numbers, label=style.group_name(boundary), **looks)
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)), label="DLR = 1")
    if not wide:
        axes.set_ylim(bottom=0)
    _scale_steps(axes, np.sort(ratios["iteration"].unique()))
    axes.set_xlabel("training step")
    axes.set_ylabel(f"drift-to-loop ratio, $K = {budget}$ loops")
    axes.legend(title=f"jump to the {REFERENCE_STATE_NAMES.get(reading, reading)}", alignment="left")
    return figure


def _scale_steps(axes: Axes, steps: np.ndarray) -> None:
    """A logarithmic axis with room for step 0, and labels at those checkpoints that have room for one."""
    trained = steps[steps > 0]
    linear = trained[0] if trained.size else 1
    axes.set_xscale("symlog", linthresh=linear, linscale=0.5)
    axes.set_xlim(-0.15 * linear, 1.1 * max(linear, steps[-1]))
    places = axes.transData.transform([(step, 1) for step in steps])[:, 0]
    labelled: list[int] = []
    for i in sorted(range(len(steps)), key=lambda i: i not in (0, len(steps) - 1)):  # first and last come first
        if all(abs(places[i] - places[other]) > LABEL_ROOM * axes.bbox.width for other in labelled):
            labelled.append(i)
    shown = steps[sorted(labelled)]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([style.grouped(step) for step in shown]))
    axes.xaxis.set_minor_locator(FixedLocator(steps))
