"""Figure 4, exit policies: latency and quality of each exit criterion over its threshold."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from twoscale.claims.bootstrap import random_exits, summarise_latency, summarise_quality
from twoscale.claims.costs import summarise_times
from twoscale.claims.exits import PAPER_GRID
from twoscale.config.criteria import criterion_name
from twoscale.exits.table import of_run
from twoscale.figures import style

_ALL_LOOPS: style.Look = {"color": style.GREY, "linestyle": (0, (5, 2)), "linewidth": 0.9}
_MARKER: style.Look = {"markerfacecolor": "white", "markeredgewidth": 0.9}
_BARS: style.Look = {"elinewidth": 0.8, "capsize": 1.5}
_PAPER_RANGE: style.Look = {"color": "0.94", "zorder": 0, "linewidth": 0}
_MOST_TICKS = 4  # decades labelled on the axis of thresholds
_DODGE = 0.15  # decades of the threshold between the points of two criteria
# Where the axis of losses is linear: up to this many nats above full depth, and up to this ratio of
# the largest to the least perplexity.
_MOST_LINEAR, _MOST_LINEAR_RATIO = 0.1, 3

Styles = Mapping[str, style.Look]  # of each exit criterion


@style.look()
def draw(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    exit_cost_matched: pd.DataFrame,
    exit_costs: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """The three panels of the paper over tau, one line per exit criterion.

    (i) time, a line computed from evaluations and costs, and points at medians of measured tokens,
    (ii) perplexity, (iii) cross-entropy, as its change from full depth, the criterion `fixed` at
    all `context.loops` loop steps. Light lines are controls: in (i) the times of the same loop
    steps without a criterion, in (ii) and (iii) random exits with as many evaluations. The dashed
    line is full depth. Bars are 95 % intervals: of measured times over repeats, of the quality
    those of its change from full depth.
    """
    style.check_rows("exit_latency", exit_latency)
    style.check_rows("exit_quality", exit_quality)
    times = _times(exit_latency, exit_loops, exit_costs)
    exits = of_run(exit_quality, exit_loops, exit_cost_matched)
    scores = summarise_quality(exits, context.loops)
    random = random_exits(exits)
    styles = style.criterion_styles([*times["criterion"], *scores["criterion"]])
    figure = style.new_figure(style.DOUBLE, 2.7, context)
    latency, perplexity, cross_entropy = figure.subplots(1, 3)
    _draw_latency(latency, times, styles, context.loops)
    _draw_perplexity(perplexity, scores, random, styles, context.loops)
    _draw_cross_entropy(cross_entropy, scores, random, styles, context.loops)

    handles: dict[str, Artist] = {}
    for criterion, look in styles.items():
        handles[criterion_name(criterion)] = Line2D([], [], **look, **_MARKER)
    handles[f"full depth, $K = {context.loops}$"] = Line2D([], [], **_ALL_LOOPS)
    control = Line2D([], [], color=style.GREY, **style.RANDOM_EXITS)
    if not exit_costs.empty:
        handles["(i) line: computed"] = Line2D([], [], color=style.GREY)
        handles["(i) points: measured"] = Line2D(
            [], [], color=style.GREY, linestyle="", marker="o", **_MARKER
        )
    handles["(i) same loops, no criterion; (ii, iii) random exits"] = control
    handles[r"$\tau$ of the paper"] = Patch(**_PAPER_RANGE)
    style.legend_above(figure, handles, style.legend_columns(list(handles), style.DOUBLE))
    return figure


def _draw_latency(axes: Axes, times: pd.DataFrame, styles: Styles, max_loops: int) -> None:
    measured = times.assign(value=times["latency_ms"])
    computed = times.assign(value=times["time_ms"])
    without_criterion = times.assign(value=times["bare_ms"])
    _draw_panel(axes, measured, without_criterion, styles, max_loops, computed)
    style.name_panel(axes, 1, "latency", "latency (ms/token)")
    axes.set_ylim(bottom=0)


def _times(
    exit_latency: pd.DataFrame, exit_loops: pd.DataFrame, exit_costs: pd.DataFrame
) -> pd.DataFrame:
    """`summarise_latency` with the computed columns time_ms and bare_ms.

    Without costs, as in earlier releases, they are those that were measured.
    """
    measured = summarise_latency(exit_latency)
    if exit_costs.empty:
        return measured.assign(time_ms=measured["latency_ms"], bare_ms=measured["baseline_ms"])
    computed = summarise_times(exit_loops, exit_costs)
    return measured.merge(computed, "left", on=["criterion", "threshold"])


def _draw_perplexity(
    axes: Axes, scores: pd.DataFrame, random: pd.DataFrame, styles: Styles, max_loops: int
) -> None:
    low, high = np.exp(scores["low"]), np.exp(scores["high"])
    measured = scores.assign(value=scores["ppl"], low=low, high=high)
    controls = random.assign(value=np.exp(random["ce"]))
    _draw_panel(axes, measured, controls, styles, max_loops)
    style.name_panel(axes, 2, "perplexity", "perplexity")
    if scores["ppl"].max() > _MOST_LINEAR_RATIO * scores["ppl"].min():
        axes.set_yscale("log")
        style.label_powers(axes.yaxis)


def _draw_cross_entropy(
    axes: Axes, scores: pd.DataFrame, random: pd.DataFrame, styles: Styles, max_loops: int
) -> None:
    """The change from full depth, of which the bars are intervals."""
    full = scores.loc[_is_full(scores, max_loops), "ce"]
    least = full.min() if len(full) else scores["ce"].min()
    low, high = scores["low"] - least, scores["high"] - least
    measured = scores.assign(value=scores["ce"] - least, low=low, high=high)
    controls = random.assign(value=random["ce"] - least)
    _draw_panel(axes, measured, controls, styles, max_loops)
    style.name_panel(axes, 3, "cross-entropy", "change from full depth (nats)")
    if axes.get_ylim()[1] > _MOST_LINEAR:
        style.scale_nats(axes)


def _draw_panel(
    axes: Axes,
    points: pd.DataFrame,
    controls: pd.DataFrame,
    styles: Styles,
    max_loops: int,
    computed: pd.DataFrame | None = None,
) -> None:
    """A line per criterion of `value` over the threshold, with bars from `low` to `high`, and one
    of the controls. The line is that of `computed` if given, and does not connect the points.
    """
    axes.set_xscale("log")
    looks = style.semantics("criterion", styles)
    sns.lineplot(
        _placed(controls, styles),
        x="place",
        y="value",
        estimator=None,
        legend=False,
        ax=axes,
        **{**looks, "markers": False},
        **style.RANDOM_EXITS,
    )
    if computed is not None:
        line = {**looks, "markers": False}
        placed = _placed(computed, styles)
        sns.lineplot(placed, x="place", y="value", estimator=None, legend=False, ax=axes, **line)
        looks = {**looks, "dashes": False, "linestyle": ""}
    placed = _placed(points, styles)
    # an interval of resampled medians or means need not contain the value itself
    low = placed[["low", "value"]].min(axis="columns")
    high = placed[["high", "value"]].max(axis="columns")
    sns.lineplot(
        style.stacked(placed, placed["value"], low, high),
        x="place",
        y="value",
        err_style="bars",
        err_kws=_BARS,
        legend=False,
        ax=axes,
        markeredgecolor="auto",
        **_MARKER,
        **style.SPREAD,
        **looks,
    )
    lines = points if computed is None else computed
    for full_depth in lines.loc[_is_full(lines, max_loops), "value"]:
        axes.axhline(full_depth, zorder=1, **_ALL_LOOPS)
    style.label_powers(axes.xaxis, _MOST_TICKS)
    axes.set_xlabel(r"exit threshold $\tau$")
    axes.axvspan(PAPER_GRID[0], PAPER_GRID[-1], **_PAPER_RANGE)


def _placed(table: pd.DataFrame, styles: Styles) -> pd.DataFrame:
    """The rows of the criteria in the order of the threshold, with the column `place` beside it,
    so that bars of different criteria do not overlap.
    """
    ranks = {criterion: rank for rank, criterion in enumerate(styles)}
    rows = table[table["criterion"].isin(styles)].sort_values("threshold")
    beside = rows["criterion"].map(ranks) - (len(ranks) - 1) / 2
    return rows.assign(place=rows["threshold"] * 10 ** (_DODGE * beside))


def _is_full(table: pd.DataFrame, max_loops: int) -> pd.Series:
    """Which rows are those of full depth."""
    return (table["criterion"] == "fixed") & (table["threshold"] == max_loops)
