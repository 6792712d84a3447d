"""Supplementary figure, throughput: tokens per second and latency against the sequences that are decoded together."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from twoscale.analysis.names import criterion_name
from twoscale.analysis.summaries import OPERATING_POINT
from twoscale.base import InputError
from twoscale.figures import style

# column: (title, label)
PANELS = {
    "tokens_per_second": ("throughput", "tokens/s, all sequences (log scale)"),
    "latency_ms": ("latency", "time to the next token (ms, log scale)"),
}
FIXED: style.Look = {"color": style.GREY, "marker": "|"}


@style.look()
def draw(throughput: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Two panels against the number of sequences: (i) tokens per second, (ii) the time to a sequence's next token.

    One line per exit criterion; grey is `fixed`. Points are medians of the repeats, bars of tokens per second the range
    of the repeats; the shade of (ii) ends at the 95 % quantile over tokens.

    Args:
        throughput: Table of this name.
        context: Its loop steps K are the most that a token may take.

    Raises InputError for a table without rows.
    """
    if throughput.empty:
        raise InputError("table throughput: found no rows, expected at least one exit criterion for the figure.")
    points = summarise_throughput(throughput)
    styles = _styles(throughput)
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    panels = figure.subplots(1, len(PANELS))
    for number, (axes, (column, (title, label))) in enumerate(zip(panels, PANELS.items(), strict=True), start=1):
        for key, rows in points.groupby(OPERATING_POINT, sort=False):
            _draw_line(axes, rows, column, styles[key])
        _scale(axes, points["sequences"])
        axes.set_ylabel(label)
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
    _add_legend(figure, styles)
    return figure


def summarise_throughput(throughput: pd.DataFrame) -> pd.DataFrame:
    """Medians over repeats per operating point and number of sequences, and the range of the tokens/s.

    The repeats decode the same text, so what differs between them is the machine.

    Args:
        throughput: Table "throughput".

    Returns:
        Columns criterion, threshold, sequences, tokens_per_second, latency_ms, latency_high_ms, low, high; rows in the
        order of the table, the numbers of sequences rising.
    """
    by_point = throughput.groupby([*OPERATING_POINT, "sequences"], sort=False)
    summary = by_point[["tokens_per_second", "latency_ms", "latency_high_ms"]].median()
    bounds = by_point["tokens_per_second"].agg(low="min", high="max")
    return summary.join(bounds).reset_index().sort_values("sequences", kind="stable", ignore_index=True)


def _styles(throughput: pd.DataFrame) -> dict[tuple, dict]:
    """(criterion, threshold) -> style of its line."""
    lines = list(throughput.groupby(OPERATING_POINT, sort=False).groups)
    colours = style.criterion_styles([criterion for criterion, _ in lines if criterion != "fixed"])
    return {(name, tau): (FIXED if name == "fixed" else colours[name]) | {"linestyle": "-"} for name, tau in lines}


def _draw_line(axes: Axes, rows: pd.DataFrame, column: str, looks: dict) -> None:
    looks = looks | {"markersize": 3.5, "linewidth": 1.2}
    if column == "latency_ms":
        axes.plot(rows["sequences"], rows[column], **looks)
        bounds = rows[column], rows["latency_high_ms"]
        axes.fill_between(rows["sequences"], *bounds, color=looks["color"], alpha=0.08, linewidth=0)
        return
    bars = [rows[column] - rows["low"], rows["high"] - rows[column]]
    axes.errorbar(rows["sequences"], rows[column], yerr=bars, elinewidth=0.6, **looks)


def _scale(axes: Axes, sequences: pd.Series) -> None:
    """Logarithmic axes; that of the sequences is labelled at their numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(sequences))))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("sequences decoded together (log scale)")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _add_legend(figure: Figure, styles: dict[tuple, dict]) -> None:
    handles = {}
    for (criterion, threshold), looks in styles.items():
        name = rf"{criterion_name(criterion)}, $\tau$ = {threshold:g}"
        handles[f"{threshold:g} loops for all" if criterion == "fixed" else name] = Line2D([], [], **looks)
    names = list(handles)
    figure.legend(handles.values(), names, loc="outside upper center", ncols=style.legend_columns(names, style.DOUBLE))
