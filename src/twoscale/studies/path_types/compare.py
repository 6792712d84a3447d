"""The types of the paths of tokens, and statistics of whole paths."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from twoscale import tables
from twoscale.dynamics.aggregate import statistics

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


def run(job: "StudyJob") -> None:
    """Write the tables "path_types" and "path_metrics"."""
    paths, run = job.files["paths"], job.config.run
    job.write("path_types", path_types(paths, run))
    job.write("path_metrics", statistics(paths, run, "token_paths", "path_metrics"))


def path_types(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Number of tokens of each (path type, period) that occurs, per (iteration, group), of tables "token_paths".

    The shares of an (iteration, group) add up to one. Iterations rise, groups keep the order of the file.
    """
    checkpoints = []
    for path in paths:
        frame = tables.read("token_paths", path)
        frame["group"] = pd.Categorical(frame["group"], frame["group"].unique())
        counts = frame.groupby(["iteration", "group", "path_type", "period"], observed=True).size()
        share = counts / counts.groupby(["iteration", "group"], observed=True).transform("sum")
        checkpoints.append(pd.DataFrame({"tokens": counts, "share": share}).reset_index().astype({"group": "string"}))
    rows = pd.concat(checkpoints).assign(run=run).sort_values("iteration", kind="stable", ignore_index=True)
    return rows[list(tables.columns("path_types"))]


def sentence(table: pd.DataFrame) -> str:
    """Results for the report."""
    last = table[table["iteration"] == table["iteration"].max()]
    shares = last.groupby(["group", "path_type"], sort=False)["share"].sum().mul(100)
    groups = [
        f"group {group.replace('-', '–')}: " + ", ".join(f"{share:.1f} % {kind}" for (_, kind), share in rows.items())
        for group, rows in shares.groupby("group", sort=False)
    ]
    return f"At the last checkpoint, {'; '.join(groups)}."
