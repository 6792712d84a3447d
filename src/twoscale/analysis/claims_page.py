"""The verdicts on the claims as a Markdown page: results/claims.md."""

from collections.abc import Iterable, Sequence

import numpy as np

from twoscale.analysis.claims import Finding, Verdict
from twoscale.analysis.evidence import Estimate, Evidence

HEADER = """\
# The claims of the paper on the run {run}

Run **{run}** on {text}. Checkpoints at iterations {iterations}. Loop statistics are from {sequences} held-out
sequences at {loops} loop steps per group, exit criteria from {quality} held-out sequences and {prompts} timed prompts
at no more than {max_loops} loop steps per group.

Each number has a 95 % interval, a bootstrap over whole held-out sequences, for latency over timed prompts.
It *holds* if the whole interval is within the bounds and *does not hold* if the whole interval is outside; otherwise it
*cannot be judged*. Nor can it be judged if rows are missing, if more than 10 % of the values are under the rounding
floor, or if there are fewer than two trained checkpoints to compare. A claim does not hold if one of its findings does
not. The bounds were written down before the first run. These verdicts are about this run, with the size and text of its
config, and not about the paper's model unless the run has that size.
"""


def page(verdicts: Sequence[Verdict], run: str, text: str, evidence: Evidence) -> str:
    """Markdown of the verdicts.

    Args:
        verdicts: One per claim.
        run: Name of the run.
        text: Name of its text.
        evidence: The tables of the run.
    """
    lines = [_header(run, text, evidence), *_summary(verdicts)]
    for verdict in verdicts:
        lines += _section(verdict)
    return "\n".join(lines) + "\n"


def _header(run: str, text: str, evidence: Evidence) -> str:
    iterations = ["0 (untrained)" if iteration == 0 else str(iteration) for iteration in evidence.iterations]
    return HEADER.format(
        run=run,
        text=text,
        iterations=", ".join(iterations),
        sequences=evidence.loops["sequence"].nunique(),
        loops=evidence.loops["k"].max(),
        quality=evidence.quality["sequence"].nunique(),
        prompts=evidence.latency["repeat"].nunique(),
        max_loops=evidence.max_loops,
    )


def _summary(verdicts: Iterable[Verdict]) -> list[str]:
    rows = [(str(v.claim.number), v.claim.title, f"**{v.verdict}**") for v in verdicts]
    return _table(("claim", "in short", "verdict"), rows)


def _section(verdict: Verdict) -> list[str]:
    claim = verdict.claim
    return [
        "",
        f"## {claim.number}. {claim.title}: {verdict.verdict}",
        "",
        claim.statement,
        "",
        f"In the paper: {claim.where}.",
        "",
        f"Verdict: **{verdict.verdict}** ({verdict.reason}).",
        "",
        *_table(
            ("scope", "quantity", "value", "95 % interval", "bounds", "verdict", "reason"),
            [_row(finding) for finding in verdict.findings],
        ),
    ]


def _row(finding: Finding) -> tuple[str, ...]:
    estimate = finding.estimate
    return (
        finding.scope,
        finding.quantity,
        number(estimate.value),
        interval(estimate),
        finding.bounds or "(for comparison)",
        finding.verdict,
        finding.reason,
    )


def number(value: float) -> str:
    """Three digits; "not reached" if infinite, empty if missing."""
    if np.isnan(value):
        return ""
    return "not reached" if np.isinf(value) else f"{value:.3g}"


def interval(estimate: Estimate) -> str:
    """Both ends; empty if there is no interval."""
    return "" if np.isnan(estimate.low) else f"{number(estimate.low)} … {number(estimate.high)}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
