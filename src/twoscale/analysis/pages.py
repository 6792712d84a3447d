"""Tables as web pages for the report: sortable and searchable, in one file that needs no network.

The widget is DataTables, from the package itables.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path

import itables.options
import pandas as pd
from itables.javascript import generate_init_offline_itables_html

from twoscale.errors import InputError

PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body style="font-family: sans-serif; margin: 1.5em">
<h2>{title}</h2>
{bundle}
{table}
</body>
</html>
"""


def sortable(frame: pd.DataFrame, title: str) -> str:
    """A page that shows `frame`, numbers with four digits; the same frame gives the same bytes."""
    with pd.option_context("display.float_format", "{:.4g}".format):
        table = itables.to_html_datatable(
            frame,
            connected=False,
            table_id="table",
            showIndex=False,
            maxBytes=0,  # all rows
            allow_html=False,
            lengthMenu=[25, 100, 1000],
            classes="display compact",
        )
    bundle = generate_init_offline_itables_html(itables.options.dt_bundle)
    return PAGE.format(title=escape(title), bundle=bundle, table=table)


def runtimes(benchmarks: Iterable[Path]) -> pd.DataFrame:
    """Time and memory per rule, from the files of Snakemake's `benchmark:`, the longest total first.

    A file is named after its rule, followed by the iteration of the job after "_", or its other wildcards after ".".
    """
    jobs = [_job(path) for path in sorted(benchmarks)]
    if not jobs:
        return pd.DataFrame(columns=["rule", "jobs", "total_s", "longest_s", "cpu_s", "peak_memory_mb"])
    by_rule = pd.DataFrame(jobs).groupby("rule")
    table = by_rule.agg(
        jobs=("s", "size"),
        total_s=("s", "sum"),
        longest_s=("s", "max"),
        cpu_s=("cpu_time", "sum"),
        peak_memory_mb=("max_rss", "max"),
    )
    return table.sort_values("total_s", ascending=False).reset_index()


def _job(path: Path) -> dict[str, object]:
    name = path.name.partition(".")[0]
    rule, _, iteration = name.rpartition("_")
    # Snakemake writes NA or - for a job that ended before the first measurement
    frame = pd.read_csv(path, sep="\t", na_values=["NA", "-"])
    missing = {"s", "cpu_time", "max_rss"} - set(frame.columns)
    if missing or frame.empty:
        raise InputError(f"{path}: found {', '.join(frame.columns)}, expected a benchmark file of Snakemake.")
    return {"rule": rule if iteration.isdigit() else name} | frame.iloc[0].to_dict()
