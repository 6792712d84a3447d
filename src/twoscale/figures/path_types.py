"""Supplementary figure, path types: types of the paths through a loop, their contraction rate and dimension."""

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from twoscale.figures import style

_COLOURS = sns.color_palette("colorblind")
# Segments of a bar from the bottom: name -> (path type, whether a period belongs to the segment, colour).
SEGMENTS = {
    "converging": ("converging", lambda period: period >= 0, _COLOURS[0]),
    "orbiting, period 2": ("orbiting", lambda period: period == 2, _COLOURS[1]),
    "orbiting, longer period": ("orbiting", lambda period: period > 2, _COLOURS[4]),
    "sliding": ("sliding", lambda period: period >= 0, _COLOURS[2]),
    "undecided": ("undecided", lambda period: period >= 0, "0.75"),
}
ROWS = {"contraction_rate": "(b)  contraction rate", "effective_dimension": "(c)  effective dimension"}


@style.look()
def draw(path_types: pd.DataFrame, path_metrics: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One column per group over the checkpoints: shares of path types, contraction rate, effective dimension.

    `path_types` and `path_metrics` are the tables of these names; lines are medians over tokens, bands contain half
    and nine tenths of the tokens. Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(path_types, "the path types")
    width, height, columns = (style.DOUBLE, 4.6, len(SEGMENTS)) if len(groups) > 1 else (style.SINGLE, 5.0, 2)
    figure = style.new_figure(width, height, context)
    panels = figure.subplots(1 + len(ROWS), len(groups), sharex=True, sharey="row", squeeze=False)
    iterations = sorted(path_types["iteration"].unique())
    for column, group in zip(panels.T, groups, strict=True):
        places = pd.Series(style.iteration_categories(column[-1], iterations, context), index=iterations)
        _stack(column[0], path_types[path_types["group"] == group], places)
        for axes, measure in zip(column[1:], ROWS, strict=True):
            rows = path_metrics[(path_metrics["group"] == group) & (path_metrics["measure"] == measure)]
            _draw_quantiles(axes, rows, places)
    style.title_groups(panels[0], groups)
    for axes, label in zip(panels[:, 0], ["(a)  share of tokens", *ROWS.values()], strict=True):
        axes.set_ylabel(label)
    figure.align_ylabels(panels[:, 0])
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1))
    panels[0, 0].set_ylim(0, 1)
    panels[1, 0].set_ylim(bottom=0)
    panels[2, 0].set_ylim(bottom=1)  # that of a straight line
    handles = [Patch(color=colour, label=name) for name, (_, _, colour) in SEGMENTS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    return figure


def _stack(axes: Axes, path_types: pd.DataFrame, places: pd.Series) -> None:
    """One bar per checkpoint, its segments in the order of SEGMENTS."""
    bottom = pd.Series(0.0, index=places.index)
    for path_type, belongs, colour in SEGMENTS.values():
        rows = path_types[(path_types["path_type"] == path_type) & belongs(path_types["period"])]
        shares = rows.groupby("iteration")["share"].sum().reindex(places.index, fill_value=0)
        axes.bar(places, shares, bottom=bottom, width=0.8, color=colour, linewidth=0)
        bottom += shares


def _draw_quantiles(axes: Axes, metrics: pd.DataFrame, places: pd.Series) -> None:
    """The median over tokens, with bands of the middle half and of nine tenths."""
    known = metrics[metrics["count"] > 0].set_index("iteration").reindex(places.index)
    for low, high, alpha in (("q05", "q95", 0.15), ("q25", "q75", 0.25)):
        style.band(axes, places, known[low], known[high], color=_COLOURS[0], alpha=alpha)
    axes.plot(places, known["q50"], color=_COLOURS[0], marker="o")
