"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import LocalJob, TorchJob

FIGURES = (
    Figure(
        "scaling",
        table("scaling"),
        title="Quality against loops",
        loops=lambda config: max(config.scaling.loops),
        values=lambda config: {"mean_loops": config.model.mean_loops},
        sentence="twoscale.studies.scaling.compare.sentence",
    ),
)


CHECKPOINT = "results/{run}/scaling/iteration_{iteration}.parquet"
JOBS = (
    TorchJob(
        name="measure_scaling",
        function="twoscale.exits.fixed_loops.run",
        outputs={"quality": CHECKPOINT},
        tables=["scaling_quality"],
        config=lambda runs: runs.params.slice(
            "seed", "device", "model", "scaling", sequences=lambda config: config.sequences("scaling")
        ),
        dtype="scaling",
    ),
    LocalJob(
        name="aggregate_scaling",
        function="twoscale.studies.scaling.compare.run",
        inputs=lambda runs: {"quality": runs.at_checkpoints(CHECKPOINT)},
        outputs={"scaling": "results/{run}/tables/scaling.parquet"},
        tables=["scaling"],
        config=lambda runs: runs.params.slice("run", "seed"),
    ),
)
