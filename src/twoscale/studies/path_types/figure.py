"""Supplementary figure, path types: contraction rate and dimension of paths through a loop, and their types."""

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from twoscale.figures import style

ROWS = {"contraction_rate": "(a)  contraction rate", "effective_dimension": "(b)  effective dimension"}
# Quantiles at the ends of a band -> its name, and how opaque it is.
BANDS = {("q05", "q95"): ("9 of 10 tokens", 0.15), ("q25", "q75"): ("half of the tokens", 0.4)}
SHARES = "(c)  tokens of other types"
# Types of paths that do not converge: name -> (path type, its periods, style).
_BLUE, *_LOOKS = style.series_styles(5)
OTHERS = {
    "orbiting, period 2": ("orbiting", lambda period: period == 2, _LOOKS[0]),
    "orbiting, longer period": ("orbiting", lambda period: period > 2, _LOOKS[1]),
    "sliding": ("sliding", lambda period: period >= 0, _LOOKS[2]),
    "undecided": ("undecided", lambda period: period >= 0, _LOOKS[3]),
}


@style.look()
def draw(path_types: pd.DataFrame, path_metrics: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One column per group over the checkpoints: contraction rate, effective dimension, shares of path types.

    `path_types` and `path_metrics` are the tables of these names; lines are medians over tokens, bands contain half
    and nine tenths of the tokens. The title of a column has the share of tokens that converge. Those of the other
    types are a row of panels where there is such a token at all. Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(path_types, "the path types")
    shares = other_shares(path_types)
    rows = len(ROWS) + (not shares.empty)
    figure = style.new_figure(style.DOUBLE if len(groups) > 1 else style.SINGLE, 0.9 + 1.4 * rows, context)
    panels = figure.subplots(rows, len(groups), sharex=True, sharey="row", squeeze=False)
    iterations = sorted(path_types["iteration"].unique())
    for column, group in zip(panels.T, groups, strict=True):
        for axes, measure in zip(column, ROWS, strict=False):
            metrics = path_metrics[(path_metrics["group"] == group) & (path_metrics["measure"] == measure)]
            _draw_quantiles(axes, metrics, iterations, context)
        if not shares.empty:
            _draw_shares(column[-1], shares.loc[group], context)
    _title(panels[0], groups, path_types)
    _name_rows(figure, list(panels[:, 0]))
    handles: list[Artist] = [Line2D([], [], label="median", **_BLUE)]
    handles += [Patch(color=style.BLUE, alpha=alpha, linewidth=0, label=name) for name, alpha in BANDS.values()]
    handles += [Line2D([], [], label=name, **OTHERS[name][2]) for name in shares.columns]
    ncols = style.legend_columns([str(handle.get_label()) for handle in handles], figure.get_figwidth())
    figure.legend(handles=handles, loc="outside upper center", ncols=ncols)
    return figure


def other_shares(path_types: pd.DataFrame) -> pd.DataFrame:
    """Share of tokens, by group and iteration, of each type of OTHERS that occurs; empty if all tokens converge."""
    columns = {}
    for name, (path_type, belongs, _) in OTHERS.items():
        found = path_types["share"].where((path_types["path_type"] == path_type) & belongs(path_types["period"]), 0.0)
        columns[name] = found.groupby([path_types["group"], path_types["iteration"]]).sum()
    shares = pd.DataFrame(columns)
    return shares.loc[:, (shares > 0).any()]


def _title(panels: list[Axes], groups: list[str], path_types: pd.DataFrame) -> None:
    """Title each column with its group and the least share of tokens that converge at a checkpoint."""
    style.title_groups(panels, groups)
    converging = path_types[path_types["path_type"] == "converging"].groupby(["group", "iteration"])["share"].sum()
    shares = converging.unstack().reindex(index=groups, columns=path_types["iteration"].unique()).fillna(0.0)
    least = "" if shares.shape[1] == 1 else "at least "
    for axes, share in zip(panels, shares.min(axis="columns"), strict=True):
        tokens = "all" if share > 1 - 1e-9 else f"{least}{min(100 * share, 99.9):.3g} %"
        axes.set_title(f"{axes.get_title()}, {tokens} converge")


def _name_rows(figure: Figure, panels: list[Axes]) -> None:
    for axes, label in zip(panels, [*ROWS.values(), SHARES], strict=False):
        axes.set_ylabel(label)
    figure.align_ylabels(panels)
    panels[0].set_ylim(bottom=0)
    panels[1].set_ylim(bottom=1)  # that of a straight line
    for axes in panels[len(ROWS) :]:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.set_ylim(bottom=0)


def _draw_shares(axes: Axes, shares: pd.DataFrame, context: style.FigureContext) -> None:
    """One line per type that occurs, over the iterations, the index of `shares`."""
    places = style.scale_iterations(axes, shares.index, context)
    for name in shares.columns[(shares > 0).any()]:
        axes.plot(places, shares[name], clip_on=False, **OTHERS[name][2])


def _draw_quantiles(axes: Axes, metrics: pd.DataFrame, iterations: list[int], context: style.FigureContext) -> None:
    """The median over tokens, with bands of the middle half and of nine tenths."""
    places = style.scale_iterations(axes, iterations, context)
    known = metrics[metrics["count"] > 0].set_index("iteration").reindex(iterations)
    for (low, high), (_, alpha) in BANDS.items():
        style.band(axes, places, known[low], known[high], color=style.BLUE, alpha=alpha)
    axes.plot(places, known["q50"], **_BLUE)
    axes.label_outer()
