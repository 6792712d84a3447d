"""The tables of several seeds that docs/ keeps, and their summary, docs/seeds.md.

    python -m twoscale.studies.seeds.keep results/demo/tables/seeds.parquet

A table without a release of its run in docs/ (`twoscale.report.docs.RELEASES`) is refused.
"""

import argparse
from pathlib import Path

import pandas as pd

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import PROJECT
from twoscale.jobs import command
from twoscale.report import docs as pages
from twoscale.report.render import blocks
from twoscale.studies.seeds.page import summary

DOCS = PROJECT / "docs"
CLOSING = """\
[How claims are judged](judging.md#several-seeds) explains the intervals. [Results](results.md) has the numbers of each
claim, [seeds/](seeds/) the tables."""


def page(docs: Path) -> str:
    """Markdown of the summaries of all tables that `docs` has."""
    over_seeds = [found for found in pages.columns(docs) if not found.each.empty]
    frames = [(pd.concat([found.each, found.rows]), found) for found in over_seeds]
    summaries = (summary(frame, found.facts["text"], found.scales) for frame, found in frames)
    return blocks(*summaries, CLOSING)


def keep(source: Path, docs: Path) -> Path:
    """Copy a table to `docs`. Raises InputError for one whose run has no release there."""
    frame = tables.read("seeds", source)
    run, known = frame["run"].iloc[0], sorted(pages.released_runs(docs))
    if run not in known:
        raise InputError(f"{source}: found run {run}, expected one with released tables in docs: {', '.join(known)}.")
    target = docs / pages.SEEDS / f"{run}.parquet"
    target.parent.mkdir(exist_ok=True)
    tables.write("seeds", frame, target)
    return target


def main(arguments: argparse.Namespace) -> None:
    for source in arguments.tables:
        keep(source, DOCS)
    with replacing(DOCS / "seeds.md") as temporary:
        temporary.write_text(page(DOCS), encoding="utf-8")
    pages.main()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tables", type=Path, nargs="+", help="the table seeds of each run")
    command.run(main, options)
