"""Statistics over tokens and draws of the noise."""

from typing import TYPE_CHECKING

import pandas as pd

from twoscale.dynamics.aggregate import statistics

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


def run(job: "StudyJob") -> None:
    """Write the table "path_independence"; the mean of `agreement` is the share of equal predictions."""
    paths = job.files["independence"]
    job.write("path_independence", statistics(paths, job.config.run, "token_independence", "path_independence"))


def sentence(table: pd.DataFrame) -> str:
    """Results for the report."""
    last = table[(table["iteration"] == table["iteration"].max()) & (table["group"] == "all")]
    rows = last.set_index("measure")
    distance, agreement = rows.loc["distance_relative", "q50"], rows.loc["agreement", "mean"]
    return (
        f"At the last checkpoint, noise varied in all groups: median relative distance {distance:.2g}, "
        f"another prediction for {100 * (1 - agreement):.2g} % of the tokens."
    )
