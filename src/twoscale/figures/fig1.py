"""Figure 1, overall trajectory with inset zoom: the states of a sequence in the plane of their two
main directions.
"""

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

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
COLOUR_MAPS = ("Blues", "Oranges", "Greens", "Purples", "Reds")
# The panel in units of its width and height: trajectories at the left; at the right, from the top,
# the inset, the colour bars and the legend.
ASPECT = 1.85
DATA_SHARE = 0.6
RIGHT, TOP = 0.99, 0.94
BARS_BOTTOM, BAR_HEIGHT, BARS_WIDTH = 0.22, 0.034, 0.27
INSET_GAP, INSET_HEIGHT = 0.11, 0.52
LEAST_ZOOM = 1.5  # magnification from which on the inset is marked in the panel

# The token in colour is drawn over the pale ones.
FRONT, BEHIND = 2, 1
Shades = dict[str | None, np.ndarray]  # group -> colours of its states
UNLOOPED: Look = {"color": "0.5", "linewidth": 1.2, "zorder": FRONT}
HANDOFF: Look = {"color": "0.15", "linewidth": 0.9, "linestyle": (0, (4, 1.5)), "zorder": FRONT}
MARK: Look = {"markeredgecolor": "black", "zorder": FRONT + 1}
EMBEDDING: Look = MARK | {"marker": "s", "markersize": 4, "color": "white"}
EXIT: Look = MARK | {"marker": "o", "markersize": 4.5, "markeredgewidth": 0.5}
PALE: Look = {"color": "0.86", "linewidth": 0.6, "zorder": BEHIND}
PALE_SHARE = 0.3  # of a group's colour in the pale one, the rest is white
LEAST_WORD, LONGEST_WORD = 3, 12  # letters
LIGHTEST = 0.45  # of a colour map, for the first loop step
SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
# Of a label relative to its state, the last first: points, and the sides as signs.
PLACES = [
    place for place in itertools.product((14, 10, 6), (-1, 0, 1), (-1, 0, 1)) if any(place[1:])
]
LEADER: Look = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
SMALL = 6.5  # font size inside the right part


class Paths(NamedTuple):
    """The paths of the tokens of one held-out sequence in the principal plane, from the embedding
    to the last layer.
    """

    plane: np.ndarray  # coordinates (P, T, 2), site by token
    shares: np.ndarray  # of the variance, in both directions
    sites: list[
        dict
    ]  # stage, layer, group, k (None where it has none) and follows, as in the table "state_paths"
    tokens: list[str]


@dataclass(frozen=True)
class Segment:
    """Consecutive sites of one looped group, or of unlooped layers (group None)."""

    group: str | None
    sites: np.ndarray
    follows: bool = True  # whether it starts from where the segment before it ends

    @property
    def path(self) -> np.ndarray:
        """The sites on the trajectory, without the initial state x^0 of a loop, which is drawn
        separately.
        """
        return self.sites if self.group is None else self.sites[1:]


def paths_of(state_paths: pd.DataFrame) -> Paths:
    """The content of the table "state_paths"."""
    style.check_rows("state_paths", state_paths)
    frame = state_paths.sort_values(["site", "position"], ignore_index=True)
    sites, tokens = frame.drop_duplicates("site"), frame.drop_duplicates("position")
    described = sites[["stage", "layer", "group", "k", "follows"]].astype(object)
    return Paths(
        plane=frame[["pc1", "pc2"]].to_numpy().reshape(len(sites), len(tokens), 2),
        shares=frame[["pc1_share", "pc2_share"]].to_numpy()[0],
        sites=described.where(described.notna(), None).to_dict("records"),
        tokens=tokens["token"].tolist(),
    )


@style.look()
def draw(state_paths: pd.DataFrame, *, tokens: int, context: style.FigureContext) -> Figure:
    """Paths of `tokens` tokens, spread over the sequence, in the principal plane of all its states.

    One polyline per token: a whole word near the middle of the sequence in colour, the others pale.
    It is grey through unlooped layers and hand-offs, coloured light to dark over the steps of each
    group's loop. The inset enlarges its last loop. The initial states x^0 of the groups are not
    shown. Raises InputError for a model without looped groups.
    """
    paths = paths_of(state_paths)
    plane, segments = paths.plane, split(paths.sites)
    loops = [segment for segment in segments if segment.group is not None]
    if not loops:
        raise InputError(
            "config key model.groups: found no looped group, expected at least one for Figure 1."
        )
    length, number = len(paths.tokens), min(tokens, len(paths.tokens))
    positions = [
        (2 * i + 1) * length // (2 * number) for i in range(number)
    ]  # in the middle of equal parts
    middle = positions.pop(len(positions) // 2)
    front = nearest_word(paths.tokens, middle, {middle, *positions})
    # colours of the states x^1 ... x^K of each group, light to dark
    maps = [
        sns.color_palette(COLOUR_MAPS[i % len(COLOUR_MAPS)], as_cmap=True)
        for i in range(len(loops))
    ]
    lightness = [np.linspace(LIGHTEST, 1, len(loop.path)) for loop in loops]
    shades = {
        loop.group: colours(at) for loop, colours, at in zip(loops, maps, lightness, strict=True)
    }

    figure = style.new_figure(style.DOUBLE, 4.1, context)
    axes = figure.subplots()
    for position in positions:
        _draw_pale(axes, plane[:, position], segments, shades)
    _draw_token(axes, plane[:, front], segments, shades)
    visible = np.concatenate([segment.path for segment in segments])
    _set_limits(axes, plane[visible][:, [front, *positions]].reshape(-1, 2))
    axes.set_xlabel(f"PC 1 ({100 * paths.shares[0]:.0f} % of variance)", x=DATA_SHARE / 2)
    axes.set_ylabel(f"PC 2 ({100 * paths.shares[1]:.0f} % of variance)")
    _draw_inset(axes, plane[:, front], paths.tokens[front], segments, shades)
    _draw_key(axes, segments, shades, _legend(paths, segments, len(positions)))
    if paths.sites[0]["stage"] == "embedding":
        axes.plot(*plane[0, front], **EMBEDDING)
        _write_beside(
            axes, f"token “{printable(paths.tokens[front])}”", plane[0, front], parse_math=False
        )
    return figure


def split(sites: Sequence[dict]) -> list[Segment]:
    """The sites as segments, each of one group's loop or of unlooped layers."""
    runs = [
        [*indices]
        for _, indices in itertools.groupby(range(len(sites)), key=lambda i: sites[i]["group"])
    ]
    return [
        Segment(sites[run[0]]["group"], np.array(run), sites[run[0]]["follows"]) for run in runs
    ]


def nearest_word(tokens: Sequence[str], position: int, taken: Set[int] = frozenset()) -> int:
    """The position nearest to `position` that has a whole word and is not `taken`; `position` if
    there is none.
    """
    ends = [not after[:1].isalpha() for after in [*tokens[1:], ""]]
    words = [
        place
        for place, (token, ends_here) in enumerate(zip(tokens, ends, strict=True))
        if token[:1] == " " and token[1:].isalpha() and len(token) > LEAST_WORD and ends_here
        if place == position or place not in taken
    ]
    return min(words, key=lambda place: abs(place - position), default=position)


def _draw_token(axes: Axes, path: np.ndarray, segments: Sequence[Segment], shades: Shades) -> None:
    """Draw one token's path (P, 2)."""
    for segment in segments:
        if segment.group is None:
            axes.plot(*path[segment.path].T, **UNLOOPED)
            continue
        states, colours = (
            path[segment.path],
            shades[segment.group],
        )  # each step has the colour of the state it reaches
        steps = np.stack([states[:-1], states[1:]], axis=1)
        lines = LineCollection(
            steps, colors=colours[1:], linewidths=1.5, capstyle="round", zorder=FRONT
        )  # type: ignore[arg-type]
        axes.add_collection(lines, autolim=False)
        axes.scatter(states[:, 0], states[:, 1], c=colours, s=4, linewidths=0, zorder=FRONT)
        axes.plot(*states[-1], color=colours[-1], **EXIT)
    for before, after in hand_offs(segments):
        axes.plot(*path[[before.path[-1], after.path[0]]].T, **HANDOFF)


def _draw_pale(axes: Axes, path: np.ndarray, segments: Sequence[Segment], shades: Shades) -> None:
    """Draw one token's path (P, 2) without its starts x^0, pale."""
    axes.plot(*path[np.concatenate([segment.path for segment in segments])].T, **PALE)
    for segment in segments:
        if segment.group is not None:
            pale = PALE_SHARE * shades[segment.group][len(segment.path) // 2, :3] + 1 - PALE_SHARE
            axes.plot(*path[segment.path].T, **PALE | {"color": pale, "linewidth": 1})
            axes.plot(
                *path[segment.path[-1]], **PALE | {"color": pale, "marker": "o", "markersize": 3}
            )


def _write_beside(axes: Axes, text: str, point: np.ndarray, **looks: Any) -> None:
    """Write `text` beside a state, `point` (2,), inside the panel where it meets the fewest lines
    and labels.
    """
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # lines get their places
    lines = [path for group in axes.collections for path in group.get_paths()]
    lines = [
        axes.transData.transform_path(path)
        for path in [*lines, *(line.get_path() for line in axes.lines)]
    ]
    labels = [label.get_window_extent() for label in axes.texts]
    beside: Look = {"xy": point, "textcoords": "offset points"}
    note = axes.annotate(
        text, **beside, xytext=(0, 0), path_effects=style.HALO, zorder=FRONT + 2, **looks
    )
    met = {}
    for distance, x, y in PLACES:
        side = {"ha": ("center", "left", "right")[x], "va": ("center", "bottom", "top")[y]}
        place = {"position": (distance * x, distance * y), **side}
        note.set(**place)
        box = note.get_window_extent()
        crossed = sum(
            line.intersects_bbox(box, filled=False) for line in lines
        ) + box.count_overlaps(labels)
        met[crossed + 4 - axes.bbox.count_contains(box.corners())] = place
    note.set(**met[min(met)])
    axes.annotate("", **beside, xytext=note.get_position(), arrowprops=LEADER)


def hand_offs(segments: Sequence[Segment]) -> list[tuple[Segment, Segment]]:
    """Pairs of successive segments where the second one starts from where the first one ends."""
    return [(before, after) for before, after in itertools.pairwise(segments) if after.follows]


def _set_limits(axes: Axes, points: np.ndarray) -> None:
    """Set limits of equal scale that keep `points` (N, 2) in the left DATA_SHARE of the panel."""
    low, high = points.min(axis=0), points.max(axis=0)
    width, height = np.maximum(high - low, 1e-9) * 1.12
    full = max(width / DATA_SHARE, height * ASPECT)
    middle = (low + high) / 2
    left, right = middle[0] + np.array([-0.5, 0.5]) * full * DATA_SHARE
    axes.set_xlim(left, left + full)
    axes.set_ylim(middle[1] - full / ASPECT / 2, middle[1] + full / ASPECT / 2)
    axes.set_aspect("equal")
    axes.spines["bottom"].set_bounds(left, right)
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(left, right)
    axes.set_xticks(ticks[(ticks >= left) & (ticks <= right)])


def printable(token: str) -> str:
    """A token as one short visible word: without the space before it, unprintable signs replaced,
    the rest cut.
    """
    word = token.strip(" ") or token
    word = word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…"
    return "".join(
        SIGNS.get(sign, sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}")
        for sign in word
    )


def _draw_inset(
    axes: Axes, path: np.ndarray, token: str, segments: Sequence[Segment], shades: Shades
) -> None:
    """Enlarge one token's path (P, 2) where the last loop settles, without its first, still large
    steps.
    """
    loop = [segment for segment in segments if segment.group is not None][-1]
    last = len(loop.path)
    first = max(1, last // 10)
    bottom = BARS_BOTTOM + BAR_HEIGHT * len(shades) + INSET_GAP  # above one colour bar per group
    height = min(INSET_HEIGHT, TOP - bottom)
    width = height / ASPECT
    inset = axes.inset_axes((RIGHT - width, bottom, width, height))
    late = path[loop.sites[first:]]
    low, high = late.min(axis=0), late.max(axis=0)
    (x, y), half = (low + high) / 2, max(0.66 * (high - low).max(), 1e-9)
    inset.set(xlim=(x - half, x + half), ylim=(y - half, y + half), aspect="equal")
    inset.tick_params(labelsize=style.LEAST_FONT)
    inset.locator_params(nbins=4)
    inset.spines[:].set_visible(True)
    _draw_token(inset, path, segments, shades)
    for k in (first, last):
        _write_beside(inset, f"$k$ = {k}", path[loop.sites[k]], fontsize=SMALL)
    magnification = width * np.ptp(axes.get_xlim()) / np.ptp(inset.get_xlim())
    word = printable(token).replace("$", r"\$")
    title = f"“{word}”, group {style.group_name(str(loop.group))} from $k$ = {first}"
    if magnification >= LEAST_ZOOM:  # otherwise the loop fills the panel, and its frame would too
        factor = style.grouped(float(f"{magnification:.2g}")).removesuffix(
            ".0"
        )  # two digits, without an exponent
        title = f"{title}, enlarged {factor} ×"
        indicator = axes.indicate_inset_zoom(inset, edgecolor="0.4", linewidth=0.6)
        # to the left corners (lower, upper): lines to the right ones may cross the legend
        for connector, visible in zip(
            indicator.connectors, (True, True, False, False), strict=True
        ):  # type: ignore[arg-type]
            connector.set_visible(visible)
    inset.set_title(title, fontsize=SMALL, pad=3)
    inset.set_xlabel("PC 1", fontsize=SMALL, labelpad=1)
    inset.set_ylabel("PC 2", fontsize=SMALL, labelpad=1)


def _draw_key(
    axes: Axes, segments: Sequence[Segment], shades: Shades, handles: dict[str, Line2D]
) -> None:
    """One colour bar per group over the loop steps, and the legend."""
    loops = [segment for segment in segments if segment.group is not None]
    last = max(len(loop.path) for loop in loops)
    key = axes.inset_axes((RIGHT - BARS_WIDTH, BARS_BOTTOM, BARS_WIDTH, BAR_HEIGHT * len(loops)))
    for row, loop in enumerate(loops):
        box = (0.5, len(loop.path) + 0.5, row + 0.4, row - 0.4)
        key.imshow(shades[loop.group][None], extent=box, aspect="auto", interpolation="nearest")
    key.set(xlim=(0.5, last + 0.5), ylim=(len(loops) - 0.5, -0.5), xlabel="loop step $k$")
    key.set_yticks(
        range(len(loops)), [f"group {style.group_name(str(loop.group))}" for loop in loops]
    )
    key.set_xticks(sorted({1, last // 3, 2 * last // 3, last} - {0}))
    key.tick_params(length=0, labelsize=SMALL)
    key.xaxis.label.set_size(SMALL)  # type: ignore[attr-defined]
    key.spines[:].set_visible(False)
    axes.legend(handles.values(), handles.keys(), loc="lower right", ncols=2, fontsize=SMALL)


def _legend(paths: Paths, segments: Sequence[Segment], others: int) -> dict[str, Line2D]:
    """Legend entries of the lines and markers that occur."""
    stages = {site["stage"] for site in paths.sites}
    handles = {
        "embedding": Line2D([], [], linestyle="none", **EMBEDDING)
        if "embedding" in stages
        else None,
        "unlooped layers": Line2D([], [], **UNLOOPED) if "layer" in stages else None,
        "hand-off": Line2D([], [], **HANDOFF) if hand_offs(segments) else None,
        "last state of a loop": Line2D([], [], linestyle="none", color="0.3", **EXIT),
        f"{others} other token{'s' * (others != 1)}": Line2D([], [], **PALE) if others else None,
    }
    return {name: handle for name, handle in handles.items() if handle is not None}
