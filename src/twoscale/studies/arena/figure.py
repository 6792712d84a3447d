"""Supplementary figure, arena: exit criteria beside random exits, fixed loops and an oracle."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, SymmetricalLogLocator

from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.studies.arena.compare import ALL_GROUPS, ORACLE

# reference of the table "arena": (title, label)
PANELS = {
    "random": ("gain over random exits", "cross-entropy saved (nats/token)"),
    "fixed": ("gain over fixed loops", "cross-entropy saved (nats/token)"),
    ORACLE: ("regret beside the oracle", "cross-entropy lost (nats/token)"),
}
FIXED = {"color": style.BLACK, "linestyle": (0, (5, 2)), "linewidth": 1}
# Built-in criteria that do not compare successive loop steps.
OF_ANOTHER_KIND = ("confidence", "margin", "entropy", "exit_gate", "probe")
LINEAR = 1e-2  # nats


@style.look()
def draw(arena: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Three panels against mean evaluations, one line per criterion along its thresholds.

    (i) Gain over random exits and (ii) over fixed loops in nats at equal evaluations: criteria above 0 know which
    tokens to spend loop steps on. (iii) Regret in nats beside the oracle at equal evaluations, mean over groups, with
    fixed loops as the dashed line. In colour, with 95 % intervals over documents: the criteria of the paper, those of
    another kind and those of the user; grey: further ones that compare successive loop steps.

    Args:
        arena: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without criteria.
    """
    shown = arena[arena["group"] == ALL_GROUPS].sort_values("evaluations", kind="stable")
    compared = arena.loc[arena["reference"] != ORACLE, "criterion"]
    looks = style.emphasised_styles(compared, (*style.CRITERION_COLOURS, *OF_ANOTHER_KIND))
    if not looks:
        raise InputError("table arena: found no row, expected at least one exit criterion and its cost-matched exits.")
    figure = style.new_figure(style.DOUBLE, 3.2, context)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, reference) in enumerate(zip(panels, PANELS, strict=True), start=1):
        rows = shown[shown["reference"] == reference]
        sign = -1 if reference == ORACLE else 1
        _draw_criteria(axes, rows, sign, looks)
        _scale(axes, reference, number)
    fixed = shown[(shown["reference"] == ORACLE) & (shown["criterion"] == "fixed")]
    panels[-1].plot(fixed["evaluations"], -fixed["gain"], zorder=1, **FIXED)
    lines = {name: Line2D([], [], **look) for name, look in looks.items()}
    grey = [name for name in lines if style.is_grey(looks[name])]
    handles = {style.criterion_name(name): line for name, line in lines.items() if name not in grey}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    handles |= {style.criterion_name(name): lines[name] for name in grey}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def _draw_criteria(axes: Axes, rows: pd.DataFrame, sign: int, looks: dict[str, dict]) -> None:
    """The gain, or the regret where `sign` is -1, over evaluations; those in grey without intervals."""
    for criterion, look in looks.items():
        own = rows[rows["criterion"] == criterion]
        ends = np.array([own["gain"] - own["gain_low"], own["gain_high"] - own["gain"]])
        bars = np.maximum(np.nan_to_num(ends[::sign]), 0)  # one document has no interval
        shown = None if style.is_grey(look) else bars
        axes.errorbar(own["evaluations"], sign * own["gain"], yerr=shown, elinewidth=0.6, **look)


def _scale(axes: Axes, reference: str, number: int) -> None:
    title, label = PANELS[reference]
    scale_cost(axes)
    if reference == ORACLE:
        axes.set_ylim(bottom=0)
    else:
        scale_nats(axes)
    axes.set_xlabel("evaluations per token and group")
    axes.set_ylabel(label)
    axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")


def scale_cost(axes: Axes) -> None:
    """A logarithmic x axis, and a line at 0."""
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def scale_nats(axes: Axes) -> None:
    """A y axis that is linear within `LINEAR` nats of 0, logarithmic beyond."""
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=LINEAR))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.power_name(value)))
