"""Findings for the claims about exit criteria: 7 to 11, 14 and 15.

Each threshold has its finding. No statistic is the largest or smallest over thresholds: the extreme of noisy numbers
is biased, and resampling adds the bias again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from twoscale.claims.evidence import (
    Estimate,
    Evidence,
    InconclusiveError,
    OperatingPoint,
    Quantity,
    above,
    at_least,
    at_most,
    below,
    between,
    judged,
    mean,
    reference,
)
from twoscale.claims.geometry import scale_of_threshold

PAPER_GRID = (1e-5, 1e-4, 1e-3, 1e-2)  # App. D
PAPER_MAX_LOOPS = 30
REPORTED_LATENCY = (580, 360)  # ms per token under acceleration at τ = 1e-5 and 1e-2 (section 4, about)
EQUAL_QUALITY = 0.01  # nats
ABRUPT_LOSS = 0.05  # nats
SAVING = 0.75  # of the time
RACE_PARTS = 3  # estimates that a race rests on: the quality of either criterion, and a latency
CRITERION_NAMES = {"kl": "KL", "minp_kl": "min-p KL"}


def criterion_name(criterion: str) -> str:
    """The name of an exit criterion in figures and pages."""
    return CRITERION_NAMES.get(criterion, criterion.replace("_", " "))


# --- claims 7 and 11: latency ----------------------------------------------------------------------------------


def acceleration_saves_time(evidence: Evidence) -> Iterator[Quantity]:
    name, points = "latency at τ = 1e-2 over that at 1e-5", (("acceleration", 1e-2), ("acceleration", 1e-5))
    yield judged("acceleration", name, at_most(SAVING), _latency_ratio, evidence, *points)
    yield from _scales(evidence)


def _latency_ratio(evidence: Evidence, *points: OperatingPoint) -> Estimate:
    return _ratio_of_times(evidence, evidence.latencies(points))


def _ratio_of_times(evidence: Evidence, units: np.ndarray) -> Estimate:
    """Ratio of the medians of the two columns: milliseconds (prompts, 2)."""
    first, second = np.median(units, axis=0)
    return evidence.ratio_of_medians(units, f"{first:.3g} against {second:.3g} ms")


def kl_is_slower(evidence: Evidence) -> Iterator[Quantity]:
    for threshold in PAPER_GRID:
        name = f"latency over that of acceleration, τ = {threshold:g}"
        yield judged("kl", name, above(1), _latency_ratio, evidence, ("kl", threshold), ("acceleration", threshold))
    yield _check_cost(evidence)
    yield from _scales(evidence)


def _check_cost(evidence: Evidence) -> Quantity:
    name = "one KL check in loop steps, mean over groups"
    return reference("kl", name, lambda: evidence.ratio_of_medians(evidence.check_times()))


def _scales(evidence: Evidence) -> Iterator[Quantity]:
    """The largest τ in units that do not depend on the scale of the states."""
    largest = PAPER_GRID[-1]
    for measure, unit in (("state_norm", "norm of the states"), ("step_norm", "step norm at k = 1")):
        name = f"τ = {largest:g} over the mean {unit}, last checkpoint"
        yield reference("all groups", name, scale_of_threshold, evidence, largest, measure)


# --- claims 8, 9, 15: quality ----------------------------------------------------------------------------------


def quality_is_flat(evidence: Evidence) -> Iterator[Quantity]:
    for criterion in ("acceleration", "kl"):
        for threshold in PAPER_GRID[1:]:
            name = f"CE({threshold:g}) − CE(1e-5) in nats"
            points = ((criterion, threshold), (criterion, 1e-5))
            yield judged(criterion, name, between(-EQUAL_QUALITY, EQUAL_QUALITY), ce_change, evidence, *points)
    yield from _scales(evidence)


def ce_change(evidence: Evidence, point: OperatingPoint, other: OperatingPoint) -> Estimate:
    """Difference of the cross-entropies at two operating points, in nats."""
    return evidence.estimate(lambda totals: _rise(mean(totals)), evidence.entropies([point, other]))


def _rise(pairs: np.ndarray) -> np.ndarray:
    """First minus second of pairs along the last axis: (R, 2) -> (R,)."""
    return pairs[..., 0] - pairs[..., 1]


def step_norm_loses_quality(evidence: Evidence) -> Iterator[Quantity]:
    fine, middle, coarse = (("step_norm", threshold) for threshold in (1e-5, 1e-3, 1e-2))
    flat, loss = "CE(1e-3) − CE(1e-5) in nats", "CE(1e-2) − CE(1e-3) in nats"
    yield judged("step_norm", flat, at_most(EQUAL_QUALITY), ce_change, evidence, middle, fine)
    yield judged("step_norm", loss, at_least(ABRUPT_LOSS), ce_change, evidence, coarse, middle)
    yield from _scales(evidence)


def acceleration_and_kl_are_robust(evidence: Evidence) -> Iterator[Quantity]:
    name = "nats lost from τ = 1e-5 to 1e-2: step norm minus {}"
    for criterion in ("acceleration", "kl"):
        yield judged(criterion, name.format(criterion), above(EQUAL_QUALITY), _excess_loss, evidence, criterion)
    yield from _scales(evidence)


def _excess_loss(evidence: Evidence, criterion: str) -> Estimate:
    """Cross-entropy lost by the step norm over the range of τ, minus that lost by `criterion`."""
    units = evidence.entropies([(name, threshold) for name in ("step_norm", criterion) for threshold in (1e-2, 1e-5)])
    nats = mean(units.sum(axis=0))
    remark = f"{_rise(nats[:2]):.3g} against {_rise(nats[2:]):.3g}"
    return evidence.estimate(lambda totals: _rise(mean(totals)[:, :2]) - _rise(mean(totals)[:, 2:]), units, remark)


# --- claim 14: evaluations -------------------------------------------------------------------------------------


def kl_responds_later(evidence: Evidence) -> Iterator[Quantity]:
    def later(threshold: float) -> Estimate:
        units = evidence.evaluations([("kl", threshold), ("acceleration", threshold)])
        kl, acceleration = mean(units.sum(axis=0))
        return evidence.estimate(lambda totals: _rise(mean(totals)), units, f"{kl:.3g} against {acceleration:.3g}")

    for threshold in PAPER_GRID:
        name = f"evaluations per token and group minus those of acceleration, τ = {threshold:g}"
        yield judged("kl", name, above(0), later, threshold)
    yield from _scales(evidence)


# --- claim 10: the race at equal quality -----------------------------------------------------------------------


def acceleration_is_fastest(evidence: Evidence) -> Iterator[Quantity]:
    for other in ("kl", "step_norm"):
        name = f"latency at equal quality, acceleration over {other}"
        yield judged(other, name, below(1), _race, evidence, "acceleration", other)
    yield _check_cost(evidence)
    yield from _scales(evidence)


@dataclass(frozen=True)
class EqualQuality:
    """Where on its grid of thresholds a criterion is `EQUAL_QUALITY` worse than full depth.

    Places count from 0 and are interpolated: 6.25 is a quarter of the way from the seventh threshold to the eighth.
    `None` is a criterion that is worse from the first threshold on.
    """

    criterion: str
    thresholds: tuple[float, ...]
    measured: float | None  # by the measured change of quality
    surely: float | None  # up to here the whole interval of the change is within the limit
    possibly: float | None  # from here on the whole interval is outside

    def __str__(self) -> str:
        if self.measured is None:
            return f"{self.criterion} has no threshold of equal quality"
        threshold = np.exp(np.interp(self.measured, range(len(self.thresholds)), np.log(self.thresholds)))
        return f"{self.criterion} at τ = {threshold:.3g}"

    def times(self, evidence: Evidence, place: float) -> np.ndarray:
        """Milliseconds per token (prompts,) at a place, interpolated linearly in their logarithm."""
        before = int(place)
        pair = evidence.latencies([(self.criterion, self.thresholds[number]) for number in (before, before + 1)])
        return pair[:, 0] ** (1 - (place - before)) * pair[:, 1] ** (place - before)


def equal_quality(evidence: Evidence, criterion: str) -> EqualQuality:
    """Where a criterion has used up its quality; raises InconclusiveError if that may be beyond its last threshold."""
    thresholds, full = evidence.thresholds(criterion), ("fixed", evidence.max_loops)
    changes = [ce_change(evidence, (criterion, threshold), full).widened(RACE_PARTS) for threshold in thresholds]
    if changes[-1].low <= EQUAL_QUALITY:
        raise InconclusiveError(f"{criterion} may still have equal quality at its last threshold, {thresholds[-1]:.3g}")
    values, lows, highs = np.array([(change.value, change.low, change.high) for change in changes]).T
    # surely up to the first crossing, so that one wrong "sure" among many is as unlikely as one alone
    places = _crossing(values, last=True), _crossing(highs, last=False), _crossing(lows, last=True)
    return EqualQuality(criterion, tuple(thresholds), *places)


def _crossing(changes: np.ndarray, last: bool) -> float | None:
    """Place at which changes of quality (thresholds,) exceed `EQUAL_QUALITY`, for the last time or for the first."""
    worse = changes > EQUAL_QUALITY
    crossings = np.flatnonzero(worse[1:] & ~worse[:-1])
    if not crossings.size or (worse[0] and not last):
        return None
    before = crossings[-1 if last else 0]
    return float(before + (EQUAL_QUALITY - changes[before]) / (changes[before + 1] - changes[before]))


def _race(evidence: Evidence, criterion: str, other: str) -> Estimate:
    """Latency of `criterion` where it has used up its quality, over the latency of `other` where it has.

    The place depends on quality and not on latency, so it is no choice of the fastest among noisy times. The
    interval reaches from the best case, the fastest that `criterion` possibly is against the slowest that `other`
    surely is, to the worst.
    """
    ours, theirs = (equal_quality(evidence, name) for name in (criterion, other))
    if ours.measured is theirs.measured is None:
        raise InconclusiveError("neither criterion has a threshold of equal quality")
    point = _ratio_at(evidence, ours, theirs, ("measured", "measured"))
    best = _ratio_at(evidence, ours, theirs, ("possibly", "surely")).widened(RACE_PARTS)
    worst = _ratio_at(evidence, ours, theirs, ("surely", "possibly")).widened(RACE_PARTS)
    remark = f"{ours}, {theirs}" + (f": {point.remark}" if point.remark else "")
    return Estimate(point.value, best.low, worst.high, remark, point.freedom).checked()


def _ratio_at(evidence: Evidence, ours: EqualQuality, theirs: EqualQuality, cases: tuple[str, str]) -> Estimate:
    """Ratio of latencies at places that may be `None`: a criterion without one takes infinitely long."""
    place, other = getattr(ours, cases[0]), getattr(theirs, cases[1])
    if place is None or other is None:
        ratio = np.nan if place is other else np.inf if place is None else 0.0
        return Estimate(ratio, ratio, ratio)
    times = [quality.times(evidence, at) for quality, at in ((ours, place), (theirs, other))]
    return _ratio_of_times(evidence, np.stack(times, axis=1))
