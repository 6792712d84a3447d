"""The depth card as a Markdown page: results/depth-card.md."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoscale.base import markdown
from twoscale.claims.evidence import Estimate
from twoscale.config import PROJECT
from twoscale.report import release
from twoscale.report.render import blocks, interval, number, table
from twoscale.studies.depth_card.compare import NO_GROUP
from twoscale.studies.depth_card.steps import STATE_MEASURES

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob

HEADER = """\
# Depth card: {run}

Quality and geometry of one looped model {setting}.

Losses and entropies are in nats per token; intervals are 95 % bootstrap intervals over {units}.
"""
SETTING = "at fixed loop counts, the same in every group, on held-out text"
LOOPS = """\
*Flips* are tokens whose most likely next token differs from the row above. *Excess* is the loss above the lowest
one, on the same text.
"""
STATES = """\
From one pass of {last} loop steps: at loop step k, the median over the tokens of a sequence, averaged over
sequences. *Cosine* is the cosine of successive updates; *direction step* is the step of the state divided by its norm,
the input of a head with a norm. Empty: undefined, or below the rounding floor.
"""
NAMES = {
    "trained_loops": "trained loops",
    "best_loops": "best loops",
    "plateau_first": "plateau from",
    "plateau_last": "plateau to",
    "trained_excess": "loss at the trained loops above the lowest, nats",
    "loop_gain": "loop gain, nats",
}


def run(job: "StudyJob") -> None:
    """Write results/depth-card.md."""
    card, findings = job.read("depth_card", "card"), job.read("depth_findings", "findings")
    identity = dict(job.config.identity) | {"checkpoint": int(card["iteration"].iloc[0])} | commit()
    job.write_text("page", page(card, findings, job.config.run, identity, job.file("picture").name))


def commit() -> dict[str, str]:
    """The commit of the checkout that writes the page, as a row of its identity."""
    found = release.checkout(PROJECT)
    changed = ", with changes" if found["modified"] else ""
    return {"code": f"commit {found['commit']}{changed}" if found["commit"] else "not in a Git checkout"}


def page(
    card: pd.DataFrame,
    findings: pd.DataFrame,
    run: str,
    identity: Mapping[str, object],
    picture: str,
    setting: str = SETTING,
    units: str = "documents",
    further: Iterable[str] = (),
) -> str:
    """Markdown of the tables "depth_card" and "depth_findings" of one run.

    Args:
        card: Table "depth_card".
        findings: Table "depth_findings".
        run: Name of the run.
        identity: The model, the text and the code of the measurement: name -> value.
        picture: File of the picture, relative to the page.
        setting: How the loop counts were measured, after "one looped model".
        units: Units of resampling.
        further: Sections at the end.
    """
    of_groups = [row.statement for row in findings[findings["quantity"] == "regime"].itertuples()]
    labels = findings.loc[findings["quantity"] == "regime", "group"]
    regimes = [f"- Group {group}: {statement}" for group, statement in zip(labels, of_groups, strict=True)]
    rows = [(name, markdown(str(value))) for name, value in identity.items()]
    return blocks(
        HEADER.format(run=markdown(run), setting=setting, units=units),
        table(("", ""), rows),
        *("## In short", _findings(findings), "\n".join(regimes)),
        *("## By loops", LOOPS, _quality(card), f"![Loss and geometry against loops]({picture})"),
        *("## States", STATES.format(last=card["loops"].max())),
        *(part for group in _groups(card) for part in (f"Group {markdown(group)}:", _states(card, group))),
        *further,
    )


def _groups(card: pd.DataFrame) -> list[str]:
    return [group for group in card["group"].unique() if group != NO_GROUP]


def _findings(findings: pd.DataFrame) -> str:
    rows = findings[findings["quantity"].isin(NAMES)].itertuples()
    cells = ((NAMES[row.quantity], number(row.value), interval(_estimate(row)), row.statement) for row in rows)
    return table(("finding", "value", "95 % interval", "meaning"), cells)


def _estimate(row: Any) -> Estimate:
    return Estimate(row.value, row.low, row.high)


def _quality(card: pd.DataFrame) -> str:
    header = ("loops", "× trained", "loss", "95 % interval", "excess", "95 % interval", "entropy", "flips")
    return table(header, (_quality_row(rows) for _, rows in card[card["group"] == NO_GROUP].groupby("loops")))


def _quality_row(rows: pd.DataFrame) -> tuple[object, ...]:
    of = {row.quantity: row for row in rows.itertuples()}
    ce, excess, flips = of["ce"], of["excess"], of.get("flips")
    losses = (_fixed(ce.value), _ends(ce), _fixed(excess.value), _ends(excess))
    share = "" if flips is None else f"{100 * flips.value:.1f} %"
    return (ce.loops, f"{ce.multiple:.3g}", *losses, _fixed(of["entropy"].value), share)


def _fixed(value: float) -> str:
    """Three decimals, without a negative zero."""
    return f"{round(value, 3) + 0.0:.3f}"


def _ends(row: Any) -> str:
    """Both ends of the interval; empty if there is none."""
    return "" if np.isnan(row.low) else f"{_fixed(row.low)} … {_fixed(row.high)}"


def _states(card: pd.DataFrame, group: str) -> str:
    values = card[card["group"] == group].pivot(index="loops", columns="quantity", values="value")
    values = values.reindex(columns=list(STATE_MEASURES))
    rows = ((row.Index, *map(number, row[1:])) for row in values.itertuples())
    return table(("loop step", *(name.replace("_", " ") for name in STATE_MEASURES)), rows)
