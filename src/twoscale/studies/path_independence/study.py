"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import LocalJob, TorchJob

FIGURES = (
    Figure(
        "path_independence",
        table("path_independence"),
        values=lambda config: {"dtype": config.trajectories.dtype},
        noise=True,
        sentence="twoscale.studies.path_independence.compare.sentence",
    ),
)


CHECKPOINT = "results/{run}/path_independence/iteration_{iteration}.parquet"
JOBS = (
    TorchJob(
        name="measure_path_independence",
        function="twoscale.studies.path_independence.measure.run",
        outputs={"independence": CHECKPOINT},
        tables=["token_independence"],
        config=lambda runs: runs.params.slice(
            *("seed", "device", "model", "trajectories", "path_independence"),
            sequences=lambda config: config.sequences("path_independence"),
        ),
        dtype="trajectories",
    ),
    LocalJob(
        name="aggregate_independence",
        function="twoscale.studies.path_independence.compare.run",
        inputs=lambda runs: {"independence": runs.at_checkpoints(CHECKPOINT)},
        outputs={"path_independence": "results/{run}/tables/path_independence.parquet"},
        tables=["path_independence"],
    ),
)
