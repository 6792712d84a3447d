"""Supplementary figure, seeds: the verdicts under each seed, and the spread between seeds against that of documents."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.base import InputError
from twoscale.claims.findings import FAILS, HOLDS, OPEN
from twoscale.claims.seeds import MEAN
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.figures import style

# Verdict -> colour and sign of its cell; the others have a dash.
CELLS = {HOLDS: (style.GREEN, "✓"), FAILS: (style.ORANGE, "✗"), OPEN: ("0.75", "?")}
OTHER = ("white", "–")
# Kind of quantity -> the claims about it. The claims about times have no spread over seeds.
KINDS = {"step norms": (1, 2, 12, 13), "angles": (3, 4, 5), "drift": (6,), "exits": (8, 9, 14, 15)}
EQUAL: style.Look = {"color": style.GREY, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}


@style.look()
def draw(seeds: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """(i) The verdict on each claim under each seed and over seeds. (ii) Each quantity of the claims as a point.

    In (ii) the standard deviation between seeds is against the standard error that is due to the documents, each pair
    in the unit of its quantity; filled points count for a verdict.

    Args:
        seeds: Table "seeds".
        context: Loop steps K of the trajectories.

    Raises InputError if the table has no rows.
    """
    if seeds.empty:
        raise InputError("table seeds: found no rows, expected verdicts of at least two seeds.")
    figure = style.new_figure(style.DOUBLE, 3.7, context)
    verdicts, spreads = figure.subplots(1, 2, width_ratios=(0.16 * seeds["seed"].nunique(), 1))
    _draw_verdicts(verdicts, seeds[seeds["scope"] == ALL])
    _draw_spreads(spreads, seeds[(seeds["seed"] == MEAN) & (seeds["scope"] != ALL)])
    return figure


def _draw_verdicts(axes: Axes, rows: pd.DataFrame) -> None:
    """One row per claim, one column per seed and one for the mean, with a gap before it."""
    cells = rows.pivot(index="claim", columns="seed", values="verdict")[rows["seed"].unique()]
    places = [column + 0.25 * (seed == MEAN) for column, seed in enumerate(cells.columns)]
    for row, (_, verdicts) in enumerate(cells.iterrows()):
        for place, verdict in zip(places, verdicts, strict=True):
            colour, sign = CELLS.get(verdict, OTHER)
            axes.scatter(place, row, s=105, marker="s", color=colour, linewidth=0)
            axes.text(place, row, sign, ha="center", va="center_baseline")
    titles = {claim.number: claim.title for claim in CLAIMS}
    axes.set_yticks(range(len(cells)), [f"{titles.get(claim, 'claim')}  {claim}" for claim in cells.index])
    axes.set_xticks(places, ["over\nseeds" if seed == MEAN else seed for seed in cells.columns])
    axes.set_xlim(-0.6, places[-1] + 0.6)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.xaxis.tick_top()
    axes.set_title(f"{style.panel_number(1)}  verdicts")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    marks = {verdict: {"color": colour, "marker": "s"} for verdict, (colour, _) in CELLS.items()}
    _legend(axes, marks, loc="upper center", bbox_to_anchor=(0, 0), ncols=3)


def _draw_spreads(axes: Axes, rows: pd.DataFrame) -> None:
    spread = ["deviation", "document_error"]
    known = rows.dropna(subset=spread).drop_duplicates(["scope", "quantity", *spread])  # claims share some
    known = known[(known["deviation"] > 0) & (known["document_error"] > 0)]
    marks = {}
    for (kind, claims), looks in zip(KINDS.items(), style.series_styles(len(KINDS)), strict=True):
        marks[kind] = looks | {"linestyle": ""}
        of_kind = known[known["claim"].isin(claims)]
        for counts, points in of_kind.groupby(of_kind["bounds"] != ""):
            filled: style.Look = {} if counts else {"markerfacecolor": "white"}
            axes.plot(points["document_error"], points["deviation"], **marks[kind], **filled, markeredgewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _scale_alike(axes)
    axes.plot(axes.get_xlim(), axes.get_xlim(), zorder=0, **EQUAL)
    axes.set_xlabel("standard error over documents")
    axes.set_ylabel("standard deviation between seeds")
    axes.set_title(f"{style.panel_number(2)}  quantities, each in its unit")
    _legend(axes, marks | {"equal": EQUAL}, loc="best")


def _scale_alike(axes: Axes) -> None:
    """The same range on both axes, so that the diagonal is where the spreads are equal."""
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    for axis, limit in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        limit(min(limits), max(limits))
        style.label_powers(axis)


def _legend(axes: Axes, marks: dict[str, dict[str, Any]], **options: Any) -> None:
    handles = [Line2D([], [], **{"linestyle": ""} | looks) for looks in marks.values()]
    axes.legend(handles, list(marks), **options)
