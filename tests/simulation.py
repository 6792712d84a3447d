"""How often a verdict is wrong: evidence drawn from worlds in which a claim is true, or false, and verdicts counted.

    PYTHONPATH=src python -m tests.simulation 1000     # prints the table of docs/reproduction.md, from 1000 draws

A `World` has the true values: norms, cosines and ratios per checkpoint, the loss of quality and the time at each
operating point. A draw adds what a run adds: documents that differ, sequences of a document that are alike, a course
of training that scatters about its line, and timings with noise and outliers. The sizes are those of a preset, the
noise is that of the demo (standard deviations over its 16 and 32 sequences). The verdict is that of
`claims.examine` itself; only the tables are left out, a draw gives the arrays of units.

For every claim there are four kinds of worlds. `TRUE` and `FALSE` are far from the bounds. In `TRUE_LIMIT` every
number is at its bound, which is where a true claim is refuted most often. In `FALSE_LIMIT` one number is at its bound
and all others are far inside, which is where a false claim is upheld most often.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from twoscale.analysis import claims
from twoscale.analysis.claims_exits import PAPER_GRID
from twoscale.analysis.evidence import Evidence
from twoscale.analysis.findings import FAILS, HOLDS, OPEN

TRUE, TRUE_LIMIT, FALSE, FALSE_LIMIT = "true", "true, at every bound", "false", "false, at one bound"
K = np.arange(30)
GROUPS = ("4", "5-6", "7")
BOUNDARIES = ("4->5-6", "5-6->7")
STATES = ("first_state", "projected", "final", "initial")
HALF_DECADES = tuple(10 ** (exponent / 2) for exponent in range(-10, -3))
TOO_LARGE = 1.0  # the last threshold of every grid, at which quality is lost


@dataclass(frozen=True)
class Size:
    """A preset: its held-out sequences and the documents that they begin in, timed prompts, checkpoints."""

    name: str
    sequences: int
    documents: int
    quality_sequences: int
    quality_documents: int
    prompts: int
    warmup: int
    iterations: tuple[int, ...]


DEMO = Size("demo", 16, 8, 32, 12, 9, 50, (50, 100, 200, 400, 600, 800, 1000))
PAPER = Size("paper", 16, 16, 32, 28, 5, 2000, (500, 1000, 2000, *range(5000, 60_001, 5000)))
SIZES = {size.name: size for size in (DEMO, PAPER)}


@dataclass(frozen=True)
class Course:
    """Values at the checkpoints: `last` at the last one, on a line over log iteration that changes by `change`.

    `scatter` is the standard deviation of the checkpoints about the line, anew in every draw. The value of the last
    one is the truth about another finding if `pinned`, and then on the line.
    """

    last: float
    change: float = 0.0
    scatter: float = 0.0
    pinned: bool = False

    def values(self, size: Size, generator: np.random.Generator) -> np.ndarray:
        """(checkpoints,); before the end of warm-up as at the first checkpoint after it."""
        after = [iteration for iteration in size.iterations if iteration > size.warmup]
        position = np.log(np.maximum(size.iterations, after[0]) / after[-1]) / np.log(after[-1] / after[0])
        noise = self.scatter * generator.normal(size=len(position))
        noise[-1] *= not self.pinned
        return self.last + self.change * position + noise


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
        milliseconds: Median latency at an operating point, else 10.
        evaluations: Mean at an operating point, else 12.
        one: The world of group 4 and of the first boundary, if it differs.
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
    milliseconds: Losses = field(default_factory=dict)
    evaluations: Losses = field(default_factory=dict)
    one: "World | None" = None

    def of(self, place: str) -> "World":
        """The world of a group or boundary."""
        return self.one if self.one is not None and place in (GROUPS[0], BOUNDARIES[0]) else self


def at(numbers: Losses, point: tuple[str, float], otherwise: float) -> float:
    """The number of an operating point; thresholds need not agree in the last bit."""
    criterion, threshold = point
    known = [number for tau, number in numbers.get(criterion, {}).items() if np.isclose(tau, threshold, atol=0)]
    return known[0] if known else otherwise


class Draw(Evidence):
    """The units of one run in a world, in place of the tables of `Evidence`."""

    groups, boundaries, reference_states = list(GROUPS), list(BOUNDARIES), list(STATES)
    loop_steps = len(K)

    def __init__(self, world: World, size: Size, seed: int) -> None:
        for name, value in {"world": world, "size": size, "max_loops": 30, "warmup": size.warmup, "seed": 0}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "generator", np.random.default_rng(seed))
        object.__setattr__(self, "drawn", {})

    @property
    def iterations(self) -> list[int]:
        return list(self.size.iterations)

    def check_angles(self, *arguments: object) -> None:
        """Nothing is under the rounding floor."""

    def load(self) -> str:
        return ""

    # --- noise -------------------------------------------------------------------------------------------------

    def documents(self, quality: bool) -> np.ndarray:
        """Document of each sequence; every document has one, and the others fall where they may."""
        size = self.size
        count, number = (
            (size.quality_sequences, size.quality_documents) if quality else (size.sequences, size.documents)
        )
        return self.once(
            ("documents", quality),
            lambda: np.append(np.arange(number), self.generator.integers(number, size=count - number)),
        )

    def once(self, key: object, draw: Callable[[], np.ndarray]) -> np.ndarray:
        """What `draw` gives at the first call with this key."""
        if key not in self.drawn:
            self.drawn[key] = draw()
        return self.drawn[key]

    def effects(self, *shape: int, quality: bool = False) -> np.ndarray:
        """Effects of variance 1 (sequences, *shape), half of it that of the document."""
        of_sequence = self.documents(quality)
        per_document = self.generator.normal(size=(of_sequence.max() + 1, *shape))[of_sequence]
        return (per_document + self.generator.normal(size=per_document.shape)) / np.sqrt(2)

    def units(self, values: np.ndarray, quality: bool = False) -> np.ndarray:
        """Sums and counts of documents (documents, ..., 2) from values of sequences (sequences, ...), 100 tokens."""
        of_sequence = self.documents(quality)
        membership = (of_sequence == np.arange(of_sequence.max() + 1)[:, None]).astype(float)
        sums = np.tensordot(membership, values, 1)
        counts = np.broadcast_to(membership.sum(1).reshape(-1, *[1] * (values.ndim - 1)), sums.shape)
        return 100 * np.stack([sums, counts], axis=-1)

    # --- geometry ----------------------------------------------------------------------------------------------

    def curves(self, measure: str, group: str, iterations: Sequence[int], until: int = 0) -> np.ndarray:
        draw = {"step_norm": self._norms, "cosine": self._cosines}[measure]
        values = self.once((measure, group), lambda: draw(group))
        return values[:, [self.iterations.index(iteration) for iteration in iterations]]

    def _norms(self, group: str) -> np.ndarray:
        world, generator = self.world.of(group), self.generator
        rates, sizes = (course.values(self.size, generator)[:, None] for course in (world.rate, world.size))
        truth, checkpoints = np.exp(sizes) * np.maximum(10 ** (-rates * (K - 1)), world.floor), len(rates)
        # sequences differ by 2 % at the first steps and by half from the tenth on, mostly by how fast they decay
        spread = np.minimum(0.02 + 0.04 * K, 0.5)
        decay, single = self.effects(checkpoints, 1), self.effects(checkpoints, len(K))
        noise = spread * (np.sqrt(0.8) * decay + np.sqrt(0.2) * single)
        return self.units(truth * np.exp(noise - spread**2 / 2))  # the mean over sequences is the truth

    def _cosines(self, group: str) -> np.ndarray:
        world, generator = self.world.of(group), self.generator
        levels, variances = (course.values(self.size, generator) for course in (world.converged, world.variance))
        wave = np.sqrt(2) * np.sin(2 * np.pi * (K - 10) / 20)  # variance 1 over k = 10 … 29
        truth = levels[:, None] + np.sqrt(np.maximum(variances, 0))[:, None] * wave
        truth[:, 20:] = np.cos(np.arccos(truth[:, 20:]) * world.turn)
        truth[:, 1] = levels + world.first
        checkpoints = len(levels)
        level, drift = 0.2 * self.effects(checkpoints, 1), 0.1 * self.effects(checkpoints, 1) * (K - 20) / 10
        single = np.where(K < 5, 0.01, 0.08) * self.effects(checkpoints, len(K))
        # at k = 1 sequences are alike
        return self.units(truth + np.where(K < 5, 0.0, level + drift) + single)

    def ratios(self, boundary: str, reference_state: str, iteration: int, measure: str = "dlr") -> np.ndarray:
        def draw() -> np.ndarray:
            means = self.world.of(boundary).dlr.values(self.size, self.generator)
            return self.units(means * (1 + 0.05 * self.effects(len(means))))

        return self.once((boundary, reference_state), draw)[:, self.iterations.index(iteration)]

    # --- exits -------------------------------------------------------------------------------------------------

    def thresholds(self, criterion: str) -> list[float]:
        return [*HALF_DECADES, TOO_LARGE]

    def entropies(self, points: Sequence[tuple[str, float]]) -> np.ndarray:
        text = self.once("text", lambda: 5 + 0.4 * self.effects(quality=True))
        return np.stack([self.units(text + self._loss(point), quality=True) for point in points], axis=1)

    def _loss(self, point: tuple[str, float]) -> np.ndarray:
        """Nats lost per sequence: that of the world, more for some text than for other."""
        loss = at(self.world.loss, point, float(point[1] == TOO_LARGE))
        noise = self.once(("loss", point), lambda: self.effects(quality=True))
        return loss + (0.005 + 0.5 * abs(loss)) * noise * (point[0] != "fixed")

    def evaluations(self, points: Sequence[tuple[str, float]]) -> np.ndarray:
        def draw(point: tuple[str, float]) -> np.ndarray:
            return at(self.world.evaluations, point, 12.0) + 3.0 * self.effects(quality=True)

        values = [self.once(("evaluations", point), lambda p=point: draw(p)) for point in points]
        return np.stack([self.units(value, quality=True) for value in values], axis=1)

    def latencies(self, points: Sequence[tuple[str, float]]) -> np.ndarray:
        return np.stack([self.once(("times", point), lambda p=point: self._times(p)) for point in points], axis=1)

    def _times(self, point: tuple[str, float]) -> np.ndarray:
        """Prompts differ by 3 %, timings by 4 %; one of thirty is half as long again."""
        prompts = self.once("prompts", lambda: self.generator.normal(size=self.size.prompts))
        noise, outliers = (
            self.generator.normal(size=self.size.prompts),
            self.generator.random(self.size.prompts) < 1 / 30,
        )
        milliseconds = at(self.world.milliseconds, point, 10.0)
        return milliseconds * np.exp(0.03 * prompts + 0.04 * noise + np.log(1.5) * outliers)


def mean_of(units: np.ndarray) -> np.ndarray:
    """Means over all documents: (documents, ..., 2) -> (...)."""
    sums = units.sum(axis=0)
    return sums[..., 0] / sums[..., 1]


def everywhere(number: float, thresholds: Sequence[float] = HALF_DECADES) -> dict[float, float]:
    return dict.fromkeys(thresholds, number)


def one_group(world: World, **changes: object) -> World:
    """`world`, but for group 4 and the first boundary."""
    return replace(world, one=replace(world, **changes))


def race(kl: float, step_norm: float, loss: Losses | None = None) -> World:
    """Acceleration takes 5 ms at 1e-2, and the two others so many times as long; further times are longer by 10 %."""
    fastest = {"acceleration": 5.0, "kl": 5.0 * kl, "step_norm": 5.0 * step_norm}
    times = {
        name: {tau: time * 1.1**number for number, tau in enumerate(reversed(HALF_DECADES))}
        for name, time in fastest.items()
    }
    return World(milliseconds=times, loss=loss or {})


def lost_from(threshold: float, nats: float) -> dict[float, float]:
    """Nats lost from a threshold on."""
    return {tau: nats for tau in HALF_DECADES if tau > threshold / 1.01}


SETTLING = World(variance=Course(0.0005, -0.01, 0.001, pinned=True))
ORTHOGONAL = World(converged=Course(0.35, -0.4, 0.04))
CLIFF = {1e-2: 0.4}
FASTER, SLOWER = {"kl": everywhere(17.0)}, {"kl": everywhere(7.0)}

# claim -> kind -> worlds
WORLDS: dict[int, dict[str, list[World]]] = {
    1: {
        TRUE: [World(rate=Course(0.3))],
        TRUE_LIMIT: [World(rate=Course(1 / 9))],
        FALSE: [one_group(World(), rate=Course(0.06))],
        FALSE_LIMIT: [one_group(World(), rate=Course(1 / 9))],
    },
    2: {
        TRUE: [World(rate=Course(0.5, 0.2, 0.03))],
        TRUE_LIMIT: [World(rate=Course(0.4, 0.0, 0.03))],
        FALSE: [one_group(World(rate=Course(0.5, 0.2, 0.03)), rate=Course(0.3, -0.2, 0.03))],
        FALSE_LIMIT: [
            one_group(World(rate=Course(0.5, 0.2, 0.01)), rate=Course(0.4, 0.0, scatter)) for scatter in (0.01, 0.08)
        ],
    },
    3: {
        TRUE: [SETTLING],
        TRUE_LIMIT: [World(first=0.0, variance=Course(0.05**2, 0.025**2, 0.0005, pinned=True))],
        FALSE: [
            one_group(SETTLING, first=0.4),
            one_group(SETTLING, variance=Course(0.01, -0.01, 0.001, pinned=True)),
            one_group(SETTLING, variance=Course(0.02, 0.02, 0.002, pinned=True)),
        ],
        FALSE_LIMIT: [
            one_group(SETTLING, first=0.0),
            one_group(SETTLING, variance=Course(0.05**2, -0.01, 0.001, pinned=True)),
            one_group(SETTLING, variance=Course(0.001, 0.025**2, 0.0002, pinned=True)),
        ],
    },
    4: {
        TRUE: [World()],
        TRUE_LIMIT: [World(converged=Course(0.45)), World(converged=Course(0.70))],
        FALSE: [one_group(World(), converged=Course(0.1))],
        FALSE_LIMIT: [one_group(World(), converged=Course(edge)) for edge in (0.45, 0.70)],
    },
    5: {
        TRUE: [ORTHOGONAL, World(converged=Course(-0.02, -0.6, 0.04))],
        TRUE_LIMIT: [World(converged=Course(0.3, -0.05, 0.04)), World(converged=Course(-0.1, 0.3, 0.02, pinned=True))],
        FALSE: [
            one_group(ORTHOGONAL, converged=Course(0.7, 0.4, 0.04)),
            one_group(ORTHOGONAL, converged=Course(-0.5, 0.4, 0.04)),
        ],
        FALSE_LIMIT: [
            one_group(ORTHOGONAL, converged=Course(0.3, -0.05, 0.04)),
            one_group(ORTHOGONAL, converged=Course(-0.1, 0.4, 0.02, pinned=True)),
        ],
    },
    6: {
        TRUE: [World()],
        TRUE_LIMIT: [World(dlr=Course(5.0, 4.0)), World(dlr=Course(5.0))],
        FALSE: [one_group(World(), dlr=Course(3.0)), one_group(World(), dlr=Course(10.0, 9.5))],
        FALSE_LIMIT: [one_group(World(), dlr=Course(5.0)), one_group(World(), dlr=Course(15.0, 14.0))],
    },
    7: {
        kind: [World(milliseconds={"acceleration": {1e-5: 10.0, 1e-2: time}})]
        for kind, time in {TRUE: 6.2, TRUE_LIMIT: 7.5, FALSE: 9.5, FALSE_LIMIT: 7.5}.items()
    },
    8: {
        TRUE: [World()],
        TRUE_LIMIT: [
            World(loss={"acceleration": everywhere(0.01, PAPER_GRID[1:]), "kl": everywhere(-0.01, PAPER_GRID[1:])})
        ],
        FALSE: [World(loss={"kl": {1e-2: nats}}) for nats in (0.05, -0.05)],
        FALSE_LIMIT: [World(loss={"acceleration": {1e-2: nats}}) for nats in (0.01, -0.01)],
    },
    9: {
        TRUE: [World(loss={"step_norm": CLIFF})],
        TRUE_LIMIT: [World(loss={"step_norm": {1e-3: 0.01, 1e-2: 0.06}})],
        FALSE: [World(), World(loss={"step_norm": {1e-3: 0.1, 1e-2: 0.4}})],
        FALSE_LIMIT: [World(loss={"step_norm": {1e-2: 0.05}}), World(loss={"step_norm": {1e-3: 0.01, 1e-2: 0.4}})],
    },
    10: {
        TRUE: [race(1.5, 0.9, {"step_norm": lost_from(3e-3, 0.1)})],
        TRUE_LIMIT: [race(1.0, 1.0), race(1.0, 1.0, {"acceleration": everywhere(0.01), "kl": everywhere(0.01)})],
        FALSE: [race(0.6, 1.5)],
        FALSE_LIMIT: [
            race(1.0, 1.5),
            # faster only at a threshold that is just not good enough, or against one that is just good enough
            race(1.02, 1.5, {"acceleration": lost_from(3e-3, 0.0101)}),
            race(0.98, 1.5, {"kl": lost_from(3e-3, 0.0099)}),
        ],
    },
    11: {
        TRUE: [World(milliseconds=FASTER)],
        TRUE_LIMIT: [World()],
        FALSE: [World(milliseconds={"kl": everywhere(17.0) | {1e-2: 7.0}})],
        FALSE_LIMIT: [World(milliseconds={"kl": everywhere(17.0, PAPER_GRID) | {1e-2: 10.0}})],
    },
    12: {
        TRUE: [World(size=Course(0.5, -0.6, 0.1))],
        TRUE_LIMIT: [World(size=Course(1.0, 0.0, 0.1))],
        FALSE: [one_group(World(size=Course(0.5, -0.6, 0.1)), size=Course(1.0, 0.6, 0.1))],
        FALSE_LIMIT: [
            one_group(World(size=Course(0.5, -0.6, 0.05)), size=Course(1.0, 0.0, scatter)) for scatter in (0.01, 0.2)
        ],
    },
    13: {
        TRUE: [World(floor=0.05)],
        TRUE_LIMIT: [World(rate=Course(np.log10(2) / 10), turn=2.0)],
        FALSE: [one_group(World(floor=0.05), floor=0.0), one_group(World(floor=0.05), turn=2.8)],
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
    },
    15: {
        TRUE: [World(loss={"step_norm": CLIFF})],
        TRUE_LIMIT: [World(loss={"step_norm": {1e-2: 0.01}})],
        FALSE: [World(loss={"step_norm": CLIFF, "kl": {1e-2: 0.6}})],
        FALSE_LIMIT: [World(loss={"step_norm": {1e-2: 0.2}, "kl": {1e-2: 0.19}})],
    },
}


def count_verdicts(number: int, world: World, size: Size, draws: int) -> Counter:
    """Verdicts on a claim in `draws` runs of a world; the runs are a function of their number and of the claim."""
    claim = claims.CLAIMS[number - 1]
    seeds = np.random.SeedSequence([number, len(size.name)]).generate_state(draws)
    return Counter(claims.examine(claim, Draw(world, size, int(seed)), references=False).verdict for seed in seeds)


def most_wrong(number: int, size: Size, draws: int) -> dict[str, Counter]:
    """Verdicts by kind of world, of those of a kind in which the wrong one is most frequent."""
    wrong = {TRUE: FAILS, TRUE_LIMIT: FAILS, FALSE: HOLDS, FALSE_LIMIT: HOLDS}
    return {
        kind: max(
            (count_verdicts(number, world, size, draws) for world in worlds), key=lambda counts: counts[wrong[kind]]
        )
        for kind, worlds in WORLDS[number].items()
    }


def main(draws: int) -> None:
    """Print shares of verdicts in percent, as a Markdown table."""
    kinds = [
        (TRUE, (HOLDS, FAILS, OPEN)),
        (TRUE_LIMIT, (FAILS,)),
        (FALSE, (HOLDS, FAILS, OPEN)),
        (FALSE_LIMIT, (HOLDS,)),
    ]
    print("| claim | size |", " | ".join(f"{kind}: {', '.join(verdicts)}" for kind, verdicts in kinds), "|")
    print("|---" * (2 + len(kinds)) + "|")
    for number in WORLDS:
        for size in SIZES.values():
            counts = most_wrong(number, size, draws)
            shares = [" · ".join(f"{100 * counts[kind][v] / draws:.1f}" for v in verdicts) for kind, verdicts in kinds]
            print(f"| {number} | {size.name} |", " | ".join(shares), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
