"""Findings for the claims about the geometry of loops: 1 to 6, 12 and 13.

Claims 2, 3, 5 and 12 are about a change over training, of which the paper does not name the first
checkpoint. They have two readings: the last checkpoint minus the untrained model, and a trend, a
line over the logarithm of the iteration, fitted over all checkpoints after warm-up. The difference
between two of these depends on which two: the first one after warm-up has a large learning rate,
and the course between them is not monotone. It is given for comparison.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from twoscale.claims.bootstrap import Statistic
from twoscale.claims.estimates import Estimate, InconclusiveError, mean
from twoscale.claims.evidence import FEWEST_FOR_TREND, Evidence
from twoscale.claims.findings import (
    Bounds,
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
from twoscale.claims.words import REFERENCE

_TENTH = 0.1  # steps have decayed if their mean norm is this share of that at k = 1
FASTEST_DECAY = 10  # loop steps within which steps are a tenth
LATE_STEPS = np.arange(10, 30)  # loop steps of the late cosine
_MOST_LATE_DEVIATION = 0.05  # of the cosine over LATE_STEPS
_MOST_UNSETTLING = _MOST_LATE_DEVIATION**2 / 4  # rise of its variance over training
REPORTED_COSINE = (0.5, 0.65)  # range in which the cosine settles in later checkpoints (section 3)
_MARGIN = 0.05
PAPER_ANGLES = (0.45, 0.70)  # the same with this margin
_LEAST_TURN = 0.05  # of the cosine, towards zero
_LEAST_DRIFT = 5.0  # DLR that counts as "much larger than 1"
_UNCOUNTED_STATES = ("initial",)  # Eq. 2 to the letter measures the noise that a group starts from
_PLATEAU = 0.5  # least share of the step norm of k = 10 … 19 that is left at k = 20 … 29
EARLY, LATE = slice(10, 20), slice(20, 30)  # loop steps that claim 13 compares
_EARLY_STEPS = range(10, 20)  # those of them that may not be rounding

SINCE_UNTRAINED = Reading(REFERENCE, "last − untrained")
AFTER_WARMUP = Reading(REFERENCE, "trend after warm-up")
_TREND = "{}, trend over checkpoints"
_ENDS = "the same, last − first after warm-up"


# --- training: claims 2, 3, 5 and 12 --------------------------------------------------------------


@dataclass(frozen=True)
class _Course:
    """A number of a group at each checkpoint, and its change over training."""

    statistic: Statistic  # of totals (R, iterations, …), to (R, iterations)
    units: Callable[[Evidence, str, Sequence[int]], np.ndarray]  # of a group at these iterations
    unbias: bool = False  # whether noise makes the statistic larger, and its trend is corrected

    def trend(self, evidence: Evidence, group: str) -> Estimate:
        """The change along a line over the checkpoints after warm-up; claims are judged on it."""
        iterations = evidence.after_warmup(FEWEST_FOR_TREND)
        units = self.units(evidence, group, iterations)
        return evidence.trend(self.statistic, units, unbias=self.unbias)

    def line(self, evidence: Evidence, group: str) -> Callable[[], Estimate]:
        """The trend, to be measured."""
        return partial(self.trend, evidence, group)

    def last_minus_first(self, evidence: Evidence, group: str) -> Estimate:
        """The change between two checkpoints alone, for comparison."""
        first, *_, last = evidence.after_warmup(2)
        return self._change(evidence, group, first, last)

    def since_untrained(self, evidence: Evidence, group: str) -> Estimate:
        """The change from the untrained model to the last checkpoint."""
        return self._change(evidence, group, 0, evidence.last())

    def _change(self, evidence: Evidence, group: str, first: int, last: int) -> Estimate:
        units = self.units(evidence, group, [first, last])

        def change(totals: np.ndarray) -> np.ndarray:  # (R, 2, …) -> (R,)
            values = self.statistic(totals)
            return values[:, 1] - values[:, 0]

        before, after = self.statistic(units.sum(axis=0)[None])[0]
        remark = f"{before:.3g} → {after:.3g}"
        return evidence.estimate(change, units, remark, unbias=self.unbias)

    def over_training(
        self, evidence: Evidence, group: str, name: str, bounds: Bounds
    ) -> Iterator[Quantity]:
        """The change under both readings, or the trend alone without an untrained model."""
        trend = _TREND.format(name)
        if 0 not in evidence.iterations:
            yield judged(group, trend, bounds, self.trend, evidence, group)
            return
        change = f"{name}, {SINCE_UNTRAINED.name}"
        run = (evidence, group)
        yield judged(group, change, bounds, self.since_untrained, *run, reading=SINCE_UNTRAINED)
        yield judged(group, trend, bounds, self.trend, *run, reading=AFTER_WARMUP)


# --- claims 1, 2, 12: step norms ------------------------------------------------------------------


def decay_is_fast(evidence: Evidence) -> Iterator[Quantity]:
    name = f"mean norm at k = {FASTEST_DECAY} over that at k = 1"
    leap = "norm at k = 0 over that at k = 1 (the leap from x⁰)"
    for group in evidence.groups:
        line = _DECAYED.line(evidence, group)
        yield judged(group, name, at_most(_TENTH), _decay_within, evidence, group, trend=line)
        if not evidence.published:
            yield reference(group, "the same, untrained", _decay_within, evidence, group, 0)
        yield reference(group, leap, _norm_ratio, evidence, group, _leap_over_first, until=1)


def _decay_within(evidence: Evidence, group: str, iteration: int | None = None) -> Estimate:
    iteration = evidence.last() if iteration is None else iteration
    units = _norms(evidence, group, [iteration], until=FASTEST_DECAY)[:, 0]  # (documents, K, 2)

    norms = mean(units.sum(axis=0))  # (K,)
    time = _decay_time(norms)
    remark = f"a tenth at k = {time:.3g}" if np.isfinite(time) else "a tenth is not reached"
    return evidence.ratio(decayed, units, remark)


def decayed(totals: np.ndarray) -> np.ndarray:
    """Mean norm at k = `FASTEST_DECAY` over that at k = 1: (R, …, K, 2) -> (R, …)."""
    norms = mean(totals)
    return norms[..., FASTEST_DECAY] / norms[..., 1]


def _leap_over_first(norms: np.ndarray) -> np.ndarray:
    return norms[:, 0] / norms[:, 1]


def _norm_ratio(
    evidence: Evidence, group: str, statistic: Statistic, until: int, checked: Sequence[int] = ()
) -> Estimate:
    """A ratio of mean step norms (R, K) of a group at the last checkpoint.

    It needs loop steps up to k = `until`; those in `checked` may not be rounding.
    """
    units = _last_curves(evidence, "step_norm", group, until, checked)
    return evidence.ratio(lambda totals: statistic(mean(totals)), units)


def _last_curves(
    evidence: Evidence, measure: str, group: str, until: int, checked: Sequence[int]
) -> np.ndarray:
    """Units (documents, K, 2) of a measure at the last checkpoint.

    Raises InconclusiveError if loop steps up to k = `until` are missing, or too many of those in
    `checked` are rounding.
    """
    iteration = evidence.last()
    units = evidence.curves(measure, group, [iteration], until)[:, 0]
    evidence.check_angles(group, iteration, checked)
    return units


def _norms(evidence: Evidence, group: str, iterations: Sequence[int], until: int = 2) -> np.ndarray:
    """Units of step norms (documents, iterations, K, 2).

    Raises InconclusiveError if loop steps up to the decay to a tenth are rounding.
    """
    units = evidence.curves("step_norm", group, iterations, until)
    norms = mean(units.sum(axis=0))  # (iterations, K)
    for iteration, time in zip(iterations, _decay_time(norms), strict=True):
        end = norms.shape[-1]
        if np.isfinite(time):
            end = int(np.ceil(time)) + 1
        evidence.check_angles(group, iteration, range(1, end))
    return units


def _decay_time(norms: np.ndarray) -> np.ndarray:
    """First k ≥ 2 with at most a tenth of the norm at k = 1: mean step norms (..., K) -> (...).

    It is interpolated in logarithms between loop steps, and infinite if a tenth is not reached.
    """
    first = norms[..., 1:2]
    reached = norms[..., 2:] <= _TENTH * first  # (..., K - 2), from k = 2
    after = 2 + reached.argmax(axis=-1, keepdims=True)  # (..., 1), the first k with a tenth
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.log(norms / first)
        log_before = np.take_along_axis(relative, after - 1, axis=-1)  # above ln 0.1
        log_after = np.take_along_axis(relative, after, axis=-1)  # ln 0.1 or less
        part = (log_before - np.log(_TENTH)) / (log_before - log_after)  # of the last loop step
        time = after - 1 + part
    is_undefined = np.isnan(norms).any(axis=-1)
    never = np.where(is_undefined, np.nan, np.inf)
    return np.where(reached.any(axis=-1), time[..., 0], never)


def decay_rate(totals: np.ndarray) -> np.ndarray:
    """Decades per loop step by which mean step norms fall until a tenth.

    Totals (R, …, K, 2) -> (R, …). Norms above a tenth have at most the rate of a tenth at the last
    loop step, and get that rate. Raises InconclusiveError if all of them are.
    """
    time = _decay_time(mean(totals))
    last = totals.shape[-2] - 1
    if np.isinf(time).all():
        raise InconclusiveError(f"no norm is below a tenth within {last} loop steps")
    return 1 / (np.minimum(time, last) - 1)  # the decade begins at k = 1


_DECAY = _Course(decay_rate, _norms)
_DECAYED = _Course(lambda totals: np.log(decayed(totals)), partial(_norms, until=FASTEST_DECAY))


def decay_gets_faster(evidence: Evidence) -> Iterator[Quantity]:
    name = "decades per loop step until a tenth of k = 1"
    for group in evidence.groups:
        yield from _DECAY.over_training(evidence, group, name, above(0))


def _all_norms(evidence: Evidence, group: str, iterations: Sequence[int]) -> np.ndarray:
    return evidence.curves("step_norm", group, iterations, until=2)


def log_mean_step(totals: np.ndarray) -> np.ndarray:
    """Logarithm of the mean of the mean norms over k ≥ 1: (R, …, K, 2) -> (R, …)."""
    norms = mean(totals)
    return np.log(norms[..., 1:].mean(axis=-1))


def _steps_and_states(evidence: Evidence, group: str, iterations: Sequence[int]) -> np.ndarray:
    steps = evidence.curves("step_norm", group, iterations, until=2)
    states = evidence.curves("state_norm", group, iterations, until=2)
    return np.stack([steps, states], axis=1)  # (documents, 2, iterations, K, 2)


def _log_relative_step(totals: np.ndarray) -> np.ndarray:
    """Logarithm of the mean step norm over the mean state norm: (R, 2, …, K, 2) -> (R, …)."""
    return log_mean_step(totals[:, 0]) - log_mean_step(totals[:, 1])


_STEPS = _Course(log_mean_step, _all_norms)
_RELATIVE_STEPS = _Course(_log_relative_step, _steps_and_states)


def steps_become_smaller(evidence: Evidence) -> Iterator[Quantity]:
    name = "ln of the mean step norm over k ≥ 1"
    relative = f"{_TREND.format(name)}, over the norm of the states"
    for group in evidence.groups:
        yield from _STEPS.over_training(evidence, group, name, below(0))
        yield reference(group, relative, _RELATIVE_STEPS.trend, evidence, group)


# --- claims 3, 4, 5: angles -----------------------------------------------------------------------


def _late_cosines(evidence: Evidence, group: str, iterations: Sequence[int]) -> np.ndarray:
    """Units of cosines (documents, iterations, K, 2).

    Raises InconclusiveError if too many of LATE_STEPS are rounding.
    """
    units = evidence.curves("cosine", group, iterations, until=LATE_STEPS[-1])
    for iteration in iterations:
        evidence.check_angles(group, iteration, LATE_STEPS)
    return units


def late_mean(totals: np.ndarray) -> np.ndarray:
    """Mean over LATE_STEPS of the mean cosine: (R, …, K, 2) -> (R, …)."""
    cosines = mean(totals[..., LATE_STEPS, :])  # (R, …, 20)
    return cosines.mean(axis=-1)


def late_variance(totals: np.ndarray) -> np.ndarray:
    """Variance over LATE_STEPS of the mean cosine: (R, …, K, 2) -> (R, …).

    Noise adds to it, so its estimates are corrected for the bias.
    """
    cosines = mean(totals[..., LATE_STEPS, :])
    return cosines.var(axis=-1)


def first_minus_late(totals: np.ndarray) -> np.ndarray:
    """Mean cosine at k = 1 minus the late mean: (R, …, K, 2) -> (R, …)."""
    return mean(totals)[..., 1] - late_mean(totals)


def _first_and_late(evidence: Evidence, group: str, iterations: Sequence[int]) -> np.ndarray:
    """As `_late_cosines`, where k = 1 may not be rounding either."""
    for iteration in iterations:
        evidence.check_angles(group, iteration, [1])
    return _late_cosines(evidence, group, iterations)


_VARIANCE = _Course(late_variance, _late_cosines, unbias=True)
_RISE = _Course(first_minus_late, _first_and_late)
_LATE = _Course(late_mean, _late_cosines)


def angles_settle(evidence: Evidence) -> Iterator[Quantity]:
    name = "variance of the mean cosine over k = 10 … 29"
    small = at_most(_MOST_LATE_DEVIATION**2, smallest=0)
    steady = at_most(_MOST_UNSETTLING)
    rise = "cosine at k = 1 − late mean"
    for group in evidence.groups:
        line = _RISE.line(evidence, group)
        yield judged(group, rise, below(0), _rise, evidence, group, trend=line)
        line = _VARIANCE.line(evidence, group)
        yield judged(group, name, small, _last_variance, evidence, group, trend=line)
        yield from _VARIANCE.over_training(evidence, group, name, steady)
        yield reference(group, _ENDS, _VARIANCE.last_minus_first, evidence, group)


def _rise(evidence: Evidence, group: str) -> Estimate:
    units = _first_and_late(evidence, group, [evidence.last()])[:, 0]
    return evidence.estimate(first_minus_late, units)


def _last_variance(evidence: Evidence, group: str) -> Estimate:
    units = _late_cosines(evidence, group, [evidence.last()])[:, 0]
    return evidence.estimate(late_variance, units, unbias=True)


def angles_match(evidence: Evidence) -> Iterator[Quantity]:
    bounds = between(*PAPER_ANGLES, margin=_MARGIN)
    for group in evidence.groups:
        line = _LATE.line(evidence, group)
        yield judged(group, "late cosine", bounds, late_cosine, evidence, group, trend=line)
        if not evidence.published:
            yield reference(group, "the same, untrained", late_cosine, evidence, group, 0)


def late_cosine(evidence: Evidence, group: str, iteration: int | None = None) -> Estimate:
    """Late cosine of a group at a checkpoint, by default the last one."""
    iteration = evidence.last() if iteration is None else iteration
    units = _late_cosines(evidence, group, [iteration])[:, 0]
    return evidence.estimate(late_mean, units)


_MODULUS = _Course(lambda totals: np.abs(late_mean(totals)), _late_cosines)


def steps_turn_orthogonal(evidence: Evidence) -> Iterator[Quantity]:
    name = "|late cosine|"
    ends = f"{name}, last − first after warm-up"
    falls = at_most(-_LEAST_TURN)
    for group in evidence.groups:
        yield from _MODULUS.over_training(evidence, group, name, falls)
        yield reference(group, "late cosine, last", late_cosine, evidence, group)
        yield reference(group, ends, _MODULUS.last_minus_first, evidence, group)


# --- claim 6: jumps between groups ----------------------------------------------------------------


def drift_is_larger(evidence: Evidence) -> Iterator[Quantity]:
    path = "jump over the path of the loop, last"
    for boundary, state in evidence.jumps:
        scope = f"{boundary}, {state}"
        jump = (evidence, boundary, state)
        line = partial(_drift_trend, *jump)
        role = Role.REFERENCE if state in _UNCOUNTED_STATES else Role.COUNTED
        ratio = partial(judged, role=role, trend=line)
        for iteration in evidence.trained:
            name = f"DLR, iteration {iteration}"
            yield ratio(scope, name, above(1), _drift_ratio, *jump, iteration)
        larger = at_least(_LEAST_DRIFT)
        yield ratio(scope, "DLR, last", larger, _drift_ratio, *jump)
        if not evidence.published:
            yield reference(scope, "DLR, untrained", _drift_ratio, *jump, 0)
        yield reference(scope, path, _drift_ratio, *jump, measure="jump_over_path")

    leap = "leap from x⁰ (k = 0) over the path of the loop"
    for group in evidence.groups:
        yield reference(group, leap, _norm_ratio, evidence, group, _leap_over_path, until=0)


def _drift_ratio(
    evidence: Evidence,
    boundary: str,
    reference_state: str,
    iteration: int | None = None,
    measure: str = "dlr",
) -> Estimate:
    """Drift-to-loop ratio (Eq. 2) of a boundary at a checkpoint, by default the last one."""
    iteration = evidence.last() if iteration is None else iteration
    return evidence.estimate(mean, evidence.ratios(boundary, reference_state, iteration, measure))


def _drift_trend(evidence: Evidence, boundary: str, reference_state: str) -> Estimate:
    iterations = evidence.after_warmup(FEWEST_FOR_TREND)
    ratios = [evidence.ratios(boundary, reference_state, iteration) for iteration in iterations]
    return evidence.trend(mean, np.stack(ratios, axis=1))


def _leap_over_path(norms: np.ndarray) -> np.ndarray:
    return norms[:, 0] / norms.sum(axis=1)


# --- claim 13: the premise of the exit criterion --------------------------------------------------


def loops_are_spirals(evidence: Evidence) -> Iterator[Quantity]:
    ranges = "over k = 20 … 29 over that over k = 10 … 19"
    norm = f"mean norm {ranges}"
    turn = f"mean turn {ranges}"
    late = "the norm over k = 20 … 29 over that at k = 1"
    norms = partial(_norm_ratio, evidence, until=29, checked=_EARLY_STEPS)
    steady = between(_PLATEAU, 1 / _PLATEAU)
    for group in evidence.groups:
        line = _PLATEAUS.line(evidence, group)
        yield judged(group, norm, at_least(_PLATEAU), norms, group, late_over_early, trend=line)
        line = _TURNS.line(evidence, group)
        yield judged(group, turn, steady, _turn_ratio, evidence, group, trend=line)
        yield reference(group, f"mean curvature {ranges}", _curvature_ratio, evidence, group)
        yield reference(group, late, norms, group, _late_over_first)


def _turn_ratio(evidence: Evidence, group: str) -> Estimate:
    """Ratio of the angles between successive steps, each from the mean cosine at a loop step."""

    return evidence.ratio(late_over_early_turn, _spiral(evidence, group, "cosine"))


def late_over_early_turn(totals: np.ndarray) -> np.ndarray:
    """Ratio of the mean angles between successive steps: (R, …, K, 2) -> (R, …)."""
    cosines = np.clip(mean(totals), -1, 1)  # rounding may leave the range
    return late_over_early(np.arccos(cosines))  # radians per loop step


def _curvature_ratio(evidence: Evidence, group: str) -> Estimate:
    """Ratio of curvatures a / s², of the mean acceleration a and step norm s at each loop step."""

    def ratio(totals: np.ndarray) -> np.ndarray:  # (R, 2, K, 2) -> (R,)
        acceleration = mean(totals[:, 0])
        step = mean(totals[:, 1])
        return late_over_early(acceleration / step**2)  # per length of the path

    accelerations = _spiral(evidence, group, "acceleration")
    steps = _spiral(evidence, group, "step_norm")
    return evidence.ratio(ratio, np.stack([accelerations, steps], axis=1))


def _spiral(evidence: Evidence, group: str, measure: str) -> np.ndarray:
    """Units (documents, K, 2) of a measure of angles at the last checkpoint."""
    evidence.check_angles(group, evidence.last(), LATE_STEPS)
    return _last_curves(evidence, measure, group, until=29, checked=_EARLY_STEPS)


def late_over_early(curve: np.ndarray) -> np.ndarray:
    """Mean over k = 20 … 29 divided by the mean over k = 10 … 19: (R, …, K) -> (R, …)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return curve[..., LATE].mean(axis=-1) / curve[..., EARLY].mean(axis=-1)


def _spirals(
    evidence: Evidence, group: str, iterations: Sequence[int], measure: str, checked: Iterable[int]
) -> np.ndarray:
    """Units (documents, iterations, K, 2) of a measure of which `checked` may not be rounding."""
    for iteration in iterations:
        evidence.check_angles(group, iteration, checked)
    return evidence.curves(measure, group, iterations, until=29)


_PLATEAUS = _Course(
    lambda totals: np.log(late_over_early(mean(totals))),
    partial(_spirals, measure="step_norm", checked=_EARLY_STEPS),
)
_TURNS = _Course(
    lambda totals: np.log(late_over_early_turn(totals)),
    partial(_spirals, measure="cosine", checked=LATE_STEPS),
)


def _late_over_first(norms: np.ndarray) -> np.ndarray:
    return norms[:, LATE].mean(axis=1) / norms[:, 1]


# --- the scale of τ -------------------------------------------------------------------------------


def scale_of_threshold(evidence: Evidence, threshold: float, measure: str) -> Estimate:
    """τ over the mean norm of states, or of steps at k = 1, at the last checkpoint.

    The mean is over groups, and for states over loop steps.
    """
    iteration = evidence.last()
    if not evidence.groups:
        raise InconclusiveError("rows missing: no looped group")
    of_groups = [
        evidence.curves(measure, group, [iteration], until=1)[:, 0] for group in evidence.groups
    ]
    units = np.stack(of_groups, axis=1)  # (documents, groups, K, 2)
    steps = slice(1, 2) if measure == "step_norm" else slice(1, None)  # x⁰ is noise by default

    def ratio(totals: np.ndarray) -> np.ndarray:
        norms = mean(totals)  # (R, groups, K)
        return threshold / norms[..., steps].mean(axis=(1, 2))

    return evidence.ratio(ratio, units)
