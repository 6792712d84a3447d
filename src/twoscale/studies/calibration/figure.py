"""Supplementary figure, calibration: evaluations saved at a guaranteed quality, and whether the guarantee was kept."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from twoscale.base import InputError
from twoscale.claims.exits import criterion_name
from twoscale.figures import style
from twoscale.studies.calibration.compare import NO_THRESHOLD

# guarantee: (its name, label of its epsilon)
GUARANTEES = {
    "ce": ("cross-entropy", "guaranteed: at most ε nats/token more (log scale)"),
    "disagreement": ("predictions", "guaranteed: at most a share ε differs (log scale)"),
}
FIXED: style.Look = {"color": style.BLACK, "marker": "|"}
GUARANTEED: style.Look = {"color": style.GREY, "linewidth": 0.8}
PATHS: dict[str, tuple[str, style.Look]] = {
    "common": ("one threshold for all groups", {"linestyle": "-"}),
    "per_group": ("one threshold per group", {"linestyle": (0, (3, 1.5)), "markerfacecolor": "white"}),
}


DODGE = 0.012  # decades between neighbouring points of one epsilon, whose intervals would coincide


@style.look()
def draw(calibration: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row of panels per kind of guarantee, against epsilon: (left) evaluations saved, (right) loss over epsilon.

    One line per exit criterion and path, with 95 % intervals over documents. A loss over epsilon of at most 1 keeps the
    guarantee. The right panels have no point where no threshold could be guaranteed.

    Args:
        calibration: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without rows.
    """
    if calibration.empty:
        raise InputError("table calibration: found no rows, expected at least one guarantee for the figure.")
    guarantees = [guarantee for guarantee in GUARANTEES if guarantee in set(calibration["guarantee"])]
    criteria = list(calibration["criterion"].unique())
    looks = {name: FIXED for name in criteria if name == "fixed"} | style.criterion_styles(criteria)
    figure = style.new_figure(style.DOUBLE, 0.7 + 2.1 * len(guarantees), context)
    panels = figure.subplots(len(guarantees), 2, squeeze=False)
    for row, guarantee in enumerate(guarantees):
        rows = calibration[calibration["guarantee"] == guarantee]
        _draw_row(panels[row], rows, looks, guarantee, first=1 + 2 * row)
    _add_legend(figure, looks, [path for path in PATHS if path in set(calibration["path"])])
    return figure


def _draw_row(panels: np.ndarray, rows: pd.DataFrame, looks: dict[str, dict], guarantee: str, first: int) -> None:
    """Both panels of one kind of guarantee; `first` is the number of the left one."""
    name, label = GUARANTEES[guarantee]
    saved, kept = panels
    _draw_lines(saved, rows, ["saved", "saved_low", "saved_high"], looks)
    losses = rows[rows["verdict"] != NO_THRESHOLD].copy()
    columns = ["loss", "loss_low", "loss_high"]
    losses[columns] = losses[columns].div(losses["epsilon"], axis="index")
    _draw_lines(kept, losses, columns, looks)
    kept.axhline(1, zorder=0, **GUARANTEED)
    if len(losses) < len(rows):
        first_without = rows.loc[rows["verdict"] == NO_THRESHOLD, "epsilon"].min()
        saved.annotate(
            "0 %: no threshold\nis guaranteed",
            (first_without, 0.03),
            ha="left",
            xytext=(14, 0),
            textcoords="offset points",
        )
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlim(0.7 * rows["epsilon"].min(), 1.4 * rows["epsilon"].max())
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        style.label_powers(axes.xaxis)
        axes.set_xlabel(label)
    saved.yaxis.set_major_formatter(PercentFormatter(1))
    saved.set_ylabel("evaluations saved")
    kept.set_ylabel("loss over ε, other documents")
    saved.set_title(f"{style.panel_number(first)}  {name}: evaluations saved", loc="left")
    kept.set_title(f"{style.panel_number(first + 1)}  {name}: was the guarantee kept", loc="left")


def _draw_lines(axes: Axes, rows: pd.DataFrame, columns: list[str], looks: dict[str, dict]) -> None:
    """One line per criterion and path against epsilon; `columns` are the value and both ends of its interval."""
    series = [(criterion, path) for criterion in looks for path in PATHS if path in set(rows["path"])]
    for number, (criterion, path) in enumerate(series):
        of_path = rows[(rows["criterion"] == criterion) & (rows["path"] == path)].sort_values("epsilon")
        value, low, high = (of_path[column].fillna(of_path[columns[0]]) for column in columns)
        indices = of_path["epsilon"] * 10 ** (DODGE * (number - (len(series) - 1) / 2))
        bars = np.maximum([value - low, high - value], 0)
        axes.errorbar(indices, value, yerr=bars, elinewidth=0.6, **looks[criterion] | PATHS[path][1])


def _add_legend(figure: Figure, looks: dict[str, dict], paths: list[str]) -> None:
    """Criteria by colour and marker, then the lines of both paths, then that of the guarantee."""
    names = {name: "fixed loops" if name == "fixed" else criterion_name(name) for name in looks}
    handles = {names[name]: Line2D([], [], **look | {"linestyle": "-"}) for name, look in looks.items()}
    handles |= {PATHS[path][0]: Line2D([], [], color=style.GREY, marker="o", **PATHS[path][1]) for path in paths}
    handles["guaranteed"] = Line2D([], [], **GUARANTEED)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
