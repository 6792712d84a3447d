"""Supplementary figure, adapter_init: late angles and held-out loss against the adapter initialisation."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from twoscale.figures import style
from twoscale.studies.adapter_init.compare import ALL, COSINE, LOSS

RANDOM = 1.45  # place of random weights on the axis of shares
SEEDS = 0.04  # distance of the marks of single seeds from the mean
BELOW = "all steps below\nthe rounding floor"
Styles = Mapping[int, Mapping[str, Any]]


@style.look()
def draw(adapter_init: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row per norm and first state: the late cosine in each group against the start, and the held-out loss.

    One line per checkpoint, the mean over seeds; bars are 95 % intervals at the last checkpoint, with a small mark for
    each seed where there are several.

    Args:
        adapter_init: Table of this name.
        context: Loop steps K of the trajectories.

    Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(adapter_init[adapter_init["measure"] == COSINE], "the starts")
    cases = list(dict.fromkeys(zip(adapter_init["sandwich"], adapter_init["state_init"], strict=True)))
    styles = style.checkpoint_palette(adapter_init["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 0.9 + 1.7 * len(cases), context)
    panels = figure.subplots(len(cases), len(groups) + 1, squeeze=False)
    for (row, (sandwich, state_init)), (column, group) in product(enumerate(cases), enumerate([*groups, ALL])):
        rows = adapter_init[(adapter_init["sandwich"] == sandwich) & (adapter_init["state_init"] == state_init)]
        measure = LOSS if group == ALL else COSINE
        _draw(panels[row, column], rows[(rows["group"] == group) & (rows["measure"] == measure)], styles)
    for axes in panels[:, :-1].flat:
        axes.axhspan(*style.REPORTED_COSINE, color=style.REPORTED_BAND, linewidth=0, zorder=0)
        axes.set_ylim(-1.15, 1.15)  # lines at 1 are below the frame
    style.title_groups(panels[0, :-1], groups)
    panels[0, -1].set_title("held-out loss")
    _label(panels, cases)
    drawn = adapter_init.loc[adapter_init["value"].notna(), "iteration"].unique()
    styles = {iteration: look for iteration, look in styles.items() if iteration in drawn}
    style.checkpoint_legend(figure, styles, context, {style.REPORTED_LABEL: Patch(color=style.REPORTED_BAND)})
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, styles: Styles) -> None:
    """Values against the start, one line per checkpoint, with random weights apart from the line of the shares."""
    rows = rows.assign(place=rows["share"].fillna(RANDOM)).sort_values("place")
    last = max(styles)
    for iteration, look in styles.items():
        means = rows[(rows["seed"] == ALL) & (rows["iteration"] == iteration)]
        for _, part in means.groupby(means["share"].isna()):
            axes.plot(part["place"], part["value"], **look, marker="o")
    means = rows[(rows["seed"] == ALL) & (rows["iteration"] == last)]
    axes.vlines(means["place"], means["low"], means["high"], color=styles[last]["color"], linewidth=0.8)
    seeds = rows[(rows["seed"] != ALL) & (rows["iteration"] == last)]
    if seeds["seed"].nunique() > 1:
        axes.plot(seeds["place"] + SEEDS, seeds["value"], "_", color=styles[last]["color"], markersize=4)
    if rows["value"].isna().all():
        axes.text(0.5, 0.3, BELOW, ha="center", transform=axes.transAxes, color=style.GREY)
    _scale_shares(axes, rows["place"].unique())


def _scale_shares(axes: Axes, places: Sequence[float]) -> None:
    """An axis from the input alone, 0, to the state alone, 1, with random weights at its end."""
    shares = [place for place in places if place != RANDOM]
    ends = [share for share in (0, 0.5, 1) if shares and min(shares) <= share <= max(shares)] or shares
    ticks = {share: f"{share:g}" for share in ends} | ({RANDOM: "random"} if RANDOM in places else {})
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.12, RANDOM + 0.25)


def _label(panels: np.ndarray, cases: Sequence[tuple[str, str]]) -> None:
    """Labels of the axes; the norm and the first state of a row beside it, where there are several."""
    for axes in panels[-1]:
        axes.set_xlabel("share of the state at the start")
    for row, (sandwich, state_init) in zip(panels, cases, strict=True):
        case = f"{sandwich.replace('_', ' ')}, {state_init.replace('_', ' ')}\n" if len(cases) > 1 else ""
        row[0].set_ylabel(f"{case}late cosine")
        row[-1].set_ylabel("nats per token")
        for axes in row[1:-1]:
            axes.tick_params(labelleft=False)
