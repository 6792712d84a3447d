"""How often a verdict is wrong: evidence drawn from worlds in which a claim is true, or false, and
verdicts counted.

    PYTHONPATH=src python -m tests.simulation 600 1 4       # tables of docs/judging.md: wrong verdicts in 600 draws,
    PYTHONPATH=src python -m tests.simulation power 100     # and the numbers at which claims are decided
    PYTHONPATH=src python -m tests.simulation moves 400     # how often a claim "moves towards the paper"

Without numbers of claims the tables are of all claims. With OPENBLAS_NUM_THREADS=1 they are faster
on a machine that has other work.

A draw adds to a world of `tests.worlds` what a run adds: documents that differ, sequences of a
document that are alike, a course of training that scatters about its line, and costs with noise and
outliers. The sizes are those of a preset; the documents of "demo" are those of
docs/demo-release. The verdict is that of `claims.examine` itself; only the tables are left out, a
draw gives the arrays of units.
"""

import itertools
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy

import numpy as np

from tests.worlds import (
    BOUNDARIES,
    CHEAPEST,
    FALSE,
    FALSE_LIMIT,
    FAMILIES,
    GROUPS,
    HALF_DECADES,
    MIXED,
    OUTSIDE,
    SIZES,
    TOO_LARGE,
    TRUE,
    TRUE_LIMIT,
    WORLDS,
    Losses,
    Size,
    World,
    standing,
)
from twoscale.claims import bootstrap
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import Evidence, Extent
from twoscale.claims.words import DEPENDS, FAILS, HOLDS, kind

REPEATS = 300  # samples of a bootstrap, fewer than in use
POWER = 0.8
TRENDS = (2, 3, 5, 12)  # claims that are judged on a trend
# kind of world -> the verdicts that are wrong in it
WRONG = {
    TRUE: (FAILS,),
    TRUE_LIMIT: (FAILS,),
    FALSE: (HOLDS,),
    FALSE_LIMIT: (HOLDS,),
    MIXED: (HOLDS, FAILS),
}
CORRELATIONS = (0.0, 0.4, 0.7)  # of the scatter of one checkpoint and the next

STATES = ("first_state", "projected", "final", "initial")
K = np.arange(30)
# Standard deviations in the demo, medians over its three seeds, in the order of GROUPS. Of
# checkpoints about their line, shares of the value for variance and DLR:
SCATTER = {
    "rate": (0.070, 0.134, 0.102),
    "size": (0.25, 0.43, 0.28),
    "converged": (0.19, 0.32, 0.37),
    "variance": (0.9, 0.95, 0.5),
    "dlr": (0.05, 0.10, 0.13),
}
SHARES = ("variance", "dlr")
# Of sequences, for the decay rate as a share:
LATE_SPREAD = (0.06, 0.20, 0.15)
DECAY_SPREAD = (0.02, 0.10, 0.01)
# Of the nats that sequences lose at 1e-2, where the mean loses none; proportional to this power of
# the threshold. The loss itself varies by half, or as `World.root_of_loss` says.
LOSS_SPREAD = {"kl": 0.0126, "acceleration": 0.0007, "step_norm": 0.0001, "fixed": 0.0}
LOSS_EXPONENT = 0.45
# Of the logarithm of the evaluations of a sequence.
EVALUATION_SPREAD = 0.08
# Milliseconds in a model like the demo's: of a token outside its loops, of a loop step in each
# group, and by criterion of a decision, of which a token has one more.
OUTSIDE_LOOPS = 0.7
LOOP_STEPS = np.array([0.1, 0.2, 0.1])
DECISIONS = {"fixed": 0.0, "acceleration": 0.022, "step_norm": 0.02, "kl": 0.08}
# Of repeats, on a machine with two other programs for each core: of a loop step as a share, and of
# a decision as a share of a loop step.
COST_SPREAD, DECISION_SPREAD = 0.14, 0.06


def index(place: str) -> int:
    """Of a group, or of the group that a boundary ends with."""
    return GROUPS.index(place) if place in GROUPS else BOUNDARIES.index(place) + 1


def at(numbers: Losses, point: tuple[str, float], otherwise: float) -> float:
    """The number of an operating point; thresholds need not agree in the last bit."""
    criterion, threshold = point
    known = [
        number
        for tau, number in numbers.get(criterion, {}).items()
        if np.isclose(tau, threshold, atol=0)
    ]
    return known[0] if known else otherwise


class Draw(Evidence):
    """The units of one run in a world, in place of the tables of `Evidence`."""

    groups, loop_steps = list(GROUPS), len(K)
    jumps = tuple((boundary, state) for state in STATES for boundary in BOUNDARIES)
    left_out: int | None = None

    def __init__(self, world: World, size: Size, seed: int, correlation: float = 0.0) -> None:
        values = {"world": world, "size": size, "correlation": correlation, "warmup": size.warmup}
        for name, value in (values | {"max_loops": 30, "seed": 0}).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "generator", np.random.default_rng(seed))
        object.__setattr__(self, "drawn", {})

    @property
    def iterations(self) -> list[int]:
        return list(self.size.iterations)

    @property
    def extent(self) -> Extent:
        """Rates are those of the intervals, at sizes at which claim 4 is not judged, too."""
        return Extent(len(GROUPS), len(K), 32, len(self.size.iterations), 30, published=False)

    def check_angles(self, *arguments: object) -> None:
        """Nothing is under the rounding floor."""

    def load(self) -> str:
        return ""

    # --- noise ------------------------------------------------------------------------------------

    def documents(self, quality: bool) -> np.ndarray:
        """Document of each sequence."""
        lengths = self.size.quality_documents if quality else self.size.documents
        return np.repeat(np.arange(len(lengths)), lengths)

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
        """Sums and counts of documents (documents, ..., 2) from values of sequences (sequences,
        ...), 100 tokens.
        """
        of_sequence = self.documents(quality)
        membership = (of_sequence == np.arange(of_sequence.max() + 1)[:, None]).astype(float)
        sums = np.tensordot(membership, values, 1)
        counts = np.broadcast_to(
            membership.sum(1).reshape(-1, *[1] * (values.ndim - 1)), sums.shape
        )
        units = 100 * np.stack([sums, counts], axis=-1)
        return units if self.left_out is None or not quality else np.delete(units, self.left_out, 0)

    def without(self, document: int) -> "Draw":
        """The same run without one document of exit criteria."""
        other = copy(self)
        object.__setattr__(other, "left_out", document)
        return other

    # --- geometry ---------------------------------------------------------------------------------

    def curves(
        self, measure: str, group: str, iterations: Sequence[int], until: int = 0
    ) -> np.ndarray:
        draw = {"step_norm": self._norms, "cosine": self._cosines}[measure]
        values = self.once((measure, group), lambda: draw(group))
        return values[:, [self.iterations.index(iteration) for iteration in iterations]]

    def course(self, name: str, place: str) -> np.ndarray:
        """Values of a `Course` of the world (checkpoints,) in a group or at a boundary, with
        scatter.
        """
        course, count = getattr(self.world.of(place), name), len(self.size.iterations)
        noise = self.generator.normal(size=count)
        noise[0] = 0.0  # the untrained model
        for number in range(2, count):  # an autoregression of order one
            fresh = np.sqrt(1 - self.correlation**2) * noise[number]
            noise[number] = self.correlation * noise[number - 1] + fresh
        noise[-1] *= not course.pinned
        line, scatter = course.line(self.size), course.scatter * SCATTER[name][index(place)]
        return line + scatter * noise * (line if name in SHARES else 1.0)

    def _norms(self, group: str) -> np.ndarray:
        rates, sizes = (self.course(name, group)[:, None] for name in ("rate", "size"))
        relative = np.maximum(10 ** (-rates * (K - 1)), self.world.of(group).floor)
        # sequences differ by 2 % at k = 1, and later mostly by how fast they decay
        spread = 0.02 + DECAY_SPREAD[index(group)] * np.abs(np.log(relative))
        decay, single = self.effects(len(rates), 1), self.effects(len(rates), len(K))
        noise = spread * (np.sqrt(0.8) * decay + np.sqrt(0.2) * single)
        return self.units(
            np.exp(sizes) * relative * np.exp(noise - spread**2 / 2)
        )  # the mean is the truth

    def _cosines(self, group: str) -> np.ndarray:
        levels, variances = (self.course(name, group) for name in ("converged", "variance"))
        wave = np.sqrt(2) * np.sin(2 * np.pi * (K - 10) / 20)  # variance 1 over k = 10 … 29
        truth = np.clip(levels[:, None] + np.sqrt(np.maximum(variances, 0))[:, None] * wave, -1, 1)
        truth[:, 20:] = np.cos(np.arccos(truth[:, 20:]) * self.world.of(group).turn)
        truth[:, 1] = levels + self.world.of(group).first
        shape = (len(levels), 1)
        level, drift = (
            LATE_SPREAD[index(group)] * self.effects(*shape),
            0.1 * self.effects(*shape) * (K - 20) / 10,
        )
        single = np.where(K < 5, 0.01, 0.1) * self.effects(len(levels), len(K))
        # at k = 1 sequences are alike
        return self.units(truth + np.where(K < 5, 0.0, level + drift) + single)

    def ratios(
        self, boundary: str, reference_state: str, iteration: int, measure: str = "dlr"
    ) -> np.ndarray:
        def draw() -> np.ndarray:
            means = self.course("dlr", boundary)
            return self.units(means * (1 + 0.05 * self.effects(len(means))))

        return self.once((boundary, reference_state), draw)[:, self.iterations.index(iteration)]

    # --- exits ------------------------------------------------------------------------------------

    def thresholds(self, criterion: str) -> list[float]:
        return [*HALF_DECADES, TOO_LARGE]

    def entropies(self, points: Sequence[tuple[str, float]]) -> np.ndarray:
        text = self.once("text", lambda: 5 + 0.4 * self.effects(quality=True))
        return np.stack(
            [self.units(text + self._loss(point), quality=True) for point in points], axis=1
        )

    def random_entropies(self, points: Sequence[tuple[str, float]]) -> np.ndarray:
        text = self.once("text", lambda: 5 + 0.4 * self.effects(quality=True))
        losses = [at(self.world.random, point, 0.1) for point in points]
        return np.stack([self.units(text + loss, quality=True) for loss in losses], axis=1)

    def random_thresholds(self, criterion: str) -> list[float]:
        return []

    def cheapest(self) -> tuple[tuple[str, float], float]:
        return CHEAPEST, 1.0

    def _loss(self, point: tuple[str, float]) -> np.ndarray:
        """Nats lost per sequence: that of the world, more for some text than for other."""
        if point == CHEAPEST:
            return self.world.gain + 0.1 * self.once("gain", lambda: self.effects(quality=True))
        loss = at(self.world.loss, point, float(point[1] == TOO_LARGE))
        if self.world.root_of_loss and loss:
            spread = self.world.root_of_loss * abs(loss) ** 0.5
        else:
            spread = LOSS_SPREAD[point[0]] * (point[1] / 1e-2) ** LOSS_EXPONENT + 0.5 * abs(loss)
        return loss + spread * self.once(("loss", point), lambda: self.effects(quality=True))

    def evaluations(
        self, points: Sequence[tuple[str, float]], column: str = "evaluations"
    ) -> np.ndarray:
        def draw(point: tuple[str, float]) -> np.ndarray:
            return at(self.world.evaluations, point, 12.0) + 0.7 * self.effects(quality=True)

        values = [self.once(("evaluations", point), lambda p=point: draw(p)) for point in points]
        return np.stack([self.units(value, quality=True) for value in values], axis=1)

    @property
    def exit_documents(self) -> list[int]:
        return list(range(len(self.size.quality_documents)))

    def group_evaluations(
        self, points: Sequence[tuple[str, float]], column: str = "evaluations"
    ) -> np.ndarray:
        """Evaluations with which times are those of the world, the same in all groups."""

        def draw(point: tuple[str, float]) -> np.ndarray:
            criterion, _ = point
            of_evaluations = at(self.world.milliseconds, point, 10.0) - OUTSIDE_LOOPS
            of_evaluations = max(of_evaluations - DECISIONS[criterion], 0.05)
            mean = of_evaluations / (LOOP_STEPS + DECISIONS[criterion]).sum()
            effects = self.effects(len(GROUPS), quality=True)  # (sequences, groups)
            noise = EVALUATION_SPREAD * effects - EVALUATION_SPREAD**2 / 2
            return mean * np.exp(noise)  # the mean is the truth

        values = [self.once(("counts", point), lambda p=point: draw(p)) for point in points]
        return np.stack([self.units(value, quality=True) for value in values], axis=1)

    def cost_units(self, criterion: str) -> np.ndarray:
        return self.once(("costs", criterion), lambda: self._costs(criterion))

    def _costs(self, criterion: str) -> np.ndarray:
        """Repeats of costs; one of ten is half as large again."""

        def noise(*shape: int) -> np.ndarray:
            outliers = self.generator.random(shape) < 1 / 10
            return self.generator.normal(size=shape) + outliers * np.log(1.5) / COST_SPREAD

        shape = self.size.repeats, 1 + len(GROUPS)
        costs = np.array([OUTSIDE_LOOPS, *LOOP_STEPS])
        # the same for all criteria
        bare = self.once("bare", lambda: costs * np.exp(COST_SPREAD * noise(*shape)))
        added = DECISIONS[criterion] + DECISION_SPREAD * costs * noise(*shape)
        return np.stack([bare, added], axis=1)


def count_verdicts(
    number: int, world: World, size: Size, draws: int, correlation: float = 0.0
) -> Counter:
    """Verdicts on a claim in `draws` runs of a world; the runs are a function of their number and
    of the claim.

    `correlation` is that of the scatter of successive checkpoints.
    """
    (claim,) = (claim for claim in claims.CLAIMS if claim.number == number)
    seeds = np.random.SeedSequence([number, len(size.name)]).generate_state(draws)
    drawn = (Draw(world, size, int(seed), correlation) for seed in seeds)
    return Counter(kind(claims.examine(claim, draw, references=False).verdict) for draw in drawn)


def most_wrong(number: int, size: Size, draws: int, correlation: float = 0.0) -> dict[str, Counter]:
    """Verdicts by kind of world, of those of a kind in which the wrong one is most frequent."""
    return {
        of_worlds: max(
            (count_verdicts(number, world, size, draws, correlation) for world in worlds),
            key=lambda counts: sum(counts[wrong] for wrong in WRONG[of_worlds]),
        )
        for of_worlds, worlds in WORLDS[number].items()
    }


def needed(number: int, verdict: str, size: Size, draws: int) -> float | None:
    """The number nearest to its bound for which a claim gets the verdict in `POWER` of the draws;
    None if for none.
    """
    worlds = list(FAMILIES[number].worlds(verdict).items())

    def is_decided(place: int) -> bool:
        return count_verdicts(number, worlds[place][1], size, draws)[verdict] >= POWER * draws

    first = bisect_left(range(len(worlds)), True, key=is_decided)
    return worlds[first][0] if first < len(worlds) else None


def count_moves(
    number: int, world: World, size: Size, draws: int, correlation: float = 0.0
) -> Counter:
    """Runs of a world in which the claim fails, by whether it moves towards the paper."""
    (claim,) = (claim for claim in claims.CLAIMS if claim.number == number)
    seeds = np.random.SeedSequence([number, len(size.name), 1]).generate_state(draws)
    drawn = (Draw(world, size, int(seed), correlation) for seed in seeds)
    verdicts = (claims.examine(claim, draw, references=False) for draw in drawn)
    return Counter(verdict.moves for verdict in verdicts if verdict.verdict == FAILS)


def print_moves(draws: int, numbers: Sequence[int]) -> None:
    """Print how often a failing claim moves towards the paper, in percent, as a Markdown table."""
    print("| claim | size | ρ | stands | moves |")
    print("|---" * 5 + "|")
    for number, size, correlation in itertools.product(numbers, SIZES.values(), CORRELATIONS):
        if number in OUTSIDE:
            counts = [
                count_moves(number, standing(number, share), size, draws, correlation)
                for share in (0.0, 1.0)
            ]
            shares = [f"{100 * found[True] / max(1, found.total()):.1f}" for found in counts]
            print(f"| {number} | {size.name} | {correlation:g} |", " | ".join(shares), "|")


def print_power(draws: int, numbers: Sequence[int]) -> None:
    """Print the numbers at which claims are decided, as a Markdown table."""
    columns = [(size, verdict) for size in SIZES.values() for verdict in (HOLDS, FAILS)]
    names = [f"{size.name}: {verdict}" for size, verdict in columns]
    print("| claim | number | bound |", " | ".join(names), "|")
    print("|---" * (3 + len(columns)) + "|")
    for number in numbers:
        family = FAMILIES[number]
        found = [needed(number, verdict, size, draws) for size, verdict in columns]
        cells = ["never" if one is None else f"{one:.2g}" for one in found]
        print(
            f"| {number} | {family.number} | {family.bound:g} |", " | ".join(cells), "|", flush=True
        )


def print_verdicts(draws: int, numbers: Sequence[int]) -> None:
    """Print shares of verdicts in percent, as a Markdown table."""
    kinds = {
        TRUE: (HOLDS, DEPENDS, FAILS),
        TRUE_LIMIT: (FAILS,),
        FALSE: (HOLDS, DEPENDS, FAILS),
        FALSE_LIMIT: (HOLDS,),
        MIXED: (HOLDS, DEPENDS, FAILS),
    }
    print(
        "| claim | size | ρ |",
        " | ".join(f"{kind}: {', '.join(verdicts)}" for kind, verdicts in kinds.items()),
        "|",
    )
    print("|---" * (3 + len(kinds)) + "|")
    for number, size in itertools.product(numbers, SIZES.values()):
        for correlation in CORRELATIONS if number in TRENDS else CORRELATIONS[:1]:
            counts = most_wrong(number, size, draws, correlation)
            shares = [
                " · ".join(f"{100 * counts[kind][v] / draws:.1f}" for v in verdicts)
                if kind in counts
                else ""
                for kind, verdicts in kinds.items()
            ]
            print(
                f"| {number} | {size.name} | {correlation:g} |", " | ".join(shares), "|", flush=True
            )


def main(arguments: list[str]) -> None:
    bootstrap.REPEATS = REPEATS
    named = {"power": print_power, "moves": print_moves}
    table = named.get(arguments[0], print_verdicts)
    draws, *numbers = map(int, arguments[table != print_verdicts :])
    table(draws, numbers or list(WORLDS))


if __name__ == "__main__":
    main(sys.argv[1:])
