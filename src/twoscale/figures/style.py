"""The shared look of the figures: sizes, fonts, colours, bands, legends, and saving.

Figures are built from `matplotlib.figure.Figure` under `look()`, never through pyplot, so that
drawing one leaves no global state behind and does not depend on the user's matplotlibrc.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.claims.geometry import REPORTED_COSINE
from twoscale.config.criteria import FACTS

# Widths of a journal column and of the page, in inches.
SINGLE, DOUBLE = 3.4, 7.0
LEAST_FONT = 6  # points; smaller text cannot be read in a journal
_FOOTER = 0.13  # height of the footer, in inches
# Labels with scripts, which matplotlib sets at 0.7 of the size.
SCRIPTED = 8.6
GREY = "0.45"
# Width of a digit and of the least gap of two labels of iterations, as shares of the narrowest
# axis, a third of a page.
_DIGIT, _GAP = 0.034, 0.03
_UPRIGHT = 0.045  # height of a line and its gap, as a share of the axis of a column
REPORTED_LABEL = "paper, later checkpoints: {}–{}".format(*REPORTED_COSINE)

Look = dict[str, Any]  # options of matplotlib or seaborn by name

# Options of seaborn for a long table with statistics instead of samples: where several rows have
# the same x, the first is the value, and the band reaches from the least to the greatest.
SPREAD: Look = {
    "estimator": lambda values: values.iloc[0],
    "errorbar": lambda values: (values.min(), values.max()),  # ("pi", 100), also where infinite
    "sort": False,
}

_LOOK: Look = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same bytes on every machine
    "mathtext.fontset": "dejavusans",
    "font.size": 7.5,
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
    "hatch.linewidth": 0.4,
    "svg.hashsalt": "twoscale",  # names inside the file, which are random otherwise
}

# Contrast with white of at least 3 : 1, and pairs that differ under deuteranopia and protanopia
# (tested).
COLOURS = {
    "blue": "#1f5fae",
    "orange": "#e57300",
    "green": "#009975",
    "purple": "#a010dd",
    "brown": "#802300",
    "black": "#1a1a1a",
}
BLUE, ORANGE, GREEN, PURPLE, BROWN, BLACK = COLOURS.values()
# Mean loop count of training, where an axis has loop counts.
_TRAINED: Look = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}
# Range of the paper's cosines; the hatch tells it from a band in grey.
_REPORTED: Look = {"facecolor": "#f6e2a0", "edgecolor": "#b09030", "hatch": "/////"}
# The date that a file would contain, by suffix.
DATE: dict[str, Look] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}

# The criteria of the paper, as in its Figure 4; others take the remaining colours.
_CRITERION_COLOURS = {name: COLOURS[of.colour] for name, of in FACTS.items() if of.colour}
# Checkpoints, light to dark. The hue changes as well: neighbours differ more than in a map of one
# hue.
_CHECKPOINTS = ("#db7b00", "#d92e6a", "#9a35dd", "#2250c8", "#005a3c", "#101010")
_FURTHER_COLOURS = (PURPLE, BROWN, BLACK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_SMALL_MARKERS = "os^Dv<>ph*"  # with an edge and unlike _END
_DASHES = ("-", (0, (4, 1.2)), (0, (6, 1, 1, 1)), (0, (1, 1)))
_END: Look = {
    "marker": "x",
    "markersize": 4.5,
    "markeredgewidth": 1.2,
    "linestyle": "",
    "zorder": 3,
}
END_LABEL = "rounding from here on"
_LAST: Look = {"linewidth": 2, "zorder": 2.5, "marker": ""}
_MARKS = 4  # markers of a checkpoint's line
HALO = [withStroke(linewidth=3, foreground="white")]
# The random exits beside a criterion, in its colour.
RANDOM_EXITS: Look = {"linewidth": 3, "alpha": 0.3, "zorder": 0.5}
SIGNED_POWERS = (-100, -10, -1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10, 100)  # ticks, nats
LINEAR_NATS = 1e-2  # an axis of differences is linear within this many nats
_BAND: Look = {"alpha": 0.2, "linewidth": 0}
BANDS: Look = {"err_style": "band", "err_kws": _BAND}  # options of seaborn
# colour of built-in exit criteria that are not of the paper, where these are the background
OTHERS = "0.55"


@dataclass(frozen=True)
class FigureContext:
    """What a figure says about its data."""

    run: str
    text: str
    loops: int  # K
    published: bool = False  # its one checkpoint is not an iteration of a training
    fewest_loops: int | None = None  # where groups have fewer loop steps

    @property
    def loops_label(self) -> str:
        fewest = self.fewest_loops
        return f"{self.loops}" if fewest in (None, self.loops) else f"{fewest} … {self.loops}"


def look():
    """Context (or decorator) for drawing and saving figures: matplotlib's defaults, then _LOOK."""
    return matplotlib.style.context(["default", _LOOK])


def new_figure(width: float, height: float, context: FigureContext) -> Figure:
    """An empty figure of this size in inches; its footer names the run, its text and the loop steps
    K.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    write_footer(figure, context, f"K = {context.loops_label} loop steps")
    return figure


def write_footer(figure: Figure, context: FigureContext, *parts: str) -> None:
    """Write the run, its text and further parts at the lower right."""
    footer = " · ".join([f"run {context.run}", f"text {context.text}", *parts])
    figure.set_label(footer)
    figure.supxlabel(footer, x=0.995, ha="right", fontsize=LEAST_FONT, color=GREY, parse_math=False)


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as .pdf, .svg or .png, titled with its footer.

    The same figure gives the same bytes.
    """
    suffix = Path(path).suffix.removeprefix(".")
    if suffix not in DATE:
        raise InputError(f"{path}: found the suffix '.{suffix}', expected .pdf, .svg or .png.")
    metadata = DATE[suffix] | {"Title": figure.get_label()}
    with look(), replacing(path) as temporary:
        figure.savefig(temporary, format=suffix, metadata=metadata)


def inputs_of(function: Callable[..., Figure]) -> list[str]:
    """Names of the tables that a figure takes: the parameters before the keyword-only ones."""
    parameters = inspect.signature(function).parameters.values()
    return [found.name for found in parameters if found.kind is not found.KEYWORD_ONLY]


def draw_files(
    function: Callable[..., Figure],
    inputs: Mapping[str, Sequence[Path]],
    runs: Sequence[str],
    **values: Any,
) -> Figure:
    """The figure that a function draws of the files of its tables, one file per run.

    `values` are its further arguments, such as `context`.
    """
    content = {}
    for table, paths in inputs.items():
        frames = [
            tables.read(table, path).assign(run=run) for path, run in zip(paths, runs, strict=True)
        ]
        content[table] = pd.concat(frames, ignore_index=True)
    return function(**content, **values)


def measures_read(
    table: pd.DataFrame, measures: Mapping[str, str], reading: str
) -> Mapping[str, str]:
    """Measures of "loop_metrics" with labels in a reading, "state" or "direction".

    Raises InputError if the table lacks them.
    """
    if reading == "state":
        return measures
    read = {}
    for name, label in measures.items():
        read[f"{reading}_{name}"] = label.replace(r"\Delta", r"\Delta\hat{x}")
    missing = set(read) - set(table["measure"])
    if missing:
        raise InputError(
            f"figures.reading: found {reading} and no {min(missing)} in the table loop_metrics,"
            f" expected trajectories measured with this reading."
        )
    return read


def looped_groups(table: pd.DataFrame, figure: str) -> list[str]:
    """The looped groups of a table. Raises InputError, which names `figure`, if it has none."""
    groups = list(table["group"].unique())
    if not groups:
        raise InputError(
            f"config key model.groups: found no looped group, expected at least one for {figure}."
        )
    return groups


def check_rows(name: str, table: pd.DataFrame) -> None:
    if table.empty:
        raise InputError(f"table {name}: found no rows, expected at least one for the figure.")


def group_styles(groups: Sequence[str]) -> dict[str, Look]:
    """Style by group; the first of coinciding lines stays visible."""
    return dict(zip(groups, nested(series_styles(len(groups))), strict=True))


def group_handles(styles: Mapping[str, Look]) -> dict[str, Artist]:
    return {f"group {group_name(group)}": Line2D([], [], **look) for group, look in styles.items()}


def name_panel(axes: Axes, number: int, title: str, label: str = "") -> None:
    """Number and title of a panel, at its left, and the label of its y axis."""
    axes.set_title(f"{panel_number(number)}  {title}", loc="left")
    axes.set_ylabel(label)


def legend_above(figure: Figure, handles: Mapping[str, Artist], columns: int | None = None) -> None:
    """A legend above all panels, in one row unless `columns` are given."""
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=columns or len(handles)
    )


def group_name(group: str) -> str:
    """A group or a boundary as printed: "5-6" becomes "5–6", "4->5-6" becomes "4 → 5–6"."""
    return group.replace("->", " → ").replace("-", "–")


def grouped(number: float) -> str:
    """A whole number with thin spaces between thousands."""
    return f"{number:,}".replace(",", "\N{THIN SPACE}")


def panel_number(number: int) -> str:
    """The number of a panel in the paper's style."""
    return f"({('i', 'ii', 'iii', 'iv', 'v', 'vi', 'vii', 'viii', 'ix', 'x')[number - 1]})"


def title_groups(panels: Iterable[Axes], groups: Sequence[str]) -> None:
    """Title one panel per group with its number and its group."""
    for number, (axes, group) in enumerate(zip(panels, groups, strict=True), start=1):
        axes.set_title(f"{panel_number(number)}  group {group_name(group)}")


def scale_loop_steps(axes: Axes, first: int, last: int) -> None:
    """An x axis of loop steps k from `first` to `last`, labelled at few whole numbers."""
    axes.set_xlabel("loop step $k$")
    axes.set_xlim(first, last)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True))


def scale_loops(axes: Axes, loops: pd.Series) -> None:
    """An axis of loop counts, logarithmic and labelled at the powers of two."""
    powers = [2**n for n in range(16) if loops.min() <= 2**n <= loops.max()]
    axes.set_xscale("log", base=2)
    axes.set_xticks(powers, [str(power) for power in powers])
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def scale_nats(axes: Axes) -> None:
    """A y axis of differences in nats, linear around 0 and logarithmic beyond."""
    axes.set_yscale("symlog", linthresh=LINEAR_NATS)
    axes.yaxis.set_major_locator(ticker.FixedLocator(SIGNED_POWERS))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: power_name(value)))


def mark_trained(axes: Axes, mean_loops: float, context: FigureContext) -> dict[str, Line2D]:
    """A dotted vertical line at the mean loops of training, or at the published loops, and its
    entry in a legend.
    """
    label = f"{'published' if context.published else 'trained'}: {mean_loops:g} loops"
    return {label: axes.axvline(mean_loops, zorder=0, **_TRAINED)}


def mark_reported(axes: Axes) -> dict[str, Artist]:
    """The range in which the paper's cosines settle, and its entry in a legend."""
    return {REPORTED_LABEL: axes.axhspan(*REPORTED_COSINE, linewidth=0, zorder=0, **_REPORTED)}


def checkpoint_palette(iterations: Iterable[int], context: FigureContext) -> dict[int, Look]:
    """Line style by checkpoint, in ascending order.

    Light to dark with a marker each, the untrained model dashed grey, the last checkpoint thick.
    """
    iterations = sorted(set(iterations))
    if context.published:
        return {iteration: {"color": BLUE, "linestyle": "-"} for iteration in iterations}
    styles: dict[int, Look] = {}
    trained = [iteration for iteration in iterations if iteration > 0]
    if len(trained) < len(iterations):
        styles[0] = {"color": "0.5", "linestyle": (0, (3, 1.5))}
    markers = itertools.cycle(_SMALL_MARKERS)
    shades = sns.blend_palette(_CHECKPOINTS, len(trained))
    for iteration, shade in zip(trained, shades, strict=True):
        look = {"color": shade, "linestyle": "-", "linewidth": 0.8}
        mark = {"marker": next(markers), "markeredgecolor": "white", "markeredgewidth": 0.4}
        styles[iteration] = look | mark
    if trained:
        styles[trained[-1]] |= _LAST
    return styles


def series_styles(number: int) -> list[Look]:
    """Colour, marker and dashes of `number` series that have no fixed colour."""
    looks = zip(*map(itertools.cycle, (COLOURS.values(), _MARKERS, _DASHES)), strict=True)
    names = ("color", "marker", "linestyle")
    return [dict(zip(names, look, strict=True)) for look in itertools.islice(looks, number)]


def criterion_styles(criteria: Iterable[str]) -> dict[str, Look]:
    """Colour, marker and dashes of each exit criterion except `fixed`, in the given order.

    All combinations differ. The criteria of the paper keep their look even if another of them is
    absent.
    """
    criteria = [criterion for criterion in dict.fromkeys(criteria) if criterion != "fixed"]
    others = [criterion for criterion in criteria if criterion not in _CRITERION_COLOURS]
    further = zip(others, itertools.cycle(_FURTHER_COLOURS), strict=False)
    colours = _CRITERION_COLOURS | dict(further)
    styles = {}
    for look, (criterion, colour) in zip(series_styles(len(colours)), colours.items(), strict=True):
        styles[criterion] = look | {"color": colour}
    return {criterion: styles[criterion] for criterion in criteria}


def criterion_colours(criteria: Iterable[str]) -> dict[str, str]:
    """Colour of each exit criterion except `fixed`.

    Those of the paper come first, then those of the user, then the others in grey.
    """
    names = [name for name in dict.fromkeys(criteria) if name != "fixed"]
    shown = [name for name in _CRITERION_COLOURS if name in names]
    shown += [name for name in names if name not in FACTS]  # the user's
    styles = criterion_styles(shown)
    colours = {name: look["color"] for name, look in styles.items()}
    grey = [name for name in names if name not in colours]
    return colours | dict.fromkeys(grey, OTHERS)


def nested(styles: Iterable[Look]) -> list[Look]:
    """The styles with markers and lines that become smaller.

    So the first of coinciding lines stays visible.
    """
    styles = list(styles)
    sizes = np.linspace(5.5, 3, len(styles))
    widths = np.linspace(1.8, 1, len(styles))
    return [
        look | {"markersize": size, "linewidth": width}
        for look, size, width in zip(styles, sizes, widths, strict=True)
    ]


def band(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
    """Fill the area between `low` and `high`; a vertical bar at a single `x`, where an area would
    be invisible.
    """
    if len(x) > 1:
        axes.fill_between(x, low, high, linewidth=0, **style)
    else:
        axes.vlines(x, low, high, linewidth=6, **style)


def points_above_rounding(metrics: pd.DataFrame) -> pd.DataFrame:
    """The rows in which at least half of the tokens have a value; in others it is above the
    rounding floor for few.
    """
    return metrics[(metrics["count"] >= metrics["nulls"]) & (metrics["count"] > 0)]


def of_run(table: pd.DataFrame, context: FigureContext) -> pd.DataFrame:
    """The rows of the run that the figure is about; the others are of the same run under further
    seeds.
    """
    return table[table["run"] == context.run] if _several_runs(table) else table


def _several_runs(table: pd.DataFrame) -> bool:
    return "run" in table and table["run"].nunique() > 1


def band_legend(table: pd.DataFrame) -> dict[str, Artist]:
    """The entry of a legend for the bands of `with_spread`."""
    name = "± 1 SD of tokens"
    if _several_runs(table):
        name = f"range of {table['run'].nunique()} seeds"
    return {name: Patch(color=BLACK, linewidth=0, alpha=_BAND["alpha"])}


def with_spread(
    rows: pd.DataFrame, x: str, context: FigureContext, log: bool = False, most: float = math.inf
) -> pd.DataFrame:
    """The figure's run in the long form of SPREAD, in the order of the column `x`.

    The column `value` has the mean, then the ends of a band: one standard deviation over tokens
    or, with several runs, the means of all. The band of tokens stays within -`most` and `most`, on
    a logarithmic axis also above a tenth of the mean.
    """
    own = of_run(rows, context).sort_values(x)
    mean, std = own["mean"], own["std"]
    if _several_runs(rows):
        measured = rows[rows[x].isin(own[x])]
        return pd.concat([stacked(own, mean), stacked(measured, measured["mean"])])
    low = np.maximum(mean - std, 0.1 * mean if log else -most)
    return stacked(own, mean, low, np.minimum(mean + std, most))


def stacked(rows: pd.DataFrame, *values: pd.Series) -> pd.DataFrame:
    """The rows once for each of `values`, which becomes the column `value`."""
    return pd.concat([rows.assign(value=column) for column in values], ignore_index=True)


def semantics(column: str, styles: Mapping[Any, Mapping[str, Any]]) -> Look:
    """The style by value of a column, as options of seaborn's functions."""
    looks: Look = {"hue": column, "style": column}
    looks["hue_order"] = looks["style_order"] = list(styles)
    looks["palette"] = {value: look["color"] for value, look in styles.items()}
    looks["markers"] = {value: look["marker"] for value, look in styles.items()}
    dashes = {value: look["linestyle"] for value, look in styles.items()}
    looks["dashes"] = {value: "" if dash == "-" else dash[1] for value, dash in dashes.items()}
    return looks


def checkpoint_lines(
    axes: Axes,
    metrics: pd.DataFrame,
    styles: Mapping[int, Look],
    context: FigureContext,
    most: float = math.inf,
) -> None:
    """One line per checkpoint against k, from the rows of one group and measure of "loop_metrics".

    Only the last has a band: those of all would hide the lines. It is that of `with_spread`. A
    cross is where a line ends before the others.
    """
    metrics = points_above_rounding(metrics)
    if metrics.empty:
        return
    last = max(styles)
    own = of_run(metrics, context)
    earlier = own[own["iteration"] != last]
    latest = metrics[metrics["iteration"] == last]
    banded = with_spread(latest, "k", context, axes.get_yscale() == "log", most)
    drawn = [iteration for iteration in styles if (own["iteration"] == iteration).any()]
    sns.lineplot(
        pd.concat([stacked(earlier, earlier["mean"]), banded]),
        x="k",
        y="value",
        hue="iteration",
        hue_order=drawn,
        palette=[styles[iteration]["color"] for iteration in drawn],
        legend=False,
        ax=axes,
        **BANDS,
        **SPREAD,
    )
    every = max(1, own["k"].nunique() // _MARKS)
    for place, (line, iteration) in enumerate(zip(axes.lines, drawn, strict=True)):
        line.set(**styles[iteration])
        line.set_markevery((every * place // len(drawn), every))  # not all at the same k
        if iteration == last:
            line.set(path_effects=HALO)
    ends = own.loc[own.groupby("iteration")["k"].idxmax()]
    for _, end in ends[ends["k"] < metrics["k"].max()].iterrows():
        axes.plot(end["k"], end["mean"], color=styles[end["iteration"]]["color"], **_END)


def checkpoint_legend(
    figure: Figure,
    styles: Mapping[int, Look],
    context: FigureContext,
    further: Mapping[str, Artist],
) -> None:
    """Legends: above all panels the iterations, unless the model is published, below `further`
    artists.
    """
    entries: dict[str, Artist] = {}
    for iteration, look in styles.items():
        name = "0 (untrained)" if iteration == 0 else grouped(iteration)
        entries[name] = Line2D([], [], **look)
    lines = itertools.chain.from_iterable(axes.get_lines() for axes in figure.axes)
    if any(line.get_marker() == _END["marker"] for line in lines):
        further = {**further, END_LABEL: Line2D([], [], color=GREY, **_END)}
    if entries and not context.published:
        _figure_legend(figure, entries, "outside upper center", title="iteration")
    if further:
        lift = _FOOTER / figure.get_figheight()
        figure.set_layout_engine("constrained", rect=(0, lift, 1, 1 - lift))
        pad = 72 * _FOOTER / _LOOK["legend.fontsize"]  # in sizes of the font
        _figure_legend(figure, further, "outside lower center", borderaxespad=pad)


def _figure_legend(figure: Figure, entries: Mapping[str, Artist], loc: Any, **options: Any) -> None:
    """A legend above or below all panels that is read row by row."""
    columns = legend_columns(list(entries), figure.get_figwidth())
    names: list[str] = []
    for column in range(columns):  # matplotlib fills a legend column by column
        names += list(entries)[column::columns]
    artists = [entries[name] for name in names]
    figure.legend(artists, names, loc=loc, ncols=columns, **options)


def legend_columns(names: Sequence[str], width: float) -> int:
    """The most columns of a legend with entries of these names that fit into `width` inches."""
    size = _LOOK["legend.fontsize"]
    # of an entry without its text, and with the gap before it
    handle = (_LOOK["legend.handlelength"] + _LOOK["legend.columnspacing"] + 0.8) * size
    for rows in range(1, len(names)):
        columns = math.ceil(len(names) / rows)
        letters = sum(max(map(len, names[column::columns])) for column in range(columns))
        # a letter is about 0.6 of the font size wide
        if (columns * handle + 0.6 * size * letters) / 72 <= width:
            return columns
    return 1


def label_powers(axis: Axis, most: int = 6) -> None:
    """Label a logarithmic axis with its data as 1e-2, 0.1 or 100.

    An exponent above 10 would be too small to read. An axis of less than two decades has further
    labels at twos and fives.
    """
    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high < 100 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=most))
    axis.set_major_formatter(lambda value, _: power_name(value))
    axis.set_minor_formatter(ticker.NullFormatter())


def power_name(value: float) -> str:
    """A tick of a logarithmic axis as printed: 0.1 to 5000 as they are, others as 1e-2."""
    printed = f"{value:g}"
    if value and not 0.09 < abs(value) < 9999:
        mantissa, exponent = f"{value:.0e}".split("e")
        printed = f"{mantissa}e{int(exponent)}"
    return f"\N{MINUS SIGN}{printed[1:]}" if value < 0 else printed


def scale_iterations(
    axes: Axes,
    iterations: Sequence[int] | np.ndarray,
    context: FigureContext,
    upright: bool = False,
) -> np.ndarray:
    """An x axis of the iterations of checkpoints, with the same scale in all figures.

    Returns the places on it. The axis is logarithmic, with room for iteration 0 before a linear
    part that ends at the first trained checkpoint. Labels are at the checkpoints that have room for
    one, which for upright labels of the width of a column are more. The one checkpoint of a
    published model is at 0.
    """
    iterations = np.sort(np.asarray(iterations))
    if context.published:
        axes.set_xticks([0], ["published"])
        axes.set_xlim(-1, 1)
        return np.zeros(len(iterations))
    first, last = iterations[[0, -1]]
    linear = min(iterations[iterations > 0], default=1)
    axes.set_xscale("symlog", linthresh=linear, linscale=0.5)
    axes.set_xlim(0.9 * linear if first else -0.15 * linear, 1.12 * max(linear, last))
    ticks = iterations[_with_room(axes, iterations, upright)]
    axes.set_xticks(ticks, map(grouped, ticks), rotation=90 if upright else 0)
    axes.set_xticks(iterations, minor=True)
    axes.set_xlabel("iteration (log scale)" if first else "iteration (0, then log scale)")
    return iterations


def _with_room(axes: Axes, iterations: np.ndarray, upright: bool) -> list[int]:
    """Indices of the iterations whose labels do not touch on the x axis.

    The first and the last always have one.
    """
    # before the layout the final width is unknown, so distances are shares of the axis
    points = np.stack([iterations, np.ones(len(iterations))], axis=1)
    places = (axes.transScale + axes.transLimits).transform(points)[:, 0]
    widths = [_DIGIT * len(grouped(iteration)) + _GAP for iteration in iterations]
    if upright:
        widths = [_UPRIGHT] * len(iterations)

    def apart(i: int, k: int) -> bool:
        return places[k] - places[i] > (widths[i] + widths[k]) / 2

    last = len(iterations) - 1
    labelled = [0]
    for i in range(1, last):
        if apart(labelled[-1], i) and apart(i, last):
            labelled.append(i)
    return sorted({*labelled, last})
