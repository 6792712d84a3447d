"""Findings for the claims about the geometry of loops: 1 to 6, 12 and 13.

Claims about training (2, 3, 5, 12) are judged on a trend, a line over the logarithm of the
iteration, fitted over all checkpoints after warm-up. The difference between two checkpoints depends
on which two: the first one after warm-up has a large learning rate, and the course between them is
not monotone. It is given for comparison.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from twoscale.claims.evidence import (
    FEWEST_FOR_TREND,
    Bounds,
    Estimate,
    Evidence,
    InconclusiveError,
    Quantity,
    Statistic,
    above,
    at_least,
    at_most,
    below,
    between,
    judged,
    mean,
    reference,
)

TENTH = 0.1  # steps have decayed if their mean norm is this share of that at k = 1
FASTEST_DECAY = 10  # loop steps within which steps are a tenth
LATE_STEPS = np.arange(10, 30)  # loop steps of the late cosine
MOST_LATE_DEVIATION = 0.05  # of the cosine over LATE_STEPS
MOST_UNSETTLING = MOST_LATE_DEVIATION**2 / 4  # rise of its variance over training
REPORTED_COSINE = (0.5, 0.65)  # range in which the cosine settles in later checkpoints (section 3)
PAPER_ANGLES = (0.45, 0.70)  # the same with a margin of 0.05
LEAST_TURN = 0.05  # of the cosine, towards zero
ANTI_PARALLEL = -0.1  # late cosines from here to 0.1 are orthogonal: angles of 84° to 96°
LEAST_DRIFT = 5.0  # DLR that counts as "much larger than 1"
UNCOUNTED_STATES = ("initial",)  # Eq. 2 to the letter measures the noise that a group starts from
PLATEAU = 0.5  # least share of the step norm of k = 10 … 19 that is left at k = 20 … 29
EARLY, LATE = slice(10, 20), slice(20, 30)

TREND = "{}, trend over checkpoints"
ENDS = "the same, last − first after warm-up"


# --- claims 1, 2, 12: step norms ------------------------------------------------------------------


def decay_is_fast(evidence: Evidence) -> Iterator[Quantity]:
    name = f"mean norm at k = {FASTEST_DECAY} over that at k = 1"
    leap = "norm at k = 0 over that at k = 1 (the leap from x⁰)"
    for group in evidence.groups:
        yield judged(group, name, at_most(TENTH), _decay_within, evidence, group)
        if not evidence.published:
            yield reference(group, "the same, untrained", _decay_within, evidence, group, 0)
        yield reference(
            group, leap, _norm_ratio, evidence, group, 1, lambda norms: norms[:, 0] / norms[:, 1]
        )


def _decay_within(evidence: Evidence, group: str, iteration: int | None = None) -> Estimate:
    iteration = evidence.last() if iteration is None else iteration
    units = _norms(evidence, group, [iteration], until=FASTEST_DECAY)[:, 0]
    time = decay_time(mean(units.sum(axis=0)))
    remark = f"a tenth at k = {time:.3g}" if np.isfinite(time) else "a tenth is not reached"
    return evidence.ratio(
        lambda totals: mean(totals)[:, FASTEST_DECAY] / mean(totals)[:, 1], units, remark
    )


def _norm_ratio(evidence: Evidence, group: str, until: int, statistic: Statistic) -> Estimate:
    """A ratio of mean step norms (R, K) of a group at the last checkpoint."""
    units = evidence.curves("step_norm", group, [evidence.last()], until)[:, 0]
    return evidence.ratio(lambda totals: statistic(mean(totals)), units)


def _norms(evidence: Evidence, group: str, iterations: Sequence[int], until: int = 2) -> np.ndarray:
    """Units of step norms; raises InconclusiveError if loop steps up to the decay to a tenth are
    rounding.
    """
    units = evidence.curves("step_norm", group, iterations, until)
    times = decay_time(mean(units.sum(axis=0)))
    for iteration, time in zip(iterations, times, strict=True):
        last = int(np.ceil(time)) if np.isfinite(time) else units.shape[-2] - 1
        evidence.check_angles(group, [iteration], range(1, last + 1))
    return units


def decay_time(norms: np.ndarray) -> np.ndarray:
    """First k ≥ 2 with at most a tenth of the norm at k = 1, interpolated in logarithms; infinite
    if there is none.

    Mean step norms (..., K) -> (...).
    """
    reached = norms[..., 2:] <= TENTH * norms[..., 1:2]
    after = 2 + reached.argmax(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        # relative log norms at the last step above a tenth and at the first one that is not
        relative = np.log(norms / norms[..., 1:2])
        log_before, log_after = (
            np.take_along_axis(relative, k, axis=-1)[..., 0] for k in (after - 1, after)
        )
        time = after[..., 0] - 1 + (log_before - np.log(TENTH)) / (log_before - log_after)
    return np.where(
        reached.any(axis=-1), time, np.where(np.isnan(norms).any(axis=-1), np.nan, np.inf)
    )


def decay_rate(totals: np.ndarray) -> np.ndarray:
    """Decades per loop step by which mean step norms fall until a tenth: (R, …, K, 2) -> (R, …); 0
    if never.
    """
    return 1 / (decay_time(mean(totals)) - 1)  # the decade begins at k = 1


def decay_gets_faster(evidence: Evidence) -> Iterator[Quantity]:
    name = "decades per loop step until a tenth of k = 1"
    for group in evidence.groups:
        yield judged(
            group, TREND.format(name), above(0), _trend, evidence, decay_rate, _norms, group
        )
        yield reference(group, ENDS, _change, evidence, decay_rate, _norms, group)


def steps_become_smaller(evidence: Evidence) -> Iterator[Quantity]:
    name = "ln of the mean step norm over k ≥ 1"

    def norms(evidence: Evidence, group: str, iterations: Sequence[int]) -> np.ndarray:
        return evidence.curves("step_norm", group, iterations, until=2)

    for group in evidence.groups:
        yield judged(
            group, TREND.format(name), below(0), _trend, evidence, log_mean_step, norms, group
        )
        yield reference(group, ENDS, _change, evidence, log_mean_step, norms, group)
        yield reference(
            group, "the same, over the norm of the states", _relative_trend, evidence, group
        )


def log_mean_step(totals: np.ndarray) -> np.ndarray:
    """Logarithm of the mean of the mean norms over k ≥ 1: (R, …, K, 2) -> (R, …)."""
    return np.log(mean(totals)[..., 1:].mean(axis=-1))


def _relative_trend(evidence: Evidence, group: str) -> Estimate:
    iterations = evidence.after_warmup(FEWEST_FOR_TREND)
    steps, states = (
        evidence.curves(name, group, iterations, until=2) for name in ("step_norm", "state_norm")
    )
    units = np.stack([steps, states], axis=1)  # (documents, measures, iterations, K, 2)
    return evidence.trend(
        lambda totals: log_mean_step(totals[:, 0]) - log_mean_step(totals[:, 1]), units
    )


# A function of Evidence, a group and iterations that gives units (documents, iterations, …).
_Units = Callable[[Evidence, str, Sequence[int]], np.ndarray]


def _trend(
    evidence: Evidence, statistic: Statistic, units: _Units, group: str, unbias: bool = False
) -> Estimate:
    iterations = evidence.after_warmup(FEWEST_FOR_TREND)
    return evidence.trend(statistic, units(evidence, group, iterations), unbias)


def _change(evidence: Evidence, statistic: Statistic, units: _Units, group: str) -> Estimate:
    iterations = evidence.after_warmup(2)
    ends = units(evidence, group, [iterations[0], iterations[-1]])
    return evidence.estimate(
        lambda totals: statistic(totals)[:, -1] - statistic(totals)[:, 0], ends
    )


# --- claims 3, 4, 5: angles -----------------------------------------------------------------------


def angles_settle(evidence: Evidence) -> Iterator[Quantity]:
    name = "variance of the mean cosine over k = 10 … 29"
    for group in evidence.groups:
        yield judged(group, "cosine at k = 1 − late mean", below(0), _rise, evidence, group)
        yield judged(
            group,
            name,
            at_most(MOST_LATE_DEVIATION**2, smallest=0),
            _last_variance,
            evidence,
            group,
        )
        arguments = (evidence, late_variance, late_cosines, group)
        yield judged(group, TREND.format(name), at_most(MOST_UNSETTLING), _trend, *arguments, True)
        yield reference(group, ENDS, _change, *arguments)


def _rise(evidence: Evidence, group: str) -> Estimate:
    iteration = evidence.last()
    evidence.check_angles(group, [iteration], [1])
    units = late_cosines(evidence, group, [iteration])[:, 0]
    return evidence.estimate(lambda totals: mean(totals)[:, 1] - late_mean(totals), units)


def _last_variance(evidence: Evidence, group: str) -> Estimate:
    units = late_cosines(evidence, group, [evidence.last()])[:, 0]
    return evidence.estimate(late_variance, units, unbias=True)


def late_cosines(evidence: Evidence, group: str, iterations: Sequence[int]) -> np.ndarray:
    """Units of cosines (documents, iterations, K, 2); raises InconclusiveError if LATE_STEPS are
    rounding.
    """
    units = evidence.curves("cosine", group, iterations, until=LATE_STEPS[-1])
    for iteration in iterations:
        evidence.check_angles(group, [iteration], LATE_STEPS)
    return units


def late_mean(totals: np.ndarray) -> np.ndarray:
    """Mean over LATE_STEPS of the mean cosine: (R, …, K, 2) -> (R, …)."""
    return mean(totals[..., LATE_STEPS, :]).mean(axis=-1)


def late_variance(totals: np.ndarray) -> np.ndarray:
    """Variance over LATE_STEPS of the mean cosine: (R, …, K, 2) -> (R, …). Noise adds to it:
    `unbias` estimates.
    """
    return mean(totals[..., LATE_STEPS, :]).var(axis=-1)


def angles_match(evidence: Evidence) -> Iterator[Quantity]:
    for group in evidence.groups:
        yield judged(group, "late cosine", between(*PAPER_ANGLES), late_cosine, evidence, group)
        if not evidence.published:
            yield reference(group, "the same, untrained", late_cosine, evidence, group, 0)


def late_cosine(evidence: Evidence, group: str, iteration: int | None = None) -> Estimate:
    """Late cosine of a group at a checkpoint, by default the last one."""
    iteration = evidence.last() if iteration is None else iteration
    return evidence.estimate(late_mean, late_cosines(evidence, group, [iteration])[:, 0])


def steps_turn_orthogonal(evidence: Evidence) -> Iterator[Quantity]:
    name = "|late cosine|"
    not_anti_parallel = Bounds(f"≥ {ANTI_PARALLEL} (not anti-parallel)", ANTI_PARALLEL)
    for group in evidence.groups:
        arguments = (evidence, lambda totals: np.abs(late_mean(totals)), late_cosines, group)
        yield judged(group, TREND.format(name), at_most(-LEAST_TURN), _trend, *arguments)
        yield judged(group, "late cosine, last", not_anti_parallel, late_cosine, evidence, group)
        yield reference(group, f"{name}, last − first after warm-up", _change, *arguments)


# --- claim 6: jumps between groups ----------------------------------------------------------------


def drift_is_larger(evidence: Evidence) -> Iterator[Quantity]:
    for boundary, state in evidence.jumps:
        scope, point = f"{boundary}, {state}", (evidence, boundary, state)
        counts = state not in UNCOUNTED_STATES
        for iteration in evidence.trained:
            name = f"DLR, iteration {iteration}"
            yield judged(scope, name, above(1), _drift_ratio, *point, iteration, counts=counts)
        yield judged(
            scope, "DLR, last", at_least(LEAST_DRIFT), _drift_ratio, *point, None, counts=counts
        )
        if not evidence.published:
            yield reference(scope, "DLR, untrained", _drift_ratio, *point, 0)
        yield reference(
            scope,
            "jump over the path of the loop, last",
            _drift_ratio,
            *point,
            None,
            "jump_over_path",
        )
    leap = "leap from x⁰ (k = 0) over the path of the loop"
    for group in evidence.groups:
        yield reference(
            group,
            leap,
            _norm_ratio,
            evidence,
            group,
            0,
            lambda norms: norms[:, 0] / norms.sum(axis=1),
        )


def _drift_ratio(
    evidence: Evidence,
    boundary: str,
    reference_state: str,
    iteration: int | None,
    measure: str = "dlr",
) -> Estimate:
    iteration = evidence.last() if iteration is None else iteration
    return evidence.estimate(mean, evidence.ratios(boundary, reference_state, iteration, measure))


# --- claim 13: the premise of the exit criterion --------------------------------------------------


def loops_are_spirals(evidence: Evidence) -> Iterator[Quantity]:
    ranges = "over k = 20 … 29 over that over k = 10 … 19"
    for group in evidence.groups:
        yield judged(
            group,
            f"mean norm {ranges}",
            at_least(PLATEAU),
            _spiral_ratio,
            evidence,
            group,
            late_over_early,
        )
        yield judged(
            group,
            f"mean turn {ranges}",
            between(PLATEAU, 1 / PLATEAU),
            _turn_ratio,
            evidence,
            group,
        )
        yield reference(group, f"mean curvature {ranges}", _curvature_ratio, evidence, group)
        late, remains = (
            "the norm over k = 20 … 29 over that at k = 1",
            lambda x: x[:, LATE].mean(axis=1) / x[:, 1],
        )
        yield reference(group, late, _spiral_ratio, evidence, group, remains)


def _spiral_ratio(evidence: Evidence, group: str, statistic: Statistic) -> Estimate:
    """A ratio of mean step norms (R, K) of a group whose early loop steps are no rounding."""
    return evidence.ratio(
        lambda totals: statistic(mean(totals)), _spiral(evidence, group, "step_norm")
    )


def _turn_ratio(evidence: Evidence, group: str) -> Estimate:
    """Ratio of the angles between successive steps, each from the mean cosine at a loop step."""
    evidence.check_angles(group, [evidence.last()], range(10, 30))
    units = _spiral(evidence, group, "cosine")
    return evidence.ratio(
        lambda totals: late_over_early(np.arccos(np.clip(mean(totals), -1, 1))), units
    )


def _curvature_ratio(evidence: Evidence, group: str) -> Estimate:
    """Ratio of curvatures a / s², of the mean acceleration a and the mean step norm s at each loop
    step.
    """
    evidence.check_angles(group, [evidence.last()], range(10, 30))
    units = np.stack(
        [_spiral(evidence, group, name) for name in ("acceleration", "step_norm")], axis=1
    )
    return evidence.ratio(
        lambda totals: late_over_early(mean(totals[:, 0]) / mean(totals[:, 1]) ** 2), units
    )


def _spiral(evidence: Evidence, group: str, measure: str) -> np.ndarray:
    """Units (documents, K, 2) at the last checkpoint; raises InconclusiveError if early loop steps
    are rounding.
    """
    iteration = evidence.last()
    units = evidence.curves(measure, group, [iteration], until=29)[:, 0]
    evidence.check_angles(group, [iteration], range(10, 20))
    return units


def late_over_early(curve: np.ndarray) -> np.ndarray:
    """Mean over k = 20 … 29 divided by the mean over k = 10 … 19: (R, K) -> (R,)."""
    with np.errstate(invalid="ignore"):
        return curve[:, LATE].mean(axis=1) / curve[:, EARLY].mean(axis=1)


# --- the scale of τ -------------------------------------------------------------------------------


def scale_of_threshold(evidence: Evidence, threshold: float, measure: str) -> Estimate:
    """τ over the mean norm of states, or of steps at k = 1, at the last checkpoint; the mean over
    groups.
    """
    iteration = evidence.last()
    if not evidence.groups:
        raise InconclusiveError("rows missing: no looped group")
    units = np.stack(
        [evidence.curves(measure, group, [iteration], until=1)[:, 0] for group in evidence.groups],
        axis=1,
    )
    steps = slice(1, 2) if measure == "step_norm" else slice(1, None)  # x⁰ is noise by default
    return evidence.ratio(
        lambda totals: threshold / mean(totals)[..., steps].mean(axis=(1, 2)), units
    )
