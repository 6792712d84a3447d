"""Kinds of trajectories (supplementary): what the paths through a loop come to, how fast and in how many directions."""

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from twoscale.errors import InputError
from twoscale.figures import style

_COLOURS = sns.color_palette("colorblind")
# From the bottom of a bar: (kind, whether a period belongs to the part), name and colour.
PARTS = {
    "converging": ("converging", lambda period: period >= 0, _COLOURS[0]),
    "orbiting, period 2": ("orbiting", lambda period: period == 2, _COLOURS[1]),
    "orbiting, longer period": ("orbiting", lambda period: period > 2, _COLOURS[4]),
    "sliding": ("sliding", lambda period: period >= 0, _COLOURS[2]),
    "undecided": ("undecided", lambda period: period >= 0, "0.75"),
}
ROWS = {"contraction_rate": "(b)  contraction rate", "effective_dimension": "(c)  effective dimension"}


@style.look()
def draw(kinds: pd.DataFrame, metrics: pd.DataFrame, budget: int, run: str, text: str) -> Figure:
    """One column per group over the checkpoints: shares of the kinds, contraction rate, effective dimension.

    `kinds` and `metrics` are the tables "path_types" and "path_metrics"; lines are medians over tokens, bands hold half
    and nine tenths of the tokens. Raises InputError for a model without looped groups.
    """
    groups = list(kinds["group"].unique())
    if not groups:
        raise InputError(
            "config key model.groups: found no looped group, expected at least one for the kinds of paths."
        )
    figure = style.new_figure(style.DOUBLE if len(groups) > 1 else style.SINGLE, 4.6, run, text, budget)
    panels = figure.subplots(1 + len(ROWS), len(groups), sharex=True, sharey="row", squeeze=False)
    steps = sorted(kinds["iteration"].unique())
    for number, (column, group) in enumerate(zip(panels.T, groups, strict=True), start=1):
        places = pd.Series(style.step_categories(column[-1], steps), index=steps)
        _stack(column[0], kinds[kinds["group"] == group], places)
        for axes, measure in zip(column[1:], ROWS, strict=True):
            _quantiles(axes, metrics[(metrics["group"] == group) & (metrics["measure"] == measure)], places)
        column[0].set_title(f"{style.panel_number(number)}  group {style.group_name(group)}")
        column[-1].set_xlabel("training step")
    panels[0, 0].set_ylabel("(a)  share of tokens")
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1))
    panels[0, 0].set_ylim(0, 1)
    for axes, label in zip(panels[1:, 0], ROWS.values(), strict=True):
        axes.set_ylabel(label)
    figure.align_ylabels(panels[:, 0])
    panels[1, 0].set_ylim(bottom=0)
    panels[2, 0].set_ylim(bottom=1)  # that of a straight line
    handles = [Patch(color=colour, label=name) for name, (_, _, colour) in PARTS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(PARTS))
    return figure


def _stack(axes: Axes, kinds: pd.DataFrame, places: pd.Series) -> None:
    """One bar a checkpoint, its parts in the order of PARTS."""
    bottom = pd.Series(0.0, index=places.index)
    for kind, belongs, colour in PARTS.values():
        rows = kinds[(kinds["path_type"] == kind) & belongs(kinds["period"])]
        shares = rows.groupby("iteration")["share"].sum().reindex(places.index, fill_value=0)
        axes.bar(places, shares, bottom=bottom, width=0.8, color=colour, linewidth=0)
        bottom += shares


def _quantiles(axes: Axes, metrics: pd.DataFrame, places: pd.Series) -> None:
    """The median over tokens, in bands of the middle half and of nine tenths."""
    known = metrics[metrics["count"] > 0].set_index("iteration").reindex(places.index)
    for low, high, alpha in (("q05", "q95", 0.15), ("q25", "q75", 0.25)):
        axes.fill_between(places, known[low], known[high], color=_COLOURS[0], alpha=alpha, linewidth=0)
    axes.plot(places, known["q50"], color=_COLOURS[0], marker="o")
