"""Figures and jobs of the study."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import LocalJob, TorchJob

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


FIGURES = (
    Figure(
        "spectrum",
        table("token_spectrum", "spectrum"),
        loops=lambda config: config.spectrum.steps,
        title="Spectrum of a loop",
        claims=(3, 4, 5),
        sentence="twoscale.studies.spectrum.draw.summary",
    ),
)


CHECKPOINT = "results/{run}/spectrum/iteration_{iteration}.parquet"
TABLES = ("token_spectrum", "spectrum")


def _checkpoints(runs: "Runs") -> Callable:
    """Input function: the checkpoints of spectrum.checkpoints."""
    files = runs.at_checkpoints(CHECKPOINT)

    def chosen(wildcards: Any) -> list[str]:
        return files(wildcards)[-1:] if runs[wildcards.run].spectrum.checkpoints == "last" else files(wildcards)

    return chosen


JOBS = (
    TorchJob(
        name="measure_spectrum",
        function="twoscale.studies.spectrum.measure.run",
        outputs={"spectrum": CHECKPOINT},
        tables=["token_spectrum"],
        config=lambda runs: runs.params.slice(
            *("seed", "device", "model", "spectrum"),
            loops=lambda config: config.trajectories.loops,
            sequences=lambda config: config.sequences("spectrum"),
            exact_sequences=lambda config: config.spectrum.exact_sequences(config),
        ),
        dtype="spectrum",
        minutes=120,
    ),
    LocalJob(
        name="aggregate_spectrum",
        function="twoscale.studies.spectrum.draw.run",
        inputs=lambda runs: {"tokens": _checkpoints(runs)},
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in TABLES},
        tables=TABLES,
        config=lambda runs: runs.params.slice("run", "seed"),
    ),
)
