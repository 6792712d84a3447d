"""The claims of the paper, measured on one run, with a verdict on each.

A claim is judged on findings. A finding is one number with its interval, judged against bounds, for one scope: a
group, a boundary, a reference state or an exit criterion. It *holds* if the whole interval is within the bounds,
*does not hold* if the whole interval is outside, and otherwise *cannot be judged*. A claim does not hold if one of
its findings does not; else it cannot be judged if one of them cannot; else it holds. The bounds were fixed before
any run was looked at.

Intervals are bootstraps over held-out sequences (geometry, quality) or over timed prompts (latency).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.analysis import bootstrap
from twoscale.analysis.evidence import (
    SETTLED,
    Estimate,
    Evidence,
    InconclusiveError,
    decay_step,
    decay_time,
    mean,
    ratios_of_medians,
    settled_deviation,
    settled_mean,
)

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
ALL = "all"  # the scope of the last row of a claim

PAPER_GRID = (1e-5, 1e-4, 1e-3, 1e-2)  # App. D
HALF_DECADES = tuple(10 ** (exponent / 2) for exponent in range(-10, -3))
PAPER_MAX_LOOPS = 30
EQUAL_QUALITY = 0.01  # nats
UNCOUNTED_STATES = ("initial",)  # Eq. 2 to the letter measures the noise that a group starts from


@dataclass(frozen=True)
class Bounds:
    """The values that a number may have: from `least` to `most`, both included."""

    text: str
    least: float = -np.inf
    most: float = np.inf


def at_most(bound: float) -> Bounds:
    return Bounds(f"≤ {bound:g}", most=bound)


def at_least(bound: float) -> Bounds:
    return Bounds(f"≥ {bound:g}", least=bound)


def below(bound: float) -> Bounds:
    return Bounds(f"< {bound:g}", most=np.nextafter(bound, -np.inf))


def above(bound: float) -> Bounds:
    return Bounds(f"> {bound:g}", least=np.nextafter(bound, np.inf))


@dataclass(frozen=True)
class Finding:
    """One measured number of a claim. Without bounds it is given for comparison and has no verdict."""

    scope: str
    quantity: str
    estimate: Estimate
    bounds: str = ""
    verdict: str = ""
    reason: str = ""
    counts: bool = True  # whether the verdict on the claim depends on it


@dataclass(frozen=True)
class Claim:
    """One claim: its statement in our words, its location in the paper, and the function that evaluates it."""

    number: int
    title: str
    statement: str
    where: str
    examine: Callable[[Evidence], Iterator[Finding]]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, with the findings that it follows from."""

    claim: Claim
    findings: tuple[Finding, ...]
    verdict: str
    reason: str


# --- findings --------------------------------------------------------------------------------------------------


def judge(bounds: Bounds, estimate: Estimate) -> tuple[str, str]:
    """Verdict and reason for a number with its interval."""
    if bounds.least <= estimate.low and estimate.high <= bounds.most:
        return HOLDS, "whole interval inside"
    if estimate.high < bounds.least or bounds.most < estimate.low:
        return FAILS, "whole interval outside"
    return OPEN, "the interval crosses the bounds"


def judged_finding(
    scope: str, quantity: str, bounds: Bounds, measure: Callable[..., Estimate], *arguments: object
) -> Finding:
    """The finding of `measure(*arguments)`, or the reason that there is none."""
    try:
        estimate = measure(*arguments)
    except InconclusiveError as reason:
        return Finding(scope, quantity, Estimate(), bounds.text, OPEN, str(reason))
    verdict, reason = judge(bounds, estimate)
    reason = f"{reason}; {estimate.remark}" if estimate.remark else reason
    return Finding(scope, quantity, estimate, bounds.text, verdict, reason)


def reference_finding(scope: str, quantity: str, measure: Callable[..., Estimate], *arguments: object) -> Finding:
    """A number for comparison, without a verdict."""
    try:
        return Finding(scope, quantity, measure(*arguments), counts=False)
    except InconclusiveError as reason:
        return Finding(scope, quantity, Estimate(), reason=str(reason), counts=False)


def combine(findings: Iterable[Finding]) -> tuple[str, str]:
    """Verdict and reason of several findings: one that does not hold decides, then one that cannot be judged."""
    counted = [finding for finding in findings if finding.counts]
    for verdict in (FAILS, OPEN):
        reasons = [f"{finding.scope}: {finding.reason}" for finding in counted if finding.verdict == verdict]
        if reasons:
            return verdict, "; ".join(dict.fromkeys(reasons))
    if not counted:
        return OPEN, "rows missing: nothing was measured that the claim is about"
    return HOLDS, "every finding is within its bounds"


# --- geometry: claims 1 to 6 -----------------------------------------------------------------------------------


def decay_is_fast(evidence: Evidence) -> Iterator[Finding]:
    quantity = "first k ≥ 2 with a tenth of the norm at k = 1"
    leap = "norm at k = 0 over that at k = 1 (the leap from x⁰)"
    for group in evidence.groups:
        yield judged_finding(group, quantity, at_most(10), _decay_step, evidence, group)
        yield reference_finding(group, "the same, untrained", _decay_step, evidence, group, 0)
        yield reference_finding(group, leap, _first_norm_ratio, evidence, group)


def _decay_step(evidence: Evidence, group: str, iteration: int | None = None) -> Estimate:
    iteration = evidence.last() if iteration is None else iteration
    units = evidence.curves("step_norm", group, [iteration], until=10)[:, 0]
    estimate = evidence.estimate(lambda sample: decay_step(mean(sample)), units)
    _check_decay(evidence, group, iteration, units.shape[-2], estimate.value)
    return estimate


def _check_decay(evidence: Evidence, group: str, iteration: int, loop_steps: int, reached: float) -> None:
    """Raise InconclusiveError if too many loop steps up to the decay are under the rounding floor."""
    last = int(np.ceil(reached)) if np.isfinite(reached) else loop_steps - 1
    evidence.check_angles(group, [iteration], range(1, last + 1))


def _first_norm_ratio(evidence: Evidence, group: str) -> Estimate:
    units = evidence.curves("step_norm", group, [evidence.last()], until=1)[:, 0]
    return evidence.estimate(lambda sample: mean(sample)[:, 0] / mean(sample)[:, 1], units)


def decay_gets_faster(evidence: Evidence) -> Iterator[Finding]:
    quantity = "interpolated k, last − first trained"
    for group in evidence.groups:
        yield judged_finding(group, quantity, below(0), _decay_time_change, evidence, group)


def _decay_time_change(evidence: Evidence, group: str) -> Estimate:
    ends = evidence.first_and_last()
    units = evidence.curves("step_norm", group, ends, until=2)
    times = [decay_time(mean(units[None, :, i]))[0] for i in (0, 1)]
    if not np.isfinite(times).any():
        raise InconclusiveError("neither checkpoint reaches a tenth within its loop steps")
    for iteration, time in zip(ends, times, strict=True):
        _check_decay(evidence, group, iteration, units.shape[-2], time)
    remark = " → ".join(f"{time:.3g}" if np.isfinite(time) else "never" for time in times)
    return evidence.estimate(_difference_of_times, units, f"k {remark}")


def _difference_of_times(sample: np.ndarray) -> np.ndarray:
    first, last = (decay_time(mean(sample[:, :, i])) for i in (0, 1))
    with np.errstate(invalid="ignore"):
        return last - first


def angles_settle(evidence: Evidence) -> Iterator[Finding]:
    rise, spread = "cosine at k = 1 − settled mean", "deviation over k = 10 … 29"
    for group in evidence.groups:
        yield judged_finding(group, rise, below(0), _first_cosine_minus_settled, evidence, group)
        yield judged_finding(group, spread, at_most(0.05), _cosine_std, evidence, group)
        yield judged_finding(group, "deviation, last − first trained", at_most(0), _cosine_std_change, evidence, group)


def _first_cosine_minus_settled(evidence: Evidence, group: str) -> Estimate:
    units = _cosines(evidence, group, [evidence.last()], first=1)[:, 0]
    return evidence.estimate(lambda sample: mean(sample)[:, 1] - settled_mean(sample), units)


def _cosine_std(evidence: Evidence, group: str) -> Estimate:
    return evidence.estimate(settled_deviation, _cosines(evidence, group, [evidence.last()])[:, 0])


def _cosine_std_change(evidence: Evidence, group: str) -> Estimate:
    units = _cosines(evidence, group, evidence.first_and_last())
    return evidence.estimate(lambda sample: np.diff(settled_deviation(sample), axis=1)[:, 0], units)


def _cosines(evidence: Evidence, group: str, iterations: Sequence[int], first: int | None = None) -> np.ndarray:
    """Sums and counts of cosines (sequences, iterations, K, 2).

    Raises InconclusiveError if the loop steps `SETTLED`, or the loop step `first`, are under the rounding floor.
    """
    units = evidence.curves("cosine", group, iterations, until=SETTLED[-1])
    for iteration in iterations:
        evidence.check_angles(group, [iteration], SETTLED)
        if first is not None:
            evidence.check_angles(group, [iteration], [first])
    return units


def angles_match(evidence: Evidence) -> Iterator[Finding]:
    bounds = Bounds("0.45 … 0.70", 0.45, 0.70)
    for group in evidence.groups:
        yield judged_finding(group, "settled mean cosine", bounds, _settled_cosine, evidence, group)
        yield reference_finding(group, "the same, untrained", _settled_cosine, evidence, group, 0)


def _settled_cosine(evidence: Evidence, group: str, iteration: int | None = None) -> Estimate:
    iteration = evidence.last() if iteration is None else iteration
    return evidence.estimate(settled_mean, _cosines(evidence, group, [iteration])[:, 0])


def steps_turn_orthogonal(evidence: Evidence) -> Iterator[Finding]:
    quantity = "|settled mean cosine|, last − first trained"
    for group in evidence.groups:
        settled = reference_finding(group, "settled mean cosine, last", _settled_cosine, evidence, group)
        change = judged_finding(group, quantity, at_most(-0.05), _settled_modulus_change, evidence, group)
        # the modulus also falls on the way from 0.6 to -0.5, which is anti-parallel
        yield _anti_parallel(change) if settled.estimate.high < 0 else change
        yield settled


def _anti_parallel(change: Finding) -> Finding:
    remark = change.estimate.remark or change.reason
    reason = f"successive steps are anti-parallel, not orthogonal; {remark}"
    return replace(change, verdict=FAILS, reason=reason)


def _settled_modulus_change(evidence: Evidence, group: str) -> Estimate:
    units = _cosines(evidence, group, evidence.first_and_last())
    first, last = settled_mean(units[None])[0]
    remark = f"mean {first:.2f} → {last:.2f}"
    return evidence.estimate(lambda sample: np.diff(np.abs(settled_mean(sample)), axis=1)[:, 0], units, remark)


def drift_is_larger(evidence: Evidence) -> Iterator[Finding]:
    boundaries, references = (evidence.drift[name].unique() for name in ("boundary", "reference_state"))
    for reference in references:
        findings = [finding for boundary in boundaries for finding in _drift_findings(evidence, boundary, reference)]
        # the verdict depends on the combined finding of each reference state, not on its parts
        yield from (replace(finding, counts=False) for finding in findings)
        verdict, reason = combine(findings)
        counts = reference not in UNCOUNTED_STATES
        yield Finding(reference, "both quantities at every boundary", Estimate(), "as above", verdict, reason, counts)


def _drift_findings(evidence: Evidence, boundary: str, reference: str) -> Iterator[Finding]:
    scope, point = f"{boundary}, {reference}", (evidence, boundary, reference)
    yield judged_finding(scope, "smallest DLR of the trained checkpoints", above(1), _min_drift_ratio, *point)
    yield judged_finding(scope, "DLR, last", at_least(5), _drift_ratio, *point)
    yield reference_finding(scope, "DLR, untrained", _drift_ratio, *point, 0)


def _min_drift_ratio(evidence: Evidence, boundary: str, reference: str) -> Estimate:
    evidence.last()  # raises InconclusiveError without a trained checkpoint
    units = evidence.ratios(boundary, reference, evidence.trained)
    smallest = evidence.trained[mean(units[None])[0].argmin()]
    return evidence.estimate(lambda sample: mean(sample).min(axis=1), units, f"at iteration {smallest}")


def _drift_ratio(evidence: Evidence, boundary: str, reference: str, iteration: int | None = None) -> Estimate:
    iteration = evidence.last() if iteration is None else iteration
    return evidence.estimate(lambda sample: mean(sample)[:, 0], evidence.ratios(boundary, reference, [iteration]))


# --- exit criteria: claims 7 to 11 -----------------------------------------------------------------------------


def acceleration_saves_time(evidence: Evidence) -> Iterator[Finding]:
    quantity = "latency at τ = 1e-2 over that at 1e-5"
    yield judged_finding("acceleration", quantity, at_most(0.75), _threshold_latency_ratio, evidence)


def _threshold_latency_ratio(evidence: Evidence) -> Estimate:
    if evidence.max_loops != PAPER_MAX_LOOPS:
        found = f"max_loops is {evidence.max_loops}"
        raise InconclusiveError(f"rows missing: {found}, the claim is about {PAPER_MAX_LOOPS}")
    units = evidence.latencies([("acceleration", 1e-2), ("acceleration", 1e-5)])
    return evidence.estimate(ratios_of_medians, units, _milliseconds(units))


def _milliseconds(units: np.ndarray) -> str:
    first, second = np.median(units, axis=0)
    return f"{first:.3g} against {second:.3g} ms"


def quality_is_flat(evidence: Evidence) -> Iterator[Finding]:
    quantity = "largest |CE(τ) − CE(1e-5)| in nats"
    for criterion in ("acceleration", "kl"):
        yield judged_finding(criterion, quantity, at_most(0.01), _max_ce_change, evidence, criterion)


def _max_ce_change(evidence: Evidence, criterion: str) -> Estimate:
    units = evidence.entropies([(criterion, threshold) for threshold in PAPER_GRID])
    changes = _ce_changes(units[None])[0]
    largest = np.abs(changes).argmax()
    remark = f"{changes[largest]:+.3g} at τ = {PAPER_GRID[1:][largest]:g}"
    return evidence.estimate(lambda sample: np.abs(_ce_changes(sample)).max(axis=1), units, remark)


def _ce_changes(sample: np.ndarray) -> np.ndarray:
    """CE at each point minus that at the first: (R, units, points, 2) -> (R, points - 1)."""
    return mean(sample)[:, 1:] - mean(sample)[:, :1]


def step_norm_loses_quality(evidence: Evidence) -> Iterator[Finding]:
    yield judged_finding("step_norm", "CE(1e-3) − CE(1e-5) in nats", at_most(0.01), _ce_change, evidence, 1e-3, 1e-5)
    yield judged_finding("step_norm", "CE(1e-2) − CE(1e-3) in nats", at_least(0.05), _ce_change, evidence, 1e-2, 1e-3)


def _ce_change(evidence: Evidence, coarse: float, fine: float) -> Estimate:
    units = evidence.entropies([("step_norm", coarse), ("step_norm", fine)])
    return evidence.estimate(lambda sample: mean(sample)[:, 0] - mean(sample)[:, 1], units)


def acceleration_is_fastest(evidence: Evidence) -> Iterator[Finding]:
    for other in ("kl", "step_norm"):
        quantity = f"fastest latency at equal quality, acceleration over {other}"
        yield judged_finding(other, quantity, below(1), _fastest_latency_ratio, evidence, "acceleration", other)
    yield _check_cost_finding(evidence)


def _fastest_latency_ratio(evidence: Evidence, criterion: str, other: str) -> Estimate:
    """Fastest latency at equal quality under `criterion` over that under `other`."""
    races = {name: _fastest_latency(evidence, name) for name in (criterion, other)}
    (ours, our_samples, our_remark), (theirs, their_samples, their_remark) = races[criterion], races[other]
    with np.errstate(invalid="ignore"):  # inf / inf, if neither has equal quality
        value, ratios = ours / theirs, our_samples / their_samples
    if np.isnan(value):
        raise InconclusiveError("neither criterion has a threshold of equal quality")
    return Estimate(float(value), *bootstrap.percentiles(ratios), f"{our_remark}, {their_remark}").checked()


def _fastest_latency(evidence: Evidence, criterion: str) -> tuple[float, np.ndarray, str]:
    """Fastest median latency among the thresholds of equal quality, infinite if there is none.

    Returns:
        The latency of all units, that of each bootstrap sample (R,), and a remark that names the threshold.
    """
    grid = [(criterion, threshold) for threshold in HALF_DECADES]
    full = evidence.entropies([("fixed", evidence.max_loops)])
    entropies = np.concatenate([evidence.entropies(grid), full], axis=1)  # (sequences, points + 1, 2)
    latencies = evidence.latencies(grid)  # (prompts, points)
    times = np.where(_equal_quality(entropies[None]), np.median(latencies, axis=0), np.inf)[0]
    # Quality is measured on sequences, latency on prompts: the two are resampled independently. In each sample
    # both decide which threshold is the fastest, so its uncertainty is part of the interval.
    equal = bootstrap.replicates(_equal_quality, entropies, evidence.seed)  # (R, points)
    medians = bootstrap.replicates(bootstrap.median, latencies, evidence.seed)  # (R, points)
    return times.min(), np.where(equal, medians, np.inf).min(axis=1), _fastest_point(criterion, times)


def _equal_quality(sample: np.ndarray) -> np.ndarray:
    """Whether each point but the last has the CE of the last: (R, units, points, 2) -> (R, points - 1)."""
    entropies = mean(sample)
    return np.abs(entropies[:, :-1] - entropies[:, -1:]) <= EQUAL_QUALITY


def _fastest_point(criterion: str, times: np.ndarray) -> str:
    if np.isinf(times).all():
        return f"{criterion} has no threshold of equal quality"
    return f"{criterion} {times.min():.3g} ms at τ = {HALF_DECADES[times.argmin()]:.3g}"


def kl_is_slower(evidence: Evidence) -> Iterator[Finding]:
    quantity = "smallest latency of KL over that of acceleration at the same τ"
    yield judged_finding("kl", quantity, above(1), _min_latency_ratio, evidence)
    yield _check_cost_finding(evidence)


def _min_latency_ratio(evidence: Evidence) -> Estimate:
    kl, acceleration = (
        evidence.latencies([(criterion, threshold) for threshold in HALF_DECADES])
        for criterion in ("kl", "acceleration")
    )
    units = np.stack([kl, acceleration], axis=-1)  # (prompts, thresholds, 2)
    smallest = ratios_of_medians(units[None])[0].argmin()
    remark = f"at τ = {HALF_DECADES[smallest]:.3g}: {_milliseconds(units[:, smallest])}"
    return evidence.estimate(lambda sample: ratios_of_medians(sample).min(axis=1), units, remark)


def _check_cost_finding(evidence: Evidence) -> Finding:
    return reference_finding("kl", "one KL check in loop steps, mean over groups", _check_cost_ratio, evidence)


def _check_cost_ratio(evidence: Evidence) -> Estimate:
    return evidence.estimate(ratios_of_medians, evidence.check_times())


CLAIMS = (
    Claim(
        1,
        "Steps shrink within ten",
        "Inside a loop the steps shrink quickly: by the tenth step at the latest their mean norm is a tenth of "
        "that of step k = 1.",
        "§1, §3 (i), Fig. 3 (a): decay within 5–10 loop steps",
        decay_is_fast,
    ),
    Claim(
        2,
        "Training makes them shrink faster",
        "The loop step at which a tenth is reached is earlier at the last checkpoint than at the first trained one.",
        "§3 (iii), Fig. 3 (a)",
        decay_gets_faster,
    ),
    Claim(
        3,
        "Angles rise and settle",
        "The cosine between successive steps starts low and is then stable over k = 10 … 29, at the last checkpoint "
        "at least as stable as at the first trained one.",
        "§3 (ii) and (iii), Fig. 3 (b), Fig. 5",
        angles_settle,
    ),
    Claim(
        4,
        "Angles settle at 0.5–0.65",
        "At the last checkpoint the settled cosine is in the paper's range, with a margin of 0.05 on either side.",
        "§3 (ii): ≈ 0.5–0.65 in later checkpoints",
        angles_match,
    ),
    Claim(
        5,
        "Training turns steps orthogonal",
        "The settled cosine is closer to zero at the last checkpoint than at the first trained one, by 0.05 or more.",
        "Abstract, §1, §3 (ii)",
        steps_turn_orthogonal,
    ),
    Claim(
        6,
        "Jumps between groups are larger than loop steps",
        "The jump from one group to the next exceeds the mean loop step at every trained checkpoint, and at the last "
        "one by a factor of five. Eq. 2 leaves open which state counts as the start of the next group; each such "
        "reference state has its verdict, and all but `initial`, which measures the noise that a group starts from, "
        "have to agree.",
        "§3.1, Eq. 2, Fig. 2: DLR ≫ 1",
        drift_is_larger,
    ),
    Claim(
        7,
        "Acceleration saves time as τ grows",
        "Under the acceleration criterion a token at τ = 1e-2 takes at most three quarters of its time at 1e-5.",
        "§4 (i), Fig. 4 (i): about 580 → 360 ms per token, a ratio of 0.62",
        acceleration_saves_time,
    ),
    Claim(
        8,
        "Acceleration and KL keep quality",
        "Over the paper's four thresholds the cross-entropy under either criterion stays within 0.01 nats of that at "
        "1e-5.",
        "§4 (ii–iii), Fig. 4 (ii, iii)",
        quality_is_flat,
    ),
    Claim(
        9,
        "Step norm loses quality abruptly",
        "Under the step-norm criterion cross-entropy is flat up to τ = 1e-3 and at least 0.05 nats worse at 1e-2.",
        "§4 (ii–iii), Fig. 4 (ii, iii)",
        step_norm_loses_quality,
    ),
    Claim(
        10,
        "At equal quality acceleration is fastest",
        "Among the half-decade thresholds whose cross-entropy is within 0.01 nats of that at all loop steps, the "
        "fastest of acceleration is faster than the fastest of KL and of step norm.",
        "Abstract, §4, §5",
        acceleration_is_fastest,
    ),
    Claim(
        11,
        "KL is slower at every τ",
        "At each half-decade threshold KL takes longer per token than acceleration.",
        "§4 (i), Fig. 4 (i)",
        kl_is_slower,
    ),
)


# --- verdicts --------------------------------------------------------------------------------------------------


def examine(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim."""
    findings = tuple(claim.examine(evidence))
    return Verdict(claim, findings, *combine(findings))


def verdicts(evidence: Evidence) -> list[Verdict]:
    """One verdict per claim of `CLAIMS`, in their order."""
    return [examine(claim, evidence) for claim in CLAIMS]


def table(judged: Iterable[Verdict], run: str) -> pd.DataFrame:
    """The table "claims": one row per finding, then the verdict on the claim with the scope "all"."""
    rows = []
    for verdict in judged:
        whole = Finding(ALL, "", Estimate(), "", verdict.verdict, verdict.reason)
        rows += [_row(verdict.claim, finding) for finding in (*verdict.findings, whole)]
    return pd.DataFrame(rows).assign(run=run)[list(tables.columns("claims"))]


def _row(claim: Claim, finding: Finding) -> dict[str, object]:
    estimate = finding.estimate
    return {
        "claim": claim.number,
        "scope": finding.scope,
        "statement": claim.statement,
        "where": claim.where,
        "quantity": finding.quantity,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "bounds": finding.bounds,
        "verdict": finding.verdict,
        "reason": finding.reason,
    }
