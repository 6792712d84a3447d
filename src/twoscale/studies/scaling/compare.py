"""From rows per sequence to one row per checkpoint and loop count, with 95 % bootstrap intervals."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims.bootstrap import with_bounds

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


def run(job: "StudyJob") -> None:
    """Write the table "scaling"."""
    job.write("scaling", summarise_scaling(job.files["quality"], job.config.run, job.config.seed))


def summarise_scaling(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "scaling" from the tables "scaling_quality" of all checkpoints; iterations and loops rise.

    `excess` is the cost of fewer loops against the largest loop count; its interval, over the same documents, is
    far narrower than the cross-entropy's own.
    """
    rows = pd.concat([tables.read("scaling_quality", path) for path in paths])
    full = rows[rows["loops"] == rows["loops"].max()].set_index(["iteration", "sequence"])["ce"]
    rows = rows.join(full.rename("full"), on=["iteration", "sequence"])
    point = ["iteration", "loops"]
    rows = rows.assign(excess=rows["ce"] - rows["full"]).sort_values(point, kind="stable")
    columns = {"tokens": rows.groupby(point)["tokens"].sum()}
    columns |= with_bounds(rows, point, "ce", "ce", seed) | with_bounds(rows, point, "excess", "excess", seed)
    columns |= {name.replace("ce", "ppl"): np.exp(columns[name]) for name in ("ce", "ce_low", "ce_high")}
    scaling = pd.DataFrame(columns).reset_index().assign(run=run)
    return scaling[list(tables.columns("scaling"))]


def sentence(table: pd.DataFrame) -> str:
    """Results for the report."""
    last = table[table["iteration"] == table["iteration"].max()].sort_values("loops")
    values = [f"{row.ppl:.4g} at {row.loops} loops" for row in last.itertuples()]
    return f"Perplexity at the last checkpoint: {', '.join(values)}."
