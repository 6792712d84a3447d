"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import LocalJob

FIGURES = (
    Figure(
        "path_types",
        table("path_types", "path_metrics"),
        claims=(13,),
        sentence="twoscale.studies.path_types.compare.sentence",
    ),
)


JOBS = (
    LocalJob(
        name="aggregate_paths",
        function="twoscale.studies.path_types.compare.run",
        inputs=lambda runs: {"paths": runs.at_checkpoints("results/{run}/paths/iteration_{iteration}.parquet")},
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in ("path_types", "path_metrics")},
        tables=["path_types", "path_metrics"],
    ),
)
