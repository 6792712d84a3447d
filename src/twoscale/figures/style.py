"""The shared look of the figures: sizes, type, colours, bands, and how a figure becomes a file.

Figures are built from `matplotlib.figure.Figure` under `look()`, never through pyplot, so that drawing one
leaves no global state behind and does not depend on the matplotlibrc of the user.
"""

from collections.abc import Iterable, Mapping, Sequence
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

from twoscale.errors import InputError
from twoscale.files import replacing

# Widths of a journal column and of the page, in inches.
SINGLE, DOUBLE = 3.4, 7.0
LEGEND_ENTRY = 0.87  # room for one entry, in inches
GREY = "0.45"

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
}

_COLOURS = sns.color_palette("colorblind")
# Figure 4 of the paper: step norm blue, KL orange, acceleration green. Other rules take what is left.
CRITERION_COLOURS = {"step_norm": _COLOURS[0], "kl": _COLOURS[1], "acceleration": _COLOURS[2]}
_FURTHER_COLOURS = [*(_COLOURS[i] for i in (3, 4, 5, 9, 6, 8)), (0.1, 0.1, 0.1)]
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES = ("-", (0, (4, 1.2)), (0, (6, 1, 1, 1)), (0, (1, 1)))
CRITERION_NAMES = {"kl": "KL", "minp_kl": "min-p KL"}


def look():
    """Context (or decorator) under which figures are drawn and saved: matplotlib's defaults, then LOOK."""
    return matplotlib.style.context(["default", LOOK])


def new_figure(width: float, height: float, run: str, text: str, budget: int) -> Figure:
    """An empty figure of this size in inches; its foot names the run, its text and the loop steps K."""
    figure = Figure(figsize=(width, height), layout="constrained")
    foot = f"run {run} · text {text} · K = {budget} loop steps"
    figure.supxlabel(foot, x=0.995, ha="right", fontsize=5.5, color=GREY, parse_math=False)
    return figure


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as .pdf or .png by the name of `path`; the same figure gives the same bytes.

    Raises InputError for another kind of file.
    """
    kind = Path(path).suffix.removeprefix(".")
    if kind not in ("pdf", "png"):
        raise InputError(f"{path}: found the suffix '.{kind}', expected .pdf or .png.")
    metadata = {"CreationDate": None} if kind == "pdf" else None
    with look(), replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=metadata)


def group_name(group: str) -> str:
    """A group or a boundary as printed: "5-6" becomes "5–6", "4->5-6" becomes "4 → 5–6"."""
    return group.replace("->", " → ").replace("-", "–")


def grouped(number: int) -> str:
    """A whole number with thin spaces between thousands."""
    return f"{number:,}".replace(",", "\N{THIN SPACE}")


def step_name(step: int) -> str:
    """A training step as a legend names it."""
    return "0 (untrained)" if step == 0 else grouped(step)


def panel_number(number: int) -> str:
    """The number of a panel as the paper writes it: (i), (ii), (iii), (iv), …"""
    roman = ""
    for value, sign in ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")):
        roman += sign * (number // value)
        number %= value
    return f"({roman})"


def criterion_name(criterion: str) -> str:
    return CRITERION_NAMES.get(criterion, criterion.replace("_", " "))


def checkpoint_palette(steps: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Line style of each checkpoint, steps rising: light to dark over training, the untrained model dashed grey."""
    steps = sorted(set(steps))
    trained = [step for step in steps if step > 0]
    shades = sns.color_palette("viridis_r", as_cmap=True)(np.linspace(0.12, 1, len(trained)))
    styles = {step: {"color": tuple(shade), "linestyle": "-"} for step, shade in zip(trained, shades, strict=True)}
    if 0 in steps:
        styles = {0: {"color": "0.6", "linestyle": (0, (3, 1.5))}} | styles
    return styles


def series_styles(number: int) -> list[dict[str, Any]]:
    """Colour, marker and dashes for that many series without a colour of their own."""
    return [
        {
            "color": _COLOURS[i % len(_COLOURS)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "linestyle": _DASHES[i % len(_DASHES)],
        }
        for i in range(number)
    ]


def criterion_styles(criteria: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each exit rule but `fixed`, in the order given; no two share all three."""
    criteria = [rule for criterion in dict.fromkeys(criteria) if rule != "fixed"]
    others = [rule for criterion in rules if rule not in CRITERION_COLOURS]
    colours = CRITERION_COLOURS | {criterion: _FURTHER_COLOURS[i % len(_FURTHER_COLOURS)] for i, criterion in enumerate(others)}
    # Every rule named in the paper keeps its look, also where another of them is missing.
    looks = dict(zip([*CRITERION_COLOURS, *others], series_styles(len(CRITERION_COLOURS) + len(others)), strict=True))
    return {criterion: looks[criterion] | {"color": colours[criterion]} for criterion in criteria}


def line_with_band(
    axes: Axes, x: np.ndarray, mean: np.ndarray, std: np.ndarray, alpha: float = 0.15, **style: Any
) -> Line2D:
    """Draw `mean` against `x` with a band of one standard deviation on either side; return the line.

    On a logarithmic axis the band ends at a tenth of the mean where it would reach further down, or below zero.
    """
    (line,) = axes.plot(x, mean, **style)
    low = np.maximum(mean - std, 0.1 * mean) if axes.get_yscale() == "log" else mean - std
    axes.fill_between(x, low, mean + std, color=line.get_color(), alpha=alpha, linewidth=0)
    return line


def limit_cosine(axes: Axes) -> None:
    """Cut the y range, which bands may have opened, to the values that a cosine can take."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1.05), min(high, 1.05))


def checkpoint_lines(axes: Axes, metrics: pd.DataFrame, styles: Mapping[int, Mapping[str, Any]]) -> None:
    """One line with band per checkpoint against k, from the rows of one group and measure of "loop_metrics".

    A point is drawn where at least half of the tokens have a value: past it, the mean would be that of the
    few tokens whose steps are still above the rounding floor.
    """
    known = metrics[(metrics["count"] >= metrics["nulls"]) & (metrics["count"] > 0)]
    alpha = min(0.15, 0.9 / len(styles))  # many bands on top of one another would hide the lines
    for step, rows in known.groupby("iteration"):
        numbers = (rows[name].to_numpy() for name in ("k", "mean", "std"))
        line_with_band(axes, *numbers, alpha=alpha, **styles[step])


def checkpoint_legend(
    figure: Figure, styles: Mapping[int, Mapping[str, Any]], further: Mapping[str, Artist] = MappingProxyType({})
) -> None:
    """A legend above all panels: the training steps, rising row by row, then `further` labelled artists."""
    entries = {step_name(step): Line2D([], [], **style) for step, style in styles.items()}
    entries.update(further)
    names = list(entries)
    columns = min(len(names), int(figure.get_figwidth() / LEGEND_ENTRY))
    # matplotlib fills a legend column by column.
    row_wise = [name for column in range(columns) for name in names[column::columns]]
    handles = [entries[name] for name in row_wise]
    figure.legend(handles, row_wise, loc="outside upper center", ncols=columns, title="training step")


def step_categories(axes: Axes, steps: Sequence[int]) -> np.ndarray:
    """One place after the other on the x axis for each training step, labelled; returns the places."""
    places = np.arange(len(steps))
    axes.set_xticks(places, [grouped(step) for step in steps], rotation=45, rotation_mode="anchor", ha="right")
    axes.set_xlim(-0.6, len(steps) - 0.4)
    return places
