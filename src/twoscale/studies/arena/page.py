"""The exit criteria compared with cost-matched exits and oracles as a Markdown page: results/arena.md."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoscale.base import markdown
from twoscale.claims.evidence import Estimate
from twoscale.report import render
from twoscale.studies.arena.compare import ALL_GROUPS, COST_MATCHED, ORACLE, convergence, summarise

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob

NAMES = {"random": "random exits", "fixed": "fixed loops"}
BETTER, WORSE = "better", "worse"
BOTH = "better or worse, depending on the threshold,"
NO_DIFFERENCE, UNKNOWN = "no difference shown", "cannot be judged"
HEADER = """\
# Exits compared at equal cost

Exit criteria of the run **{run}** on {text}, compared with cost-matched exits and with oracles.
docs/arena.md describes both.

- **Random exits** assign the criterion's own counts of evaluations to tokens at random, in {draws} draws.
- **Fixed loops** use the criterion's mean for every token.
- The **gain** is the cross-entropy of the cost-matched exits minus the cross-entropy of the criterion, in nats per
  token at equal evaluations, on {tokens} held-out tokens of {documents} documents.
- **Saved** evaluations are those that the cost-matched exits need in addition to reach the same cross-entropy; empty
  where they reach it at no threshold of the criterion.

Intervals are 95 % bootstrap intervals over whole documents. A criterion is *better* or *worse* at a threshold if the
whole interval of the gain is above or below 0, after widening for all {gains} gains below (Bonferroni). The chance that
any such statement on this page is wrong is at most 5 %.
"""
REGRET = """\
The **regret** is the loss of a criterion compared with an oracle that knows the loss of every token after every loop
step and chooses one exit per token: in nats at equal evaluations, and in evaluations at equal nats. Tokens exit early
from one group at a time, while the other groups run {loops} loop steps; means over the groups {groups},
{oracle_tokens} held-out tokens.
"""
CONVERGED = """\
The loss of a token has converged once its cross-entropy stays at most {tolerance} nats above the value after {loops}
loop steps; its prediction has converged once the most likely next token no longer changes. *Extra* counts evaluations
after convergence, for tokens that exit later; *lost* is the loss in nats of tokens that exit earlier.
"""
PARTS = {"header": HEADER, "regret": REGRET, "converged": CONVERGED}


def run(job: "StudyJob") -> None:
    """Write the tables "arena" and "convergence", and results/arena.md."""
    names = ("exit_quality", "exit_loops", "exit_cost_matched", "exit_regret", "oracle_frontier")
    quality, loops, cost_matched, regret, frontier = map(job.read, names)
    compared = summarise(quality, loops, cost_matched, regret, frontier, job.config.seed).assign(run=job.config.run)
    converged = convergence(regret, job.config.seed).assign(run=job.config.run)
    job.write("arena", compared)
    job.write("convergence", converged)
    job.write_text("page", page(compared, converged, job.config.page))


def page(
    arena: pd.DataFrame, convergence: pd.DataFrame, values: Mapping[str, Any], parts: Mapping[str, str] = PARTS
) -> str:
    """Markdown of the tables "arena" and "convergence".

    Args:
        arena: Table "arena".
        convergence: Table "convergence".
        values: run, text, draws, tokens, loops, groups, oracle_tokens, tolerance, as far as the parts name them.
        parts: Texts of the page, by the names of `PARTS`.
    """
    cost_matched = arena[arena["reference"] != ORACLE]
    text = {name: markdown(str(value)) for name, value in values.items()}
    documents = cost_matched["documents"].max() if len(cost_matched) else 0
    regret = arena[(arena["reference"] == ORACLE) & (arena["group"] == ALL_GROUPS)]
    return render.blocks(
        *(parts["header"].format(**text, documents=documents, gains=len(cost_matched)), _in_short(cost_matched)),
        *("## Gain over cost-matched exits", _gains(cost_matched)),
        *("## Regret", parts["regret"].format(**text), _regrets(regret)),
        *("## Converged tokens", parts["converged"].format(**text), _convergence(convergence)),
    )


def _in_short(cost_matched: pd.DataFrame) -> str:
    rows = []
    for criterion, of_criterion in cost_matched.groupby("criterion", sort=False):
        of_references = (of_criterion[of_criterion["reference"] == reference] for reference in COST_MATCHED)
        rows.append((criterion, *(in_words(gains, len(cost_matched)) for gains in of_references)))
    return render.table(("criterion", *(f"against {NAMES[reference]}" for reference in COST_MATCHED)), rows)


def in_words(rows: pd.DataFrame, findings: int) -> str:
    """Whether a criterion is better than one kind of cost-matched exits, from its rows of the table "arena".

    findings: number of gains that are judged together.
    """
    words = judged(rows, findings)
    parts = [
        f"{word} at τ = {', '.join(at)}"
        for word in (BETTER, WORSE)
        if (at := [f"{threshold:.3g}" for threshold, found in words.items() if found == word])
    ]
    return ", ".join(parts) or _verdict(words)


def summary(arena: pd.DataFrame) -> str:
    """One sentence for each kind of cost-matched exits: which criteria are better, and by how much at most."""
    sentences, findings = [], int((arena["reference"] != ORACLE).sum())
    for reference in COST_MATCHED:
        found: dict[str, list[str]] = {verdict: [] for verdict in (BETTER, BOTH, WORSE, NO_DIFFERENCE, UNKNOWN)}
        for criterion, rows in arena[arena["reference"] == reference].groupby("criterion", sort=False):
            words = judged(rows, findings)
            gains = [row.gain for row in rows.itertuples() if words[row.threshold] == BETTER]
            most = f" (by up to {render.number(max(gains))} nats per token)" if gains else ""
            found[_verdict(words)].append(criterion.replace("_", " ") + most)
        listed = "; ".join(f"{verdict} with {', '.join(names)}" for verdict, names in found.items() if names)
        sentences.append(f"Compared with {NAMES[reference]} of the same cost: {listed or 'no criterion was compared'}.")
    if findings:
        sentences.append(f"These verdicts hold together: intervals are widened for all {findings} gains.")
    return " ".join(sentences)


def judged(rows: pd.DataFrame, findings: int) -> dict[float, str]:
    """For each threshold of a criterion BETTER, WORSE, NO_DIFFERENCE or UNKNOWN against one kind of exits."""
    gains = {row.threshold: _estimate(row, "gain").widened(findings) for row in rows.itertuples()}
    return {threshold: _word(gain) for threshold, gain in gains.items()}


def _word(gain: Estimate) -> str:
    if np.isnan(gain.low):
        return UNKNOWN
    return BETTER if gain.low > 0 else WORSE if gain.high < 0 else NO_DIFFERENCE


def _verdict(judged: Mapping[float, str]) -> str:
    """The finding over all thresholds together."""
    found = set(judged.values())
    if {BETTER, WORSE} <= found:
        return BOTH
    return next(word for word in (BETTER, WORSE, NO_DIFFERENCE, UNKNOWN) if word in found)


def _estimate(row: Any, name: str) -> Estimate:
    low, high = (getattr(row, f"{name}_{end}") for end in ("low", "high"))
    return Estimate(getattr(row, name), low, high, freedom=max(1.0, getattr(row, "effective_documents", 2) - 1))


def _point(row: Any) -> tuple[str, str]:
    return row.criterion, f"{row.threshold:.3g}"


def _cells(row: Any, *names: str) -> list[str]:
    """Value and interval of each estimate of a row."""
    found = [_estimate(row, name) for name in names]
    return [cell for one in found for cell in (render.number(one.value), render.interval(one))]


def _gains(cost_matched: pd.DataFrame) -> str:
    header = (
        "criterion",
        "τ",
        "compared with",
        "evaluations",
        "gain, nats",
        "interval",
        "saved evaluations",
        "interval",
    )
    rows = (
        (*_point(row), NAMES[row.reference], f"{row.evaluations:.2f}", *_cells(row, "gain", "saved"))
        for row in cost_matched.itertuples()
    )
    return render.table(header, rows)


def _regrets(regret: pd.DataFrame) -> str:
    header = ("criterion", "τ", "evaluations", "regret, nats", "interval", "regret, evaluations", "interval")
    ends = {"": "", "_low": "_high", "_high": "_low"}
    turned = {f"{name}{new}": 0 - regret[f"{name}{old}"] for name in ("gain", "saved") for new, old in ends.items()}
    rows = (
        (*_point(row), f"{row.evaluations:.2f}", *_cells(row, "gain", "saved"))
        for row in regret.assign(**turned).itertuples()
    )
    return render.table(header, rows)


def _convergence(convergence: pd.DataFrame) -> str:
    header: tuple[str, ...] = ("criterion", "τ", "converged in", "evaluations", "least", "unconverged", "interval")
    header += ("extra", "interval", "lost, nats", "interval")
    cells = ("unconverged", "extra", "lost")
    rows = (
        (*_point(row), row.oracle, f"{row.evaluations:.2f}", f"{row.least:.2f}", *_cells(row, *cells))
        for row in convergence.itertuples()
    )
    return render.table(header, rows)
