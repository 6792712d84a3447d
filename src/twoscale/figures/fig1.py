"""Figure 1, overall trajectory with inset zoom: the states of a sequence in the plane of their two main directions."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from safetensors import SafetensorError, safe_open

from twoscale.dynamics.principal import project
from twoscale.errors import InputError
from twoscale.figures import style

METADATA_KEYS = ("places", "tokens", "iteration", "sequence")
# Colour maps of the groups, in turn; light to dark over the loop steps.
COLOUR_MAPS = ("Blues", "Oranges", "Greens", "Purples", "Reds")
# The panel in units of its width and height: trajectories at the left; at the right, from the top, the inset, the
# colour bars and the legend.
ASPECT = 1.85
DATA_SHARE = 0.6
RIGHT, TOP = 0.99, 0.94
BARS_BOTTOM, BAR_HEIGHT, BARS_WIDTH = 0.19, 0.034, 0.27
INSET_GAP, INSET_HEIGHT = 0.08, 0.57
LEAST_ZOOM = 1.5  # magnification from which on the inset is marked in the panel

UNLOOPED = {"color": "0.6", "linewidth": 0.7}
HANDOFF = {"color": "0.4", "linewidth": 0.6, "linestyle": (0, (4, 1.5))}
JUMP = {"color": "0.75", "linewidth": 0.5, "linestyle": (0, (1, 2)), "zorder": 0.5}
TOKEN = {"xytext": (2, 2), "textcoords": "offset points", "fontsize": 6, "color": "0.2", "parse_math": False}
LONGEST_WORD = 12
SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
EXIT = {"marker": "o", "markersize": 3.5, "markeredgecolor": "black", "markeredgewidth": 0.4, "zorder": 3}


@dataclass(frozen=True)
class States:
    """All hidden states of one held-out sequence, from the embedding to the last layer.

    Attributes:
        values: (P, T, C), place by token by channel.
        places: One entry per place, in the order of the model: {"stage": "embedding" | "layer" | "loop", "layer": int
            or None, "group": "5-6" or None, "k": int or None}; k = 0 is the initial state of a group. Optional:
            "follows": false for a group that does not start from where the places before it end.
        tokens: T strings.
        iteration: Iteration of the checkpoint.
        sequence: Number of the held-out sequence.
    """

    values: np.ndarray
    places: list[dict]
    tokens: list[str]
    iteration: int
    sequence: int


@dataclass(frozen=True)
class Segment:
    """Consecutive places of one looped group, or of unlooped layers (group None)."""

    group: str | None
    places: np.ndarray
    follows: bool = True  # whether it starts from where the segment before it ends

    @property
    def path(self) -> np.ndarray:
        """The places on the trajectory, without the initial state x^0 of a loop, which is drawn separately."""
        return self.places if self.group is None else self.places[1:]


def read(states: Sequence[Path]) -> dict[str, States]:
    """Arguments of `draw` from its input files, of which there is one."""
    (path,) = states
    return {"states": read_states(path)}


def read_states(path: str | Path) -> States:
    """Read the states saved for Figure 1: tensor "states" and the JSON of the metadata key "twoscale".

    Raises InputError for a file without them, or whose parts do not match.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            if "states" not in file.keys():  # noqa: SIM118  (a safetensors file is no mapping)
                raise InputError(f"{path}: found the tensors {sorted(file.keys())}, expected 'states'.")
            values, metadata = file.get_tensor("states"), file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as a safetensors file ({error}).") from error
    try:
        described = json.loads(metadata["twoscale"])
        states = States(values, **{key: described[key] for key in METADATA_KEYS})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: found no usable metadata 'twoscale' ({error!r}), expected JSON with {', '.join(METADATA_KEYS)}."
        ) from error
    expected = (len(states.places), len(states.tokens))
    if values.ndim != 3 or values.shape[:2] != expected:
        raise InputError(
            f"{path}: found states of shape {values.shape}, expected {expected[0]} places by {expected[1]} tokens by "
            "channels, as in its metadata."
        )
    return states


@style.look()
def draw(states: States, *, tokens: int, context: style.FigureContext) -> Figure:
    """Paths of `tokens` tokens, spread over the sequence, in the principal plane of all its states.

    One polyline per token: grey through unlooped layers and hand-offs, coloured light to dark over the steps of each
    group's loop. The inset enlarges the last group's loop of the first token. The jump from a group's initial state
    x^0 is dotted and does not set the axis limits. Raises InputError for a model without looped groups.
    """
    segments = split(states.places)
    loops = [segment for segment in segments if segment.group is not None]
    if not loops:
        raise InputError("config key model.groups: found no looped group, expected at least one for Figure 1.")
    plane, shares = project(states.values)
    positions = spread(len(states.tokens), tokens)
    shades = {loop.group: _shades(i, len(loop.path)) for i, loop in enumerate(loops)}

    figure = style.new_figure(style.DOUBLE, 4.1, context)
    axes = figure.subplots()
    for position in positions:
        _draw_token(axes, plane[:, position], segments, shades)
    visible = np.concatenate([segment.path for segment in segments])
    _set_limits(axes, plane[visible][:, positions].reshape(-1, 2))
    _label_tokens(axes, plane[segments[0].path[0], positions], [states.tokens[position] for position in positions])
    axes.set_xlabel(f"PC 1 ({100 * shares[0]:.0f} % of variance)", x=DATA_SHARE / 2)
    axes.set_ylabel(f"PC 2 ({100 * shares[1]:.0f} % of variance)")
    _draw_inset(axes, plane[:, positions[0]], states.tokens[positions[0]], segments, shades)
    _draw_key(axes, segments, shades)
    return figure


def split(places: Sequence[dict]) -> list[Segment]:
    """The places as segments, each of one group's loop or of unlooped layers."""
    runs = itertools.groupby(range(len(places)), key=lambda i: places[i]["group"])
    segments = [(group, np.array(list(indices))) for group, indices in runs]
    return [Segment(group, indices, places[indices[0]].get("follows", True)) for group, indices in segments]


def spread(length: int, number: int) -> list[int]:
    """At most `number` positions in the middle of equal parts of a sequence of this length."""
    number = min(number, length)
    return [(2 * i + 1) * length // (2 * number) for i in range(number)]


def _shades(index: int, steps: int) -> np.ndarray:
    """Colours (steps, 4) of the states x^1 ... x^K of the group with this index, light to dark."""
    colour_map = sns.color_palette(COLOUR_MAPS[index % len(COLOUR_MAPS)], as_cmap=True)
    return colour_map(np.linspace(0.3, 1, steps))


def _draw_token(axes: Axes, path: np.ndarray, segments: Sequence[Segment], shades: dict[str, np.ndarray]) -> None:
    """Draw one token's path (P, 2)."""
    for segment in segments:
        if segment.group is None:
            axes.plot(*path[segment.path].T, **UNLOOPED)
            continue
        axes.plot(*path[segment.places[:2]].T, **JUMP)
        _draw_loop(axes, path[segment.path], shades[segment.group])
        axes.plot(*path[segment.path[-1]], color=shades[segment.group][-1], **EXIT)
    for before, after in hand_offs(segments):
        axes.plot(*path[[before.path[-1], after.path[0]]].T, **HANDOFF)


def hand_offs(segments: Sequence[Segment]) -> list[tuple[Segment, Segment]]:
    """Pairs of successive segments where the second one starts from where the first one ends."""
    return [(before, after) for before, after in itertools.pairwise(segments) if after.follows]


def _draw_loop(axes: Axes, path: np.ndarray, shades: np.ndarray) -> None:
    """Draw the states x^1 ... x^K of a loop, (K, 2); each step has the colour of the state it reaches."""
    segments = np.stack([path[:-1], path[1:]], axis=1)
    axes.add_collection(LineCollection(segments, colors=shades[1:], linewidths=0.9, capstyle="round"), autolim=False)
    axes.scatter(*path.T, c=shades, s=1.5, linewidths=0, zorder=2.5)


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


def _label_tokens(axes: Axes, starts: np.ndarray, tokens: Sequence[str]) -> None:
    """Name each token at its first state, (tokens, 2)."""
    halo = [withStroke(linewidth=1.5, foreground="white")]
    for start, token in zip(starts, tokens, strict=True):
        axes.annotate(printable(token), start, **TOKEN, path_effects=halo)


def printable(token: str) -> str:
    """A token as one short visible word: without the space before it, unprintable signs replaced, the rest cut."""
    word = token.strip(" ") or token
    word = word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…"
    return "".join(SIGNS.get(sign, sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}") for sign in word)


def _draw_inset(
    axes: Axes, path: np.ndarray, token: str, segments: Sequence[Segment], shades: dict[str, np.ndarray]
) -> None:
    """Enlarge one token's path (P, 2) where the last loop settles, without its first, still large steps."""
    loop = [segment for segment in segments if segment.group is not None][-1]
    last = len(loop.path)
    first = max(1, last // 10)
    left, bottom, width, height = _inset_box(len(shades))
    inset = axes.inset_axes((left, bottom, width, height))
    _enlarge(inset, path[loop.places[first:]])
    _draw_token(inset, path, segments, shades)
    for k, offset in ((first, 3), (last, -7)):
        _label_state(inset, k, path[loop.places[k]], offset)
    magnification = width * np.ptp(axes.get_xlim()) / np.ptp(inset.get_xlim())
    word = printable(token).replace("$", r"\$")
    steps = f"group {style.group_name(loop.group)}, $k$ = {first} … {last}"
    inset.set_title(f"“{word}”, {steps}, × {magnification:.2g}", fontsize=6.5, pad=3)
    if magnification < LEAST_ZOOM:  # the loop fills the panel: its frame would too
        return
    indicator = axes.indicate_inset_zoom(inset, edgecolor="0.4", linewidth=0.6)
    # to the left corners (lower, upper): lines to the right ones may cross the legend
    for connector, visible in zip(indicator.connectors, (True, True, False, False), strict=True):
        connector.set_visible(visible)


def _inset_box(groups: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of the inset in units of the panel, above one colour bar per group."""
    bottom = BARS_BOTTOM + BAR_HEIGHT * groups + INSET_GAP
    height = min(INSET_HEIGHT, TOP - bottom)
    return RIGHT - height / ASPECT, bottom, height / ASPECT, height


def _enlarge(inset: Axes, points: np.ndarray) -> None:
    """Limits of equal scale around `points` (N, 2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, max(0.58 * (high - low).max(), 1e-9)
    inset.set_xlim(middle[0] - half, middle[0] + half)
    inset.set_ylim(middle[1] - half, middle[1] + half)
    inset.set_aspect("equal")
    inset.tick_params(labelsize=6)
    inset.locator_params(nbins=5)
    inset.spines[:].set_visible(True)


def _label_state(inset: Axes, k: int, point: np.ndarray, offset: float) -> None:
    """Name the state x^k at `point` (2,), towards the middle of the inset; `offset` is upwards, in points."""
    side, shift = ("right", -3) if point[0] > np.mean(inset.get_xlim()) else ("left", 3)
    placed = {"xytext": (shift, offset), "textcoords": "offset points", "ha": side}
    inset.annotate(f"$x^{{({k})}}$", point, **placed, fontsize=6.5)


def _draw_key(axes: Axes, segments: Sequence[Segment], shades: dict[str, np.ndarray]) -> None:
    """One colour bar per group over the loop steps, and the legend of the lines and markers that occur."""
    loops = [segment for segment in segments if segment.group is not None]
    last = max(len(loop.path) for loop in loops)
    key = axes.inset_axes((RIGHT - BARS_WIDTH, BARS_BOTTOM, BARS_WIDTH, BAR_HEIGHT * len(loops)))
    for row, loop in enumerate(loops):
        box = (0.5, len(loop.path) + 0.5, row + 0.4, row - 0.4)
        key.imshow(shades[loop.group][None], extent=box, aspect="auto", interpolation="nearest")
    key.set(xlim=(0.5, last + 0.5), ylim=(len(loops) - 0.5, -0.5), xlabel="loop step $k$")
    key.set_yticks(range(len(loops)), [f"group {style.group_name(loop.group)}" for loop in loops])
    key.set_xticks(sorted({1, last // 3, 2 * last // 3, last} - {0}))
    key.tick_params(length=0, labelsize=6.5)
    key.xaxis.label.set_size(6.5)
    key.spines[:].set_visible(False)
    handles = {
        "unlooped layers": Line2D([], [], **UNLOOPED) if len(loops) < len(segments) else None,
        "hand-off": Line2D([], [], **HANDOFF) if hand_offs(segments) else None,
        "start $x^{(0)}$ to $x^{(1)}$": Line2D([], [], **JUMP),
        "last state $x^{(K)}$": Line2D([], [], linestyle="none", color="0.3", **EXIT),
    }
    handles = {name: handle for name, handle in handles.items() if handle is not None}
    axes.legend(handles.values(), handles.keys(), loc="lower right", ncols=2, fontsize=6.5)
