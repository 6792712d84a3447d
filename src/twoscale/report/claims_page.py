"""The verdicts on the claims as a Markdown page: results/claims.md."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from twoscale.base import markdown
from twoscale.claims import regime
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import CORRELATION, Evidence
from twoscale.claims.findings import Finding, marked
from twoscale.claims.regime import DRIFTING, Regime
from twoscale.claims.scale import HEADER as SCALE_HEADER
from twoscale.claims.scale import MEANING, Scales
from twoscale.claims.verdicts import Verdict
from twoscale.report.render import blocks, interval, number, table
from twoscale.tables import CLAIM_TABLES

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


HEADER = """\
# The claims of the paper on the run {run}

Run **{run}** on {text}. {checkpoints} Loop statistics
are from {sequences} {sequences_of} at {loops} loop steps per group{exits}.

Each number has a 95 % interval, a bootstrap over {units}, for latency over timed prompts, widened for
few units by Student's t. A trend is the change along a line over the logarithm of the iteration, fitted over all
checkpoints after warm-up; its interval contains the scatter of the checkpoints about the line, which is assumed to be
correlated by {correlation:g} from one checkpoint to the next.

A finding *holds* if the whole interval is within the bounds. It *does not hold* if the whole interval is outside, also
after it was widened for the number of findings of its claim (Bonferroni). Otherwise it *cannot be judged*; nor can it
if rows are missing, if more than 10 % of the values are under the rounding floor, or if there are fewer than three
checkpoints after warm-up for a trend. A claim does not hold if one of its findings does not. In simulated runs a true
claim is refuted, and a false one upheld, in at most 6 % (docs/verdicts.md; docs/judging.md says how the bounds
were chosen). These verdicts are about this run, with the size and text of its config, and not about the paper's model
unless the run has that size. A claim is *not asked* of a run that it is not about: one of fewer loop steps or groups
than the claim needs, or of a published model, whose training is not part of the run.
"""
HELD_OUT = {"sequences_of": "held-out sequences of {documents} documents", "units": "whole held-out documents"}
RECORDED = {"sequences_of": "recorded sequences, each of which counts as a document", "units": "recorded sequences"}
TRAINED = "Checkpoints at iterations {iterations}; those after {warmup} are after warm-up."
PUBLISHED = (
    "The model is published and has one checkpoint; whether its training text contains the held-out text is unknown."
)
REGIMES = "Regime of each looped group at the last checkpoint, as defined in the module `twoscale.claims.regime`:"
DRIFTS = """\
This claim is about the steps of a loop that stays near a fixed point. The state drifts, with a norm that grows, in:
{groups}. There the verdict is about absolute steps, which a readout that begins with a norm does not see."""
FINDINGS = ("scope", "quantity", "value", "95 % interval", "bounds", "verdict", "reason")
EXITS = """\
, exit criteria from
{quality} held-out sequences of {quality_documents} documents and {prompts} timed prompts at no more than {max_loops}
loop steps per group"""


def page(
    verdicts: Sequence[Verdict],
    run: str,
    text: str,
    evidence: Evidence,
    scales: Scales | None = None,
    recorded: bool = False,
) -> str:
    """Markdown of the verdicts.

    Args:
        verdicts: One per claim.
        run: Name of the run.
        text: Name of its text.
        evidence: The tables of the run.
        scales: Those of the run and of the paper, if they are known.
        recorded: Whether the sequences were recorded, so that nothing is known of documents.
    """
    mark = scales.mark if scales else ""
    rows = [(v.claim.number, v.claim.title, f"**{marked(v.verdict, mark)}**") for v in verdicts]
    summary = table(("claim", "in short", "verdict"), rows)
    regimes = evidence.regimes
    drifting = [group for group, found in regimes.items() if found.name == DRIFTING]
    sections = (part for verdict in verdicts for part in _section(verdict, mark, drifting))
    return blocks(_header(run, text, evidence, recorded), *scale_table(scales), _regimes(regimes), summary, *sections)


def _regimes(regimes: Mapping[str, Regime]) -> str:
    lines = [f"- {markdown(group)}: {found.sentence}" for group, found in regimes.items()]
    return "\n".join([REGIMES, "", *lines]) if lines else ""


def scale_table(scales: Scales | None) -> tuple[str, ...]:
    """The scale of a run and of the paper as a table, and what a mark means; nothing if the scale is unknown."""
    return (MEANING, table(SCALE_HEADER, scales.rows)) if scales else ()


def _header(run: str, text: str, evidence: Evidence, recorded: bool) -> str:
    iterations = ["0 (untrained)" if iteration == 0 else str(iteration) for iteration in evidence.iterations]
    documents = evidence.loops["document"].nunique()
    recorded = recorded and documents == evidence.loops["sequence"].nunique()
    trained = TRAINED.format(iterations=", ".join(iterations), warmup=evidence.warmup)
    return HEADER.format(
        run=markdown(run),
        text=markdown(text),
        correlation=CORRELATION,
        checkpoints=PUBLISHED if evidence.published else trained,
        sequences=evidence.loops["sequence"].nunique(),
        **{name: words.format(documents=documents) for name, words in (RECORDED if recorded else HELD_OUT).items()},
        loops=" or ".join(map(str, sorted(evidence.loops.groupby("group")["k"].max().unique()))),
        exits="" if evidence.quality.empty else _exits(evidence),
    )


def _exits(evidence: Evidence) -> str:
    return EXITS.format(
        quality=evidence.quality["sequence"].nunique(),
        quality_documents=evidence.quality["document"].nunique(),
        prompts=evidence.latency["repeat"].nunique(),
        max_loops=evidence.max_loops,
    )


def _section(verdict: Verdict, mark: str, drifting: Sequence[str]) -> tuple[str, ...]:
    claim, word = verdict.claim, marked(verdict.verdict, mark)
    asked = verdict.findings and claim.presumes_fixed_point
    return (
        f"## {claim.number}. {claim.title}: {word}",
        claim.statement,
        f"In the paper: {claim.where}.",
        f"Verdict: **{word}** ({verdict.reason}).",
        DRIFTS.format(groups=markdown(", ".join(drifting))) if drifting and asked else "",
        table(FINDINGS, map(_row, verdict.findings)) if verdict.findings else "",
    )


def _row(finding: Finding) -> tuple[str, ...]:
    values = (number(finding.estimate.value), interval(finding.estimate), finding.bounds or "(for comparison)")
    return (finding.scope, finding.quantity, *values, finding.verdict, finding.reason)


def run(job: "StudyJob") -> None:
    """The job of the workflow: a verdict on each claim of the paper, as a table and as a page."""
    config = job.config
    values = {"max_loops": config.max_loops, "seed": config.seed, "published": config.published}
    files = {name: job.file(name) for name in CLAIM_TABLES}
    evidence = Evidence.read(files, warmup=config.warmup_iterations, **values)
    verdicts = claims.verdicts(evidence)
    scales = with_cores(Scales.of(config.scales), evidence)
    job.write("claims", claims.table(verdicts, config.run, scales.mark), "table")
    job.write("regime", regime.table(evidence.loops))
    job.write_text("page", page(verdicts, config.run, config.text, evidence, scales))


def with_cores(scales: Scales, evidence: Evidence) -> Scales:
    """The scales with the cores of the machine that latency was measured on, if it was."""
    if evidence.latency.empty:
        return scales
    hardware = f"{scales.run.hardware}, machine of {int(evidence.latency['cpus'].max())} cores"
    return replace(scales, run=replace(scales.run, hardware=hardware))
