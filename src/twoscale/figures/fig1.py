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

from twoscale.errors import InputError
from twoscale.figures import style

METADATA_KEYS = ("places", "tokens", "iteration", "sequence")
# One colour map per group in turn, light to dark over the loop steps.
COLOUR_MAPS = ("Blues", "Oranges", "Greens", "Purples", "Reds")
# The panel in units of its width and height: the trajectories keep to its left part, and to the right of them
# stand, from the top, the inset, the bars that tell the colours, and the legend.
ASPECT = 1.85
DATA_SHARE = 0.6
RIGHT, TOP = 0.99, 0.94
BARS_BOTTOM, BAR_HEIGHT, BARS_WIDTH = 0.19, 0.034, 0.27
INSET_GAP, INSET_HEIGHT = 0.08, 0.57

PASS = {"color": "0.6", "linewidth": 0.7}
HANDOFF = {"color": "0.4", "linewidth": 0.6, "linestyle": (0, (4, 1.5))}
LEAP = {"color": "0.75", "linewidth": 0.5, "linestyle": (0, (1, 2)), "zorder": 0.5}
TOKEN = {"xytext": (2, 2), "textcoords": "offset points", "fontsize": 6, "color": "0.2", "parse_math": False}
LONGEST_WORD = 12
SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
EXIT = {"marker": "o", "markersize": 3.5, "markeredgecolor": "black", "markeredgewidth": 0.4, "zorder": 3}


@dataclass(frozen=True)
class States:
    """The states of one held-out sequence on their way through the model.

    values: (P, T, C), place by token by channel. `places` has one entry per place, in the order of the way:
    {"stage": "embedding" | "layer" | "loop", "layer": int or None, "group": "5-6" or None, "k": int or None};
    k = 0 is the state a group starts from. `tokens` are T strings, `step` is that of the checkpoint.
    """

    values: np.ndarray
    places: list[dict]
    tokens: list[str]
    step: int
    sequence: int


@dataclass(frozen=True)
class Stretch:
    """Successive places of one kind: the loop of a group, or single-pass stages (group None)."""

    group: str | None
    places: np.ndarray

    @property
    def path(self) -> np.ndarray:
        """Places that the trajectory runs through: the start x^0 of a loop is drawn apart."""
        return self.places if self.group is None else self.places[1:]


def read_states(path: str | Path) -> States:
    """Read the states saved for Figure 1: tensor "states" and the JSON of the metadata key "twoscale".

    Raises InputError for a file that is no such thing or whose parts do not fit together.
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
    wanted = (len(states.places), len(states.tokens))
    if values.ndim != 3 or values.shape[:2] != wanted:
        raise InputError(
            f"{path}: found states of shape {values.shape}, expected {wanted[0]} places by {wanted[1]} tokens by "
            "channels, as its metadata say."
        )
    return states


@style.look()
def draw(states: States, tokens: int, run: str, text: str) -> Figure:
    """Paths of `tokens` tokens, spread over the sequence, in the principal plane of all its states.

    One polyline a token: grey through single-pass stages and hand-offs, coloured light to dark over the steps
    of each group's loop. The inset enlarges the last group's loop of the first token shown. The leap from a
    group's start x^0 is dotted and does not set the axis limits. Raises InputError for a model without looped
    groups.
    """
    stretches = split(states.places)
    loops = [stretch for stretch in stretches if stretch.group is not None]
    if not loops:
        raise InputError("config key model.groups: found no looped group, expected at least one for Figure 1.")
    plane, shares = project(states.values)
    chosen = spread(len(states.tokens), tokens)
    shades = {loop.group: _shades(i, len(loop.path)) for i, loop in enumerate(loops)}

    figure = style.new_figure(style.DOUBLE, 4.1, run, text, max(len(loop.path) for loop in loops))
    axes = figure.subplots()
    for token in chosen:
        _draw_token(axes, plane[:, token], stretches, shades)
    visible = np.concatenate([stretch.path for stretch in stretches])
    _frame(axes, plane[visible][:, chosen].reshape(-1, 2))
    _label_tokens(axes, plane[0, chosen], [states.tokens[token] for token in chosen])
    axes.set_xlabel(f"PC 1 ({100 * shares[0]:.0f} % of variance)", x=DATA_SHARE / 2)
    axes.set_ylabel(f"PC 2 ({100 * shares[1]:.0f} % of variance)")
    _draw_inset(axes, plane[:, chosen[0]], states.tokens[chosen[0]], loops[-1], stretches, shades)
    _draw_key(axes, loops, shades)
    return figure


def project(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (P, T, 2) of the states (P, T, C) in their two principal directions, and variance shares (2,).

    The directions are fitted to the union of all tokens, depths and loop steps (section 3 of the paper); the
    largest loading of each is positive, which fixes the signs.
    """
    union = values.reshape(-1, values.shape[-1]).astype(np.float64)
    union -= union.mean(axis=0)
    # The right singular vectors of the data, from its C x C scatter: P T is up to a hundred times C.
    _, scatter, directions = np.linalg.svd(union.T @ union, hermitian=True)
    main = directions[:2]
    largest = np.abs(main).argmax(axis=1)
    main = main * np.sign(main[np.arange(2), largest])[:, None]
    return (union @ main.T).reshape(*values.shape[:2], 2), scatter[:2] / scatter.sum()


def split(places: Sequence[dict]) -> list[Stretch]:
    """The way through the model as stretches of one group's loop or of single-pass stages."""
    runs = itertools.groupby(range(len(places)), key=lambda i: places[i]["group"])
    return [Stretch(group, np.array(list(indices))) for group, indices in runs]


def spread(length: int, number: int) -> list[int]:
    """At most `number` positions in the middle of equal parts of a sequence of this length."""
    number = min(number, length)
    return [(2 * i + 1) * length // (2 * number) for i in range(number)]


def _shades(index: int, steps: int) -> np.ndarray:
    """Colours (steps, 4) of the states x^1 ... x^K of the group with this index, light to dark."""
    colour_map = sns.color_palette(COLOUR_MAPS[index % len(COLOUR_MAPS)], as_cmap=True)
    return colour_map(np.linspace(0.3, 1, steps))


def _draw_token(axes: Axes, path: np.ndarray, stretches: Sequence[Stretch], shades: dict[str, np.ndarray]) -> None:
    """Draw one token's path (P, 2)."""
    for stretch in stretches:
        if stretch.group is None:
            axes.plot(*path[stretch.path].T, **PASS)
            continue
        axes.plot(*path[stretch.places[:2]].T, **LEAP)
        _draw_loop(axes, path[stretch.path], shades[stretch.group])
        axes.plot(*path[stretch.path[-1]], color=shades[stretch.group][-1], **EXIT)
    for before, after in itertools.pairwise(stretches):
        axes.plot(*path[[before.path[-1], after.path[0]]].T, **HANDOFF)


def _draw_loop(axes: Axes, path: np.ndarray, shades: np.ndarray) -> None:
    """Draw the states x^1 ... x^K of a loop, (K, 2); each step has the colour of the state it reaches."""
    segments = np.stack([path[:-1], path[1:]], axis=1)
    axes.add_collection(LineCollection(segments, colors=shades[1:], linewidths=0.9, capstyle="round"), autolim=False)
    axes.scatter(*path.T, c=shades, s=1.5, linewidths=0, zorder=2.5)


def _frame(axes: Axes, points: np.ndarray) -> None:
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
    axes: Axes,
    path: np.ndarray,
    token: str,
    loop: Stretch,
    stretches: Sequence[Stretch],
    shades: dict[str, np.ndarray],
) -> None:
    """Enlarge one token's path (P, 2) where one loop settles: its first, still large steps are left out."""
    bottom = BARS_BOTTOM + BAR_HEIGHT * len(shades) + INSET_GAP
    height = min(INSET_HEIGHT, TOP - bottom)
    budget = len(loop.path)
    first = max(1, budget // 10)
    arc = path[loop.places[first:]]
    low, high = arc.min(axis=0), arc.max(axis=0)
    middle, half = (low + high) / 2, max(0.58 * (high - low).max(), 1e-9)
    inset = axes.inset_axes((RIGHT - height / ASPECT, bottom, height / ASPECT, height))
    _draw_token(inset, path, stretches, shades)
    inset.set_xlim(middle[0] - half, middle[0] + half)
    inset.set_ylim(middle[1] - half, middle[1] + half)
    inset.set_aspect("equal")
    inset.tick_params(labelsize=6)
    inset.locator_params(nbins=5)
    inset.spines[:].set_visible(True)
    magnification = height / ASPECT * np.ptp(axes.get_xlim()) / (2 * half)
    word = printable(token).replace("$", r"\$")
    steps = f"group {style.group_name(loop.group)}, $k$ = {first} … {budget}"
    inset.set_title(f"“{word}”, {steps}, × {magnification:.0f}", fontsize=6.5, pad=3)
    for k, height in ((first, 3), (budget, -7)):
        place = path[loop.places[k]]
        side, offset = ("right", -3) if place[0] > middle[0] else ("left", 3)  # towards the middle of the inset
        away = {"xytext": (offset, height), "textcoords": "offset points", "ha": side}
        inset.annotate(f"$x^{{({k})}}$", place, **away, fontsize=6.5)
    indicator = axes.indicate_inset_zoom(inset, edgecolor="0.4", linewidth=0.6)
    # to the left corners (lower, upper): lines to the right ones may cross the legend
    for connector, shown in zip(indicator.connectors, (True, True, False, False), strict=True):
        connector.set_visible(shown)


def _draw_key(axes: Axes, loops: Sequence[Stretch], shades: dict[str, np.ndarray]) -> None:
    """What the colours mean, one bar a group over the loop steps, and what the lines and markers mean."""
    budget = max(len(loop.path) for loop in loops)
    key = axes.inset_axes((RIGHT - BARS_WIDTH, BARS_BOTTOM, BARS_WIDTH, BAR_HEIGHT * len(loops)))
    for row, loop in enumerate(loops):
        box = (0.5, len(loop.path) + 0.5, row + 0.4, row - 0.4)
        key.imshow(shades[loop.group][None], extent=box, aspect="auto", interpolation="nearest")
    key.set(xlim=(0.5, budget + 0.5), ylim=(len(loops) - 0.5, -0.5), xlabel="loop step $k$")
    key.set_yticks(range(len(loops)), [f"group {style.group_name(loop.group)}" for loop in loops])
    key.set_xticks(sorted({1, budget // 3, 2 * budget // 3, budget} - {0}))
    key.tick_params(length=0, labelsize=6.5)
    key.xaxis.label.set_size(6.5)
    key.spines[:].set_visible(False)
    handles = {
        "single-pass layers": Line2D([], [], **PASS),
        "hand-off": Line2D([], [], **HANDOFF),
        "start $x^{(0)}$ to $x^{(1)}$": Line2D([], [], **LEAP),
        "last state $x^{(K)}$": Line2D([], [], linestyle="none", color="0.3", **EXIT),
    }
    axes.legend(handles.values(), handles.keys(), loc="lower right", ncols=2, fontsize=6.5)
