"""Supplementary figure, arena: gains of exit criteria over random exits and fixed loops, and of an oracle."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from twoscale.base import InputError
from twoscale.claims.exits import criterion_name
from twoscale.figures import style
from twoscale.studies.arena.compare import ALL_GROUPS, ORACLE
from twoscale.studies.arena.page import BETTER, WORSE, judged

# reference of the table "arena": title
PANELS = {"random": "gain over random exits", "fixed": "gain over fixed loops"}
ORACLE_ROW = "oracle: knows each loss"
ORACLE_GAP = 0.6  # between the rows of criteria and that of the oracle, in rows
ROW = 0.7  # share of a row that its thresholds span
LINEAR = 1e-2  # nats
SURE: style.Look = {"marker": "o", "markersize": 2.8, "linestyle": ""}
UNSURE: style.Look = SURE | {"markerfacecolor": "white", "markeredgewidth": 0.7}


@style.look()
def draw(arena: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row per exit criterion: gain in nats at equal evaluations (i) over random exits, (ii) over fixed loops.

    A row has a point per threshold, from the top the fewest evaluations first, with the 95 % interval over documents;
    it is filled if the interval, widened for all gains, leaves out 0. The criteria of the paper and of the user are in
    colour, the others grey. The last row is the gain of the oracle over fixed loops, mean over groups, at each count.

    Args:
        arena: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without criteria.
    """
    shown = arena[arena["group"] == ALL_GROUPS].sort_values("evaluations", kind="stable")
    gains = shown[shown["reference"] != ORACLE]
    colours = style.criterion_colours(gains["criterion"])
    if not colours:
        raise InputError("table arena: found no rows, expected at least one exit criterion and its cost-matched exits.")
    oracle = _gain_of_oracle(shown)
    last = len(colours) - 1 + (ORACLE_GAP + 1) * (not oracle.empty)
    figure = style.new_figure(style.DOUBLE, 1.1 + 0.22 * (last + 1), context)
    panels = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for number, (axes, (reference, title)) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        rows = gains[gains["reference"] == reference]
        for place, (criterion, colour) in enumerate(colours.items()):
            _draw_row(axes, place, rows[rows["criterion"] == criterion], colour, len(gains))
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
        _scale_gain(axes)
    _draw_row(panels[1], last, oracle, style.BLACK, len(gains))
    names = dict(enumerate(map(criterion_name, colours))) | ({} if oracle.empty else {last: ORACLE_ROW})
    panels[0].set_yticks(list(names), list(names.values()))
    for tick, colour in zip(panels[0].get_yticklabels(), [*colours.values(), style.BLACK], strict=False):
        tick.set_color(colour)
    panels[0].set_ylim(last + 0.6, -0.6)
    handles = {f"differs from 0 (intervals widened for {len(gains)} gains)": SURE, "no difference shown": UNSURE}
    lines = [Line2D([], [], color=style.GREY, **look) for look in handles.values()]
    figure.legend(lines, list(handles), loc="outside upper center", ncols=len(handles))
    return figure


def _gain_of_oracle(arena: pd.DataFrame) -> pd.DataFrame:
    """Gain of the oracle over each number of fixed loops: that of fixed loops over the oracle with the other sign."""
    fixed = arena[(arena["reference"] == ORACLE) & (arena["criterion"] == "fixed")]
    return fixed.assign(gain=-fixed["gain"], gain_low=-fixed["gain_high"], gain_high=-fixed["gain_low"])


def _draw_row(axes: Axes, place: float, rows: pd.DataFrame, colour: str, findings: int) -> None:
    """The thresholds of a criterion, one below the other around `place`; intervals are widened for `findings`."""
    places = place + ROW * (np.linspace(-0.5, 0.5, len(rows)) if len(rows) > 1 else np.zeros(len(rows)))
    axes.hlines(places, rows["gain_low"], rows["gain_high"], color=colour, linewidth=0.5)
    words = judged(rows, findings)
    sure = np.array([words[threshold] in (BETTER, WORSE) for threshold in rows["threshold"]], dtype=bool)
    for which, look in ((~sure, UNSURE), (sure, SURE)):
        axes.plot(rows["gain"][which], places[which], color=colour, **look)


def _scale_gain(axes: Axes) -> None:
    """An x axis that is linear within `LINEAR` nats of 0, logarithmic beyond."""
    axes.axvline(0, color=style.GREY, linewidth=0.6, zorder=0)
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_locator(FixedLocator(style.SIGNED_POWERS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.power_name(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"cross-entropy saved (nats/token)\nlinear within ±{LINEAR:g}, logarithmic beyond")
    axes.tick_params(axis="y", length=0)
