"""Supplementary figure, calibration: evaluations saved at a promised quality, and whether the promise was kept."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from twoscale.analysis.calibration import NO_THRESHOLD
from twoscale.errors import InputError
from twoscale.figures import style

# promise: (its name, label of its epsilon)
PROMISES = {
    "ce": ("cross-entropy", "promised: at most ε nats/token more"),
    "disagreement": ("predictions", "promised: at most a share ε differs"),
}
PATHS = {
    "common": ("one threshold for all groups", {"linestyle": "-"}),
    "per_group": ("one threshold per group", {"linestyle": (0, (3, 1.5)), "markerfacecolor": "white"}),
}


@style.look()
def draw(calibration: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row of panels per kind of promise: (left) evaluations saved, (right) measured loss, both against epsilon.

    One line per exit criterion and path, with 95 % intervals over documents. The right panels have no point where no
    threshold could be promised.

    Args:
        calibration: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without rows.
    """
    if calibration.empty:
        raise InputError("table calibration: found no row, expected at least one promise for the figure.")
    promises = [promise for promise in PROMISES if promise in set(calibration["promise"])]
    looks = style.criterion_styles(calibration["criterion"])
    looks |= {"fixed": {"color": style.BLACK, "marker": "|"}} if "fixed" in set(calibration["criterion"]) else {}
    figure = style.new_figure(style.DOUBLE, 0.7 + 2.1 * len(promises), context)
    panels = figure.subplots(len(promises), 2, squeeze=False)
    for row, promise in enumerate(promises):
        rows = calibration[calibration["promise"] == promise]
        _draw_row(panels[row], rows, looks, promise, first=1 + 2 * row)
    _add_legend(figure, looks, [path for path in PATHS if path in set(calibration["path"])])
    return figure


def _draw_row(panels: np.ndarray, rows: pd.DataFrame, looks: dict[str, dict], promise: str, first: int) -> None:
    """Both panels of one kind of promise; `first` is the number of the left one."""
    saved, kept = panels
    name, label = PROMISES[promise]
    _draw_lines(saved, rows, "saved", looks)
    _draw_lines(kept, rows[rows["verdict"] != NO_THRESHOLD], "loss", looks)
    ends = np.array([0.7 * rows["epsilon"].min(), 1.4 * rows["epsilon"].max()])
    kept.plot(ends, ends, color=style.GREY, linewidth=0.8, zorder=0)
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlim(ends)
        style.label_powers(axes.xaxis)
        axes.set_xlabel(f"{label} (log scale)")
    saved.yaxis.set_major_formatter(PercentFormatter(1))
    saved.set_ylabel("evaluations saved")
    kept.set_ylabel("loss on other documents")
    saved.set_title(f"{style.panel_number(first)}  {name}: saved", loc="left")
    kept.set_title(f"{style.panel_number(first + 1)}  {name}: promised and measured", loc="left")


def _draw_lines(axes: Axes, rows: pd.DataFrame, column: str, looks: dict[str, dict]) -> None:
    """One line per criterion and path against epsilon, with intervals."""
    for criterion, look in looks.items():
        for path, (_, line) in PATHS.items():
            of_path = rows[(rows["criterion"] == criterion) & (rows["path"] == path)].sort_values("epsilon")
            low, high = (of_path[f"{column}_{end}"].fillna(of_path[column]) for end in ("low", "high"))
            bars = np.maximum([of_path[column] - low, high - of_path[column]], 0)
            axes.errorbar(of_path["epsilon"], of_path[column], yerr=bars, elinewidth=0.6, **look | line)


def _add_legend(figure: Figure, looks: dict[str, dict], paths: list[str]) -> None:
    """Criteria by colour and marker, then the lines of both paths, then the diagonal."""
    names = {
        criterion: "fixed loops" if criterion == "fixed" else style.criterion_name(criterion) for criterion in looks
    }
    handles = {names[criterion]: Line2D([], [], **look | {"linestyle": "-"}) for criterion, look in looks.items()}
    handles |= {PATHS[path][0]: Line2D([], [], color=style.GREY, marker="o", **PATHS[path][1]) for path in paths}
    handles["promised = measured"] = Line2D([], [], color=style.GREY, linewidth=0.8)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 4))
