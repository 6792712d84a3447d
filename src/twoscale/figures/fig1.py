"""Figure 1, overall trajectory and enlarged loops.

The states of a sequence in the plane of their two main directions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.base import InputError
from twoscale.figures import style
from twoscale.figures.style import Look

# Colour maps of the groups, in turn; light to dark over the loop steps.
_COLOUR_MAPS = ("Blues", "Oranges", "Greens", "Purples", "Reds")
_LIGHTEST = 0.45  # of a colour map, for the first loop step
_ENLARGED = 3  # tokens in colour, whose loops are enlarged
_OVERVIEW = 2.7  # width of the panel with whole paths, in widths of one with a loop
_BAR = 0.07  # height of a colour bar, in heights of a panel with a loop
_LEAST_HALF = 1e-9  # half the side of such a panel, where all states are equal
_SMALL = 6.5  # font size inside panels

# Tokens in colour are drawn over the pale ones.
_FRONT, _BEHIND = 2, 1
_UNLOOPED: Look = {"color": "0.5", "linewidth": 1.2, "zorder": _FRONT}
_HANDOFF: Look = {"color": "0.15", "linewidth": 0.9, "linestyle": (0, (4, 1.5)), "zorder": _FRONT}
_MARK: Look = {"markeredgecolor": "black", "zorder": _FRONT + 1}
_EMBEDDING: Look = _MARK | {"marker": "s", "markersize": 4, "color": "white"}
_EXIT: Look = _MARK | {"marker": "o", "markersize": 4.5, "markeredgewidth": 0.5}
_FIRST: Look = _MARK | {"marker": "o", "markersize": 3, "markeredgewidth": 0.5}
_PALE: Look = {"color": "0.86", "linewidth": 0.6, "zorder": _BEHIND}
_PALE_SHARE = 0.3  # of a group's colour in the pale one, the rest is white
_LEADER: Look = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}

_LEAST_WORD, _LONGEST_WORD = 3, 12  # letters
_SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
# Places of a label relative to its state, the best first: points, and the sides as signs.
_PLACES = [
    {
        "position": (distance * x, distance * y),
        "ha": {-1: "right", 0: "center", 1: "left"}[x],
        "va": {-1: "top", 0: "center", 1: "bottom"}[y],
    }
    for distance, x, y in itertools.product((6, 10, 14, 20, 28), (1, 0, -1), (1, 0, -1))
    if x or y
]


@dataclass(frozen=True)
class Segment:
    """Consecutive sites of one looped group, or of unlooped layers (group None)."""

    group: str | None
    path: np.ndarray  # sites on the trajectory; the initial state x^0 of a loop is none of them
    follows: bool  # whether it starts from where the segment before it ends
    colours: np.ndarray  # of a loop's states x^1 ... x^K, light to dark; empty for unlooped layers


@dataclass(frozen=True)
class Paths:
    """The paths of the tokens of one held-out sequence in the principal plane.

    They go from the embedding to the last layer.
    """

    plane: np.ndarray  # coordinates (P, T, 2), site by token
    shares: np.ndarray  # of the variance, in both directions
    stages: list[str]  # of each site: embedding, layer or loop
    segments: list[Segment]
    tokens: list[str]

    @property
    def loops(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.group is not None]

    @property
    def hand_offs(self) -> list[np.ndarray]:
        """Pairs of sites: the end of a segment, and the start of the next one that follows it."""
        pairs = itertools.pairwise(self.segments)
        return [np.array([a.path[-1], b.path[0]]) for a, b in pairs if b.follows]


def paths_of(state_paths: pd.DataFrame) -> Paths:
    """The content of the table "state_paths"."""
    style.check_rows("state_paths", state_paths)
    frame = state_paths.sort_values(["site", "position"], ignore_index=True)
    sites = frame.drop_duplicates("site")
    tokens = frame.drop_duplicates("position")
    return Paths(
        plane=frame[["pc1", "pc2"]].to_numpy().reshape(len(sites), len(tokens), 2),
        shares=frame[["pc1_share", "pc2_share"]].to_numpy()[0],
        stages=sites["stage"].tolist(),
        segments=split(sites["group"].fillna("").tolist(), sites["follows"].tolist()),
        tokens=tokens["token"].tolist(),
    )


def split(groups: Sequence[str], follows: Sequence[bool]) -> list[Segment]:
    """The sites as segments, from the looped group of each site, which is empty for others."""
    maps = itertools.cycle(_COLOUR_MAPS)
    segments = []
    for group, run in itertools.groupby(range(len(groups)), key=groups.__getitem__):
        sites = np.array([*run])
        start = sites[0]
        if not group:
            segments.append(Segment(None, sites, follows[start], np.empty(0)))
            continue
        colours = sns.color_palette(next(maps), as_cmap=True)
        lightness = np.linspace(_LIGHTEST, 1, len(sites) - 1)
        segments.append(Segment(group, sites[1:], follows[start], colours(lightness)))
    return segments


@style.look()
def draw(state_paths: pd.DataFrame, *, tokens: int, context: style.FigureContext) -> Figure:
    """Paths of `tokens` tokens, spread over the sequence, in the principal plane of all its states.

    At the left whole paths, one polyline per token: three whole words in colour, the others pale.
    Lines are grey through unlooped layers and hand-offs, coloured light to dark over the steps of
    each group's loop. At the right, each loop of each coloured token, enlarged, without its first,
    large steps. The initial states x^0 of the groups are not shown. Raises InputError for a model
    without looped groups.
    """
    paths = paths_of(state_paths)
    if not paths.loops:
        raise InputError(
            "config key model.groups: found no looped group, expected at least one for Figure 1."
        )
    coloured = _words(paths.tokens, min(tokens, _ENLARGED))
    pale = [place for place in _spread(len(paths.tokens), tokens) if place not in coloured]
    pale = pale[: max(0, tokens - len(coloured))]

    figure = style.new_figure(style.DOUBLE, 0.8 + 0.97 * len(coloured), context)
    rows, columns = len(coloured), len(paths.loops)
    grid = figure.add_gridspec(
        rows + 1,
        columns + 1,
        width_ratios=[_OVERVIEW, *[1] * columns],
        height_ratios=[*[1] * rows, _BAR],
    )
    overview = figure.add_subplot(grid[:, 0])
    _draw_overview(overview, paths, coloured, pale)
    _draw_legend(figure, paths, len(pale))
    loops = {}
    for row, position in enumerate(coloured):
        for column, loop in enumerate(paths.loops):
            axes = figure.add_subplot(grid[row, column + 1])
            _draw_loop(axes, paths, loop, position)
            loops[row, column] = axes
        loops[row, 0].set_ylabel(f"“{printable(paths.tokens[position])}”", parse_math=False)
    for column, loop in enumerate(paths.loops):
        loops[0, column].set_title(f"group {style.group_name(str(loop.group))}")
        _draw_key(figure.add_subplot(grid[rows, column + 1]), loop)
    figure.draw_without_rendering()  # panels get their sizes
    for axes in loops.values():
        _write_magnification(axes, overview)
    return figure


def _spread(length: int, number: int) -> list[int]:
    """The middles of `number` equal parts of a sequence."""
    number = min(number, length)
    return [(2 * part + 1) * length // (2 * number) for part in range(number)]


def _words(tokens: Sequence[str], number: int) -> list[int]:
    """Positions of `number` whole words, spread over the sequence."""
    words: list[int] = []
    for place in _spread(len(tokens), number):
        words.append(nearest_word(tokens, place, taken=words))
    return words


def nearest_word(tokens: Sequence[str], position: int, taken: Sequence[int] = ()) -> int:
    """The position nearest to `position` that has a whole word and is not `taken`.

    `position` if there is none.
    """

    def is_word(place: int) -> bool:
        token = tokens[place]
        if place + 1 < len(tokens) and tokens[place + 1][:1].isalpha():
            return False  # the next token goes on with the word
        begins = token[:1] == " "
        return begins and token[1:].isalpha() and len(token) > _LEAST_WORD

    words = [place for place in range(len(tokens)) if is_word(place) and place not in taken]
    return min(words, key=lambda place: abs(place - position), default=position)


def printable(token: str) -> str:
    """A token as one short visible word.

    Without the space before it, with signs in place of what cannot be printed, and cut.
    """
    word = token.strip(" ") or token
    if len(word) > _LONGEST_WORD:
        word = f"{word[: _LONGEST_WORD - 1]}…"
    unknown = "\N{REPLACEMENT CHARACTER}"
    return "".join(_SIGNS.get(sign, sign if sign.isprintable() else unknown) for sign in word)


def _draw_overview(axes: Axes, paths: Paths, coloured: Sequence[int], pale: Sequence[int]) -> None:
    """Draw whole paths, from the embedding to the last layer."""
    for position in pale:
        _draw_pale(axes, paths, position)
    for position in coloured:
        _draw_token(axes, paths, position)
    visible = np.concatenate([segment.path for segment in paths.segments])
    shown = paths.plane[visible][:, coloured].reshape(-1, 2)
    axes.dataLim.update_from_data_xy(shown, ignore=True)  # pale paths may leave the panel
    axes.set_aspect("equal", adjustable="datalim")
    first, second = 100 * paths.shares
    axes.set_xlabel(f"PC 1 ({first:.0f} % of variance)")
    axes.set_ylabel(f"PC 2 ({second:.0f} % of variance)")
    if paths.stages[0] == "embedding":
        for position in coloured:
            start = paths.plane[0, position]
            axes.plot(*start, **_EMBEDDING)
            word = printable(paths.tokens[position])
            _write_beside(axes, f"“{word}”", start, parse_math=False)


def _draw_loop(axes: Axes, paths: Paths, loop: Segment, position: int) -> None:
    """Enlarge one token's path where a loop settles, without its first, large steps."""
    last = len(loop.path)
    first = max(1, last // 10)
    path = paths.plane[:, position]
    states = path[loop.path]  # states[k - 1] is x^k
    low = states[first - 1 :].min(axis=0)
    high = states[first - 1 :].max(axis=0)
    x, y = (low + high) / 2
    half = max(0.66 * (high - low).max(), _LEAST_HALF)  # of the side, with a margin
    axes.set(xlim=(x - half, x + half), ylim=(y - half, y + half), xticks=[], yticks=[])
    axes.set_box_aspect(1)
    axes.spines[:].set_visible(True)
    _draw_steps(axes, loop, path)
    for ends in paths.hand_offs:
        if ends[0] == loop.path[-1]:
            axes.plot(*path[ends].T, **_HANDOFF)
    axes.plot(*states[first - 1], color=loop.colours[first - 1], **_FIRST)


def _write_magnification(axes: Axes, overview: Axes) -> None:
    """Write in a panel how much larger it is than the overview."""
    scales = [panel.bbox.width / np.ptp(panel.get_xlim()) for panel in (axes, overview)]
    rounded = float(f"{scales[0] / scales[1]:.2g}")  # two digits, printed without an exponent
    text = f"{style.grouped(rounded).removesuffix('.0')} ×"
    place: Look = {"xy": (0.97, 0.03), "xycoords": "axes fraction", "ha": "right", "va": "bottom"}
    note = axes.annotate(text, **place, fontsize=_SMALL, path_effects=style.HALO)
    note.set_zorder(_FRONT + 2)
    note.set_in_layout(False)


def _draw_token(axes: Axes, paths: Paths, position: int) -> None:
    """Draw one token's path in colour."""
    path = paths.plane[:, position]
    for segment in paths.segments:
        if segment.group is None:
            axes.plot(*path[segment.path].T, **_UNLOOPED)
        else:
            _draw_steps(axes, segment, path)
    for ends in paths.hand_offs:
        axes.plot(*path[ends].T, **_HANDOFF)


def _draw_steps(axes: Axes, loop: Segment, path: np.ndarray) -> None:
    """Draw the steps of a loop on the path of a token, which has shape (P, 2)."""
    states = path[loop.path]
    # each step has the colour of the state that it reaches
    steps = np.stack([states[:-1], states[1:]], axis=1)  # (K - 1, 2 ends, 2)
    looks: Look = {"linewidths": 1.5, "capstyle": "round", "zorder": _FRONT}
    lines = LineCollection(steps, colors=loop.colours[1:], **looks)  # type: ignore[arg-type]
    axes.add_collection(lines, autolim=False)
    x, y = states.T
    axes.scatter(x, y, c=loop.colours, s=4, linewidths=0, zorder=_FRONT)
    axes.plot(*states[-1], color=loop.colours[-1], **_EXIT)


def _draw_pale(axes: Axes, paths: Paths, position: int) -> None:
    """Draw one token's path without its starts x^0, pale."""
    path = paths.plane[:, position]
    sites = np.concatenate([segment.path for segment in paths.segments])
    axes.plot(*path[sites].T, **_PALE)
    for segment in paths.loops:
        middle = len(segment.path) // 2
        red_green_blue = segment.colours[middle, :3]
        looks = _PALE | {"color": _PALE_SHARE * red_green_blue + 1 - _PALE_SHARE}
        line = looks | {"linewidth": 1}
        end = looks | {"marker": "o", "markersize": 3}
        states = path[segment.path]
        axes.plot(*states.T, **line)
        axes.plot(*states[-1], **end)


def _write_beside(axes: Axes, text: str, point: np.ndarray, **looks: Any) -> None:
    """Write `text` beside a state, `point` (2,).

    It is written inside the panel, where it meets the fewest lines and labels.
    """
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # lines get their places
    drawn = [line.get_path() for line in axes.lines]
    for collection in axes.collections:
        drawn += collection.get_paths()
    lines = [axes.transData.transform_path(path) for path in drawn]
    labels = [label.get_window_extent() for label in axes.texts]
    beside: Look = {"xy": point, "textcoords": "offset points"}
    looks |= {"path_effects": style.HALO, "zorder": _FRONT + 2}
    note = axes.annotate(text, **beside, xytext=(0, 0), **looks)

    def met(place: Look) -> int:
        """Lines and labels under the text, and its corners outside the panel."""
        note.set(**place)
        box = note.get_window_extent()
        crossed = sum(line.intersects_bbox(box, filled=False) for line in lines)
        outside = 4 - axes.bbox.count_contains(box.corners())
        return crossed + box.count_overlaps(labels) + outside

    note.set(**min(_PLACES, key=met))
    axes.annotate("", **beside, xytext=note.get_position(), arrowprops=_LEADER)


def _draw_key(axes: Axes, loop: Segment) -> None:
    """The colours of a group over its loop steps."""
    last = len(loop.path)
    box = (0.5, last + 0.5, 0, 1)  # left, right, bottom, top
    axes.imshow(loop.colours[None], extent=box, aspect="auto", interpolation="nearest")
    axes.set(xlabel="loop step $k$", yticks=[])
    axes.set_xticks(sorted({1, last // 3, 2 * last // 3, last} - {0}))
    axes.tick_params(length=0, labelsize=_SMALL)
    axes.xaxis.label.set_size(_SMALL)  # type: ignore[attr-defined]
    axes.spines[:].set_visible(False)


def _draw_legend(figure: Figure, paths: Paths, others: int) -> None:
    """The lines and markers that occur."""
    entries = {
        "first enlarged state": Line2D([], [], linestyle="none", color="0.8", **_FIRST),
        "last state of a loop": Line2D([], [], linestyle="none", color="0.3", **_EXIT),
    }
    if paths.hand_offs:
        entries = {"hand-off": Line2D([], [], **_HANDOFF)} | entries
    if "layer" in paths.stages:
        entries = {"unlooped layers": Line2D([], [], **_UNLOOPED)} | entries
    if "embedding" in paths.stages:
        entries = {"embedding": Line2D([], [], linestyle="none", **_EMBEDDING)} | entries
    if others:
        entries[f"{others} other token{'s' * (others != 1)}"] = Line2D([], [], **_PALE)
    place: Look = {"loc": "outside lower left", "ncols": 3, "fontsize": _SMALL}
    figure.legend(entries.values(), entries.keys(), **place)
