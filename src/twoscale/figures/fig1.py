"""Figure 1, overall trajectory with inset zoom.

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
from matplotlib.ticker import MaxNLocator

from twoscale.base import InputError
from twoscale.figures import style
from twoscale.figures.style import Look

# Colour maps of the groups, in turn; light to dark over the loop steps.
_COLOUR_MAPS = ("Blues", "Oranges", "Greens", "Purples", "Reds")
_LIGHTEST = 0.45  # of a colour map, for the first loop step
# The panel in units of its width and height: trajectories at the left; at the right, from the top,
# the inset, the colour bars and the legend.
_ASPECT = 1.85
_DATA_SHARE = 0.6
_RIGHT, _TOP = 0.99, 0.94
_BARS_BOTTOM, _BAR_HEIGHT, _BARS_WIDTH = 0.22, 0.034, 0.27
_INSET_GAP, _INSET_HEIGHT = 0.11, 0.52
_LEAST_ZOOM = 1.5  # magnification from which on the inset is marked in the panel
_SMALL = 6.5  # font size inside the right part

# The token in colour is drawn over the pale ones.
_FRONT, _BEHIND = 2, 1
_UNLOOPED: Look = {"color": "0.5", "linewidth": 1.2, "zorder": _FRONT}
_HANDOFF: Look = {"color": "0.15", "linewidth": 0.9, "linestyle": (0, (4, 1.5)), "zorder": _FRONT}
_MARK: Look = {"markeredgecolor": "black", "zorder": _FRONT + 1}
_EMBEDDING: Look = _MARK | {"marker": "s", "markersize": 4, "color": "white"}
_EXIT: Look = _MARK | {"marker": "o", "markersize": 4.5, "markeredgewidth": 0.5}
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
    for distance, x, y in itertools.product((6, 10, 14), (1, 0, -1), (1, 0, -1))
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

    One polyline per token: a whole word near the middle of the sequence in colour, the others pale.
    It is grey through unlooped layers and hand-offs, coloured light to dark over the steps of each
    group's loop. The inset enlarges its last loop. The initial states x^0 of the groups are not
    shown. Raises InputError for a model without looped groups.
    """
    paths = paths_of(state_paths)
    if not paths.loops:
        raise InputError(
            "config key model.groups: found no looped group, expected at least one for Figure 1."
        )
    length = len(paths.tokens)
    number = min(tokens, length)
    # in the middle of equal parts
    others = [(2 * i + 1) * length // (2 * number) for i in range(number)]
    middle = others.pop(number // 2)
    front = nearest_word(paths.tokens, middle, taken=others)

    figure = style.new_figure(style.DOUBLE, 4.1, context)
    axes = figure.subplots()
    for position in others:
        _draw_pale(axes, paths, position)
    _draw_token(axes, paths, front)
    visible = np.concatenate([segment.path for segment in paths.segments])
    _set_limits(axes, paths.plane[visible][:, [front, *others]].reshape(-1, 2))
    first, second = 100 * paths.shares
    axes.set_xlabel(f"PC 1 ({first:.0f} % of variance)", x=_DATA_SHARE / 2)
    axes.set_ylabel(f"PC 2 ({second:.0f} % of variance)")
    _draw_inset(axes, paths, front)
    _draw_key(axes, paths.loops)
    _draw_legend(axes, paths, len(others))
    if paths.stages[0] == "embedding":
        start = paths.plane[0, front]
        axes.plot(*start, **_EMBEDDING)
        word = printable(paths.tokens[front])
        _write_beside(axes, f"token “{word}”", start, parse_math=False)
    return figure


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


def _draw_token(axes: Axes, paths: Paths, position: int) -> None:
    """Draw one token's path in colour."""
    path = paths.plane[:, position]
    for segment in paths.segments:
        states = path[segment.path]
        if segment.group is None:
            axes.plot(*states.T, **_UNLOOPED)
            continue
        # each step has the colour of the state that it reaches
        steps = np.stack([states[:-1], states[1:]], axis=1)  # (K - 1, 2 ends, 2)
        looks: Look = {"linewidths": 1.5, "capstyle": "round", "zorder": _FRONT}
        lines = LineCollection(steps, colors=segment.colours[1:], **looks)  # type: ignore[arg-type]
        axes.add_collection(lines, autolim=False)
        x, y = states.T
        axes.scatter(x, y, c=segment.colours, s=4, linewidths=0, zorder=_FRONT)
        axes.plot(*states[-1], color=segment.colours[-1], **_EXIT)
    for ends in paths.hand_offs:
        axes.plot(*path[ends].T, **_HANDOFF)


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


def _set_limits(axes: Axes, points: np.ndarray) -> None:
    """Set limits of equal scale that keep `points` (N, 2) in the left _DATA_SHARE of the panel."""
    low = points.min(axis=0)
    high = points.max(axis=0)
    width, height = np.maximum(high - low, 1e-9) * 1.12  # with a margin
    full = max(width / _DATA_SHARE, height * _ASPECT)  # width of the panel in units of the data
    x, y = (low + high) / 2
    left = x - 0.5 * full * _DATA_SHARE
    right = x + 0.5 * full * _DATA_SHARE
    axes.set_xlim(left, left + full)
    axes.set_ylim(y - full / _ASPECT / 2, y + full / _ASPECT / 2)
    axes.set_aspect("equal")
    # the axis ends where the trajectories end
    axes.spines["bottom"].set_bounds(left, right)
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(left, right)
    axes.set_xticks(ticks[(ticks >= left) & (ticks <= right)])


def _draw_inset(axes: Axes, paths: Paths, position: int) -> None:
    """Enlarge one token's path where the last loop settles, without its first, large steps."""
    loop = paths.loops[-1]
    last = len(loop.path)
    first = max(1, last // 10)
    bottom = _BARS_BOTTOM + _BAR_HEIGHT * len(paths.loops) + _INSET_GAP  # above the colour bars
    height = min(_INSET_HEIGHT, _TOP - bottom)
    width = height / _ASPECT
    inset = axes.inset_axes((_RIGHT - width, bottom, width, height))

    states = paths.plane[loop.path, position]  # states[k - 1] is x^k
    low = states[first - 1 :].min(axis=0)
    high = states[first - 1 :].max(axis=0)
    x, y = (low + high) / 2
    half = max(0.66 * (high - low).max(), 1e-9)  # of the side, with a margin
    inset.set(xlim=(x - half, x + half), ylim=(y - half, y + half), aspect="equal")
    inset.tick_params(labelsize=style.LEAST_FONT)
    inset.locator_params(nbins=4)
    inset.spines[:].set_visible(True)
    _draw_token(inset, paths, position)
    for k in (first, last):
        _write_beside(inset, f"$k$ = {k}", states[k - 1], fontsize=_SMALL)

    word = printable(paths.tokens[position]).replace("$", r"\$")
    title = f"“{word}”, group {style.group_name(str(loop.group))} from $k$ = {first}"
    magnification = width * np.ptp(axes.get_xlim()) / np.ptp(inset.get_xlim())
    if magnification >= _LEAST_ZOOM:  # otherwise the loop fills the panel, and its frame would too
        rounded = float(f"{magnification:.2g}")  # two digits, printed without an exponent
        title = f"{title}, enlarged {style.grouped(rounded).removesuffix('.0')} ×"
        indicator = axes.indicate_inset_zoom(inset, edgecolor="0.4", linewidth=0.6)
        # lines to the left corners (lower, upper): those to the right may cross the legend
        shown = (True, True, False, False)
        for line, visible in zip(indicator.connectors, shown, strict=True):  # type: ignore[arg-type]
            line.set_visible(visible)
    inset.set_title(title, fontsize=_SMALL, pad=3)
    inset.set_xlabel("PC 1", fontsize=_SMALL, labelpad=1)
    inset.set_ylabel("PC 2", fontsize=_SMALL, labelpad=1)


def _draw_key(axes: Axes, loops: Sequence[Segment]) -> None:
    """One colour bar per group over the loop steps."""
    number = len(loops)
    last = max(len(loop.path) for loop in loops)  # of the longest loop
    key = axes.inset_axes((_RIGHT - _BARS_WIDTH, _BARS_BOTTOM, _BARS_WIDTH, _BAR_HEIGHT * number))
    for row, loop in enumerate(loops):
        box = (0.5, len(loop.path) + 0.5, row + 0.4, row - 0.4)  # left, right, bottom, top
        key.imshow(loop.colours[None], extent=box, aspect="auto", interpolation="nearest")
    key.set(xlim=(0.5, last + 0.5), ylim=(number - 0.5, -0.5), xlabel="loop step $k$")
    names = [f"group {style.group_name(str(loop.group))}" for loop in loops]
    key.set_yticks(range(number), names)
    key.set_xticks(sorted({1, last // 3, 2 * last // 3, last} - {0}))
    key.tick_params(length=0, labelsize=_SMALL)
    key.xaxis.label.set_size(_SMALL)  # type: ignore[attr-defined]
    key.spines[:].set_visible(False)


def _draw_legend(axes: Axes, paths: Paths, others: int) -> None:
    """The lines and markers that occur."""
    entries = {"last state of a loop": Line2D([], [], linestyle="none", color="0.3", **_EXIT)}
    if paths.hand_offs:
        entries = {"hand-off": Line2D([], [], **_HANDOFF)} | entries
    if "layer" in paths.stages:
        entries = {"unlooped layers": Line2D([], [], **_UNLOOPED)} | entries
    if "embedding" in paths.stages:
        entries = {"embedding": Line2D([], [], linestyle="none", **_EMBEDDING)} | entries
    if others:
        entries[f"{others} other token{'s' * (others != 1)}"] = Line2D([], [], **_PALE)
    axes.legend(entries.values(), entries.keys(), loc="lower right", ncols=2, fontsize=_SMALL)
