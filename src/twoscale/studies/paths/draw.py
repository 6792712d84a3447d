"""Path types and path independence: sentences for the report, and the two figures."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from twoscale.dynamics.aggregate import statistics
from twoscale.figures import style
from twoscale.jobs.table_job import TableJob, job_files

# --- path types -----------------------------------------------------------------------------------

PATH_ROWS = {
    "contraction_rate": "(a)  contraction rate",
    "effective_dimension": "(b)  effective dimension",
}
# Quantiles at the ends of a band -> its name, and how opaque it is.
_BANDS = {("q05", "q95"): ("9 of 10 tokens", 0.15), ("q25", "q75"): ("half of the tokens", 0.4)}
_SHARES = "(c)  tokens of other types"
# Types of paths that do not converge, in the order of the legend, and their looks.
_MEDIAN, *_LOOKS = style.series_styles(5)
_OTHER_TYPES = ("orbiting, period 2", "orbiting, longer period", "sliding", "undecided")
_OTHER_LOOKS = dict(zip(_OTHER_TYPES, _LOOKS, strict=True))


def types_sentence(table: pd.DataFrame) -> str:
    """The shares at the last checkpoint in one sentence, for the report."""
    last = table[table["iteration"] == table["iteration"].max()]
    groups = []
    for group, rows in last.groupby("group", sort=False):
        shares = rows.groupby("path_type", sort=False)["share"].sum()
        parts = [f"{100 * share:.1f} % {path_type}" for path_type, share in shares.items()]
        groups.append(f"group {style.group_name(group)}: {', '.join(parts)}")
    return f"At the last checkpoint, {'; '.join(groups)}."


@style.look()
def draw_path_types(
    path_types: pd.DataFrame, path_metrics: pd.DataFrame, *, context: style.FigureContext
) -> Figure:
    """One column per group over the checkpoints: contraction rate, effective dimension, shares of
    path types.

    Lines are medians over tokens, bands contain half and nine tenths of the tokens. The title of a
    column has the share of tokens that converge; other types are a row of panels where there are
    any. Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(path_types, "the path types")
    iterations = sorted(path_types["iteration"].unique())
    shares = other_shares(path_types)
    rows = len(PATH_ROWS) + (not shares.empty)
    width = style.DOUBLE if len(groups) > 1 else style.SINGLE
    figure = style.new_figure(width, 0.9 + 1.4 * rows, context)
    panels = figure.subplots(rows, len(groups), sharex=True, sharey="row", squeeze=False)
    for column, group in zip(panels.T, groups, strict=True):
        of_group = path_metrics[path_metrics["group"] == group]
        for axes, measure in zip(column, PATH_ROWS, strict=False):
            known = of_group[(of_group["measure"] == measure) & (of_group["count"] > 0)]
            _draw_quantiles(axes, known.set_index("iteration").reindex(iterations), context)
        if not shares.empty:
            places = style.scale_iterations(column[-1], iterations, context)
            for name, share in shares.loc[group].items():
                if (share > 0).any():
                    # not clipped, because shares of 0 are on the edge of the panel
                    column[-1].plot(places, share, clip_on=False, **_OTHER_LOOKS[name])
            column[-1].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    _title(panels[0], groups, path_types)
    for axes, label in zip(panels[:, 0], [*PATH_ROWS.values(), _SHARES], strict=False):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    panels[1, 0].set_ylim(bottom=1)  # that of a straight line
    figure.align_ylabels(panels[:, 0])
    handles: dict[str, Artist] = {"median": Line2D([], [], **_MEDIAN)}
    for name, alpha in _BANDS.values():
        handles[name] = Patch(color=style.BLUE, alpha=alpha, linewidth=0)
    handles |= {name: Line2D([], [], **_OTHER_LOOKS[name]) for name in shares.columns}
    style.legend_above(figure, handles, style.legend_columns(list(handles), width))
    return figure


def _draw_quantiles(axes: Axes, known: pd.DataFrame, context: style.FigureContext) -> None:
    """Median and bands over the checkpoints, the index of `known`."""
    places = style.scale_iterations(axes, known.index, context)
    for (low, high), (_, alpha) in _BANDS.items():
        style.band(axes, places, known[low], known[high], color=style.BLUE, alpha=alpha)
    axes.plot(places, known["q50"], **_MEDIAN)
    axes.label_outer()


def other_shares(path_types: pd.DataFrame) -> pd.DataFrame:
    """Share of tokens, by group and iteration, of each other type that occurs; empty if all tokens
    converge.
    """
    name = path_types["path_type"]
    period = np.where(path_types["period"] == 2, ", period 2", ", longer period")
    name = name.mask(name == "orbiting", name + period)
    keys = [path_types["group"], path_types["iteration"], name]
    shares = path_types.groupby(keys)["share"].sum().unstack(fill_value=0.0)  # types in columns
    shares = shares.reindex(columns=_OTHER_TYPES, fill_value=0.0)
    return shares.loc[:, (shares > 0).any()]


def _title(panels: list[Axes], groups: list[str], path_types: pd.DataFrame) -> None:
    """Title each column with its group and the least share of tokens that converge at a
    checkpoint.
    """
    style.title_groups(panels, groups)
    converging = path_types["share"].where(path_types["path_type"] == "converging", 0.0)
    of_checkpoint = converging.groupby([path_types["group"], path_types["iteration"]]).sum()
    for axes, group in zip(panels, groups, strict=True):
        shares = of_checkpoint[group]
        least = shares.min()
        percent = min(100 * least, 99.9)  # 99.99 is not rounded to 100
        tokens = f"at least {percent:.3g} %" if len(shares) > 1 else f"{percent:.3g} %"
        # up to the rounding of a sum of shares
        if least > 1 - 1e-9:
            tokens = "all"
        axes.set_title(f"{axes.get_title()}, {tokens} converge")


# --- path independence ----------------------------------------------------------------------------

_FLOOR_EPS = 16  # a value below 16 eps is mostly rounding error
_ROUNDING: style.Look = {"color": "0.88", "linewidth": 0, "zorder": 0}
# measure: (title, label)
EFFECTS = {
    "distance_relative": ("last states", "distance / norm of the state"),
    "kl": ("predictions", "KL divergence (nats)"),
    "agreement": ("changed predictions", "share of tokens"),
}


@job_files(reads="independence", writes="path_independence")
def run_independence(job: TableJob) -> None:
    """Write the table "path_independence"; the mean of `agreement` is the share of equal
    predictions.
    """
    source, run = job.files["independence"], job.config.run
    table = statistics(source, run, "token_independence", "path_independence")
    job.write("path_independence", table)


def independence_sentence(table: pd.DataFrame) -> str:
    """The effect of all groups at the last checkpoint in one sentence, for the report."""
    last = table[(table["iteration"] == table["iteration"].max()) & (table["group"] == "all")]
    rows = last.set_index("measure")
    distance, agreement = rows.loc["distance_relative", "q50"], rows.loc["agreement", "mean"]
    return (
        f"At the last checkpoint, noise varied in all groups: median relative distance"
        f" {distance:.2g}, another prediction for {100 * (1 - agreement):.2g} % of the tokens."
    )


@style.look()
def draw_path_independence(
    path_independence: pd.DataFrame, *, dtype: str, context: style.FigureContext
) -> Figure:
    """Distance of last states, KL and changed predictions over the checkpoints, one line per varied
    group.

    Lines are medians over tokens and draws with bands of nine tenths, for the predictions shares.
    The grey range holds rounding errors of the measurement's `dtype`; smaller values are drawn at
    its edge. Raises InputError for a model without looped groups.
    """
    groups = style.looped_groups(path_independence, "path independence")
    floor = _FLOOR_EPS * float(np.finfo(dtype).eps)
    figure = style.new_figure(style.DOUBLE, 2.6, context)
    panels = figure.subplots(1, len(EFFECTS))
    looks = style.group_styles(groups)
    effects = zip(panels, EFFECTS.items(), strict=True)
    for number, (axes, (measure, (title, label))) in enumerate(effects, start=1):
        rows = path_independence[path_independence["measure"] == measure]
        _draw_measure(axes, rows, looks, floor, context)
        style.name_panel(axes, number, title, label)
    panels[-1].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    panels[-1].set_ylim(bottom=0)
    handles: dict[str, Artist] = {}
    for group, line in zip(groups, panels[0].get_lines(), strict=True):
        handles["all groups" if group == "all" else f"group {style.group_name(group)}"] = line
    if panels[0].get_ylim()[0] < floor:
        handles[f"rounding errors, below {style.power_name(floor)}"] = Patch(**_ROUNDING)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=len(handles),
        title="noise varied in",
    )
    return figure


def _draw_measure(
    axes: Axes,
    of_measure: pd.DataFrame,
    looks: dict[str, dict],
    floor: float,
    context: style.FigureContext,
) -> None:
    """One line per varied group over the checkpoints: a median with a band of nine tenths, or a
    share.
    """
    iterations = sorted(of_measure["iteration"].unique())
    places = style.scale_iterations(axes, iterations, context)
    for group, look in looks.items():
        rows = of_measure[of_measure["group"] == group].set_index("iteration").reindex(iterations)
        if (of_measure["measure"] == "agreement").all():
            axes.plot(places, 1 - rows["mean"], **look)  # changed, not equal
            continue
        axes.set_yscale("log")
        low, median, high = (rows[name].clip(lower=floor) for name in ("q05", "q50", "q95"))
        style.band(axes, places, low, high, color=look["color"], alpha=0.12)
        axes.plot(places, median, **look)
        if (rows["q05"] < floor).any():
            axes.axhspan(floor / 10, floor, **_ROUNDING)
        style.label_powers(axes.yaxis)
    if axes.patches:  # the range of rounding errors
        axes.set_ylim(bottom=floor / 10)
