"""Findings for the claims about exit criteria: 7 to 11, and 14 to 16.

Each threshold has its finding. No statistic is the largest or smallest over thresholds: the extreme
of noisy numbers is biased, and resampling adds the bias again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import NormalDist

import numpy as np

from twoscale.claims import bootstrap
from twoscale.claims.costs import Times, times
from twoscale.claims.estimates import Estimate, InconclusiveError, effective_number, mean
from twoscale.claims.evidence import Evidence
from twoscale.claims.findings import (
    MOVED,
    Quantity,
    Reading,
    Role,
    above,
    at_least,
    at_most,
    below,
    between,
    judged,
    reference,
)
from twoscale.claims.geometry import scale_of_threshold
from twoscale.claims.words import GRID, KEPT_STATE, LOSS, UNIT
from twoscale.exits.table import OperatingPoint, operating_points

PAPER_GRID = (1e-5, 1e-4, 1e-3, 1e-2)  # thresholds of Fig. 4, App. D
PAPER_MAX_LOOPS = 30
EQUAL_QUALITY = 0.01  # nats lost compared with full depth
# The readings of claims about τ, whose unit the paper leaves open: equal numbers, or thresholds at
# which each criterion has lost `EQUAL_QUALITY`.
AT_PAPERS = Reading(UNIT, "the paper's τ")
AT_EQUAL_QUALITY = Reading(UNIT, "equal quality")
IN_KEPT_STEPS = Reading(
    KEPT_STATE, "equal quality, steps whose state is kept", other=AT_EQUAL_QUALITY
)
_EQUAL = "at equal quality:"
_RANDOM = "random exits of the same cost:"
_LEAST_GAIN = 5 * EQUAL_QUALITY
_ABRUPT_LOSS = 0.05  # nats
_WHOLE_DECADE = 0.01  # of the decimal logarithm of a threshold
_SAVING = 0.75  # of the time
_DECISION = "decision in loop steps"
_MEASURED = "measured:"  # not computed from costs


# --- claims 7 and 11: times -----------------------------------------------------------------------


def acceleration_saves_time(evidence: Evidence) -> Iterator[Quantity]:
    name = "time at τ = 1e-2 over that at 1e-5"
    points = (("acceleration", 1e-2), ("acceleration", 1e-5))
    yield judged("acceleration", name, at_most(_SAVING), _time_ratio, evidence, *points)
    yield reference("acceleration", f"{_MEASURED} {name}", _measured_ratio, evidence, *points)
    for other in ("step_norm", "kl"):  # the claim is not special to acceleration if they save, too
        points = ((other, 1e-2), (other, 1e-5))
        yield reference(other, f"the same: {name}", _time_ratio, evidence, *points)
    yield _agreement(evidence, "acceleration")
    yield from _scales(evidence)


def kl_is_slower(evidence: Evidence) -> Iterator[Quantity]:
    for tau in PAPER_GRID:
        name = f"time over that of acceleration, τ = {tau:g}"
        points = (("kl", tau), ("acceleration", tau))
        yield judged("kl", name, above(1), _time_ratio, evidence, *points, reading=AT_PAPERS)
    name = f"{_EQUAL} time over that of acceleration"
    race = (evidence, "kl", "acceleration")
    yield judged("kl", name, above(1), _race, *race, reading=AT_EQUAL_QUALITY)
    for tau in PAPER_GRID:
        name = f"{_MEASURED} time over that of acceleration, τ = {tau:g}"
        points = (("kl", tau), ("acceleration", tau))
        yield reference("kl", name, _measured_ratio, evidence, *points)
    for tau in PAPER_GRID:
        name = f"{_DECISION}, τ = {tau:g}"
        yield reference("kl", name, _decision_at, evidence, "kl", tau)
    for criterion in ("kl", "acceleration"):
        yield _agreement(evidence, criterion)
    yield from _scales(evidence)


def _times(evidence: Evidence, points: Sequence[OperatingPoint]) -> Times:
    """Computed times at thresholds of one criterion, (R + 1, T) each."""
    evaluations = mean(_totals(evidence, evidence.group_evaluations(points)))  # (R + 1, T, G)
    costs = evidence.sampled_costs(points[0][0])  # (R + 1, 1 + G)
    with np.errstate(invalid="ignore"):
        return Times(
            of_documents=np.log(times(costs[-1], evaluations)),
            of_repeats=np.log(times(costs[:, None], evaluations[-1])),
        )


def _time_ratio(evidence: Evidence, point: OperatingPoint, other: OperatingPoint) -> Estimate:
    """Computed time at an operating point over that at another."""
    ours, theirs = (_times(evidence, [each])[:, 0] for each in (point, other))
    ratio = ours - theirs
    *samples, value = ratio.of_documents
    effective = effective_number(evidence.group_evaluations([point]))
    ends = bootstrap.interval_about(value, np.array(samples), effective)
    repeats = len(evidence.cost_units(point[0]))
    return _with_costs(ratio, ends, effective, repeats, f"{ours} against {theirs} ms")


def _measured_ratio(evidence: Evidence, point: OperatingPoint, other: OperatingPoint) -> Estimate:
    """Ratio of the median times of the few tokens that were timed, which also has their noise."""
    return evidence.ratio_of_medians(evidence.latencies([point, other]))


def _with_costs(
    ratio: Times,
    of_documents: tuple[float, float],
    effective: float,
    repeats: int,
    remark: str,
) -> Estimate:
    """A ratio of times with the error of documents, an interval of its logarithm, and of costs."""
    *samples, value = ratio.of_repeats
    of_repeats = bootstrap.interval_about(value, np.array(samples), repeats)
    ends = bootstrap.joined(value, of_documents, of_repeats)
    freedom = min(effective, repeats) - 1
    return Estimate(value, *ends, remark, freedom).checked().exponential()


def _decision_at(evidence: Evidence, criterion: str, tau: float) -> Estimate:
    evaluations = mean(evidence.group_evaluations([(criterion, tau)]).sum(axis=0))[0]  # (G,)
    rival = _times(evidence, [("acceleration", tau)])[:, 0]
    return _decision(evidence, criterion, evaluations, rival)


def _decision(
    evidence: Evidence, criterion: str, evaluations: np.ndarray, acceleration: Times
) -> Estimate:
    """Cost of a decision over that of a loop step, both weighted by the evaluations (G,).

    The remark has the cost at which the criterion takes as long as acceleration.
    """
    units = evidence.cost_units(criterion)

    def in_loop_steps(units: np.ndarray) -> np.ndarray:  # (..., repeats, 2, 1 + G) -> (...)
        costs = np.median(units, axis=-3)[..., 1:] @ evaluations
        return costs[..., 1] / costs[..., 0]

    value = float(in_loop_steps(units))
    samples = bootstrap.replicates(in_loop_steps, units, evidence.seed)
    low, high = bootstrap.interval_about(value, samples, len(units))
    bare, added = np.median(units, axis=0)
    outside = bare[0] + added[0]
    # outside + (1 + cost) * loop steps = time of acceleration
    equal = (acceleration.milliseconds - outside) / (bare[1:] @ evaluations) - 1
    return Estimate(value, low, high, f"slower than acceleration above {equal:.3g}").checked()


def _agreement(evidence: Evidence, criterion: str) -> Quantity:
    name = "computed over measured time, mean over thresholds"
    return reference(criterion, name, _computed_over_measured, evidence, criterion)


def _computed_over_measured(evidence: Evidence, criterion: str) -> Estimate:
    """Ratio of the times of the timed tokens, with an interval over their prompts."""
    points = [(criterion, threshold) for threshold in evidence.thresholds(criterion)]
    computed = np.exp(_times(evidence, points).of_documents[-1]).mean()
    measured = evidence.latencies(points).mean(axis=1)  # (prompts,)
    units = np.stack([np.full_like(measured, computed), measured], axis=-1)
    ratio = evidence.ratio_of_medians(units)
    agree = ratio.low <= 1 <= ratio.high
    return replace(ratio, remark="agree within the interval" if agree else "differ")


def _scales(evidence: Evidence) -> Iterator[Quantity]:
    """The largest τ in units that do not depend on the scale of the states."""
    largest = PAPER_GRID[-1]
    units = {"state_norm": "norm of the states", "step_norm": "step norm at k = 1"}
    for measure, unit in units.items():
        name = f"τ = {largest:g} over the mean {unit}, last checkpoint"
        yield reference("all groups", name, scale_of_threshold, evidence, largest, measure)


# --- claims 8, 9, 15: quality ---------------------------------------------------------------------


def quality_is_flat(evidence: Evidence) -> Iterator[Quantity]:
    flat = between(-EQUAL_QUALITY, EQUAL_QUALITY)
    for criterion in ("acceleration", "kl"):
        for tau in PAPER_GRID[1:]:
            name = f"CE({tau:g}) − CE(1e-5) in nats"
            points = ((criterion, tau), (criterion, 1e-5))
            yield judged(criterion, name, flat, _ce_change, evidence, *points)
    for criterion in ("acceleration", "kl"):
        for tau in PAPER_GRID[1:]:
            name = f"{_RANDOM} CE({tau:g}) − CE(1e-5) in nats"
            points = ((criterion, tau), (criterion, 1e-5))
            random = (evidence, *points)
            yield judged(criterion, name, flat, _random_change, *random, role=Role.CHANCE)
    yield _gain_of_depth(evidence)
    yield from _over_random_exits(evidence, "acceleration")
    yield from _scales(evidence)


def _gain_of_depth(evidence: Evidence) -> Quantity:
    """The loss that is at stake: that of full depth below that of the cheapest exit measured."""

    def measure() -> Estimate:
        (criterion, threshold), evaluations = evidence.cheapest()
        units = evidence.entropies([(criterion, threshold), ("fixed", evidence.max_loops)])
        cheapest = f"{criterion} at τ = {threshold:g}"
        if evaluations > 1:
            cheapest = f"{cheapest}, where the grid ends at {evaluations:.2g} evaluations"
        return evidence.estimate(_difference, units, cheapest)

    name = "CE at the cheapest exit − CE at full depth in nats"
    return judged("all groups", name, at_least(_LEAST_GAIN), measure, role=Role.PREMISE)


def _over_random_exits(evidence: Evidence, criterion: str) -> Iterator[Quantity]:
    """What a criterion loses compared with random exits of the same cost, at the paper's largest τ
    and beyond (Fig. 4, iii).
    """
    for tau in evidence.random_thresholds(criterion):
        if tau > PAPER_GRID[-1] / 2:
            name = f"CE({tau:g}) − CE of random exits of the same cost in nats"
            yield reference(criterion, name, _excess_over_random, evidence, (criterion, tau))


def _excess_over_random(evidence: Evidence, point: OperatingPoint) -> Estimate:
    units = np.concatenate(
        [evidence.entropies([point]), evidence.random_entropies([point])], axis=1
    )
    return evidence.estimate(_difference, units)


def _random_change(evidence: Evidence, point: OperatingPoint, other: OperatingPoint) -> Estimate:
    """As `_ce_change`, of random exits that cost as much as the first operating point."""
    random = evidence.random_entropies([point])
    units = np.concatenate([random, evidence.entropies([other])], axis=1)
    return evidence.estimate(_difference, units)


def _ce_change(evidence: Evidence, point: OperatingPoint, other: OperatingPoint) -> Estimate:
    """Difference of the cross-entropies at two operating points, in nats."""
    units = evidence.entropies([point, other])
    return evidence.estimate(_difference, units)


def _difference(totals: np.ndarray) -> np.ndarray:
    """Mean at the first operating point minus that at the second: (R, 2, 2) -> (R,)."""
    return _first_minus_second(mean(totals))


def _first_minus_second(pairs: np.ndarray) -> np.ndarray:
    return pairs[..., 0] - pairs[..., 1]


def step_norm_loses_quality(evidence: Evidence) -> Iterator[Quantity]:
    criterion = "step_norm"
    fine, middle, coarse = ((criterion, tau) for tau in (1e-5, 1e-3, 1e-2))
    small = at_most(EQUAL_QUALITY)
    large = at_least(_ABRUPT_LOSS)
    flat = "CE(1e-3) − CE(1e-5) in nats"
    loss = "CE(1e-2) − CE(1e-3) in nats"
    name = f"{_EQUAL} nats lost at the tenfold τ"
    changes = partial(judged, criterion, reading=AT_PAPERS)
    yield changes(flat, small, _ce_change, evidence, middle, fine)
    yield changes(loss, large, _ce_change, evidence, coarse, middle)
    beyond = (evidence, criterion)
    yield judged(criterion, name, large, _loss_beyond, *beyond, reading=AT_EQUAL_QUALITY)
    yield _gain_of_depth(evidence)
    yield from _scales(evidence)


def acceleration_and_kl_are_robust(evidence: Evidence) -> Iterator[Quantity]:
    larger = above(EQUAL_QUALITY, ours=EQUAL_QUALITY)
    for other in ("acceleration", "kl"):
        name = f"nats lost from τ = 1e-5 to 1e-2: step norm minus {other}"
        yield judged(other, name, larger, _excess_loss, evidence, other, reading=AT_PAPERS)
    for other in ("acceleration", "kl"):
        name = f"{_EQUAL} nats lost at the tenfold τ: step norm minus {other}"
        beyond = (evidence, "step_norm", other)
        yield judged(other, name, larger, _loss_beyond, *beyond, reading=AT_EQUAL_QUALITY)
    yield _gain_of_depth(evidence)
    yield from _scales(evidence)


def _excess_loss(evidence: Evidence, criterion: str) -> Estimate:
    """Cross-entropy lost by the step norm over the range of τ, minus that lost by `criterion`."""
    names = ("step_norm", criterion)
    units = evidence.entropies([(name, tau) for name in names for tau in (1e-2, 1e-5)])

    def losses(totals: np.ndarray) -> np.ndarray:  # (..., 4, 2) -> (..., 2), one per criterion
        nats = mean(totals)
        return nats[..., ::2] - nats[..., 1::2]

    def excess(totals: np.ndarray) -> np.ndarray:  # (R, 4, 2) -> (R,)
        return _first_minus_second(losses(totals))

    ours, theirs = losses(units.sum(axis=0))
    return evidence.estimate(excess, units, remark=f"{ours:.3g} against {theirs:.3g}")


# --- claim 14: evaluations ------------------------------------------------------------------------


def kl_responds_later(evidence: Evidence) -> Iterator[Quantity]:
    quantity = "evaluations per token and group minus those of acceleration"
    later = partial(judged, "kl")
    for tau in PAPER_GRID:
        name = f"{quantity}, τ = {tau:g}"
        yield later(name, above(0), _later_exits, evidence, tau, reading=AT_PAPERS)
    at_equal_quality = partial(later, f"{_EQUAL} {quantity}", above(0))
    yield at_equal_quality(_later_exits_at_equal_quality, evidence, reading=AT_EQUAL_QUALITY)
    kept = partial(later, "the same in loop steps whose state is kept", above(0))
    column = (evidence, "loop_steps")
    yield kept(_later_exits_at_equal_quality, *column, reading=IN_KEPT_STEPS)
    yield from _scales(evidence)


def _later_exits(evidence: Evidence, tau: float) -> Estimate:
    units = evidence.evaluations([("kl", tau), ("acceleration", tau)])  # (documents, 2, 2)
    kl, acceleration = mean(units.sum(axis=0))
    if min(kl, acceleration) >= evidence.max_loops:
        raise InconclusiveError(f"no token exits before max_loops, {evidence.max_loops}")
    return evidence.estimate(_difference, units, remark=f"{kl:.3g} against {acceleration:.3g}")


def _later_exits_at_equal_quality(evidence: Evidence, column: str = "evaluations") -> Estimate:
    def evaluations(quality: EqualQuality) -> np.ndarray:
        return quality.evaluations(evidence, column)

    return _at_equal_quality(evidence, ["kl", "acceleration"], evaluations)


# --- claims 10 and 16: the race at equal quality --------------------------------------------------


AT_OUR_GRID = Reading(GRID, "all thresholds, 0.01 nats")
AT_DECADES = Reading(GRID, "whole decades")
# bounds of ours that are a place on a grid are moved like others, see `Bounds.moved`
OTHER_LOSSES = {
    nats: Reading(LOSS, f"{nats:g} nats") for nats in (EQUAL_QUALITY / MOVED, EQUAL_QUALITY * MOVED)
}


def acceleration_is_faster(other: str, evidence: Evidence) -> Iterator[Quantity]:
    """Acceleration in a race with another criterion at equal quality."""
    name = f"time at equal quality, acceleration over {other}"
    race = (evidence, "acceleration", other)
    yield judged(other, name, below(1), _race, *race, reading=AT_OUR_GRID)
    decades = f"the same on whole decades, acceleration over {other}"
    yield judged(other, decades, below(1), _race, *race, decades=True, reading=AT_DECADES)
    for nats, reading in OTHER_LOSSES.items():
        loss = f"the same at a loss of {nats:g} nats, acceleration over {other}"
        yield judged(other, loss, below(1), _race, *race, nats=nats, reading=reading)
    decision = f"{_DECISION} at equal quality"
    yield reference(other, decision, _decision_at_equal_quality, evidence, other)
    for criterion in ("acceleration", other):
        yield _agreement(evidence, criterion)
    yield from _scales(evidence)


@dataclass(frozen=True)
class EqualQuality:
    """Where on its grid of thresholds a criterion has lost some nats compared with full depth.

    Places count from 0 and are interpolated: 6.25 is a quarter of the way from the seventh
    threshold to the eighth. NaN is a sample that loses more from the first threshold on.
    """

    criterion: str
    thresholds: list[float]
    losses: np.ndarray  # nats at each threshold (R + 1, T): samples of documents, then all of them
    places: np.ndarray  # (R + 1,)
    effective: float  # number of documents

    def __str__(self) -> str:
        return f"{self.criterion} at τ = {self.threshold:.3g}"

    @property
    def threshold(self) -> float:
        """The threshold at the place of all documents."""
        numbers = range(len(self.thresholds))
        return float(np.exp(np.interp(self.places[-1], numbers, np.log(self.thresholds))))

    @property
    def points(self) -> list[OperatingPoint]:
        return [(self.criterion, threshold) for threshold in self.thresholds]

    def group_evaluations(self, evidence: Evidence) -> np.ndarray:
        """Evaluations per token of each group (G,) at the place of all documents."""
        means = mean(evidence.group_evaluations(self.points).sum(axis=0))  # (T, G)
        return _interpolated(means.T, np.full(means.shape[1], self.places[-1]))

    def evaluations(self, evidence: Evidence, column: str = "evaluations") -> np.ndarray:
        """Evaluations per token and group at each place (R + 1,), see `Evidence.evaluations`."""
        totals = _totals(evidence, evidence.evaluations(self.points, column))  # (R + 1, T, 2)
        return _interpolated(mean(totals), self.places)

    def loss_beyond(self) -> np.ndarray:
        """Nats lost from the place to the tenfold threshold (R + 1,).

        Raises InconclusiveError if that is beyond the last threshold.
        """
        logs = np.log10(self.thresholds)
        numbers = np.arange(len(logs))
        tenfold = np.interp(self.places, numbers, logs) + 1  # log10 of a threshold
        beyond = np.interp(tenfold, logs, numbers, right=np.inf)  # its place
        if np.isinf(beyond[-1]):
            last = f"{self.thresholds[-1]:.3g}"
            raise InconclusiveError(f"{self} and tenfold: beyond its last threshold, {last}")
        lost = _interpolated(self.losses, self.places)
        return _interpolated(self.losses, beyond) - lost

    def times(self, evidence: Evidence) -> Times:
        """Computed times at the places (R + 1,), infinite without one.

        They are interpolated linearly in their logarithm.
        """
        at_thresholds = _times(evidence, self.points)
        here = np.full_like(self.places, self.places[-1])  # where costs vary, and not documents
        by_places = (at_thresholds.of_documents, self.places), (at_thresholds.of_repeats, here)
        return Times(
            *(
                np.where(np.isnan(places), np.inf, _interpolated(logs, places))
                for logs, places in by_places
            )
        )


@lru_cache(maxsize=32)
def equal_quality(
    evidence: Evidence, criterion: str, nats: float = EQUAL_QUALITY, decades: bool = False
) -> EqualQuality:
    """Where a criterion has lost so many nats compared with full depth.

    With `decades`, of thresholds between whole decades none is used, as in the paper. Raises
    InconclusiveError if the place is before the first threshold, or may be beyond the last one.
    """
    thresholds = evidence.thresholds(criterion)
    if decades:
        logs = np.log10(thresholds)
        is_whole = np.abs(logs - np.round(logs)) < _WHOLE_DECADE
        thresholds = list(np.array(thresholds)[is_whole])
        if len(thresholds) < 2:
            raise InconclusiveError(f"rows missing: thresholds of {criterion} at whole decades")
    points = [(criterion, threshold) for threshold in thresholds]
    full = ("fixed", evidence.max_loops)
    change = _ce_change(evidence, points[-1], full)
    if change.low <= nats:
        key = f"exits.criteria.{criterion}.thresholds"
        raise InconclusiveError(f"{key} may end at equal quality, {thresholds[-1]:.3g}")

    units = evidence.entropies([*points, full])
    entropies = mean(_totals(evidence, units))  # (R + 1, T + 1)
    losses = entropies[:, :-1] - entropies[:, -1:]
    places = _crossings(losses, nats)
    if np.isnan(places[-1]):  # of all documents
        raise InconclusiveError(f"{criterion} has no threshold of equal quality")
    return EqualQuality(
        criterion,
        thresholds,
        losses,
        places=places,
        effective=effective_number(units),
    )


def _totals(evidence: Evidence, units: np.ndarray) -> np.ndarray:
    """Totals of the samples of the documents, and last those of all of them (R + 1, ...)."""
    return np.concatenate([bootstrap.totals(units, evidence.seed), units.sum(axis=0)[None]])


def _interpolated(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Values (R, T) at places (R,) between their columns.

    It is the first value without a place (NaN), and the last one beyond the last place.
    """
    last = values.shape[1] - 1
    places = np.nan_to_num(places, posinf=np.inf)[:, None]  # (R, 1)
    places = np.minimum(places, last)
    before = np.minimum(places, last - 1).astype(int)
    low = np.take_along_axis(values, before, axis=1)
    high = np.take_along_axis(values, before + 1, axis=1)
    found = low + (places - before) * (high - low)
    return found[:, 0]


def _crossings(changes: np.ndarray, nats: float) -> np.ndarray:
    """Places (R,) at which changes of quality (R, T) exceed `nats` for the last time.

    The last place if they do not at the last threshold, NaN if they do at all.
    """
    last = changes.shape[1] - 1
    worse = changes > nats
    crossings = worse[:, 1:] & ~worse[:, :-1]  # (R, T - 1): from a better threshold to a worse one
    from_the_end = crossings[:, ::-1].argmax(axis=1)
    before = last - 1 - from_the_end  # the last threshold that is better

    rows = np.arange(len(changes))
    low = changes[rows, before]
    high = changes[rows, before + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        places = before + (nats - low) / (high - low)  # linear between the two
    places = np.where(crossings.any(axis=1), places, np.nan)
    return np.where(worse[:, -1], places, last)


def _race(
    evidence: Evidence,
    criterion: str,
    other: str,
    nats: float = EQUAL_QUALITY,
    decades: bool = False,
) -> Estimate:
    """Computed time of `criterion` over that of `other`, each where it has lost so many nats.

    The place depends on quality and not on time, so it is no choice of the fastest among noisy
    times. Documents, on which places and evaluations depend, and the repeats of costs are two
    sources of error; what both criteria share of one does not widen the interval.
    """
    ours = equal_quality(evidence, criterion, nats, decades)
    theirs = equal_quality(evidence, other, nats, decades)
    of_ours, of_theirs = ours.times(evidence), theirs.times(evidence)
    ratio = of_ours - of_theirs
    *samples, value = ratio.of_documents
    ends = _interval_of_race(value, np.array(samples), ours.effective)
    remark = f"{ours}, {theirs}"
    remark = f"{remark}: {of_ours} against {of_theirs} ms"
    repeats = len(evidence.cost_units(criterion))
    return _with_costs(ratio, ends, ours.effective, repeats, remark)


def _decision_at_equal_quality(evidence: Evidence, criterion: str) -> Estimate:
    acceleration, other = (equal_quality(evidence, name) for name in ("acceleration", criterion))
    evaluations = other.group_evaluations(evidence)
    return _decision(evidence, criterion, evaluations, acceleration.times(evidence))


def _interval_of_race(value: float, samples: np.ndarray, effective: float) -> tuple[float, float]:
    """The 95 % interval over documents of a log ratio of times, from samples (R,) of documents.

    It is that of percentiles about the value, widened by sqrt(n / (n - 1)). With the quantiles of
    Student's t, as elsewhere, it would cover the true ratio in 99 % of simulated runs in place of
    96 % (tests/unit/test_simulation.py): interpolated places vary in more samples than in runs. An
    end is infinite where samples without a place are not rare.
    """
    outside = (1 - bootstrap.LEVEL) / 2
    widening = np.sqrt(effective / (effective - 1))
    finite = samples[np.isfinite(samples)]
    percentiles = np.quantile(finite, [outside, 1 - outside])
    low, high = value + widening * (percentiles - finite.mean())

    # the share of normal samples that an interval with Student's t leaves out at either end
    reach = widening * bootstrap.t_quantile(1 - outside, effective - 1)
    rare = NormalDist().cdf(-reach)
    # samples without an end are infinite, or undefined where neither criterion has a place
    if np.mean(~(samples > -np.inf)) > rare:
        low = -np.inf
    if np.mean(~(samples < np.inf)) > rare:
        high = np.inf
    return low, high


# --- the second reading of τ ----------------------------------------------------------------------


def _loss_beyond(evidence: Evidence, *criteria: str) -> Estimate:
    """Nats that a criterion loses from equal quality to the tenfold threshold.

    With a second criterion it is the difference from the nats that that one loses from its own.
    """
    return _at_equal_quality(evidence, criteria, EqualQuality.loss_beyond, " and tenfold")


def _at_equal_quality(
    evidence: Evidence,
    criteria: Sequence[str],
    measure: Callable[[EqualQuality], np.ndarray],
    place: str = "",
) -> Estimate:
    """A number (R + 1,) of a criterion where it has lost `EQUAL_QUALITY`, or of two the difference.

    `place` follows the threshold of each criterion in the remark.
    """
    qualities = [equal_quality(evidence, criterion) for criterion in criteria]
    values = [measure(quality) for quality in qualities]
    remark = ", ".join(
        f"{quality}{place}: {of_each[-1]:.3g}"
        for quality, of_each in zip(qualities, values, strict=True)
    )
    difference = values[0] - values[1] if len(values) > 1 else values[0]
    samples, value = difference[:-1], float(difference[-1])
    effective = qualities[0].effective
    ends = bootstrap.interval_about(value, samples, effective)
    units = len(evidence.exit_documents)
    return Estimate(
        value, *ends, remark, effective - 1, samples=samples, units=units, effective=effective
    ).checked()


@dataclass(frozen=True)
class EqualQualityPoint:
    """The exits of a criterion where it has lost `EQUAL_QUALITY` compared with full depth."""

    criterion: str
    threshold: float = np.nan
    evaluations: float = np.nan  # per token and group
    milliseconds: float = np.nan  # per token, computed
    reason: str = ""  # why there is no such point


def equal_quality_points(evidence: Evidence) -> list[EqualQualityPoint]:
    """The point of each exit criterion of a run, after that of full depth."""
    full = ("fixed", float(evidence.max_loops))
    milliseconds = _times(evidence, [full])[:, 0].milliseconds
    points = [EqualQualityPoint(*full, evaluations=full[1], milliseconds=milliseconds)]
    for criterion in dict(operating_points(evidence.exits)):
        if criterion != "fixed":
            points.append(_equal_quality_point(evidence, criterion))
    return points


def _equal_quality_point(evidence: Evidence, criterion: str) -> EqualQualityPoint:
    try:
        quality = equal_quality(evidence, criterion)
        evaluations = quality.evaluations(evidence)
        milliseconds = quality.times(evidence).milliseconds
    except InconclusiveError as error:
        return EqualQualityPoint(criterion, reason=str(error))
    return EqualQualityPoint(criterion, quality.threshold, float(evaluations[-1]), milliseconds)
