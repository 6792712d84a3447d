"""Figures and jobs of the study."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twoscale.analysis.costs import Cost, checkpoints, passes_cost
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table
from twoscale.studies.rows import Comparison, Measurement

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


FIGURES = (
    Figure(
        "spectrum",
        table("token_spectrum", "spectrum"),
        loops=lambda config: config.spectrum.steps,
        title="Spectrum of a loop",
        claims=(3, 4, 5),
        sentence="twoscale.studies.spectrum.compare.summary",
    ),
)


CHECKPOINT = "results/{run}/spectrum/iteration_{iteration}.parquet"
TABLES = ("token_spectrum", "spectrum", "spectrum_metrics", "slow_tokens")


def _checkpoints(runs: "Runs") -> Callable:
    """Input function: the checkpoints of spectrum.checkpoints."""
    files = runs.paths.at_checkpoints(CHECKPOINT)

    def chosen(wildcards: Any) -> list[str]:
        return files(wildcards)[-1:] if runs[wildcards.run].spectrum.checkpoints == "last" else files(wildcards)

    return chosen


def _training_tokens(runs: "Runs") -> Callable:
    """Input function: the ids that the run trains on; empty for a published model."""
    file = runs.paths.data_file("train.bin")
    return lambda wildcards: [] if runs.of(wildcards)[1].model.source == "published" else file(wildcards)


def _cost(run: Config) -> Cost:
    """At most three paths to a fixed point, and products with diagonal Jacobian blocks."""
    spectrum, exact = run.spectrum, run.spectrum.exact_sequences(run)
    count = checkpoints(run) if spectrum.checkpoints == "all" else 1
    products = 2 * min(run.model.hidden_size, spectrum.dense_size)  # a backward pass costs two forward ones
    paths = run.sequences("spectrum") + 2 * exact
    return passes_cost(run, [(count * paths, spectrum.steps), (count * exact, products)])


JOBS = (
    Measurement(
        name="measure_spectrum",
        function="twoscale.studies.spectrum.measure.run",
        inputs=lambda runs: {"train": _training_tokens(runs)},
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
        cost=_cost,
    ),
    Comparison(
        name="aggregate_spectrum",
        function="twoscale.studies.spectrum.compare.run",
        inputs=lambda runs: {"tokens": _checkpoints(runs)},
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in TABLES},
        tables=TABLES,
        config=lambda runs: runs.params.slice("run", "seed"),
    ),
)
