"""Findings for the claims about exit criteria: 7 to 11, 14 and 15.

Each threshold has its finding. No statistic is the largest or smallest over thresholds: the extreme
of noisy numbers is biased, and resampling adds the bias again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from twoscale.claims import bootstrap
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
    effective_number,
    judged,
    mean,
    reference,
)
from twoscale.claims.geometry import scale_of_threshold

PAPER_GRID = (1e-5, 1e-4, 1e-3, 1e-2)  # App. D
PAPER_MAX_LOOPS = 30
EQUAL_QUALITY = 0.01  # nats
# The second reading of claims about τ, whose unit the paper leaves open: thresholds at which each
# criterion has lost `EQUAL_QUALITY`, instead of equal numbers.
EQUAL, AT_PAPERS = "at equal quality:", "at the τ of the paper"
OTHER_LOSSES = (0.003, 0.03)  # nats, at which claim 10 is printed too
ABRUPT_LOSS = 0.05  # nats
SAVING = 0.75  # of the time
CRITERION_NAMES = {"kl": "KL", "minp_kl": "min-p KL"}


def criterion_name(criterion: str) -> str:
    return CRITERION_NAMES.get(criterion, criterion.replace("_", " "))


# --- claims 7 and 11: latency ---------------------------------------------------------------------


def acceleration_saves_time(evidence: Evidence) -> Iterator[Quantity]:
    name, points = (
        "latency at τ = 1e-2 over that at 1e-5",
        (("acceleration", 1e-2), ("acceleration", 1e-5)),
    )
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
        yield judged(
            "kl",
            name,
            above(1),
            _latency_ratio,
            evidence,
            ("kl", threshold),
            ("acceleration", threshold),
        )
    name = f"{EQUAL} latency over that of acceleration"
    yield judged("kl", name, above(1), _race, evidence, "kl", "acceleration", counts=False)
    yield _check_cost(evidence)
    yield from _scales(evidence)


def _check_cost(evidence: Evidence) -> Quantity:
    name = "one KL check in loop steps, mean over groups"
    return reference("kl", name, lambda: evidence.ratio_of_medians(evidence.check_times()))


def _scales(evidence: Evidence) -> Iterator[Quantity]:
    """The largest τ in units that do not depend on the scale of the states."""
    largest = PAPER_GRID[-1]
    for measure, unit in (
        ("state_norm", "norm of the states"),
        ("step_norm", "step norm at k = 1"),
    ):
        name = f"τ = {largest:g} over the mean {unit}, last checkpoint"
        yield reference("all groups", name, scale_of_threshold, evidence, largest, measure)


# --- claims 8, 9, 15: quality ---------------------------------------------------------------------


def quality_is_flat(evidence: Evidence) -> Iterator[Quantity]:
    for criterion in ("acceleration", "kl"):
        for threshold in PAPER_GRID[1:]:
            name = f"CE({threshold:g}) − CE(1e-5) in nats"
            points = ((criterion, threshold), (criterion, 1e-5))
            yield judged(
                criterion,
                name,
                between(-EQUAL_QUALITY, EQUAL_QUALITY),
                ce_change,
                evidence,
                *points,
            )
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
    name = f"{EQUAL} nats lost at the tenfold τ"
    yield judged(
        "step_norm", name, at_least(ABRUPT_LOSS), _loss_beyond, evidence, "step_norm", counts=False
    )
    yield from _scales(evidence)


def acceleration_and_kl_are_robust(evidence: Evidence) -> Iterator[Quantity]:
    name = "nats lost from τ = 1e-5 to 1e-2: step norm minus {}"
    for criterion in ("acceleration", "kl"):
        yield judged(
            criterion,
            name.format(criterion),
            above(EQUAL_QUALITY),
            _excess_loss,
            evidence,
            criterion,
        )
    for other in ("acceleration", "kl"):
        name = f"{EQUAL} nats lost at the tenfold τ: step norm minus {other}"
        yield judged(
            other,
            name,
            above(EQUAL_QUALITY),
            _loss_beyond,
            evidence,
            "step_norm",
            other,
            counts=False,
        )
    yield from _scales(evidence)


def _excess_loss(evidence: Evidence, criterion: str) -> Estimate:
    """Cross-entropy lost by the step norm over the range of τ, minus that lost by `criterion`."""
    units = evidence.entropies(
        [(name, threshold) for name in ("step_norm", criterion) for threshold in (1e-2, 1e-5)]
    )
    nats = mean(units.sum(axis=0))
    remark = f"{_rise(nats[:2]):.3g} against {_rise(nats[2:]):.3g}"
    return evidence.estimate(
        lambda totals: _rise(mean(totals)[:, :2]) - _rise(mean(totals)[:, 2:]), units, remark
    )


# --- claim 14: evaluations ------------------------------------------------------------------------


def kl_responds_later(evidence: Evidence) -> Iterator[Quantity]:
    def later(threshold: float) -> Estimate:
        units = evidence.evaluations([("kl", threshold), ("acceleration", threshold)])
        kl, acceleration = mean(units.sum(axis=0))
        return evidence.estimate(
            lambda totals: _rise(mean(totals)), units, f"{kl:.3g} against {acceleration:.3g}"
        )

    for threshold in PAPER_GRID:
        name = f"evaluations per token and group minus those of acceleration, τ = {threshold:g}"
        yield judged("kl", name, above(0), later, threshold)
    name = f"{EQUAL} evaluations per token and group minus those of acceleration"
    yield judged(
        "kl",
        name,
        above(0),
        _evaluations_at_equal_quality,
        evidence,
        "kl",
        "acceleration",
        counts=False,
    )
    yield from _scales(evidence)


# --- claim 10: the race at equal quality ----------------------------------------------------------


def acceleration_is_fastest(evidence: Evidence) -> Iterator[Quantity]:
    for other in ("kl", "step_norm"):
        name = f"latency at equal quality, acceleration over {other}"
        yield judged(other, name, below(1), _race, evidence, "acceleration", other)
    for other in ("kl", "step_norm"):
        for nats in OTHER_LOSSES:
            name = f"the same at a loss of {nats:g} nats, acceleration over {other}"
            yield reference(other, name, _race, evidence, "acceleration", other, nats)
    yield _check_cost(evidence)
    yield from _scales(evidence)


@dataclass(frozen=True)
class EqualQuality:
    """Where on its grid of thresholds a criterion has lost some nats compared with full depth.

    Places count from 0 and are interpolated: 6.25 is a quarter of the way from the seventh
    threshold to the eighth. NaN is a criterion that loses more from the first threshold on.
    """

    criterion: str
    thresholds: list[float]
    losses: (
        np.ndarray
    )  # nats at each threshold (R + 1, T), in samples of the documents and last of all of them
    places: np.ndarray  # (R + 1,)
    effective: float  # number of documents

    def __str__(self) -> str:
        if np.isnan(self.places[-1]):
            return f"{self.criterion} has no threshold of equal quality"
        return f"{self.criterion} at τ = {self.threshold:.3g}"

    @property
    def threshold(self) -> float:
        """The threshold at the place of all documents, NaN without one."""
        return float(
            np.exp(np.interp(self.places[-1], range(len(self.thresholds)), np.log(self.thresholds)))
        )

    def evaluations(self, evidence: Evidence) -> np.ndarray:
        """Evaluations per token and group at each place (R + 1,)."""
        units = evidence.evaluations([(self.criterion, threshold) for threshold in self.thresholds])
        totals = np.concatenate([bootstrap.totals(units, evidence.seed), units.sum(axis=0)[None]])
        return _interpolated(mean(totals), self.places)

    def loss_beyond(self) -> np.ndarray:
        """Nats lost from the place to the tenfold threshold (R + 1,). Raises InconclusiveError
        beyond the last one.
        """
        logs, numbers = np.log10(self.thresholds), np.arange(len(self.thresholds))
        beyond = np.interp(np.interp(self.places, numbers, logs) + 1, logs, numbers, right=np.inf)
        if np.isinf(beyond[-1]):
            raise InconclusiveError(
                f"{self} and tenfold: beyond its last threshold, {self.thresholds[-1]:.3g}"
            )
        return _interpolated(self.losses, beyond) - _interpolated(self.losses, self.places)

    def times(self, evidence: Evidence) -> np.ndarray:
        """Milliseconds per token of each prompt at each place (R + 1, P), infinite without one.

        They are interpolated linearly in their logarithm.
        """
        logs = np.log(
            evidence.latencies([(self.criterion, threshold) for threshold in self.thresholds])
        )  # (P, T)
        at_places = [
            _interpolated(np.broadcast_to(of_prompt, self.losses.shape), self.places)
            for of_prompt in logs
        ]
        return np.where(np.isnan(self.places)[:, None], np.inf, np.exp(np.stack(at_places, axis=1)))


@lru_cache(maxsize=32)
def equal_quality(evidence: Evidence, criterion: str, nats: float = EQUAL_QUALITY) -> EqualQuality:
    """Where a criterion has lost so many nats; raises InconclusiveError if that may be beyond its
    last threshold.
    """
    thresholds, full = evidence.thresholds(criterion), ("fixed", evidence.max_loops)
    if ce_change(evidence, (criterion, thresholds[-1]), full).low <= nats:
        raise InconclusiveError(
            f"exits.criteria.{criterion}.thresholds may end at equal quality, {thresholds[-1]:.3g}"
        )
    units = evidence.entropies([*((criterion, threshold) for threshold in thresholds), full])
    totals = np.concatenate([bootstrap.totals(units, evidence.seed), units.sum(axis=0)[None]])
    losses = mean(totals)[:, :-1] - mean(totals)[:, -1:]
    return EqualQuality(
        criterion, thresholds, losses, _crossings(losses, nats), effective_number(units)
    )


def _interpolated(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Values (R, T) at places (R,) between their columns: at the first without a place, at the last
    beyond it.
    """
    places = np.minimum(np.nan_to_num(places, posinf=np.inf), values.shape[1] - 1)
    before = np.minimum(places, values.shape[1] - 2).astype(int)
    low, high = (
        np.take_along_axis(values, (before + more)[:, None], axis=1)[:, 0] for more in (0, 1)
    )
    return low + (places - before) * (high - low)


def _crossings(changes: np.ndarray, nats: float) -> np.ndarray:
    """Places (R,) at which changes of quality (R, T) exceed `nats` for the last time.

    The last place if they do not at the last threshold, NaN if they do at all.
    """
    worse, rows = changes > nats, np.arange(len(changes))
    crossings = worse[:, 1:] & ~worse[:, :-1]
    before = crossings.shape[1] - 1 - crossings[:, ::-1].argmax(axis=1)
    low, high = changes[rows, before], changes[rows, before + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.where(crossings.any(axis=1), before + (nats - low) / (high - low), np.nan)
    return np.where(worse[:, -1], places, changes.shape[1] - 1)


def _race(evidence: Evidence, criterion: str, other: str, nats: float = EQUAL_QUALITY) -> Estimate:
    """Latency of `criterion` where it has lost some nats, over the latency of `other` where it has
    lost as many.

    The place depends on quality and not on latency, so it is no choice of the fastest among noisy
    times. Documents, on which both places depend, and prompts, with which both criteria are timed,
    are two sources of error; what both criteria share of one does not widen the interval.
    """
    ours, theirs = (equal_quality(evidence, name, nats) for name in (criterion, other))
    if np.isnan(ours.places[-1]) and np.isnan(theirs.places[-1]):
        raise InconclusiveError("neither criterion has a threshold of equal quality")
    times = np.stack(
        [quality.times(evidence) for quality in (ours, theirs)], axis=-1
    )  # (R + 1, P, 2)
    medians = np.median(times, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        *samples, value = np.log(medians[:, 0] / medians[:, 1])
    ends, remark = _ends(value, np.array(samples), ours.effective), f"{ours}, {theirs}"
    freedom = ours.effective - 1
    if np.isfinite(value):
        of_prompts = _ratio_of_times(evidence, times[-1])
        ends = bootstrap.joined(value, ends, (np.log(of_prompts.low), np.log(of_prompts.high)))
        remark, freedom = f"{remark}: {of_prompts.remark}", min(freedom, of_prompts.freedom)
    return Estimate(value, *ends, remark, freedom).checked().exponential()


def _ends(value: float, samples: np.ndarray, effective: float) -> tuple[float, float]:
    """The 95 % interval over documents of a logarithm, infinite at an end where samples without a
    place are not rare.

    It is that of percentiles about the value, widened as the variance of resamples asks for. With
    the quantiles of Student's t, as elsewhere, it would cover the true ratio in 99 % of simulated
    runs in place of 96 % (tests/unit/test_simulation.py): interpolated places vary in more samples
    than in runs.
    """
    outside, low, high = (1 - bootstrap.LEVEL) / 2, value, value
    widening = np.sqrt(effective / (effective - 1))
    if np.isfinite(value):
        finite = samples[np.isfinite(samples)]
        low, high = value + widening * (np.quantile(finite, [outside, 1 - outside]) - finite.mean())
    rare = NormalDist().cdf(-widening * bootstrap.t_quantile(1 - outside, effective - 1))
    below = ~(samples > -np.inf) | (np.isfinite(samples) & (value == np.inf))
    above = ~(samples < np.inf) | (np.isfinite(samples) & (value == -np.inf))
    return -np.inf if below.mean() > rare else low, np.inf if above.mean() > rare else high


def _loss_beyond(evidence: Evidence, criterion: str, other: str | None = None) -> Estimate:
    """Nats lost by `criterion` from equal quality to the tenfold threshold, minus those of `other`
    from its own.
    """
    qualities = _known_qualities(evidence, criterion, *([other] if other else []))
    losses = [quality.loss_beyond() for quality in qualities]
    remark = ", ".join(
        f"{quality} and tenfold: {loss[-1]:.3g}"
        for quality, loss in zip(qualities, losses, strict=True)
    )
    return _of_documents(losses[0] - (losses[1] if other else 0), qualities[0].effective, remark)


def _evaluations_at_equal_quality(evidence: Evidence, criterion: str, other: str) -> Estimate:
    """Evaluations per token and group of `criterion` minus those of `other`, each where it has lost
    `EQUAL_QUALITY`.
    """
    qualities = _known_qualities(evidence, criterion, other)
    counts = [quality.evaluations(evidence) for quality in qualities]
    remark = ", ".join(
        f"{quality}: {count[-1]:.3g}" for quality, count in zip(qualities, counts, strict=True)
    )
    return _of_documents(counts[0] - counts[1], qualities[0].effective, remark)


@dataclass(frozen=True)
class EqualQualityPoint:
    """The exits of a criterion where it has lost `EQUAL_QUALITY` compared with full depth."""

    criterion: str
    threshold: float = np.nan
    evaluations: float = np.nan  # per token and group
    milliseconds: float = np.nan  # per token, the median over prompts
    reason: str = ""  # why there is no such point


def equal_quality_points(evidence: Evidence) -> list[EqualQualityPoint]:
    """The point of each exit criterion of a run, after that of full depth."""
    full, steps = "fixed", float(evidence.max_loops)
    points = [
        EqualQualityPoint(full, steps, steps, float(np.median(evidence.latencies([(full, steps)]))))
    ]
    for criterion in evidence.quality["criterion"].unique():
        if criterion == full:
            continue
        try:
            (quality,) = _known_qualities(evidence, criterion)
            evaluations = float(quality.evaluations(evidence)[-1])
            milliseconds = float(np.median(quality.times(evidence)[-1]))
        except InconclusiveError as error:
            points.append(EqualQualityPoint(criterion, reason=str(error)))
        else:
            points.append(
                EqualQualityPoint(criterion, quality.threshold, evaluations, milliseconds)
            )
    return points


def _known_qualities(evidence: Evidence, *criteria: str) -> list[EqualQuality]:
    qualities = [equal_quality(evidence, criterion) for criterion in criteria]
    for quality in qualities:
        if np.isnan(quality.places[-1]):
            raise InconclusiveError(str(quality))
    return qualities


def _of_documents(values: np.ndarray, effective: float, remark: str) -> Estimate:
    """The estimate whose values are those of samples of the documents, and last that of all (R +
    1,).
    """
    *samples, value = values
    low, high = bootstrap.interval_about(value, np.array(samples), effective)
    return Estimate(float(value), low, high, remark, effective - 1).checked()
