"""The claims of the paper, measured on one run, with a verdict on each.

A claim is judged on findings, see `twoscale.claims.evidence`: numbers with intervals, judged
against bounds, each for one scope: a group, a boundary, a reference state, an exit criterion. A
claim does not hold if one of its findings does not; else it cannot be judged if one of them cannot;
else it holds. Bounds do not depend on a run. tests/simulation.py counts how often a verdict is
wrong. A claim that is about another kind of run, such as one about training where the model was
published, is not asked.

Intervals are bootstraps over held-out documents (geometry, quality) or over timed prompts
(latency).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pandas as pd

from twoscale import tables
from twoscale.claims import exits, geometry
from twoscale.claims.evidence import NOT_ASKED, Estimate, Evidence, Finding, Quantity, combine, find

ALL = "all"  # the scope of the last row of a claim
LATE_LOOPS = int(geometry.LATE_STEPS[-1]) + 1


@dataclass(frozen=True)
class Needs:
    """Requirements of a claim on the run that it is about."""

    loops: int = 0  # of the trajectories, at least
    groups: int = 1  # at least
    training: bool = False  # several checkpoints of one training
    max_loops: int | None = None  # of a token under an exit criterion, exactly; None for any

    def lacking(self, groups: int, loop_steps: int, max_loops: int, published: bool) -> str | None:
        """Missing requirement of a run of which these are known, as half a sentence; `None` if
        there is none.
        """
        if self.training and published:
            return (
                "the claim is about the course of training, and a published model has one"
                " checkpoint"
            )
        if groups < self.groups:
            return (
                f"the claim is about at least {self.groups} looped groups, and the model has"
                f" {groups}"
            )
        if loop_steps < self.loops:
            return (
                f"the claim needs at least {self.loops} loop steps, and trajectories.loops is"
                f" {loop_steps}"
            )
        if self.max_loops not in (None, max_loops):
            return (
                f"the claim is about exits.max_loops: {self.max_loops}, and that of the run is"
                f" {max_loops}"
            )
        return None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    number: int  # does not change when claims are added
    title: str
    statement: str  # in our words
    where: str  # place in the paper
    quantities: Callable[[Evidence], Iterator[Quantity]]
    needs: Needs = Needs()
    timed: bool = False  # whether it rests on times, which other work on the machine changes
    # held-out documents of equal length below which it is never upheld in simulations of the demo
    # (docs/judging.md)
    documents: int = 2
    # whether it is about step norms near one, which a drifting loop does not have
    presumes_fixed_point: bool = False


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    findings: tuple[Finding, ...]
    verdict: str
    reason: str


CLAIMS = (
    Claim(
        1,
        "Steps shrink within ten",
        "Inside a loop the steps shrink quickly: at k = 10 their mean norm is at most a tenth of"
        " that at k = 1.",
        "§1, §3 (i), Fig. 3 (a): decay within 5–10 loop steps",
        geometry.decay_is_fast,
        Needs(loops=geometry.FASTEST_DECAY + 1),
        presumes_fixed_point=True,
    ),
    Claim(
        2,
        "Training makes them shrink faster",
        "The rate at which step norms fall to a tenth rises over training, measured as the slope"
        " of a line through the "
        "checkpoints after warm-up.",
        "§3 (iii), Fig. 3 (a): faster norm decay in later checkpoints",
        geometry.decay_gets_faster,
        Needs(training=True),
        presumes_fixed_point=True,
    ),
    Claim(
        3,
        "Angles rise and settle",
        "The cosine between successive steps starts low and is then stable over k = 10 … 29: at"
        " the last checkpoint "
        "it deviates by at most 0.05 from its mean. It does not become less stable over training:"
        " the line of its "
        "variance over the checkpoints after warm-up rises by no more than 0.025², a quarter of"
        " the variance allowed.",
        "§3 (ii) and (iii), Fig. 3 (b), Fig. 5: from low values to a level; steadier in later"
        " checkpoints",
        geometry.angles_settle,
        Needs(loops=LATE_LOOPS, training=True),
        documents=12,
    ),
    Claim(
        4,
        "Angles settle at 0.5–0.65",
        "At the last checkpoint the late cosine is in the paper's range, with a margin of 0.05 on"
        " either side.",
        "§3 (ii): ≈ 0.5–0.65 in later checkpoints",
        geometry.angles_match,
        Needs(loops=LATE_LOOPS),
        documents=32,
    ),
    Claim(
        5,
        "Training turns steps orthogonal",
        "The late cosine comes closer to zero over training: the line of its modulus over the"
        " checkpoints after "
        "warm-up falls by 0.05 or more. At the last checkpoint it is not below −0.1, where steps"
        " are anti-parallel; "
        "between −0.1 and 0.1, angles of 84° to 96°, they are orthogonal.",
        "Abstract, §1, §3 (ii): increasingly orthogonal steps over training",
        geometry.steps_turn_orthogonal,
        Needs(loops=LATE_LOOPS, training=True),
    ),
    Claim(
        6,
        "Jumps between groups are larger than loop steps",
        "The jump from one group to the next exceeds the mean loop step at every trained"
        " checkpoint, and at the last "
        "one by a factor of five. Eq. 2 leaves open which state counts as the start of the next"
        " group; all but "
        "`initial`, which measures the noise that a group starts from, have to agree. The mean"
        " loop step contains the "
        "leap from the noise, and falls with the number of loop steps: the jump over the whole"
        " path does not.",
        "§3.1, Eq. 2, Fig. 2: DLR ≫ 1",
        geometry.drift_is_larger,
        Needs(groups=2),
    ),
    Claim(
        7,
        "Acceleration saves time as τ grows",
        "Under the acceleration criterion a token at τ = 1e-2 takes at most three quarters of its"
        " time at 1e-5.",
        "§4 (i), Fig. 4 (i): about 580 → 360 ms per token, a ratio of 0.62",
        exits.acceleration_saves_time,
        Needs(max_loops=exits.PAPER_MAX_LOOPS),
        timed=True,
    ),
    Claim(
        8,
        "Acceleration and KL keep quality",
        "At each of the paper's larger thresholds the cross-entropy under either criterion is"
        " within 0.01 nats of that "
        "at 1e-5.",
        "§4 (ii–iii), Fig. 4 (ii, iii): perplexity and cross-entropy essentially flat across"
        " thresholds",
        exits.quality_is_flat,
    ),
    Claim(
        9,
        "Step norm loses quality abruptly",
        "Under the step-norm criterion cross-entropy is flat up to τ = 1e-3 and at least 0.05"
        " nats worse at 1e-2.",
        "§4 (ii–iii), Fig. 4 (ii, iii): loses quality beyond 1e-3, and sharply at 1e-2",
        exits.step_norm_loses_quality,
        presumes_fixed_point=True,
    ),
    Claim(
        10,
        "At equal quality acceleration is fastest",
        "Each criterion runs at the threshold, interpolated on its grid, at which its"
        " cross-entropy becomes 0.01 nats "
        "worse than at full depth. There acceleration is faster than KL and than step norm. This"
        " cannot be judged if "
        "a criterion may still be better at its last threshold.",
        "Abstract, §4, §5: at the same quality faster than KL, and without the quality loss of"
        " the step norm",
        exits.acceleration_is_fastest,
        timed=True,
    ),
    Claim(
        11,
        "KL remains slower",
        "KL takes longer per token than acceleration, at each of the four thresholds of Fig. 4.",
        "§4 (i), Fig. 4 (i): KL remains comparatively slow",
        exits.kl_is_slower,
        timed=True,
    ),
    Claim(
        12,
        "Training makes loop steps smaller",
        "The mean norm of the loop steps after the leap from x⁰ becomes smaller over training,"
        " measured as the slope "
        "of a line through the checkpoints after warm-up.",
        "Abstract, §1: loop steps become smaller across training",
        geometry.steps_become_smaller,
        Needs(training=True),
        presumes_fixed_point=True,
    ),
    Claim(
        13,
        "Loops become spirals of constant speed and curvature",
        "At the last checkpoint step norms plateau: over k = 20 … 29 they are at least half of"
        " those over "
        "k = 10 … 19, both above the rounding floor. The curvature, read as the turn per loop"
        " step, changes by no more "
        "than a factor of two between the two ranges. Curvature per length, acceleration over the"
        " squared step norm, "
        "is given for comparison: where the turn is constant, it repeats the finding about step"
        " norms.",
        "§4: a spiral with nearly constant curvature; norms plateau at a small nonzero value due"
        " to rotation",
        geometry.loops_are_spirals,
        Needs(loops=geometry.LATE.stop),
        presumes_fixed_point=True,
    ),
    Claim(
        14,
        "KL responds later",
        "A token takes more evaluations under KL than under acceleration, at each of the four"
        " thresholds of Fig. 4. "
        "The same number is nats for KL, and a distance between states for acceleration.",
        "§4: KL responds later; reacts later when small latent rotations still change logits",
        exits.kl_responds_later,
    ),
    Claim(
        15,
        "Acceleration and KL are more robust to τ",
        "From the smallest threshold of the paper to the largest, step norm loses more"
        " cross-entropy than acceleration "
        "and more than KL, by more than 0.01 nats.",
        "§4: stable across a wide τ range (KL); more robust to threshold variation (acceleration)",
        exits.acceleration_and_kl_are_robust,
        presumes_fixed_point=True,
    ),
)

# Those that need the tables of trajectories and of drift only.
GEOMETRY = tuple(claim for claim in CLAIMS if claim.number in (1, 2, 3, 4, 5, 6, 12, 13))


# --- verdicts -------------------------------------------------------------------------------------


def examine(claim: Claim, evidence: Evidence, references: bool = True) -> Verdict:
    """The verdict on one claim; without `references` its numbers for comparison are not
    measured.
    """
    facts = len(evidence.groups), evidence.loop_steps, evidence.max_loops, evidence.published
    if (lacking := claim.needs.lacking(*facts)) is not None:
        return Verdict(claim, (), NOT_ASKED, lacking)
    quantities = [
        quantity for quantity in claim.quantities(evidence) if references or quantity.counts
    ]
    findings = tuple(find(quantity, sum(q.counts for q in quantities)) for quantity in quantities)
    verdict, reason = combine(findings)
    at_equal_quality = [
        replace(f, counts=True) for f in findings if f.quantity.startswith(exits.EQUAL)
    ]
    if at_equal_quality and (other := combine(at_equal_quality)[0]) != verdict:
        reason = f"{exits.AT_PAPERS}; {exits.EQUAL} {other}; {reason}"
    load = evidence.load() if claim.timed else ""
    return Verdict(claim, findings, verdict, f"{reason}; {load}" if load else reason)


def verdicts(evidence: Evidence, claims: Iterable[Claim] = CLAIMS) -> list[Verdict]:
    return [examine(claim, evidence) for claim in claims]


def table(judged: Iterable[Verdict], run: str, mark: str = "") -> pd.DataFrame:
    """The table "claims": one row per finding, then the verdict with the scope "all"; `mark` of the
    run's scale.
    """
    rows = []
    for verdict in judged:
        rows += [row(verdict.claim, finding) for finding in (*verdict.findings, whole(verdict))]
    return pd.DataFrame(rows).assign(run=run, scale=mark)[list(tables.columns("claims"))]


def whole(verdict: Verdict) -> Finding:
    """The verdict on a claim as the last of its findings. A verdict over seeds may take the place
    of one.
    """
    return Finding(ALL, "", Estimate(), "", verdict.verdict, verdict.reason)


def row(claim: Claim, finding: Finding) -> dict[str, object]:
    """A row of the table "claims", without the run."""
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
