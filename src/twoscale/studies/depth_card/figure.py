"""Figure of the depth card: loss, flips, norms and the step of the direction against loops."""

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from twoscale.base import InputError
from twoscale.figures import style

STATE, STEP = {"linestyle": "-"}, {"linestyle": (0, (3, 1.5))}
PLATEAU: style.Look = {"color": "0.88", "linewidth": 0, "zorder": 0}
UNLOOPED: style.Look = {"color": style.BROWN, "linestyle": (0, (4, 1.2)), "linewidth": 1}


@style.look()
def draw(depth_card: pd.DataFrame, depth_findings: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Four panels against the loops of every group, on logarithmic axes.

    (i) cross-entropy, with the interval of its difference from the lowest one, the plateau, and the loss of the model
    without loops if it was measured; (ii) tokens whose prediction flips; (iii) norms of states and of steps; (iv) the
    step of the direction; the last two with one line per group.

    Args:
        depth_card: Table of this name.
        depth_findings: Table of this name.
        context: Its loop steps K are the largest loop count.

    Raises InputError for a table without rows.
    """
    if depth_card.empty:
        raise InputError("table depth_card: found no rows, expected at least one loop count for the figure.")
    groups = [group for group in depth_card["group"].unique() if group]
    looks = dict(zip(groups, style.nested(style.series_styles(len(groups))), strict=True))
    known = depth_findings[depth_findings["group"] == ""].set_index("quantity")["value"]
    figure = style.new_figure(style.DOUBLE, 4.2, context)
    panels = figure.subplots(2, 2, sharex=True)
    loss, flips, norms, directions = panels.flat
    handles = _draw_loss(loss, depth_card, known)
    _draw(flips, depth_card, "", "flips", {"color": style.BLUE, "marker": "o"})
    flips.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    flips.set_ylim(bottom=0)
    for group, look in looks.items():
        _draw(norms, depth_card, group, "state_norm", look | STATE)
        _draw(norms, depth_card, group, "step_norm", look | STEP)
        _draw(directions, depth_card, group, "direction_step_norm", look | STATE)
    titles = ("loss", "flipped predictions", "norms of states (solid) and steps (dashed)", "step of the direction")
    labels = ("cross-entropy (nats/token)", "share of tokens", "norm (log scale)", "length (log scale)")
    for number, (axes, title, label) in enumerate(zip(panels.flat, titles, labels, strict=True), start=1):
        trained = style.mark_trained(axes, known["trained_loops"], context)
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
        axes.set_ylabel(label)
        style.scale_loops(axes, depth_card["loops"])
    for axes in panels[1]:
        axes.set_yscale("log")
        style.label_powers(axes.yaxis)
        axes.set_xlabel("loops, or loop step $k$ (log scale)")
    handles |= {f"group {style.group_name(group)}": Line2D([], [], **look | STATE) for group, look in looks.items()}
    handles |= trained
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def _draw_loss(axes: Axes, card: pd.DataFrame, known: pd.Series) -> dict[str, Artist]:
    """The loss, the plateau and the model without loops; entries of the legend."""
    plateau = axes.axvspan(known["plateau_first"] / 1.06, known["plateau_last"] * 1.06, **PLATEAU)
    losses, excess = (card[card["quantity"] == name].set_index("loops").sort_index() for name in ("ce", "excess"))
    axes.plot(losses.index, losses["value"], color=style.BLUE, marker="o")
    bounds = (losses["value"] - excess["value"] + excess[end] for end in ("low", "high"))
    style.band(axes, losses.index, *bounds, color=style.BLUE, alpha=0.15)
    if pd.isna(known["loop_gain"]):
        return {"plateau": plateau}
    unlooped = axes.axhline(losses["value"][known["trained_loops"]] + known["loop_gain"], **UNLOOPED)
    return {"plateau": plateau, "without loops": unlooped}


def _draw(axes: Axes, card: pd.DataFrame, group: str, quantity: str, look: dict) -> None:
    """One quantity of a group with its interval."""
    rows = card[(card["group"] == group) & (card["quantity"] == quantity)]
    rows = rows.sort_values("loops")
    axes.plot(rows["loops"], rows["value"], **look)
    if len(rows):
        style.band(axes, rows["loops"], rows["low"], rows["high"], color=look["color"], alpha=0.15)
