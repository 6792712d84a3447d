"""From rows per sequence to one row per checkpoint and loop count, with 95 % bootstrap intervals."""

from typing import TYPE_CHECKING

import pandas as pd

from twoscale.analysis.summaries import summarise_scaling

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


def run(job: "StudyJob") -> None:
    """Write the table "scaling"."""
    job.write("scaling", summarise_scaling(job.files["quality"], job.config.run, job.config.seed))


def sentence(table: pd.DataFrame) -> str:
    """Results for the report."""
    last = table[table["iteration"] == table["iteration"].max()].sort_values("loops")
    values = [f"{row.ppl:.4g} at {row.loops} loops" for row in last.itertuples()]
    return f"Perplexity at the last checkpoint: {', '.join(values)}."
