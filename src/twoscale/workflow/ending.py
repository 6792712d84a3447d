"""The last lines of a finished call of Snakemake: the verdicts in short, the figures, and the next useful commands."""

from collections import Counter
from typing import TYPE_CHECKING

from twoscale import tables
from twoscale.claims import verdicts as claims
from twoscale.claims.findings import FAILS, HOLDS, NOT_ASKED, OPEN
from twoscale.workflow.report import in_results

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

NEXT = """\
next: make report                         figures, verdicts and tables on one page
      snakemake --cores all supplementary   further figures
      python scripts/generate.py --run {run} --prompt "Return the" --show-loops
      Without `make`: activate the environment first, `. .venv/bin/activate`."""


def ending(runs: "Runs") -> str:
    """The last lines of a call that made the figures and verdicts of the selected run; empty without verdicts."""
    if not runs.report.claims:
        return ""
    (page,) = map(in_results, runs.report.claims)
    table = tables.read("claims", runs.paths.table_file("claims"))
    whole = table[table["scope"] == claims.ALL]
    counts = Counter(whole["verdict"])
    found = ((counts[verdict], verdict) for verdict in (HOLDS, FAILS, OPEN, NOT_ASKED) if counts[verdict])
    verdicts = ", ".join(f"{count} {verdict if count == 1 else plural(verdict)}" for count, verdict in found)
    scale = "".join(f", {mark}" for mark in set(whole["scale"]) if mark)
    return "\n".join(
        [
            f"run {runs.selected}{scale}: of the paper's {len(whole)} claims {verdicts} ({page})",
            f"figures: {', '.join(runs.report.figure_files('all'))}",
            NEXT.format(run=runs.selected),
        ]
    )


def plural(verdict: str) -> str:
    """The verdict on several claims, such as "hold"."""
    return verdict.replace("holds", "hold").replace("does not", "do not")
