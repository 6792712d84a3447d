"""What the paper claims, measured on one run, and a verdict on each.

A claim is judged on findings: one number with its interval against one criterion, for one group, boundary,
reading or criterion. A finding *holds* if its whole interval meets the criterion, *does not hold* if its whole
interval misses it, and otherwise *cannot be judged*. A claim does not hold if one finding does not; else it
cannot be judged if one finding cannot; else it holds. The criteria were fixed before any run was looked at.

Intervals are bootstraps over held-out sequences (geometry, quality) or over timed prompts (latency).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from twoscale.analysis import bootstrap
from twoscale import tables
from twoscale.analysis.evidence import SETTLED, InconclusiveError, Estimate, Evidence, decay_step, decay_time, mean, ratios_of_medians, settled_deviation, settled_mean

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
ALL = "all"  # the part of a claim's last row

PAPER_GRID = (1e-5, 1e-4, 1e-3, 1e-2)  # App. D
HALF_DECADES = tuple(10 ** (exponent / 2) for exponent in range(-10, -3))
PAPER_BUDGET = 30
EQUAL_QUALITY = 0.01  # nats
UNCOUNTED_STATES = ("initial",)  # Eq. 2 to the letter measures the noise that a group starts from


@dataclass(frozen=True)
class Criterion:
    """What a number has to meet: lie between two bounds, both included."""

    text: str
    least: float = -np.inf
    most: float = np.inf


def at_most(bound: float) -> Criterion:
    return Criterion(f"≤ {bound:g}", most=bound)


def at_least(bound: float) -> Criterion:
    return Criterion(f"≥ {bound:g}", least=bound)


def below(bound: float) -> Criterion:
    return Criterion(f"< {bound:g}", most=np.nextafter(bound, -np.inf))


def above(bound: float) -> Criterion:
    return Criterion(f"> {bound:g}", least=np.nextafter(bound, np.inf))


@dataclass(frozen=True)
class Finding:
    """One measured number of a claim. Without a criterion it stands beside the others and has no verdict."""

    part: str
    quantity: str
    estimate: Estimate
    criterion: str = ""
    verdict: str = ""
    reason: str = ""
    counts: bool = True  # whether the claim's verdict rests on it


@dataclass(frozen=True)
class Claim:
    """One claim: what it says in our words, where it stands in the paper, and how a run is asked."""

    number: int
    title: str
    statement: str
    where: str
    examine: Callable[[Evidence], Iterator[Finding]]


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    findings: tuple[Finding, ...]
    verdict: str
    reason: str


# --- findings --------------------------------------------------------------------------------------------------


def judge(criterion: Criterion, estimate: Estimate) -> tuple[str, str]:
    """Verdict and reason for a number with its interval."""
    if criterion.least <= estimate.low and estimate.high <= criterion.most:
        return HOLDS, "whole interval inside"
    if estimate.high < criterion.least or criterion.most < estimate.low:
        return FAILS, "whole interval outside"
    return OPEN, "the interval crosses the criterion"


def find(part: str, quantity: str, criterion: Criterion, measure: Callable[..., Estimate], *asked) -> Finding:
    """The finding of `measure(*asked)`, or why there is none."""
    try:
        estimate = measure(*asked)
    except InconclusiveError as reason:
        return Finding(part, quantity, Estimate(), criterion.text, OPEN, str(reason))
    verdict, reason = judge(criterion, estimate)
    reason = f"{reason}; {estimate.remark}" if estimate.remark else reason
    return Finding(part, quantity, estimate, criterion.text, verdict, reason)


def beside(part: str, quantity: str, measure: Callable[..., Estimate], *asked) -> Finding:
    """A number for comparison, without a verdict."""
    try:
        return Finding(part, quantity, measure(*asked), counts=False)
    except InconclusiveError as reason:
        return Finding(part, quantity, Estimate(), reason=str(reason), counts=False)


def combine(findings: Iterable[Finding]) -> tuple[str, str]:
    """The verdict on a whole: what one part refutes does not hold, and what one part leaves open stays open."""
    counted = [finding for finding in findings if finding.counts]
    for verdict in (FAILS, OPEN):
        found = [finding for finding in counted if finding.verdict == verdict]
        if found:
            return verdict, "; ".join(dict.fromkeys(f"{finding.part}: {finding.reason}" for finding in found))
    if not counted:
        return OPEN, "rows missing: nothing was measured that the claim is about"
    return HOLDS, "every part meets its criterion"


# --- geometry: claims 1 to 6 -----------------------------------------------------------------------------------


def decay_is_fast(run: Evidence) -> Iterator[Finding]:
    for group in run.groups:
        yield find(group, "first k ≥ 2 with a tenth of the norm at k = 1", at_most(10), _decay, run, group)
        yield beside(group, "the same, untrained", _decay, run, group, 0)
        yield beside(group, "norm at k = 0 over that at k = 1 (the leap from x⁰)", _leap, run, group)


def _decay(run: Evidence, group: str, step: int | None = None) -> Estimate:
    step = run.last() if step is None else step
    units = run.curves("step_norm", group, [step], until=10)[:, 0]
    estimate = run.estimate(lambda sample: decay_step(mean(sample)), units)
    _check_decay(run, group, step, units, estimate.value)
    return estimate


def _check_decay(run: Evidence, group: str, step: int, units: np.ndarray, reached: float) -> None:
    last = int(np.ceil(reached)) if np.isfinite(reached) else units.shape[-2] - 1
    run.check_angles(group, [step], range(1, last + 1))


def _leap(run: Evidence, group: str) -> Estimate:
    units = run.curves("step_norm", group, [run.last()], until=1)[:, 0]
    return run.estimate(lambda sample: mean(sample)[:, 0] / mean(sample)[:, 1], units)


def decay_quickens(run: Evidence) -> Iterator[Finding]:
    for group in run.groups:
        yield find(group, "interpolated k, last − first trained", below(0), _quickening, run, group)


def _quickening(run: Evidence, group: str) -> Estimate:
    ends = run.first_and_last()
    units = run.curves("step_norm", group, ends, until=2)
    times = [decay_time(mean(units[None, :, i]))[0] for i in (0, 1)]
    if not np.isfinite(times).any():
        raise InconclusiveError("neither checkpoint reaches a tenth within the budget")
    for i, step in enumerate(ends):
        _check_decay(run, group, step, units[:, i], times[i])
    remark = " → ".join(f"{time:.3g}" if np.isfinite(time) else "never" for time in times)
    return run.estimate(_difference_of_times, units, f"k {remark}")


def _difference_of_times(sample: np.ndarray) -> np.ndarray:
    first, last = (decay_time(mean(sample[:, :, i])) for i in (0, 1))
    with np.errstate(invalid="ignore"):
        return last - first


def angles_settle(run: Evidence) -> Iterator[Finding]:
    for group in run.groups:
        yield find(group, "cosine at k = 1 − settled mean", below(0), _angle_rise, run, group)
        yield find(group, "deviation over k = 10 … 29", at_most(0.05), _unsteadiness, run, group)
        yield find(group, "deviation, last − first trained", at_most(0), _steadying, run, group)


def _angle_rise(run: Evidence, group: str) -> Estimate:
    units = _angles(run, group, [run.last()], first=1)[:, 0]
    return run.estimate(lambda sample: mean(sample)[:, 1] - settled_mean(sample), units)


def _unsteadiness(run: Evidence, group: str) -> Estimate:
    return run.estimate(settled_deviation, _angles(run, group, [run.last()])[:, 0])


def _steadying(run: Evidence, group: str) -> Estimate:
    units = _angles(run, group, run.first_and_last())
    return run.estimate(lambda sample: np.diff(settled_deviation(sample), axis=1)[:, 0], units)


def _angles(run: Evidence, group: str, steps: Sequence[int], first: int | None = None) -> np.ndarray:
    """Cosines (sequences, steps, K, 2), of which SETTLED and the loop step `first` are above the rounding floor."""
    units = run.curves("cosine", group, steps, until=SETTLED[-1])
    for step in steps:
        run.check_angles(group, [step], SETTLED)
        if first is not None:
            run.check_angles(group, [step], [first])
    return units


def angles_match(run: Evidence) -> Iterator[Finding]:
    criterion = Criterion("0.45 … 0.70", 0.45, 0.70)
    for group in run.groups:
        yield find(group, "settled mean cosine", criterion, _settled, run, group)
        yield beside(group, "the same, untrained", _settled, run, group, 0)


def _settled(run: Evidence, group: str, step: int | None = None) -> Estimate:
    step = run.last() if step is None else step
    return run.estimate(settled_mean, _angles(run, group, [step])[:, 0])


def steps_turn_orthogonal(run: Evidence) -> Iterator[Finding]:
    for group in run.groups:
        yield from _orthogonality(run, group)


def _orthogonality(run: Evidence, group: str) -> Iterator[Finding]:
    settled = beside(group, "settled mean cosine, last", _settled, run, group)
    turned = find(group, "|settled mean cosine|, last − first trained", at_most(-0.05), _turning, run, group)
    if settled.estimate.high < 0:
        # a modulus can fall on the way from 0.6 to -0.5 as well
        remark = turned.estimate.remark or turned.reason
        reason = f"successive steps are anti-parallel, not orthogonal; {remark}"
        turned = replace(turned, verdict=FAILS, reason=reason)
    yield turned
    yield settled


def _turning(run: Evidence, group: str) -> Estimate:
    units = _angles(run, group, run.first_and_last())
    first, last = settled_mean(units[None])[0]
    statistic = lambda sample: np.diff(np.abs(settled_mean(sample)), axis=1)[:, 0]  # noqa: E731
    return run.estimate(statistic, units, f"mean {first:.2f} → {last:.2f}")


def drift_is_larger(run: Evidence) -> Iterator[Finding]:
    boundaries, readings = (run.drift[name].unique() for name in ("boundary", "reference_state"))
    for reading in readings:
        findings = [finding for boundary in boundaries for finding in _drift_findings(run, boundary, reading)]
        yield from (replace(finding, counts=False) for finding in findings)
        verdict, reason = combine(findings)
        counts = reading not in UNCOUNTED_STATES
        yield Finding(reading, "both criteria at every boundary", Estimate(), "as above", verdict, reason, counts)


def _drift_findings(run: Evidence, boundary: str, reading: str) -> Iterator[Finding]:
    part = f"{boundary}, {reading}"
    yield find(part, "smallest DLR of the trained checkpoints", above(1), _least_drift, run, boundary, reading)
    yield find(part, "DLR, last", at_least(5), _drift, run, boundary, reading)
    yield beside(part, "DLR, untrained", _drift, run, boundary, reading, 0)


def _least_drift(run: Evidence, boundary: str, reading: str) -> Estimate:
    run.last()
    units = run.ratios(boundary, reading, run.trained)
    least = run.trained[mean(units[None])[0].argmin()]
    return run.estimate(lambda sample: mean(sample).min(axis=1), units, f"at step {least}")


def _drift(run: Evidence, boundary: str, reading: str, step: int | None = None) -> Estimate:
    step = run.last() if step is None else step
    return run.estimate(lambda sample: mean(sample)[:, 0], run.ratios(boundary, reading, [step]))


# --- exit rules: claims 7 to 11 --------------------------------------------------------------------------------


def acceleration_gains(run: Evidence) -> Iterator[Finding]:
    yield find("acceleration", "latency at τ = 1e-2 over that at 1e-5", at_most(0.75), _gain, run)


def _gain(run: Evidence) -> Estimate:
    if run.budget != PAPER_BUDGET:
        raise InconclusiveError(f"rows missing: the budget is {run.budget}, the claim is about {PAPER_BUDGET}")
    units = run.latencies([("acceleration", 1e-2), ("acceleration", 1e-5)])
    return run.estimate(ratios_of_medians, units, _milliseconds(units))


def _milliseconds(units: np.ndarray) -> str:
    first, second = np.median(units, axis=0)
    return f"{first:.3g} against {second:.3g} ms"


def quality_is_flat(run: Evidence) -> Iterator[Finding]:
    for criterion in ("acceleration", "kl"):
        yield find(criterion, "largest |CE(τ) − CE(1e-5)| in nats", at_most(0.01), _unevenness, run, criterion)


def _unevenness(run: Evidence, criterion: str) -> Estimate:
    units = run.entropies([(criterion, threshold) for threshold in PAPER_GRID])
    changes = mean(units[None])[0, 1:] - mean(units[None])[0, 0]
    widest = np.abs(changes).argmax()
    remark = f"{changes[widest]:+.3g} at τ = {PAPER_GRID[1:][widest]:g}"
    return run.estimate(lambda sample: np.abs(mean(sample)[:, 1:] - mean(sample)[:, :1]).max(axis=1), units, remark)


def step_norm_falls(run: Evidence) -> Iterator[Finding]:
    yield find("step_norm", "CE(1e-3) − CE(1e-5) in nats", at_most(0.01), _loss, run, 1e-3, 1e-5)
    yield find("step_norm", "CE(1e-2) − CE(1e-3) in nats", at_least(0.05), _loss, run, 1e-2, 1e-3)


def _loss(run: Evidence, coarse: float, fine: float) -> Estimate:
    units = run.entropies([("step_norm", coarse), ("step_norm", fine)])
    return run.estimate(lambda sample: mean(sample)[:, 0] - mean(sample)[:, 1], units)


def acceleration_wins(run: Evidence) -> Iterator[Finding]:
    for other in ("kl", "step_norm"):
        quantity = f"fastest latency at equal quality, acceleration over {other}"
        yield find(other, quantity, below(1), _race, run, "acceleration", other)
    yield _check_price(run)


def _race(run: Evidence, ours: str, theirs: str) -> Estimate:
    """Ratio of the fastest settings; sequences and prompts are drawn apart, and both decide which setting that is."""
    full = run.entropies([("fixed", run.budget)])
    fastest, replicates, remarks = {}, {}, []
    for criterion in (ours, theirs):
        grid = [(criterion, threshold) for threshold in HALF_DECADES]
        entropies, latencies = np.concatenate([run.entropies(grid), full], axis=1), run.latencies(grid)
        times = np.where(_equal(entropies[None]), np.median(latencies, axis=0), np.inf)[0]
        equal = bootstrap.replicates(_equal, entropies, run.seed)
        medians = bootstrap.replicates(lambda sample: np.median(sample, axis=1), latencies, run.seed)
        fastest[criterion], replicates[criterion] = times.min(), np.where(equal, medians, np.inf).min(axis=1)
        remarks.append(_setting(criterion, times))
    with np.errstate(invalid="ignore"):
        value, ratios = fastest[ours] / fastest[theirs], replicates[ours] / replicates[theirs]
    if np.isnan(value):
        raise InconclusiveError("neither rule has a setting of equal quality")
    return Estimate(float(value), *bootstrap.percentiles(ratios), ", ".join(remarks)).checked()


def _equal(sample: np.ndarray) -> np.ndarray:
    """Whether each setting but the last has the CE of the last: (R, units, settings, 2) -> (R, settings - 1)."""
    entropies = mean(sample)
    return np.abs(entropies[:, :-1] - entropies[:, -1:]) <= EQUAL_QUALITY


def _setting(criterion: str, times: np.ndarray) -> str:
    if np.isinf(times).all():
        return f"{criterion} has no setting of equal quality"
    return f"{criterion} {times.min():.3g} ms at τ = {HALF_DECADES[times.argmin()]:.3g}"


def kl_is_slower(run: Evidence) -> Iterator[Finding]:
    quantity = "smallest latency of KL over that of acceleration at the same τ"
    yield find("kl", quantity, above(1), _slowness, run)
    yield _check_price(run)


def _slowness(run: Evidence) -> Estimate:
    pairs = [run.latencies([(criterion, threshold) for threshold in HALF_DECADES]) for criterion in ("kl", "acceleration")]
    units = np.stack(pairs, axis=-1)  # (prompts, thresholds, 2)
    least = ratios_of_medians(units[None])[0].argmin()
    remark = f"at τ = {HALF_DECADES[least]:.3g}: {_milliseconds(units[:, least])}"
    return run.estimate(lambda sample: ratios_of_medians(sample).min(axis=1), units, remark)


def _check_price(run: Evidence) -> Finding:
    return beside("kl", "one KL check in loop steps of the run, mean over groups", _check_ratio, run)


def _check_ratio(run: Evidence) -> Estimate:
    return run.estimate(ratios_of_medians, run.check_times())


CLAIMS = (
    Claim(
        1,
        "Steps shrink within ten",
        "Inside a loop the steps get short quickly: by the tenth step at the latest their mean norm is a tenth of "
        "that of step k = 1.",
        "§1, §3 (i), Fig. 3 (a): decay within 5–10 loop steps",
        decay_is_fast,
    ),
    Claim(
        2,
        "Training makes them shrink faster",
        "The loop step at which a tenth is reached comes earlier at the last checkpoint than at the first trained one.",
        "§3 (iii), Fig. 3 (a)",
        decay_quickens,
    ),
    Claim(
        3,
        "Angles rise and settle",
        "The cosine between successive steps starts low and then keeps still over k = 10 … 29, at the last checkpoint "
        "at least as still as at the first trained one.",
        "§3 (ii) and (iii), Fig. 3 (b), Fig. 5",
        angles_settle,
    ),
    Claim(
        4,
        "Angles settle at 0.5–0.65",
        "At the last checkpoint the settled cosine lies in the paper's range, with 0.05 to spare on either side.",
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
        "Hand-offs are larger than loop steps",
        "The jump from one group to the next exceeds the mean loop step at every trained checkpoint, and at the last "
        "one by a factor of five. What counts as the next group's start is a reading of Eq. 2; each has its verdict, "
        "and all but `initial`, which measures the noise that a group starts from, have to agree.",
        "§3.1, Eq. 2, Fig. 2: DLR ≫ 1",
        drift_is_larger,
    ),
    Claim(
        7,
        "Acceleration saves time as τ grows",
        "Under the acceleration rule a token at τ = 1e-2 takes at most three quarters of its time at 1e-5.",
        "§4 (i), Fig. 4 (i): about 580 → 360 ms per token, a ratio of 0.62",
        acceleration_gains,
    ),
    Claim(
        8,
        "Acceleration and KL keep quality",
        "Over the paper's four thresholds either rule's cross-entropy stays within 0.01 nats of that at 1e-5.",
        "§4 (ii–iii), Fig. 4 (ii, iii)",
        quality_is_flat,
    ),
    Claim(
        9,
        "Step norm falls off a cliff",
        "Under the step-norm rule cross-entropy holds up to τ = 1e-3 and is at least 0.05 nats worse at 1e-2.",
        "§4 (ii–iii), Fig. 4 (ii, iii)",
        step_norm_falls,
    ),
    Claim(
        10,
        "At equal quality acceleration is fastest",
        "Among the half-decade thresholds whose cross-entropy is within 0.01 nats of the full budget, the fastest of "
        "acceleration is faster than the fastest of KL and of step norm.",
        "Abstract, §4, §5",
        acceleration_wins,
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


def examine(claim: Claim, run: Evidence) -> Verdict:
    findings = tuple(claim.examine(run))
    return Verdict(claim, findings, *combine(findings))


def verdicts(run: Evidence) -> list[Verdict]:
    """One verdict per claim of CLAIMS, in their order."""
    return [examine(claim, run) for claim in CLAIMS]


def table(found: Iterable[Verdict], run: str) -> pd.DataFrame:
    """The frame of the table "claims": each finding a row, then the claim's verdict as part "all"."""
    rows = []
    for verdict in found:
        claim = verdict.claim
        whole = Finding(ALL, "", Estimate(), "", verdict.verdict, verdict.reason)
        for finding in (*verdict.findings, whole):
            estimate = finding.estimate
            rows.append(
                {"run": run, "claim": claim.number, "part": finding.part, "statement": claim.statement}
                | {"where": claim.where, "quantity": finding.quantity}
                | {"value": estimate.value, "low": estimate.low, "high": estimate.high}
                | {"criterion": finding.criterion, "verdict": finding.verdict, "reason": finding.reason}
            )
    return pd.DataFrame(rows, columns=list(tables.columns("claims")))
