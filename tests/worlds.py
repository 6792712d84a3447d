"""Worlds of `tests.simulation`: true values of a run in which a claim is true, false, or at its
bounds.

A `World` has norms, cosines and ratios per checkpoint, the loss of quality and the time at each
operating point.

For every claim there are four kinds of worlds. `TRUE` and `FALSE` are far from the bounds. In
`TRUE_LIMIT` every number is at its bound, which is where a true claim is refuted most often. In
`FALSE_LIMIT` one number is at its bound and all others are far inside, which is where a false claim
is upheld most often. A claim with readings is true or false under all of them there; in `MIXED` it
is true under one and false under another, and neither holds nor fails. In a `Family` one number
varies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from twoscale.claims.exits import PAPER_GRID
from twoscale.claims.words import HOLDS

TRUE, TRUE_LIMIT, FALSE, FALSE_LIMIT, MIXED = (
    "true",
    "true, at every bound",
    "false",
    "false, at one bound",
    "true under one reading, false under another",
)
HALF_DECADES = tuple(10 ** (exponent / 2) for exponent in range(-10, -3))
TOO_LARGE = 1.0  # the last threshold of every grid, at which quality is lost
CHEAPEST = ("fixed", 1.0)

GROUPS = ("4", "5-6", "7")
BOUNDARIES = ("4->5-6", "5-6->7")


@dataclass(frozen=True)
class Size:
    """A preset: the sequences of each held-out document, repeats of costs, checkpoints."""

    name: str
    documents: tuple[int, ...]
    quality_documents: tuple[int, ...]
    repeats: int
    warmup: int
    iterations: tuple[int, ...]


DEMO = Size(
    "demo",
    (1, 1, 4, 1, 2, 1, 1, 3, 1, 1),
    (1, 2, 8, 2, 4, 3, 1, 7, 2, 2),
    30,
    30,
    (0, 30, 60, 120, 240, 360, 480, 600),
)
PAPER = Size(
    "paper",
    (1,) * 16,
    (1,) * 24 + (2,) * 4,
    30,
    2000,
    (0, 500, 1000, 2000, *range(5000, 60_001, 5000)),
)
SIZES = {size.name: size for size in (DEMO, PAPER)}


@dataclass(frozen=True)
class Course:
    """Values at the checkpoints: `last` at the last one, on a line over log iteration that changes
    by `change`.

    `scatter` is that of the checkpoints about the line, anew in every draw, over that of the demo
    (`SCATTER`). The value of the last one is the truth about another finding if `pinned`, and then
    on the line. `untrained` is the value before training, by default that of the first checkpoint.
    """

    last: float
    change: float = 0.0
    scatter: float = 0.0
    pinned: bool = False
    untrained: float | None = None

    def line(self, size: Size) -> np.ndarray:
        """(checkpoints,); before the end of warm-up as at the first checkpoint after it.

        The first checkpoint is the untrained model.
        """
        after = [iteration for iteration in size.iterations if iteration > size.warmup]
        position = np.log(np.maximum(size.iterations, after[0]) / after[-1]) / np.log(
            after[-1] / after[0]
        )
        line = self.last + self.change * position
        if self.untrained is not None:
            line[0] = self.untrained
        return line


def since_untrained(
    last: float, untrained: float, change: float = 0.0, scatter: float = 1.0
) -> Course:
    """The scatter of the checkpoints between has no part in the difference of these two.

    `change` is that of the line after warm-up, the other reading.
    """
    return Course(last, change, scatter, pinned=True, untrained=untrained)


Losses = dict[str, dict[float, float]]  # criterion -> {threshold: number}


@dataclass(frozen=True)
class World:
    """True values.

    Attributes:
        rate: Decades per loop step by which norms fall.
        size: Logarithm of the norm at k = 1.
        floor: Norm at which they stop falling, over that at k = 1.
        converged: Late cosine.
        variance: Of the mean cosine over k = 10 … 29.
        first: Cosine at k = 1, minus the converged one.
        turn: Ratio of the angle between steps over k = 20 … 29 to that over k = 10 … 19.
        dlr: Drift-to-loop ratio.
        loss: Nats lost at an operating point, else 0, but 1 at `TOO_LARGE`.
        gain: Nats lost at `CHEAPEST`.
        random: Nats lost by random exits of the cost of an operating point, else 0.1.
        milliseconds: Time at an operating point, else 10.
        evaluations: Mean at an operating point, else 12.
        one: The world of the last group and boundary, if it differs. They have the most noise.
    """

    rate: Course = Course(0.4)
    size: Course = Course(1.0)
    floor: float = 0.0
    converged: Course = Course(0.575)
    variance: Course = Course(0.0)
    first: float = -0.4
    turn: float = 1.0
    dlr: Course = Course(15.0)
    loss: Losses = field(default_factory=dict)
    # times the root of the nats lost: their spread over sequences; 0.17 in the demo
    root_of_loss: float = 0.0
    gain: float = 1.0
    random: Losses = field(default_factory=dict)
    milliseconds: Losses = field(default_factory=dict)
    evaluations: Losses = field(default_factory=dict)
    one: "World | None" = None

    def of(self, place: str) -> "World":
        """The world of a group or boundary."""
        return self.one if self.one is not None and place in (GROUPS[-1], BOUNDARIES[-1]) else self


def everywhere(number: float, thresholds: Sequence[float] = HALF_DECADES) -> dict[float, float]:
    return dict.fromkeys(thresholds, number)


def one_group(world: World, **changes: object) -> World:
    """`world`, but for the last group and boundary."""
    return replace(world, one=replace(world, **changes))


def race(kl: float, step_norm: float, loss: Losses | None = None) -> World:
    """Acceleration takes 5 ms at 1e-2, and the two others so many times as long; times fall by 10 %
    per threshold.
    """
    fastest = {"acceleration": 5.0, "kl": 5.0 * kl, "step_norm": 5.0 * step_norm}
    times = {
        name: {
            tau: time * 1.1 ** (6 - place) for place, tau in enumerate([*HALF_DECADES, TOO_LARGE])
        }
        for name, time in fastest.items()
    }
    return World(milliseconds=times, loss=loss or {}, root_of_loss=0.17)


def lost_from(threshold: float, nats: float) -> dict[float, float]:
    """Nats lost from a threshold on."""
    return {tau: nats for tau in HALF_DECADES if tau > threshold / 1.01}


def rising(place: float, slope: float = 0.5) -> dict[float, float]:
    """Nats lost that are 0.01 at a place of the grid and grow tenfold in 1 / `slope` places, as in
    the demo.
    """
    grid = [*HALF_DECADES, TOO_LARGE]
    return {tau: 0.01 * 10 ** (slope * (number - place)) for number, tau in enumerate(grid)}


SETTLING = World(variance=Course(0.0005, -0.01, 1.0, pinned=True))
ORTHOGONAL = World(converged=Course(0.35, -0.4, 0.1))
FASTER_DECAY = World(rate=since_untrained(0.5, 0.15, change=0.3, scatter=0.1))
SMALLER = World(size=since_untrained(0.5, 2.0, change=-1.0, scatter=0.1))
CLIFF = {1e-2: 0.4}
# nats that the step norm loses slowly, 0.01 at 1e-4
CREEPING = {tau: 0.005 * place for place, tau in enumerate(HALF_DECADES)}
EARLY_LOSS = dict(zip(HALF_DECADES, (0.008, 0.012, 0.02, 0.04, 0.1, 0.2, 0.4), strict=True))
FASTER = {"kl": everywhere(17.0)}

# claim -> kind -> worlds
WORLDS: dict[int, dict[str, list[World]]] = {
    1: {
        TRUE: [World(rate=Course(0.3))],
        TRUE_LIMIT: [World(rate=Course(1 / 9))],
        FALSE: [one_group(World(), rate=Course(0.06))],
        FALSE_LIMIT: [one_group(World(), rate=Course(1 / 9))],
    },
    2: {
        TRUE: [FASTER_DECAY],
        TRUE_LIMIT: [World(rate=since_untrained(0.15, 0.15))],
        FALSE: [one_group(FASTER_DECAY, rate=since_untrained(0.1, 0.2, -0.3, 0.1))],
        FALSE_LIMIT: [
            one_group(FASTER_DECAY, rate=since_untrained(0.15, 0.15, 0.3, 0.1)),
            one_group(FASTER_DECAY, rate=since_untrained(0.5, 0.15)),
        ],
        MIXED: [one_group(FASTER_DECAY, rate=since_untrained(0.3, 0.15, -0.3, 0.1))],
    },
    3: {
        TRUE: [SETTLING],
        TRUE_LIMIT: [World(first=0.0, variance=Course(0.05**2, 0.025**2, 1.0, pinned=True))],
        FALSE: [
            one_group(SETTLING, first=0.4),
            one_group(SETTLING, variance=Course(0.025, -0.01, 1.0, pinned=True)),
            one_group(SETTLING, variance=Course(0.04, 0.04, 0.1, pinned=True)),
        ],
        FALSE_LIMIT: [
            one_group(SETTLING, first=0.0),
            one_group(SETTLING, variance=Course(0.05**2, -0.01, 1.0, pinned=True)),
            one_group(SETTLING, variance=Course(0.001, 0.025**2, 1.0, pinned=True)),
        ],
    },
    4: {
        TRUE: [World()],
        TRUE_LIMIT: [World(converged=Course(0.45)), World(converged=Course(0.70))],
        FALSE: [one_group(World(), converged=Course(0.1))],
        FALSE_LIMIT: [one_group(World(), converged=Course(edge)) for edge in (0.45, 0.70)],
    },
    5: {
        TRUE: [
            World(converged=Course(0.1, -0.8, 1.0, pinned=True)),
            World(converged=Course(-0.02, -0.6, 0.2, pinned=True)),
        ],
        # the modulus falls by 0.05 to 0.08: less than the cosine where scatter changes its sign
        TRUE_LIMIT: [World(converged=Course(0.4, -0.06, 1.0, pinned=True))],
        FALSE: [one_group(ORTHOGONAL, converged=Course(0.8, 0.7, 0.1, pinned=True))],
        FALSE_LIMIT: [one_group(ORTHOGONAL, converged=Course(0.5, -0.05, 1.0, pinned=True))],
        MIXED: [one_group(ORTHOGONAL, converged=since_untrained(0.4, 0.1, -0.4, 0.1))],
    },
    6: {
        TRUE: [World()],
        TRUE_LIMIT: [World(dlr=Course(5.0, 4.0)), World(dlr=Course(5.0))],
        FALSE: [one_group(World(), dlr=Course(3.0)), one_group(World(), dlr=Course(10.0, 9.5))],
        FALSE_LIMIT: [
            one_group(World(), dlr=Course(5.0)),
            one_group(World(), dlr=Course(15.0, 14.0)),
        ],
    },
    7: {
        kind: [World(milliseconds={"acceleration": {1e-5: 10.0, 1e-2: time}})]
        for kind, time in {TRUE: 5.0, TRUE_LIMIT: 7.5, FALSE: 11.0, FALSE_LIMIT: 7.5}.items()
    },
    8: {
        TRUE: [World()],
        TRUE_LIMIT: [
            World(
                loss={
                    "acceleration": everywhere(0.01, PAPER_GRID[1:]),
                    "kl": everywhere(-0.01, PAPER_GRID[1:]),
                }
            )
        ],
        FALSE: [World(loss={"kl": {1e-2: nats}}) for nats in (0.05, -0.05)],
        FALSE_LIMIT: [World(loss={"acceleration": {1e-2: nats}}) for nats in (0.01, -0.01)],
    },
    9: {
        TRUE: [World(loss={"step_norm": CLIFF})],
        TRUE_LIMIT: [World(loss={"step_norm": {1e-3: 0.01, 1e-2: 0.06}})],
        FALSE: [World(loss={"step_norm": CREEPING})],
        FALSE_LIMIT: [
            World(loss={"step_norm": {1e-2: 0.05}}),
            World(loss={"step_norm": {1e-3: 0.01, 1e-2: 0.4}}),
        ],
        MIXED: [World(loss={"step_norm": {1e-3: 0.1, 1e-2: 0.4}})],
    },
    10: {
        TRUE: [race(1.5, 0.9)],
        TRUE_LIMIT: [
            race(1.0, 1.0),
            race(1.0, 1.0, {name: rising(4.5) for name in ("acceleration", "kl")}),
        ],
        FALSE: [race(0.6, 1.5)],
        FALSE_LIMIT: [
            race(1.0, 1.5),
            # as fast as KL where 0.01 nats are lost: between thresholds, and just after 1e-2
            race(1.1**1.51, 3.0, {"acceleration": rising(4.5)}),
            race(1.1**-1.51, 1.5, {"kl": rising(4.5)}),
        ],
    },
    11: {
        TRUE: [World(milliseconds=FASTER)],
        TRUE_LIMIT: [World()],
        FALSE: [World(milliseconds={"kl": everywhere(17.0) | {1e-2: 7.0}})],
        FALSE_LIMIT: [World(milliseconds={"kl": everywhere(17.0, PAPER_GRID) | {1e-2: 10.0}})],
        MIXED: [World(milliseconds={"kl": everywhere(7.0, PAPER_GRID[:3]) | {1e-2: 17.0}})],
    },
    12: {
        TRUE: [SMALLER],
        TRUE_LIMIT: [World(size=since_untrained(1.0, 1.0))],
        FALSE: [one_group(SMALLER, size=since_untrained(1.0, 0.5, 1.0, 0.1))],
        FALSE_LIMIT: [
            one_group(SMALLER, size=since_untrained(1.0, 1.0, -1.0, 0.1)),
            one_group(SMALLER, size=since_untrained(0.5, 2.0)),
        ],
        MIXED: [one_group(SMALLER, size=since_untrained(0.5, 1.0, 1.0, 0.1))],
    },
    13: {
        TRUE: [World(floor=0.05)],
        TRUE_LIMIT: [World(rate=Course(np.log10(2) / 10), turn=2.0)],
        FALSE: [one_group(World(floor=0.05), floor=0.0), one_group(World(floor=0.05), turn=3.5)],
        FALSE_LIMIT: [
            one_group(World(floor=0.05), floor=0.0, rate=Course(np.log10(2) / 10)),
            one_group(World(floor=0.05), turn=2.0),
        ],
    },
    14: {
        TRUE: [World(evaluations=FASTER)],
        TRUE_LIMIT: [World()],
        FALSE: [World(evaluations={"kl": everywhere(17.0, PAPER_GRID) | {1e-2: 7.0}})],
        FALSE_LIMIT: [World(evaluations={"kl": everywhere(17.0, PAPER_GRID) | {1e-2: 12.0}})],
        MIXED: [World(evaluations={"kl": everywhere(7.0, PAPER_GRID[:3]) | {1e-2: 17.0}})],
    },
    15: {
        TRUE: [World(loss={"step_norm": CLIFF, "acceleration": CREEPING, "kl": CREEPING})],
        TRUE_LIMIT: [World(loss={"step_norm": {1e-2: 0.01}})],
        FALSE: [World(loss={"step_norm": CLIFF, "kl": {1e-2: 0.6}})],
        FALSE_LIMIT: [World(loss={"step_norm": {1e-2: 0.2}, "kl": {1e-2: 0.19}})],
        # KL loses more up to 1e-2, and less from equal quality to the tenfold threshold
        MIXED: [World(loss={"step_norm": {1e-2: 0.3}, "acceleration": CREEPING, "kl": EARLY_LOSS})],
    },
    16: {
        TRUE: [race(0.9, 1.5, {"kl": lost_from(3e-4, 0.1)})],
        TRUE_LIMIT: [
            race(1.0, 1.0),
            race(1.0, 1.0, {name: rising(4.5) for name in ("acceleration", "step_norm")}),
        ],
        FALSE: [race(1.5, 0.6)],
        FALSE_LIMIT: [
            race(1.5, 1.0),
            race(3.0, 1.1**1.51, {"acceleration": rising(4.5)}),
            race(1.5, 1.1**-1.51, {"step_norm": rising(4.5)}),
        ],
    },
}


# claim -> attribute, value at the last checkpoint at which the claim fails, and a change by which it
# came closer, in one group
OUTSIDE: dict[int, tuple[str, float, float]] = {
    1: ("rate", 0.06, 0.05),
    3: ("variance", 0.04, -0.15),
    4: ("converged", -0.3, 1.0),
    6: ("dlr", 3.0, 2.0),
    13: ("rate", 0.06, -0.15),
}


def standing(number: int, share: float = 0.0) -> World:
    """A claim fails in one group, which has moved towards the paper by this share of a change."""
    name, last, change = OUTSIDE[number]
    course = Course(last, share * change, 1.0)
    inside = {3: SETTLING, 13: World(floor=0.05)}
    return one_group(inside.get(number, World()), floor=0.0, **{name: course})


@dataclass(frozen=True)
class Family:
    """Worlds in which one number of a claim varies, from its bound outwards.

    Attributes:
        number: The number and its unit.
        upheld: World in which the claim is true, by the number.
        refuted: World in which it is false in one place.
        bound: Of the number.
        ends: The number furthest inside its bound, and furthest outside.
    """

    number: str
    upheld: Callable[[float], World]
    refuted: Callable[[float], World]
    bound: float
    ends: tuple[float, float]

    def worlds(self, verdict: str) -> dict[float, World]:
        """Number -> world in which the verdict would be right, from the bound outwards."""
        make, end = (
            (self.upheld, self.ends[0]) if verdict == HOLDS else (self.refuted, self.ends[1])
        )
        numbers = self.bound + (end - self.bound) * np.geomspace(0.01, 1, 25)
        return {float(number): make(float(number)) for number in numbers}


def decay(ratio: float, steps: int) -> Course:
    """Norms fall to this ratio in so many loop steps."""
    return Course(-np.log10(ratio) / steps)


def quality(**loss: float) -> World:
    """Nats lost at τ = 1e-2, by criterion."""
    return World(loss={criterion: {1e-2: nats} for criterion, nats in loss.items()})


def slower(ratio: float, but: float = 1.0) -> World:
    """KL takes so many times as long as acceleration, at 1e-2 times `but`."""
    times = everywhere(10 * ratio)
    return World(milliseconds={"kl": times | {1e-2: but * times[1e-2]}})


def later(evaluations: float, but: float = 0.0) -> World:
    """KL takes so many evaluations more than acceleration, at 1e-2 `but` more."""
    return World(
        evaluations={
            "kl": everywhere(12 + evaluations, PAPER_GRID) | {1e-2: 12 + evaluations + but}
        }
    )


def saving(ratio: float) -> World:
    return World(milliseconds={"acceleration": {1e-5: 10.0, 1e-2: 10 * ratio}})


def flat(nats: float) -> World:
    return World(
        loss={criterion: everywhere(nats, PAPER_GRID[1:]) for criterion in ("acceleration", "kl")}
    )


def deviation(number: float, change: float = 0.0) -> Course:
    """Course of the variance whose root is `number` at the last checkpoint."""
    return Course(number**2, change, 1.0, pinned=True)


def modulus(change: float) -> Course:
    """Course of the late cosine between 0.1 and 0.1 + |change|."""
    return Course(0.1 + max(change, 0.0), change, 1.0, pinned=True)


def in_all_or_one(
    number: str, vary: Callable, bound: float, ends: tuple[float, float], base: World = World()
) -> Family:
    """A family that varies the same values of all groups, or of one group of the world `base`."""
    return Family(
        number, lambda x: World(**vary(x)), lambda x: one_group(base, **vary(x)), bound, ends
    )


FAMILIES = {
    1: in_all_or_one(
        "norm at k = 10 over that at k = 1",
        lambda ratio: {"rate": decay(ratio, 9)},
        0.1,
        (0.001, 1.0),
    ),
    2: Family(
        "change of the decades per loop step",
        lambda change: World(rate=since_untrained(0.15 + change, 0.15, change)),
        lambda change: one_group(FASTER_DECAY, rate=since_untrained(0.15, 0.15 - change, change)),
        *(0.0, (1.5, -1.5)),
    ),
    3: Family(
        "deviation of the late cosine",
        lambda number: World(variance=deviation(number, -0.01)),
        lambda number: one_group(SETTLING, variance=deviation(number)),
        *(0.05, (0.0, 0.35)),
    ),
    4: in_all_or_one(
        "late cosine", lambda cosine: {"converged": Course(cosine)}, 0.45, (0.575, -0.9)
    ),
    5: in_all_or_one(
        "change of the modulus of the late cosine",
        lambda change: {"converged": modulus(change)},
        *(-0.05, (-0.9, 0.9), ORTHOGONAL),
    ),
    6: in_all_or_one(
        "DLR at the last checkpoint", lambda dlr: {"dlr": Course(dlr)}, 5.0, (15.0, 1.0)
    ),
    7: Family("time at 1e-2 over that at 1e-5", saving, saving, 0.75, (0.1, 3.0)),
    8: Family("change of CE in nats", flat, lambda nats: quality(kl=nats), 0.01, (0.0, 0.5)),
    9: Family(
        "nats lost from 1e-3 to 1e-2",
        lambda nats: quality(step_norm=nats),
        lambda nats: quality(step_norm=nats),
        *(0.05, (1.0, 0.0)),
    ),
    10: Family(
        "time of acceleration over that of another criterion",
        lambda ratio: race(1 / ratio, 1 / ratio),
        lambda ratio: race(1 / ratio, 1.5),
        *(1.0, (0.1, 10.0)),
    ),
    11: Family(
        "time of KL over that of acceleration",
        slower,
        lambda ratio: slower(1.7, but=ratio / 1.7),
        1.0,
        (4.0, 0.2),
    ),
    12: Family(
        "change of ln of the mean step norm",
        lambda change: World(size=since_untrained(1.0 + change, 1.0, change)),
        lambda change: one_group(SMALLER, size=since_untrained(1.0 + change, 1.0, change)),
        *(0.0, (-6.0, 6.0)),
    ),
    13: Family(
        "norm over k = 20 … 29 over that over k = 10 … 19",
        lambda ratio: World(rate=decay(ratio, 10)),
        lambda ratio: one_group(World(floor=0.05), floor=0.0, rate=decay(ratio, 10)),
        *(0.5, (1.0, 0.001)),
    ),
    14: Family(
        "evaluations under KL minus those of acceleration",
        later,
        lambda m: later(5.0, m - 5.0),
        0.0,
        (12, -12),
    ),
    15: Family(
        "nats that step norm loses more",
        lambda nats: quality(step_norm=nats),
        lambda nats: quality(kl=-nats),
        *(0.01, (1.0, -1.0)),
    ),
    16: Family(
        "time of acceleration over that of the step norm",
        lambda ratio: race(1 / ratio, 1 / ratio),
        lambda ratio: race(1.5, 1 / ratio),
        *(1.0, (0.1, 10.0)),
    ),
}
