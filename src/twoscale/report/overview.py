"""The answer of a run in short: the verdict and the measured values of each claim, in sentences and as a web page."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import verdicts as claims
from twoscale.claims.findings import FAILS, HOLDS, NOT_ASKED, OPEN, marked
from twoscale.claims.scale import MEANING, SMALL_SCALE, Scales, criterion_name
from twoscale.jobs.command import function
from twoscale.report import pages
from twoscale.report.render import number

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


# Text colours with a contrast above 4.5 to white.
COLOURS = {HOLDS: "#166534", FAILS: "#b91c1c", OPEN: "#92400e", NOT_ASKED: "#4b5563"}
WARNING = "Small scale only: the scale of the paper has not been run."
STYLE = """<style>
.overview { font: 15px/1.45 sans-serif; color: #111; max-width: 64rem }
.overview h2 { font-size: 1.3em; font-weight: 600; margin: 1.2em 0 .4em }
.overview table { border-collapse: collapse; margin: .8em 0; font-size: inherit }
.overview th, .overview td { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; vertical-align: top }
.overview .verdict { font-weight: 600; white-space: nowrap }
.overview figure { margin: .5em 0 1.5em }
.overview figcaption { color: #111; font-size: inherit }
.overview img { zoom: 1.4; max-width: 100%; border: 1px solid #ddd; background: white }
@media (max-width: 700px) {
  .overview table, .overview tbody, .overview tr, .overview td { display: block; border: 0; padding: 0 }
  .overview thead { display: none }
  .overview tr { border-bottom: 1px solid #ddd; padding: .4em 0 }
  .overview td:first-child { float: left; margin-right: .4em }
  .overview img { zoom: 1 }
}
</style>"""


@dataclass(frozen=True)
class Answer:
    """The verdict on one claim. `measured`: the judged values, with 95 % intervals; `mark`: the mark of the scale."""

    number: int
    title: str
    verdict: str
    measured: str
    mark: str = ""

    @property
    def marked(self) -> str:
        """The verdict with its mark."""
        return marked(self.verdict, self.mark)

    @property
    def sentence(self) -> str:
        """Claim, verdict and values, for a caption."""
        values = f"; {self.measured}" if self.measured else ""
        return f"Claim {self.number}, {self.title}: {self.marked}{values}."


@dataclass(frozen=True)
class Shown:
    """A figure of the report: its name in files, its title, the numbers of its claims, and its picture as SVG.

    `sentence` is the dotted path of a function of the table of the figure's name; empty if there is none.
    """

    name: str
    title: str
    claims: Sequence[int]
    sentence: str
    picture: Path


def answers(table: pd.DataFrame, reference_state: str) -> list[Answer]:
    """The verdict on each claim of the table "claims", in their order.

    Of the numbers that a claim is judged on, those with the verdict of the claim are shown, and of these the last one
    of each scope; of several reference states (Eq. 2), `reference_state`.
    """
    return [_answer(int(number), rows, reference_state) for number, rows in table.groupby("claim")]


def _answer(claim: int, rows: pd.DataFrame, reference_state: str) -> Answer:
    title = next((known.title for known in claims.CLAIMS if known.number == claim), "")
    whole = rows[rows["scope"] == claims.ALL].iloc[-1]
    judged = rows[(rows["bounds"] != "") & (rows["scope"] != claims.ALL)]
    of_state = judged[judged["scope"].str.endswith(f", {reference_state}")]
    shown = judged if of_state.empty else of_state
    if (decides := shown["verdict"] == whole["verdict"]).any():
        shown = shown[decides]
    measured = _measured(shown.drop_duplicates("scope", keep="last"))
    return Answer(claim, title, whole["verdict"], measured, whole["scale"])


def _measured(rows: pd.DataFrame) -> str:
    """Each quantity with its values and bounds: "DLR, last: 21.5 [21.3, 21.7] (4 → 5–6), …, expected ≥ 10"."""
    parts = []
    for (quantity, bounds), findings in groupby(
        rows.itertuples(), key=lambda finding: (finding.quantity, finding.bounds)
    ):
        parts.append(f"{quantity}: {', '.join(map(_value, findings))}, expected {bounds}")
    named = re.sub(r"\b(kl|[a-z]+_[a-z_]+)\b", lambda name: criterion_name(name[0]), "; ".join(parts))
    return re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", named)


def _value(finding: Any) -> str:
    scope = printed_scope(finding.scope)
    return f"{printed_value(finding)} ({'group ' if scope[:1].isdigit() and '→' not in scope else ''}{scope})"


def printed_value(finding: Any) -> str:
    """The value of a row and its interval."""
    value = "not measured" if np.isnan(finding.value) else number(finding.value)
    return value if np.isnan(finding.low) else f"{value} [{number(finding.low)}, {number(finding.high)}]"


def printed_scope(scope: str) -> str:
    """A scope in print: "4->5-6, first_state" as "4 → 5–6, first state"."""
    return scope.replace("->", " → ").replace("-", "–").replace("_", " ")


# --- sentences and page ---------------------------------------------------------------------------------------------


def sentences(shown: Shown, judged: Iterable[Answer], measured: str | None) -> list[str]:
    """The results that belong to a figure: what was `measured`, if it has a sentence on that, and its verdicts."""
    numbers = [] if measured is None else [measured]
    return numbers + [answer.sentence for answer in judged if answer.number in shown.claims]


def body(
    run: str,
    text: str,
    judged: Sequence[Answer],
    figures: Sequence[tuple[Shown, Sequence[str]]],
    scales: Scales | None = None,
) -> str:
    """HTML of the verdicts and then of `figures` with their results.

    Args:
        run: Name of the run.
        text: Name of its text.
        judged: One answer per claim; empty for a run that has no claims.
        figures: The figures, each with its sentences.
        scales: Those of the run and of the paper, if verdicts are shown.
    """
    heading = f"<h2>The run {escape(run)} on {escape(text)}</h2>"
    listed = f"<p>{_scale(scales)}</p>" if judged and scales else ""
    if any(answer.mark == SMALL_SCALE for answer in judged):
        listed = f"<p><strong>{WARNING}</strong></p>\n{listed}"
    verdicts = [listed, *_verdicts(judged), f"<p>{MEANING.replace('*', '')}</p>"] if judged else []
    parts = [heading, *verdicts, *(_figure(*figure) for figure in figures)]
    return "\n".join([STYLE, '<div class="overview">', *parts, "</div>"])


def _verdicts(judged: Sequence[Answer]) -> list[str]:
    counts = pd.Series([answer.verdict for answer in judged]).value_counts()
    listed = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in COLOURS if verdict in counts)
    rows = [
        f"<tr><td>{answer.number}</td><td>{escape(answer.title)}</td>"
        f'<td class="verdict" style="color: {COLOURS[answer.verdict]}">{answer.marked}</td>'
        f"<td>{escape(answer.measured)}</td></tr>"
        for answer in judged
    ]
    header = "<tr><th>claim</th><th>in short</th><th>verdict</th><th>measured, with 95 % intervals</th></tr>"
    summary = f"<p>Verdicts on the {len(judged)} claims of the paper: {listed}.</p>"
    return [summary, "<table>", f"<thead>{header}</thead>", "<tbody>", *rows, "</tbody></table>"]


def _scale(scales: Scales) -> str:
    return escape("; ".join(f"{label}: {ours} (the paper: {theirs})" for label, ours, theirs, _ in scales.rows)) + "."


def _figure(shown: Shown, results: Sequence[str]) -> str:
    # in lines: docutils, which reads this in workflow.rst, refuses very long ones
    picture = base64.encodebytes(shown.picture.read_bytes()).decode()
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in results)
    image = f'<img alt="{escape(shown.title)}" src="data:image/svg+xml;base64,{picture}">'
    return f"<h2>{escape(shown.title)}</h2>\n<figure>{image}<figcaption><ul>{items}</ul></figcaption></figure>"


def run(job: "StudyJob") -> None:
    """The job of the workflow: the page, and the results of each figure for its caption."""
    config = job.config
    judged = answers(job.read("claims"), config.reference_state) if "claims" in job.files else []
    pictures = zip(config.report_figures, job.files["pictures"], strict=True)
    figures = [Shown(**figure, picture=path) for figure, path in pictures]
    measured = {
        shown.name: function(shown.sentence)(tables.read(shown.name, job.file(shown.name)))
        for shown in figures
        if shown.sentence
    }
    results = {shown.name: sentences(shown, judged, measured.get(shown.name)) for shown in figures}
    scales = Scales.of(config.scales)
    first = [(shown, results[shown.name]) for shown in figures[:1]]  # the others have pages of their own in the report
    shown = body(config.run, config.text, judged, first, scales)
    job.write_text("page", pages.page(f"The run {config.run}", shown))
    job.write_text("results", json.dumps(results, ensure_ascii=False, indent=1))
