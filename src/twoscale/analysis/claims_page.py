"""The claims as a page to read: results/claims.md."""

from collections.abc import Iterable, Sequence

import numpy as np

from twoscale.analysis.claims import Finding, Verdict
from twoscale.analysis.evidence import Estimate, Evidence

HEADER = """\
# The claims of the paper on the run {run}

Run **{run}** on {text}. Checkpoints at training steps {steps}. Loop statistics come from {sequences} held-out
sequences at {loops} loop steps per group, exit rules from {quality} held-out sequences and {prompts} timed prompts at a
budget of {budget} loop steps.

Each number stands with its 95 % interval, a bootstrap over whole held-out sequences, for latency over timed prompts.
It *holds* if the whole interval meets the criterion and *does not hold* if the whole interval misses it; otherwise it
*cannot be judged*, nor can it where rows are missing, more than 10 % of the values lie under the rounding floor, or
there are fewer than two trained checkpoints to compare. A claim fails with one of its parts. The criteria were written
down before the first run; these verdicts are about this run, whose size and text the settings name, and not about the
paper's model unless the run is of that size.
"""


def page(verdicts: Sequence[Verdict], name: str, text: str, run: Evidence) -> str:
    """Markdown of the verdicts on the run `name` on `text`."""
    lines = [_header(name, text, run), *_summary(verdicts)]
    for verdict in verdicts:
        lines += _section(verdict)
    return "\n".join(lines) + "\n"


def _header(name: str, text: str, run: Evidence) -> str:
    steps = ", ".join("0 (untrained)" if step == 0 else str(step) for step in run.steps)
    return HEADER.format(
        run=name,
        text=text,
        steps=steps,
        sequences=run.loops["sequence"].nunique(),
        loops=run.loops["k"].max(),
        quality=run.quality["sequence"].nunique(),
        prompts=run.latency["repeat"].nunique(),
        budget=run.budget,
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
            ("part", "measured", "value", "95 % interval", "criterion", "verdict", "reason"),
            [_row(finding) for finding in verdict.findings],
        ),
    ]


def _row(finding: Finding) -> tuple[str, ...]:
    estimate = finding.estimate
    return (
        finding.part,
        finding.quantity,
        number(estimate.value),
        interval(estimate),
        finding.criterion or "(to compare)",
        finding.verdict,
        finding.reason,
    )


def number(value: float) -> str:
    """Three digits; what is infinite was not reached, what is missing stays empty."""
    if np.isnan(value):
        return ""
    return "not reached" if np.isinf(value) else f"{value:.3g}"


def interval(estimate: Estimate) -> str:
    return "" if np.isnan(estimate.low) else f"{number(estimate.low)} … {number(estimate.high)}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; a bar inside a cell would end it."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
