"""The claims of the paper, measured on one run, with a verdict on each.

A claim is judged on findings, see `twoscale.claims.findings`: numbers with intervals, judged
against bounds, each for one scope: a group, a boundary, a reference state, an exit criterion. A
claim does not hold if one of its findings does not; else it cannot be judged if one of them cannot;
else it holds. Where the paper's sentence leaves a choice open, the claim has several readings with
findings each; if they give different verdicts, it depends on that choice. It depends on the bound
if a bound that is our choice gives another verdict when it is moved by a factor of 1.25. Bounds do
not depend on a run. A claim that is about another kind of run, such as one about training where the
model was published, is not asked. docs/judging.md states the rules, and tests/simulation.py counts
how often a verdict is wrong.

Intervals are bootstraps over held-out documents, for times also over the repeats of their costs. A
claim about times that holds or fails cannot be judged if leaving out one document changes that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import exits, geometry
from twoscale.claims.evidence import FEWEST_FOR_TREND, Evidence, Extent
from twoscale.claims.findings import MOVED, Finding, Quantity, Reading, Role, combine, find
from twoscale.claims.words import (
    BOUND,
    FAILS,
    HOLDS,
    NOT_ASKED,
    OPEN,
    depends_on,
    with_trend,
)
from twoscale.config.criteria import criterion_name

ALL = "all"  # the scope of the last row of a claim
READING = "reading"  # the scope of a row with the verdict under one reading, or with other bounds
# readings with other bounds
STRICTER = Reading(BOUND, f"bounds of ours {MOVED:g} times as strict")
LOOSER = Reading(BOUND, f"bounds of ours {MOVED:g} times as wide")
_LATE_LOOPS = int(geometry.LATE_STEPS[-1]) + 1  # loop steps that a late cosine needs


@dataclass(frozen=True)
class Needs:
    """Requirements of a claim on the run that it is about."""

    loops: int = 0  # of the trajectories, at least
    groups: int = 1  # at least
    training: bool = False  # several checkpoints of one training
    max_loops: int | None = None  # of a token under an exit criterion, exactly; None for any
    # with fewer the claim could only fail, so it is open (docs/judging.md)
    checkpoints: int = 0  # after warm-up
    sequences: int = 0  # held-out ones, of the trajectories

    def obstacle(self, run: Extent) -> tuple[str, str] | None:
        """Verdict and reason for a run that cannot uphold the claim, whatever it measures."""
        if self.training and run.published:
            needed = "the course of training"
            lacking = f"the claim is about {needed}, and a published model has one checkpoint"
        elif run.groups < self.groups:
            needed = f"at least {self.groups} looped groups"
            lacking = f"the claim is about {needed}, and the model has {run.groups}"
        elif run.loop_steps < self.loops:
            needed = f"at least {self.loops} loop steps"
            lacking = f"the claim needs {needed}, and trajectories.loops is {run.loop_steps}"
        elif self.max_loops not in (None, run.max_loops):
            needed = f"exits.max_loops: {self.max_loops}"
            lacking = f"the claim is about {needed}, and that of the run is {run.max_loops}"
        elif run.checkpoints < self.checkpoints:
            needed = f"at least {self.checkpoints} (train.checkpoint_every)"
            return OPEN, f"checkpoints after warm-up: found {run.checkpoints}, expected {needed}"
        elif run.sequences < self.sequences:
            needed = f"at least {self.sequences} (trajectories.tokens)"
            return OPEN, f"held-out sequences: found {run.sequences}, expected {needed}"
        else:
            return None
        return NOT_ASKED, lacking


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    number: int  # does not change when claims are added
    title: str
    statement: str  # in our words
    where: str  # place in the paper
    quantities: Callable[[Evidence], Iterator[Quantity]]
    needs: Needs = Needs()
    timed: bool = False  # whether it rests on times, which depend on the machine
    presumes_fixed_point: bool = False  # whether a drifting loop lacks the step norms it is about


@dataclass(frozen=True)
class Decision:
    """A verdict with its reason, and the verdicts under each reading where there are several."""

    verdict: str
    reason: str
    by_reading: Mapping[Reading, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict(Decision):
    """The verdict on one claim, with the findings that it rests on."""

    claim: Claim = field(kw_only=True)
    findings: tuple[Finding, ...] = ()  # empty if the claim is not asked

    @property
    def moves(self) -> bool:
        """Whether all numbers that decide against the claim move towards their bounds."""
        return all_move(self.verdict, self.findings)


CLAIMS = (
    Claim(
        number=1,
        title="Steps shrink within ten",
        statement=(
            "Inside a loop the steps shrink quickly: at k = 10 their mean norm is at most a tenth "
            "of that at k = 1."
        ),
        where="§1, §3 (i), Fig. 3 (a): decay within 5–10 loop steps",
        quantities=geometry.decay_is_fast,
        needs=Needs(loops=geometry.FASTEST_DECAY + 1),
        presumes_fixed_point=True,
    ),
    Claim(
        number=2,
        title="Training makes them shrink faster",
        statement=(
            "Step norms fall to a tenth at a higher rate at later checkpoints: at the last one "
            "than in the untrained model, or along a line over the checkpoints after warm-up."
        ),
        where="§3 (iii), Fig. 3 (a): faster norm decay in later checkpoints",
        quantities=geometry.decay_gets_faster,
        needs=Needs(training=True),
        presumes_fixed_point=True,
    ),
    Claim(
        number=3,
        title="Angles rise and settle",
        statement=(
            "The cosine between successive steps starts low and is then stable over k = 10 … 29: "
            "at the last checkpoint it deviates by at most 0.05 from its mean. It does not become "
            "less stable over training: its variance rises by no more than 0.025², a quarter of "
            "the variance allowed, since the untrained model or along a line over the checkpoints "
            "after warm-up."
        ),
        where=(
            "§3 (ii) and (iii), Fig. 3 (b), Fig. 5: from noisy or low values to a level; steadier "
            "in later checkpoints"
        ),
        quantities=geometry.angles_settle,
        needs=Needs(loops=_LATE_LOOPS, training=True, checkpoints=FEWEST_FOR_TREND, sequences=12),
    ),
    Claim(
        number=4,
        title="Angles settle at 0.5–0.65",
        statement=(
            "At the last checkpoint the late cosine is in the paper's range, with a margin of 0.05 "
            "on either side."
        ),
        where="§3 (ii): ≈ 0.5–0.65 in later checkpoints",
        quantities=geometry.angles_match,
        needs=Needs(loops=_LATE_LOOPS, sequences=32),
    ),
    Claim(
        number=5,
        title="Training turns steps orthogonal",
        statement=(
            "The late cosine comes closer to zero over training: its modulus falls by 0.05 or "
            "more, since the untrained model or along a line over the checkpoints after warm-up."
        ),
        where="Abstract, §1, §3 (ii): increasingly orthogonal steps over training",
        quantities=geometry.steps_turn_orthogonal,
        needs=Needs(loops=_LATE_LOOPS, training=True, checkpoints=FEWEST_FOR_TREND),
    ),
    Claim(
        number=6,
        title="Jumps between groups are larger than loop steps",
        statement=(
            "The jump from one group to the next exceeds the mean loop step at every trained "
            "checkpoint, and at the last one by a factor of five. Eq. 2 leaves open which state "
            "counts as the start of the next group; all but `initial`, which measures the noise "
            "that a group starts from, have to agree. The mean loop step contains the leap from "
            "the noise, and falls with the number of loop steps: the jump over the whole path does "
            "not."
        ),
        where="§3.1, Eq. 2, Fig. 2: DLR ≫ 1",
        quantities=geometry.drift_is_larger,
        needs=Needs(groups=2),
    ),
    Claim(
        number=7,
        title="Acceleration saves time as τ grows",
        statement=(
            "Under the acceleration criterion a token at τ = 1e-2 takes at most three quarters of "
            "its time at 1e-5. Times are computed from evaluations and their costs."
        ),
        where="§4 (i), Fig. 4 (i): about 580 → 360 ms per token, a ratio of 0.62",
        quantities=exits.acceleration_saves_time,
        needs=Needs(max_loops=exits.PAPER_MAX_LOOPS),
        timed=True,
    ),
    Claim(
        number=8,
        title="Acceleration and KL keep quality",
        statement=(
            "At each of the paper's larger thresholds the cross-entropy under either criterion is "
            "within 0.01 nats of that at 1e-5."
        ),
        where=(
            "§4 (ii–iii), Fig. 4 (ii, iii): perplexity and cross-entropy essentially flat across "
            "thresholds"
        ),
        quantities=exits.quality_is_flat,
    ),
    Claim(
        number=9,
        title="Step norm loses quality abruptly",
        statement=(
            "Under the step-norm criterion cross-entropy is flat up to τ = 1e-3 and at least 0.05 "
            "nats worse at 1e-2."
        ),
        where="§4 (ii–iii), Fig. 4 (ii, iii): loses quality beyond 1e-3, and sharply at 1e-2",
        quantities=exits.step_norm_loses_quality,
        presumes_fixed_point=True,
    ),
    Claim(
        number=10,
        title="At equal quality acceleration is faster than KL",
        statement=(
            "Each criterion runs at the threshold, interpolated on its grid, at which its "
            "cross-entropy becomes 0.01 nats worse than at full depth. There acceleration is "
            "faster than KL, in times computed from evaluations and their costs. This cannot be "
            "judged if a criterion may still be better at its last threshold."
        ),
        where="Abstract, §4, §5: at the same quality faster than KL",
        quantities=partial(exits.acceleration_is_faster, "kl"),
        timed=True,
    ),
    Claim(
        number=11,
        title="KL remains slower",
        statement=(
            "KL takes longer per token than acceleration, at each of the four thresholds of Fig. "
            "4. Times are computed from evaluations and their costs."
        ),
        where="§4 (i), Fig. 4 (i): KL remains comparatively slow",
        quantities=exits.kl_is_slower,
        timed=True,
    ),
    Claim(
        number=12,
        title="Training makes loop steps smaller",
        statement=(
            "The mean norm of the loop steps after the leap from x⁰ is smaller at later "
            "checkpoints: at the last one than in the untrained model, or along a line over the "
            "checkpoints after warm-up."
        ),
        where="Abstract, §1: loop steps become smaller across training",
        quantities=geometry.steps_become_smaller,
        needs=Needs(training=True),
        presumes_fixed_point=True,
    ),
    Claim(
        number=13,
        title="Loops become spirals of constant speed and curvature",
        statement=(
            "At the last checkpoint step norms plateau: over k = 20 … 29 they are at least half of "
            "those over k = 10 … 19, both above the rounding floor. The curvature, read as the "
            "turn per loop step, changes by no more than a factor of two between the two ranges. "
            "Curvature per length, acceleration over the squared step norm, is given for "
            "comparison: where the turn is constant, it repeats the finding about step norms."
        ),
        where=(
            "§4: a spiral with nearly constant curvature; norms plateau at a small nonzero value "
            "due to rotation"
        ),
        quantities=geometry.loops_are_spirals,
        needs=Needs(loops=geometry.LATE.stop),
        presumes_fixed_point=True,
    ),
    Claim(
        number=14,
        title="KL responds later",
        statement=(
            "A token takes more evaluations under KL than under acceleration, at each of the four "
            "thresholds of Fig. 4. The same number is nats for KL, and a distance between states "
            "for acceleration."
        ),
        where=(
            "§4: KL responds later because it measures the decoded distribution, with the decoding "
            "head; reacts later when small latent rotations still change logits"
        ),
        quantities=exits.kl_responds_later,
    ),
    Claim(
        number=15,
        title="Acceleration and KL are more robust to τ",
        statement=(
            "From the smallest threshold of the paper to the largest, step norm loses more "
            "cross-entropy than acceleration and more than KL, by more than 0.01 nats."
        ),
        where=(
            "§4: stable across a wide τ range (KL); more robust to threshold variation "
            "(acceleration)"
        ),
        quantities=exits.acceleration_and_kl_are_robust,
        presumes_fixed_point=True,
    ),
    Claim(
        number=16,
        title="At equal quality acceleration is faster than the step norm",
        statement="As claim 10, with the step norm in place of KL.",
        where=(
            "Abstract, §1: superior in time-efficiency to its first-order counterpart, a better "
            "latency-quality trade-off"
        ),
        quantities=partial(exits.acceleration_is_faster, "step_norm"),
        timed=True,
    ),
)

# The claims that need no tables but those of trajectories and of drift.
GEOMETRY = tuple(claim for claim in CLAIMS if claim.number in (1, 2, 3, 4, 5, 6, 12, 13))


# --- verdicts -------------------------------------------------------------------------------------


def examine(claim: Claim, evidence: Evidence, references: bool = True) -> Verdict:
    """The verdict on one claim.

    Without `references`, numbers for comparison are not measured.
    """
    obstacle = claim.needs.obstacle(evidence.extent)
    if obstacle is not None and obstacle[0] == NOT_ASKED:
        return Verdict(*obstacle, claim=claim)

    findings = tuple(measured(claim, evidence, references))
    if obstacle is not None:  # its numbers are printed, and do not decide
        return Verdict(*obstacle, claim=claim, findings=findings)
    decision = decide(findings)
    verdict, reason = decision.verdict, decision.reason
    if claim.timed and verdict in (HOLDS, FAILS):
        verdict, reason = _without_each_document(claim, evidence, verdict, reason)
    load = evidence.load() if claim.timed else ""
    if load:
        reason = f"{reason}; {load}"
    return Verdict(verdict, reason, decision.by_reading, claim=claim, findings=findings)


def measured(claim: Claim, evidence: Evidence, references: bool = True) -> Iterator[Finding]:
    """The findings of a claim, each judged as one of those that count under its reading."""
    # all quantities are named before one is measured, so the number of those that count is known
    quantities = [
        quantity
        for quantity in claim.quantities(evidence)
        if references or quantity.role != Role.REFERENCE
    ]
    for quantity in quantities:
        yield find(quantity, number_judged(quantity, quantities))


def number_judged(quantity: Quantity, quantities: Sequence[Quantity]) -> int:
    """The number of quantities that count under the reading of one of them."""
    return len(_counted(quantities, quantity.reading))


def _counted(quantities: Iterable[Quantity], reading: Reading | None) -> list[Quantity]:
    """The quantities that count under a reading; for None under the first one."""
    counted = [quantity for quantity in quantities if quantity.role == Role.COUNTED]
    readings = [quantity.reading for quantity in counted if quantity.reading]
    reading = reading or next(iter(readings), None)
    return [quantity for quantity in counted if quantity.reading in (None, reading)]


def decide(findings: Sequence[Finding]) -> Decision:
    """Verdict and reason of a claim.

    It is open where the claim could not have failed, or not held, and depends on a choice under
    which it is another one.
    """
    decision = _under_readings(findings)
    bounds = [finding.subject.bounds for finding in findings if finding.subject.bounds]
    if decision.verdict not in (HOLDS, FAILS) or not any(each.are_ours for each in bounds):
        return decision
    by_reading = dict(decision.by_reading)
    for reading in (STRICTER, LOOSER):
        moved = [finding.with_moved_bounds(reading is LOOSER) for finding in findings]
        by_reading[reading] = _under_readings(moved).verdict
    verdict, reason = decision.verdict, decision.reason
    if {by_reading[STRICTER], by_reading[LOOSER]} != {verdict}:
        others = "; ".join(f"{r.name}: {by_reading[r]}" for r in (STRICTER, LOOSER))
        verdict, reason = depends_on([BOUND]), f"{verdict}, {others}: {reason}"
    return Decision(verdict, reason, by_reading)


def _under_readings(findings: Sequence[Finding]) -> Decision:
    """As `decide`, with these bounds."""
    for finding in findings:
        if finding.subject.role == Role.PREMISE and finding.verdict != HOLDS:
            return Decision(OPEN, f"the loops do too little here: {_gain(finding)}")

    counted = [finding for finding in findings if finding.counts]
    readings = list(dict.fromkeys(f.subject.reading for f in counted if f.subject.reading))
    if not readings:
        verdict, reason = combine(counted)
        return _against_chance(findings, verdict, reason)
    outcomes = {
        reading: combine(f for f in counted if f.subject.reading in (None, reading))
        for reading in readings
    }
    by_reading = {reading: verdict for reading, (verdict, _) in outcomes.items()}
    first, first_reason = outcomes[readings[0]]
    if set(by_reading.values()) == {first}:
        return Decision(first, first_reason, by_reading)
    choices = dict.fromkeys(
        reading.choice
        for reading, verdict in by_reading.items()
        if verdict != by_reading[reading.other or readings[0]]
    )
    reason = "; ".join(f"{r.name}: {verdict} ({why})" for r, (verdict, why) in outcomes.items())
    return Decision(depends_on(choices), reason, by_reading)


def _gain(finding: Finding) -> str:
    """What full depth gains, half a sentence."""
    gain = finding.estimate
    if np.isnan(gain.value):
        return f"{finding.reason}, expected {finding.bounds}"
    gained = f"full depth gains {gain.value:.2g} nats over the cheapest exit measured"
    return f"{gained} ({gain.remark}), expected {finding.bounds}"


def _against_chance(findings: Sequence[Finding], verdict: str, reason: str) -> Decision:
    """A verdict and its reason; open if a claim holds, and random exits hold at every threshold."""
    random = [finding for finding in findings if finding.subject.role == Role.CHANCE]
    for criterion in dict.fromkeys(finding.scope for finding in random):
        of_criterion = {finding.verdict for finding in random if finding.scope == criterion}
        if verdict == HOLDS and of_criterion == {HOLDS}:
            name = criterion_name(criterion)
            return Decision(OPEN, f"random exits of the same cost as {name} keep quality, too")
    return Decision(verdict, reason)


def all_move(verdict: str, findings: Iterable[Finding]) -> bool:
    """Whether a claim does not hold, and all findings against it move towards their bounds."""
    against = [finding for finding in findings if finding.counts and finding.verdict == FAILS]
    return verdict == FAILS and all(finding.moves for finding in against)


def _without_each_document(
    claim: Claim, evidence: Evidence, verdict: str, reason: str
) -> tuple[str, str]:
    """A verdict and its reason; open if leaving out one document gives another verdict.

    That is judged under the first reading, in which all others agree.
    """
    for document in evidence.exit_documents:
        counted = _counted(claim.quantities(evidence.without(document)), reading=None)
        other, _ = combine(find(quantity, len(counted)) for quantity in counted)
        if other != verdict:
            return OPEN, f"{verdict}, but {other} without document {document}: {reason}"
    return verdict, reason


def verdicts(evidence: Evidence, claims: Iterable[Claim] = CLAIMS) -> list[Verdict]:
    return [examine(claim, evidence) for claim in claims]


def table(judged: Iterable[Verdict], run: str, mark: str = "") -> pd.DataFrame:
    """The table "claims": one row per finding and reading, then the verdict with the scope "all".

    `mark` is that of the run's scale, see `twoscale.claims.scale`.
    """
    rows = []
    for verdict in judged:
        rows += [finding_row(verdict.claim, finding, mark) for finding in verdict.findings]
        rows += verdict_rows(verdict, mark)
    return pd.DataFrame(rows).assign(run=run)[list(tables.columns("claims"))]


def verdict_rows(verdict: Any, mark: str) -> Iterator[dict[str, object]]:
    """The last rows of a claim: its verdict under each reading, and at last its verdict."""
    for reading, under in verdict.by_reading.items():
        whole = {"scope": READING, "quantity": reading.name, "verdict": under, "scale": mark}
        yield _row(verdict.claim, **whole, reason=f"depends on {reading.choice}")
    scale = with_trend(mark, verdict.moves)
    whole = {"scope": ALL, "verdict": verdict.verdict, "reason": verdict.reason}
    yield _row(verdict.claim, **whole, scale=scale)


def finding_row(claim: Claim, finding: Finding, scale: str) -> dict[str, object]:
    """A row of the table "claims", without the run."""
    estimate = finding.estimate
    reading = finding.subject.reading
    return _row(
        claim,
        scope=finding.scope,
        quantity=finding.quantity,
        role=finding.subject.role.value,
        reading=reading.name if reading else "",
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        bounds=finding.bounds,
        verdict=finding.verdict,
        reason=finding.reason,
        scale=scale,
    )


def _row(claim: Claim, **values: object) -> dict[str, object]:
    """A row of the table "claims" with these values, and nothing in the other columns."""
    names = ("quantity", "role", "reading", "bounds", "verdict", "reason", "scale")
    empty = dict.fromkeys(names, "") | dict.fromkeys(("value", "low", "high"), np.nan)
    of_claim = {"claim": claim.number, "statement": claim.statement, "where": claim.where}
    return of_claim | empty | values
