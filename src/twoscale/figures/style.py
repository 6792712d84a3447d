"""The shared look of the figures: sizes, fonts, colours, bands, legends, and saving.

Figures are built from `matplotlib.figure.Figure` under `look()`, never through pyplot, so that drawing one
leaves no global state behind and does not depend on the user's matplotlibrc.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from twoscale.errors import InputError
from twoscale.files import replacing

# Widths of a journal column and of the page, in inches.
SINGLE, DOUBLE = 3.4, 7.0
LEGEND_ENTRY = 0.87  # width of one entry, in inches
GREY = "0.45"
BAND = "0.88"  # fill of a reported range
# Range in which the cosine settles in later checkpoints, as section 3 of the paper reports it.
REPORTED_COSINE = (0.5, 0.65)
REPORTED_LABEL = "paper: {}–{}".format(*REPORTED_COSINE)

LOOK = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same bytes on every machine
    "mathtext.fontset": "dejavusans",
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "axes.formatter.useoffset": False,
    "pdf.fonttype": 42,  # whole TrueType outlines, which journals ask for
    "savefig.dpi": 300,
    "svg.hashsalt": "twoscale",  # names inside the file, which are random otherwise
}

# The date that a file would contain, by suffix.
DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": None}

_COLOURS = sns.color_palette("colorblind")
# Figure 4 of the paper: step norm blue, KL orange, acceleration green. Other criteria take the remaining colours.
CRITERION_COLOURS = {"step_norm": _COLOURS[0], "kl": _COLOURS[1], "acceleration": _COLOURS[2]}
_FURTHER_COLOURS = [*(_COLOURS[i] for i in (3, 4, 5, 9, 6, 8)), (0.1, 0.1, 0.1)]
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES = ("-", (0, (4, 1.2)), (0, (6, 1, 1, 1)), (0, (1, 1)))
CRITERION_NAMES = {"kl": "KL", "minp_kl": "min-p KL"}


@dataclass(frozen=True)
class FigureContext:
    """What a figure says about its data: name of the run, its text, and the loop steps K.

    `fewest_loops` is set if groups have fewer loop steps than `loops`.
    `published` marks a model that was published: its one checkpoint is not an iteration of a training.
    """

    run: str
    text: str
    loops: int
    published: bool = False
    fewest_loops: int | None = None

    @property
    def loops_label(self) -> str:
        fewest = self.fewest_loops
        return f"{self.loops}" if fewest in (None, self.loops) else f"{fewest} … {self.loops}"


def look():
    """Context (or decorator) for drawing and saving figures: matplotlib's defaults, then LOOK."""
    return matplotlib.style.context(["default", LOOK])


def new_figure(width: float, height: float, context: FigureContext) -> Figure:
    """An empty figure of this size in inches; its footer names the run, its text and the loop steps K."""
    figure = Figure(figsize=(width, height), layout="constrained")
    write_footer(figure, context, f"K = {context.loops_label} loop steps")
    return figure


def write_footer(figure: Figure, context: FigureContext, *parts: str) -> None:
    """Write the run, its text and further parts at the lower right."""
    footer = " · ".join([f"run {context.run}", f"text {context.text}", *parts])
    figure.supxlabel(footer, x=0.995, ha="right", fontsize=5.5, color=GREY, parse_math=False)


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as .pdf, .svg or .png, by the suffix of `path`; the same figure gives the same bytes.

    Raises InputError for another suffix.
    """
    suffix = Path(path).suffix.removeprefix(".")
    if suffix not in DATE:
        raise InputError(f"{path}: found the suffix '.{suffix}', expected .pdf, .svg or .png.")
    with look(), replacing(path) as temporary:
        figure.savefig(temporary, format=suffix, metadata=DATE[suffix])


def looped_groups(table: pd.DataFrame, figure: str) -> list[str]:
    """The looped groups of a table, in its order. Raises InputError if there is none; `figure` names the figure."""
    groups = list(table["group"].unique())
    if not groups:
        raise InputError(f"config key model.groups: found no looped group, expected at least one for {figure}.")
    return groups


def group_name(group: str) -> str:
    """A group or a boundary as printed: "5-6" becomes "5–6", "4->5-6" becomes "4 → 5–6"."""
    return group.replace("->", " → ").replace("-", "–")


def grouped(number: int) -> str:
    """A whole number with thin spaces between thousands."""
    return f"{number:,}".replace(",", "\N{THIN SPACE}")


def iteration_name(iteration: int) -> str:
    """An iteration as printed in a legend."""
    return "0 (untrained)" if iteration == 0 else grouped(iteration)


def panel_number(number: int) -> str:
    """The number of a panel in the paper's style: (i), (ii), (iii), (iv), …"""
    roman = ""
    for value, sign in ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")):
        roman += sign * (number // value)
        number %= value
    return f"({roman})"


def criterion_name(criterion: str) -> str:
    return CRITERION_NAMES.get(criterion, criterion.replace("_", " "))


def title_groups(panels: Iterable[Axes], groups: Sequence[str]) -> None:
    """Title one panel per group with its number and its group."""
    for number, (axes, group) in enumerate(zip(panels, groups, strict=True), start=1):
        axes.set_title(f"{panel_number(number)}  group {group_name(group)}")


def scale_loop_steps(axes: Axes, first: int, last: int, ticks: int = 6) -> None:
    """An x axis of loop steps k from `first` to `last`, labelled at most at `ticks` + 1 whole numbers."""
    axes.set_xlabel("loop step $k$")
    axes.set_xlim(first, last)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True))


def checkpoint_palette(iterations: Iterable[int], context: FigureContext) -> dict[int, dict[str, Any]]:
    """Line style by checkpoint, in ascending order: light to dark over training, the untrained model dashed grey."""
    iterations = sorted(set(iterations))
    if context.published:
        return {iteration: {"color": _COLOURS[0], "linestyle": "-"} for iteration in iterations}
    trained = [iteration for iteration in iterations if iteration > 0]
    shades = sns.color_palette("viridis_r", as_cmap=True)(np.linspace(0.12, 1, len(trained)))
    styles = {
        iteration: {"color": tuple(shade), "linestyle": "-"} for iteration, shade in zip(trained, shades, strict=True)
    }
    if 0 in iterations:
        styles = {0: {"color": "0.6", "linestyle": (0, (3, 1.5))}} | styles
    return styles


def series_styles(number: int) -> list[dict[str, Any]]:
    """Colour, marker and dashes of `number` series that have no fixed colour."""
    return [
        {
            "color": _COLOURS[i % len(_COLOURS)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "linestyle": _DASHES[i % len(_DASHES)],
        }
        for i in range(number)
    ]


def criterion_styles(criteria: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each exit criterion except `fixed`, in the given order; all combinations differ."""
    criteria = [criterion for criterion in dict.fromkeys(criteria) if criterion != "fixed"]
    others = [criterion for criterion in criteria if criterion not in CRITERION_COLOURS]
    colours = CRITERION_COLOURS | {
        criterion: _FURTHER_COLOURS[i % len(_FURTHER_COLOURS)] for i, criterion in enumerate(others)
    }
    # The criteria of the paper keep their look even if another of them is absent.
    names = [*CRITERION_COLOURS, *others]
    looks = dict(zip(names, series_styles(len(names)), strict=True))
    return {criterion: looks[criterion] | {"color": colours[criterion]} for criterion in criteria}


def line_with_band(
    axes: Axes, x: np.ndarray, mean: np.ndarray, std: np.ndarray, alpha: float = 0.15, **style: Any
) -> Line2D:
    """Draw `mean` against `x` with a band of one standard deviation on either side; return the line.

    On a logarithmic axis the band does not extend below a tenth of the mean.
    """
    (line,) = axes.plot(x, mean, **style)
    low = np.maximum(mean - std, 0.1 * mean) if axes.get_yscale() == "log" else mean - std
    band(axes, x, low, mean + std, color=line.get_color(), alpha=alpha)
    return line


def band(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
    """Fill the area between `low` and `high`; a vertical bar at a single `x`, where an area would be invisible."""
    if len(x) > 1:
        axes.fill_between(x, low, high, linewidth=0, **style)
    else:
        axes.vlines(x, low, high, linewidth=6, **style)


def limit_cosine(axes: Axes) -> None:
    """Limit the y range, which bands may have extended, to the values of a cosine."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1.05), min(high, 1.05))


def points_above_rounding(metrics: pd.DataFrame) -> pd.DataFrame:
    """The rows in which at least half of the tokens have a value.

    In the other rows the mean is that of the few tokens whose steps are still above the rounding floor.
    """
    return metrics[(metrics["count"] >= metrics["nulls"]) & (metrics["count"] > 0)]


def checkpoint_lines(axes: Axes, metrics: pd.DataFrame, styles: Mapping[int, Mapping[str, Any]]) -> None:
    """One line with band per checkpoint against k, from the rows of one group and measure of "loop_metrics"."""
    alpha = min(0.15, 0.9 / len(styles))  # many overlapping bands would hide the lines
    for iteration, rows in points_above_rounding(metrics).groupby("iteration"):
        columns = (rows[name].to_numpy() for name in ("k", "mean", "std"))
        line_with_band(axes, *columns, alpha=alpha, **styles[iteration])


def checkpoint_legend(
    figure: Figure,
    styles: Mapping[int, Mapping[str, Any]],
    context: FigureContext,
    further: Mapping[str, Artist] = MappingProxyType({}),
) -> None:
    """A legend above all panels: iterations in ascending order, row by row, then `further` labelled artists.

    The one line of a published model needs no entry: the footer names the run.
    """
    entries = {iteration_name(iteration): Line2D([], [], **style) for iteration, style in styles.items()}
    entries = dict(further) if context.published else entries | dict(further)
    if not entries:
        return
    names = list(entries)
    columns = min(len(names), int(figure.get_figwidth() / LEGEND_ENTRY))
    # matplotlib fills a legend column by column
    row_wise = [name for column in range(columns) for name in names[column::columns]]
    handles = [entries[name] for name in row_wise]
    title = None if context.published else "iteration"
    figure.legend(handles, row_wise, loc="outside upper center", ncols=columns, title=title)


def iteration_categories(axes: Axes, iterations: Sequence[int], context: FigureContext) -> np.ndarray:
    """One labelled place per iteration on the x axis, equally spaced; returns the places."""
    places = np.arange(len(iterations))
    if context.published:
        axes.set_xticks(places, ["published"])
        axes.set_xlim(-1, len(iterations))
        return places
    labels = [grouped(iteration) for iteration in iterations]
    axes.set_xticks(places, labels, rotation=45, rotation_mode="anchor", ha="right")
    axes.set_xlim(-0.6, len(iterations) - 0.4)
    axes.set_xlabel("iteration")
    return places
