"""The web pages of the report, which need no network."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from twoscale import tables
from twoscale.claims import verdicts as claims
from twoscale.claims.findings import Role
from twoscale.claims.scale import MEANING, Scales
from twoscale.claims.words import DEPENDS, FAILS, HOLDS, NOT_ASKED, OPEN, by_word, kind, marked
from twoscale.config.criteria import criterion_name
from twoscale.jobs.command import function
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.report.render import estimated, interval, render

# Text colours with a contrast above 4.5 to white.
COLOURS = {
    HOLDS: "#166534",
    FAILS: "#b91c1c",
    DEPENDS: "#6b21a8",
    OPEN: "#92400e",
    NOT_ASKED: "#4b5563",
}


@dataclass(frozen=True)
class Answer:
    """The verdict on one claim."""

    number: int
    title: str
    verdict: str
    measured: str  # the judged values, with 95 % intervals
    scale: str = ""  # column of the table "claims"

    @property
    def marked(self) -> str:
        return marked(self.verdict, self.scale)

    @property
    def kind(self) -> str:
        """The one of `words.KINDS` that the verdict is."""
        return kind(self.verdict)

    @property
    def sentence(self) -> str:
        """Claim, verdict and values, for a caption."""
        values = f"; {self.measured}" if self.measured else ""
        return f"Claim {self.number}, {self.title}: {self.marked}{values}."


def answers(judged: pd.DataFrame, reference_state: str) -> list[Answer]:
    """The verdict on each claim of the table "claims", in their order.

    Of the numbers that a claim is judged on, those with the verdict of the claim are shown, and of
    these the last one of each scope, under the first reading; where the claim depends on a choice,
    under each. Of several reference states (Eq. 2) it is `reference_state`.
    """
    titles = {claim.number: claim.title for claim in claims.CLAIMS}
    found = []
    for number, rows in judged.groupby("claim"):
        is_whole = rows["scope"] == claims.ALL
        whole = rows[is_whole].iloc[-1]
        shown = rows[rows["role"] == Role.COUNTED]
        # claim 6 has rows for each reference state, other claims have none
        of_state = shown["scope"].str.endswith(f", {reference_state}")
        if of_state.any():
            shown = shown[of_state]
        # numbers that agree with the verdict; none may where a claim cannot be judged
        decides = shown["verdict"] == whole["verdict"]
        if decides.any():
            shown = shown[decides]
        if kind(whole["verdict"]) != DEPENDS:
            shown = shown[shown["reading"].isin(shown["reading"].head(1))]
        measured = _measured(shown.drop_duplicates(["scope", "reading"], keep="last"))
        title = titles.get(number, "")
        found.append(Answer(int(number), title, whole["verdict"], measured, whole["scale"]))
    return found


def _measured(rows: pd.DataFrame) -> str:
    """Each quantity with its values and bounds.

    For example "DLR, last: 21.5 [21.3, 21.7] (4 → 5–6), …, expected ≥ 10".
    """
    parts = []
    for (quantity, bounds), found in rows.groupby(["quantity", "bounds"], sort=False):
        values = []
        for finding in found.itertuples():
            scope = printed_scope(finding.scope)
            # neither a boundary nor the name of a criterion
            is_group = scope[:1].isdigit() and "→" not in scope
            values.append(f"{printed_value(finding)} ({'group ' * is_group}{scope})")
        parts.append(f"{quantity}: {', '.join(values)}, expected {bounds}")
    text = "; ".join(parts)
    # exit criteria by their names in print
    text = re.sub(r"\b(kl|[a-z]+_[a-z_]+)\b", lambda name: criterion_name(name[0]), text)
    # a hyphen before a number is its sign, unless it is inside of a word or an exponent
    return re.sub(r"(?<!\w)-(?=\d)", "\N{MINUS SIGN}", text)


def printed_value(finding: Any) -> str:
    """The value of a row and its interval."""
    ends = interval(finding, ", ")
    return (estimated(finding) or "not measured") + (f" [{ends}]" if ends else "")


def printed_scope(scope: str) -> str:
    """A scope in print: "4->5-6, first_state" as "4 → 5–6, first state"."""
    return scope.replace("->", " → ").replace("-", "–").replace("_", " ")


def overview(
    run: str,
    text: str,
    judged: Sequence[Answer],
    figures: Sequence[Mapping[str, Any]],
    scales: Scales | None = None,
) -> str:
    """HTML of the verdicts, of which a run may have none, and then of `figures`.

    A figure has a name, a title, a picture as the file of an SVG, and sentences.
    """
    shown = []
    for figure in figures:
        picture = base64.encodebytes(figure["picture"].read_bytes()).decode()
        shown.append({**figure, "picture": picture})
    return render(
        "report/templates/overview.html.j2",
        run=run,
        text=text,
        judged=judged,
        small=any(answer.scale for answer in judged),
        scales=scales,
        claims=by_word((answer.number, answer.verdict, answer.scale) for answer in judged),
        colours=COLOURS,
        meaning=MEANING.replace("*", ""),
        figures=shown,
    )


@job_files(reads="tables claims pictures", writes="page results")
def write_overview(job: TableJob) -> None:
    """Write the page, and the results of each figure for its caption."""
    config = job.config
    judged = answers(job.read("claims"), config.reference_state) if "claims" in job.files else []
    tables_of = {path.stem: path for path in job.files.get("tables", [])}
    figures = []
    for figure, picture in zip(config.report_figures, job.files["pictures"], strict=True):
        sentences = [answer.sentence for answer in judged if answer.number in figure["claims"]]
        if figure["sentence"]:  # dotted path of a function of the table of the figure's name
            name = figure["name"]
            own = function(figure["sentence"])(tables.read(name, tables_of[name]))
            sentences = [own, *sentences]
        figures.append({**figure, "picture": picture, "sentences": sentences})
    # figures but the first have pages of their own in the report
    body = overview(config.run, config.text, judged, figures[:1], Scales.of(config.scales))
    job.write_text("page", page(f"The run {config.run}", body))
    results = {figure["name"]: figure["sentences"] for figure in figures}
    job.write_text("results", json.dumps(results, ensure_ascii=False, indent=1))


def page(title: str, body: str, styled: bool = False) -> str:
    return render("report/templates/page.html.j2", title=title, body=body, styled=styled)


def from_markdown(text: str) -> str:
    """A web page that shows Markdown with tables; its title is the first line."""
    import markdown  # here, because a machine that draws no page may lack it

    title = re.sub(r"\\(.)", r"\1", text.partition("\n")[0].lstrip("# "))
    return page(title, markdown.markdown(text, extensions=["tables"]), styled=True)


@job_files(reads="claims", writes="page")
def claims_page(job: TableJob) -> None:
    """Write claims.md as a web page for the report."""
    job.write_text("page", from_markdown(job.file("claims").read_text(encoding="utf-8")))
