"""Tables and claims as web pages for the report, in one file each that needs no network. Tables can be filtered.

The widget is DataTables, from the package itables.
"""

import re
from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd

from twoscale import tables
from twoscale.report.release import runtimes

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body style="font-family: sans-serif; margin: 1.5em">
{body}
</body>
</html>
"""
NOT_SHOWN = ["run", "statement", "where"]  # the same in many rows; the page of the claims has them
# Above each column: sort, and rows whose value contains, equals, exceeds … what is typed.
COLUMN_CONTROLS = [{"target": 0, "content": ["order"]}, {"target": 1, "content": ["search"]}]
CLAIMS_STYLE = """<style>
body { max-width: 75rem; line-height: 1.45 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; vertical-align: top }
</style>"""


def page(title: str, body: str) -> str:
    """A web page with this title and HTML body."""
    return PAGE.format(title=escape(title), body=body)


def from_markdown(text: str) -> str:
    """A web page that shows Markdown with tables; its title is the first line."""
    import markdown  # here, as itables below, because a machine that draws no page may lack it

    title = re.sub(r"\\(.)", r"\1", text.partition("\n")[0].lstrip("# "))
    return page(title, f"{CLAIMS_STYLE}\n{markdown.markdown(text, extensions=['tables'])}")


def claims_page(job: "StudyJob") -> None:
    """The job of the workflow: claims.md as a web page for the report."""
    job.write_text("page", from_markdown(job.file("claims").read_text(encoding="utf-8")))


def sortable(frame: pd.DataFrame, title: str, meanings: Mapping[str, str] = MappingProxyType({})) -> str:
    """A page that shows `frame`, numbers with four digits; the same frame gives the same bytes.

    Columns can be sorted and filtered. `meanings` explains some of them, above the table.
    """
    import itables.options
    from itables.javascript import generate_init_offline_itables_html

    floats = frame.select_dtypes("float").map(lambda value: float(f"{value:.4g}"))
    with pd.option_context("display.float_format", "{:.4g}".format):
        table = itables.to_html_datatable(
            frame.assign(**floats),  # the page holds each value next to its text: short, too
            connected=False,
            table_id="table",
            showIndex=False,
            maxBytes=0,  # all rows
            allow_html=False,
            lengthMenu=[25, 100, 1000],
            classes="display compact",
            columnControl=COLUMN_CONTROLS,
            ordering={"indicators": False, "handler": False},
        )
    bundle = generate_init_offline_itables_html(itables.options.dt_bundle)
    return page(title, "\n".join([f"<h2>{escape(title)}</h2>", _explanations(meanings), bundle, table]))


def table_page(job: "StudyJob") -> None:
    """The job of the workflow: one table with the meaning of its columns."""
    name, run = job.config.table, job.config.run
    frame = job.read(name, "table").drop(columns=NOT_SHOWN, errors="ignore")
    meanings = {column: text for column, text in tables.meanings(name).items() if column in frame}
    job.write_text("page", sortable(frame, f"Table {name} of the run {run}", meanings))


def _explanations(meanings: Mapping[str, str]) -> str:
    """A list of the columns with their meanings, which can be folded."""
    items = "".join(f"<li><code>{escape(name)}</code>: {escape(text)}</li>" for name, text in meanings.items())
    return f"<details open><summary>Columns</summary><ul>{items}</ul></details>" if items else ""


def runtimes_page(job: "StudyJob") -> None:
    """The job of the workflow: time and memory of each rule of a run, from files that no rule declares as outputs."""
    run = job.config.run
    files = (job.file("page").parents[1] / run / "benchmarks").glob("*.tsv")
    job.write_text("page", sortable(runtimes(files), f"Runtime and memory per rule of the run {run}"))
