"""The exit criteria beside controls and oracles as a Markdown page: results/arena.md."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoscale.analysis import claims_page
from twoscale.analysis.evidence import Estimate
from twoscale.escaping import markdown
from twoscale.studies.arena.compare import ALL_GROUPS, CONTROLS, ORACLE, settling, summarise

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob

NAMES = {"random": "random exits", "fixed": "fixed loops"}
BETTER, WORSE = "better", "worse"
BOTH = "better or worse, depending on the threshold,"
NO_DIFFERENCE, UNKNOWN = "no difference shown", "cannot be judged"
HEADER = """\
# What the exits are worth

Exit criteria of the run **{run}** on {text}, beside controls of the same cost and beside oracles. The page
docs/reproduction.md, "What an exit criterion is compared with", describes both.

- **Random exits** give the criterion's own counts of evaluations to tokens at random, in {draws} draws.
- **Fixed loops** give every token the criterion's mean.
- The **gain** is the cross-entropy of the control minus that of the criterion, in nats per token at equal evaluations,
  on {tokens} held-out tokens of {documents} documents.
- **Saved** are the evaluations that the control takes more than the criterion at the same cross-entropy; empty where
  the control does not reach it at any threshold of the criterion.

Intervals are of 95 %, bootstraps over whole documents. A criterion is *better* or *worse* at a threshold if the whole
interval of the gain is above or below 0, also after it was widened for the number of its thresholds (Bonferroni).
"""
REGRET = """\
The **regret** is what a criterion loses beside an oracle that knows the loss of every token after every loop step and
chooses one exit per token: in nats at the same evaluations, and in evaluations at the same nats. Tokens leave one group
at a time, the other groups run {loops} loop steps; means over the groups {groups}, {oracle_tokens} held-out tokens.
"""
SETTLED = """\
A token is settled in its loss from the first state from which the cross-entropy stays at most {tolerance} nats above
that after {loops} loop steps, and in its prediction from the first state from which the most likely next token stays.
*Extra* are the evaluations after that of tokens that leave settled, *lost* the nats of those that leave before.
"""


def run(job: "StudyJob") -> None:
    """Write the tables "arena" and "settling", and results/arena.md."""
    names = ("exit_quality", "exit_loops", "exit_controls", "exit_regret", "oracle_frontier")
    quality, loops, controls, regret, frontier = map(job.read, names)
    compared = summarise(quality, loops, controls, regret, frontier, job.config.seed).assign(run=job.config.run)
    settled = settling(regret, job.config.seed).assign(run=job.config.run)
    job.write("arena", compared)
    job.write("settling", settled)
    job.write_text("page", page(compared, settled, job.config.page))


def page(arena: pd.DataFrame, settling: pd.DataFrame, values: Mapping[str, Any]) -> str:
    """Markdown of the tables "arena" and "settling".

    Args:
        arena: Table "arena".
        settling: Table "settling".
        values: run, text, draws, tokens, loops, groups, oracle_tokens, tolerance.
    """
    controls = arena[arena["reference"] != ORACLE]
    text = {name: markdown(str(value)) for name, value in values.items()}
    documents = controls["documents"].max() if len(controls) else 0
    regret = arena[(arena["reference"] == ORACLE) & (arena["group"] == ALL_GROUPS)]
    return claims_page.blocks(
        *(HEADER.format(**text, documents=documents), _in_short(controls)),
        *("## Gain over controls", _gains(controls)),
        *("## Regret", REGRET.format(**text), _regrets(regret)),
        *("## Settled tokens", SETTLED.format(**text), _settling(settling)),
    )


def _in_short(controls: pd.DataFrame) -> str:
    rows = [
        (criterion, *(in_words(of_criterion[of_criterion["reference"] == control]) for control in CONTROLS))
        for criterion, of_criterion in controls.groupby("criterion", sort=False)
    ]
    return claims_page.table(("criterion", *(f"beside {NAMES[control]}" for control in CONTROLS)), rows)


def in_words(rows: pd.DataFrame) -> str:
    """Whether a criterion is better than one control, from its rows of the table "arena"."""
    judged = _judged(rows)
    parts = [
        f"{word} at τ = {', '.join(at)}"
        for word in (BETTER, WORSE)
        if (at := [f"{threshold:.3g}" for threshold, found in judged.items() if found == word])
    ]
    return ", ".join(parts) or _verdict(judged)


def summary(arena: pd.DataFrame) -> str:
    """Which criteria of the table "arena" are better than each control, and by how much at most: one sentence each."""
    sentences = []
    for control in CONTROLS:
        found: dict[str, list[str]] = {verdict: [] for verdict in (BETTER, BOTH, WORSE, NO_DIFFERENCE, UNKNOWN)}
        for criterion, rows in arena[arena["reference"] == control].groupby("criterion", sort=False):
            judged = _judged(rows)
            gains = [row.gain for row in rows.itertuples() if judged[row.threshold] == BETTER]
            most = f" (by up to {claims_page.number(max(gains))} nats per token)" if gains else ""
            found[_verdict(judged)].append(criterion.replace("_", " ") + most)
        listed = "; ".join(f"{verdict} with {', '.join(names)}" for verdict, names in found.items() if names)
        sentences.append(f"Beside {NAMES[control]} of the same cost: {listed or 'no criterion was compared'}.")
    return " ".join(sentences)


def _judged(rows: pd.DataFrame) -> dict[float, str]:
    """For each threshold of a criterion BETTER, WORSE, NO_DIFFERENCE or UNKNOWN beside one control."""
    gains = {row.threshold: _estimate(row, "gain").widened(len(rows)) for row in rows.itertuples()}
    return {threshold: _word(gain) for threshold, gain in gains.items()}


def _word(gain: Estimate) -> str:
    if np.isnan(gain.low):
        return UNKNOWN
    return BETTER if gain.low > 0 else WORSE if gain.high < 0 else NO_DIFFERENCE


def _verdict(judged: Mapping[float, str]) -> str:
    """What is found at all thresholds together."""
    found = set(judged.values())
    if {BETTER, WORSE} <= found:
        return BOTH
    return next(word for word in (BETTER, WORSE, NO_DIFFERENCE, UNKNOWN) if word in found)


def _estimate(row: Any, name: str) -> Estimate:
    ends = (getattr(row, f"{name}_{end}") for end in ("low", "high"))
    return Estimate(getattr(row, name), *ends, freedom=max(1, int(getattr(row, "documents", 2)) - 1))


def _point(row: Any) -> tuple[str, str]:
    return row.criterion, f"{row.threshold:.3g}"


def _cells(row: Any, *names: str) -> list[str]:
    """Value and interval of each estimate of a row."""
    found = [_estimate(row, name) for name in names]
    return [cell for one in found for cell in (claims_page.number(one.value), claims_page.interval(one))]


def _gains(controls: pd.DataFrame) -> str:
    header = ("criterion", "τ", "beside", "evaluations", "gain, nats", "interval", "saved evaluations", "interval")
    rows = (
        (*_point(row), NAMES[row.reference], f"{row.evaluations:.2f}", *_cells(row, "gain", "saved"))
        for row in controls.itertuples()
    )
    return claims_page.table(header, rows)


def _regrets(regret: pd.DataFrame) -> str:
    header = ("criterion", "τ", "evaluations", "regret, nats", "interval", "regret, evaluations", "interval")
    ends = {"": "", "_low": "_high", "_high": "_low"}
    turned = {f"{name}{new}": -regret[f"{name}{old}"] for name in ("gain", "saved") for new, old in ends.items()}
    rows = (
        (*_point(row), f"{row.evaluations:.2f}", *_cells(row, "gain", "saved"))
        for row in regret.assign(**turned).itertuples()
    )
    return claims_page.table(header, rows)


def _settling(settling: pd.DataFrame) -> str:
    header = ("criterion", "τ", "settled in", "evaluations", "least", "unsettled", "interval")
    header += ("extra", "interval", "lost, nats", "interval")
    cells = ("unsettled", "extra", "lost")
    rows = (
        (*_point(row), row.oracle, f"{row.evaluations:.2f}", f"{row.least:.2f}", *_cells(row, *cells))
        for row in settling.itertuples()
    )
    return claims_page.table(header, rows)
