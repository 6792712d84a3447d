"""The page of the verdicts, claims.md, and the job that judges the claims of a run."""

from collections.abc import Sequence

from twoscale import tables
from twoscale.claims import regime
from twoscale.claims import verdicts as claims
from twoscale.claims.estimates import CORRELATION
from twoscale.claims.evidence import Evidence
from twoscale.claims.findings import Finding
from twoscale.claims.regime import DRIFTING
from twoscale.claims.scale import HEADER, MEANING, Scales
from twoscale.claims.verdicts import Verdict
from twoscale.claims.words import marked, with_trend
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.report.render import estimated, interval, render, table


def claims_markdown(
    verdicts: Sequence[Verdict],
    run: str,
    text: str,
    evidence: Evidence,
    scales: Scales | None = None,
    recorded: bool = False,
) -> str:
    """Markdown of the verdicts, one per claim, on a run on the text of this name.

    `recorded`: whether the sequences were recorded, so that nothing is known of documents.
    """
    loops, measured = evidence.loops, evidence.exits
    sequences = loops["sequence"].nunique()
    documents = loops["document"].nunique()
    regimes = evidence.regimes
    exits = {
        "sequences": measured["sequence"].nunique(),
        "documents": measured["document"].nunique(),
        "prompts": evidence.latency["repeat"].nunique(),
    }
    mark = scales.mark if scales else ""
    judged = [
        {
            "claim": verdict.claim,
            "word": marked(verdict.verdict, with_trend(mark, verdict.moves)),
            "reason": verdict.reason,
            "rows": list(map(_row, verdict.findings)),
        }
        for verdict in verdicts
    ]
    return render(
        "report/templates/claims.md.j2",
        run=run,
        text=text,
        evidence=evidence,
        correlation=CORRELATION,
        iterations=[f"{i}" if i else "0 (untrained)" for i in evidence.iterations],
        sequences=sequences,
        documents=documents,
        recorded=recorded and documents == sequences,
        loops=sorted(loops.groupby("group")["k"].max().unique()),
        exits={} if measured.empty else exits,
        scales=scale_table(scales),
        regimes=regimes,
        statistic=regime.STATISTIC,
        drifting=", ".join(group for group, found in regimes.items() if found.name == DRIFTING),
        verdicts=judged,
    )


def scale_table(scales: Scales | None) -> str:
    """The scale of a run and of the paper as a table, and the meaning of a mark.

    Empty if the scale is unknown.
    """
    return f"{MEANING}\n\n{table(HEADER, scales.rows)}" if scales else ""


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.scope,
        finding.quantity,
        estimated(finding.estimate),
        interval(finding.estimate),
        finding.bounds or "(for comparison)",
        finding.verdict,
        finding.reason,
    )


@job_files(reads=" ".join(tables.CLAIM_TABLES), writes="table page")
def judge_claims(job: TableJob) -> None:
    """Write a verdict on each claim of the paper, as a table and as a page."""
    config = job.config
    values = {"max_loops": config.max_loops, "seed": config.seed, "published": config.published}
    files = {name: job.file(name) for name in tables.CLAIM_TABLES}
    evidence = Evidence.read(files, warmup=config.warmup_iterations, **values)
    verdicts = claims.verdicts(evidence)
    scales = Scales.of(config.scales)
    if len(evidence.latency):
        cores = int(evidence.latency["cpus"].max())
        scales = scales.with_run(hardware=f"{scales.run.hardware}, machine of {cores} cores")
    job.write("claims", claims.table(verdicts, config.run, scales.mark), "table")
    job.write_text("page", claims_markdown(verdicts, config.run, config.text, evidence, scales))
