"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.identity import plain
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table, trajectory_values
from twoscale.studies.rows import Comparison


def _caption(config: Config) -> dict[str, Any]:
    return trajectory_values(config) | {"path_types": plain(config.path_types)}


FIGURES = (
    Figure(
        "path_types",
        table("path_types", "path_metrics"),
        _caption,
        claims=(13,),
        sentence="twoscale.studies.path_types.compare.sentence",
    ),
)


JOBS = (
    Comparison(
        name="aggregate_paths",
        function="twoscale.studies.path_types.compare.run",
        inputs=lambda runs: {"paths": runs.paths.at_checkpoints("results/{run}/paths/iteration_{iteration}.parquet")},
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in ("path_types", "path_metrics")},
        tables=["path_types", "path_metrics"],
        config=lambda runs: runs.params.slice("run"),
    ),
)
