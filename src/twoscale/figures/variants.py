"""Readings (supplementary): the same model trained under several readings of the paper, at its last checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.figures.fig5 import REPORTED

_COLOURS = sns.color_palette("colorblind")
BAND = "0.88"
MEASURES = {
    "cosine": r"(a)  $\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$",
    "step_norm": r"(b)  step norm $\Vert\Delta^{(k)}\Vert_2$",
}


@style.look()
def draw(
    loops: pd.DataFrame,
    drift: pd.DataFrame,
    training: pd.DataFrame,
    readings: Mapping[str, Sequence[str]],
    dlr_reference_state: str,
    budget: int,
    run: str,
    text: str,
) -> Figure:
    """One column per group: cosine and step norm over the loop; below, DLR at each boundary and the held-out loss.

    `loops`, `drift` and `training` are the tables "loop_metrics", "drift" and "training" of all runs, the last with
    a column `run`; `readings` maps a run to its sandwich, adapter_init and state_init. The first two choose the
    colour, the last dashes and marker. Raises InputError for a model without looped groups.
    """
    groups = list(loops["group"].unique())
    if not groups:
        raise InputError("config key model.groups: found no looped group, expected at least one for the readings.")
    looks = styles(readings)
    figure = style.new_figure(style.DOUBLE, 6.4, run, text, budget)
    panels = figure.subplots(1 + len(MEASURES), len(groups), squeeze=False)
    for row in panels[:-1]:
        for axes in row[1:]:
            axes.sharey(row[0])
            axes.tick_params(labelleft=False)
    for number, (axes, group) in enumerate(zip(panels[0], groups, strict=True), start=1):
        axes.axhspan(*REPORTED, color=BAND, linewidth=0, zorder=0)
        axes.set_title(f"{style.panel_number(number)}  group {style.group_name(group)}")
    last = _last_checkpoint(loops)
    for row, (measure, label) in zip(panels[:-1], MEASURES.items(), strict=True):
        for axes, group in zip(row, groups, strict=True):
            _curves(axes, last[(last["group"] == group) & (last["measure"] == measure)], looks, budget)
        row[0].set_ylabel(label)
    panels[1, 0].set_yscale("log", nonpositive="mask")
    ratios = _last_checkpoint(drift[(drift["measure"] == "dlr") & (drift["reference_state"] == dlr_reference_state)])
    for axes, (boundary, rows) in zip(panels[-1], ratios.groupby("boundary", sort=False), strict=False):
        _ratios(axes, rows.set_index("run"), looks)
        axes.set_title(f"boundary {style.group_name(boundary)}")
    panels[-1, 0].set_ylabel("(c)  drift-to-loop ratio")
    _losses(panels[-1, -1], training, looks)
    figure.align_ylabels(panels[:, 0])
    _legend(figure, readings, looks)
    return figure


def styles(readings: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Colour by sandwich and adapter, dashes and marker by initial state."""
    pairs = list(dict.fromkeys(tuple(values[:2]) for values in readings.values()))
    starts = list(dict.fromkeys(values[2] for values in readings.values()))
    by_start = style.series_styles(len(starts))
    return {
        run: by_start[starts.index(start)] | {"color": _COLOURS[pairs.index((sandwich, adapter)) % len(_COLOURS)]}
        for run, (sandwich, adapter, start) in readings.items()
    }


def _last_checkpoint(metrics: pd.DataFrame) -> pd.DataFrame:
    return metrics[metrics["iteration"] == metrics.groupby("run")["iteration"].transform("max")]


def _curves(axes: Axes, metrics: pd.DataFrame, looks: Mapping[str, Mapping[str, Any]], budget: int) -> None:
    """The mean over tokens against k, one line per run, where at least half of the tokens have a value."""
    known = metrics[(metrics["count"] >= metrics["nulls"]) & (metrics["count"] > 0)]
    for run, look in looks.items():
        rows = known[known["run"] == run]
        axes.plot(rows["k"], rows["mean"], **look | {"marker": ""})
    axes.set_xlim(0, budget - 1)
    axes.set_xlabel("loop step $k$")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _ratios(axes: Axes, ratios: pd.DataFrame, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """The mean over tokens of each run, with a bar over nine tenths of the tokens."""
    for place, (run, look) in enumerate(looks.items()):
        axes.plot([place, place], ratios.loc[run, ["q05", "q95"]], color=look["color"], linewidth=0.8)
        axes.plot(place, ratios.loc[run, "mean"], **look)
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)))
    axes.set_yscale("log")
    axes.set_xticks([])
    axes.set_xlabel("reading, in the order of the legend")


def _losses(axes: Axes, training: pd.DataFrame, looks: Mapping[str, Mapping[str, Any]]) -> None:
    measured = training.dropna(subset="held_out_loss")
    for run, look in looks.items():
        rows = measured[measured["run"] == run]
        axes.plot(rows["iteration"], rows["held_out_loss"], **look | {"marker": ""})
    axes.set_title("held-out loss")
    axes.set_xlabel("training step")
    axes.set_ylabel("nats per token")


def _legend(figure: Figure, readings: Mapping[str, Sequence[str]], looks: Mapping[str, Mapping[str, Any]]) -> None:
    entries = {", ".join(values).replace("_", "-"): Line2D([], [], **looks[run]) for run, values in readings.items()}
    entries["paper: {}–{}".format(*REPORTED)] = Patch(color=BAND)
    title = "sandwich, adapter at initialisation, initial state"
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=3, title=title)
