"""Figures and jobs of the study."""

from twoscale.analysis.costs import Cost, checkpoints, passes_cost
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table
from twoscale.studies.rows import Comparison, Measurement

FIGURES = (
    Figure(
        "path_independence",
        table("path_independence"),
        values=lambda config: {"dtype": config.trajectories.dtype},
        noise=True,
        sentence="twoscale.studies.path_independence.compare.sentence",
    ),
)


def _cost(run: Config) -> Cost:
    """Whole sequences under every draw of the noise, for every checkpoint."""
    draws = run.path_independence.draws + 1 if run.model.draws_noise else 0
    return passes_cost(run, [(checkpoints(run) * draws * run.sequences("path_independence"), run.trajectories.loops)])


CHECKPOINT = "results/{run}/path_independence/iteration_{iteration}.parquet"
JOBS = (
    Measurement(
        name="measure_path_independence",
        function="twoscale.studies.path_independence.measure.run",
        outputs={"independence": CHECKPOINT},
        tables=["token_independence"],
        config=lambda runs: runs.params.slice(
            *("seed", "device", "model", "trajectories", "path_independence"),
            sequences=lambda config: config.sequences("path_independence"),
        ),
        dtype="trajectories",
        cost=_cost,
    ),
    Comparison(
        name="aggregate_independence",
        function="twoscale.studies.path_independence.compare.run",
        inputs=lambda runs: {"independence": runs.paths.at_checkpoints(CHECKPOINT)},
        outputs={"path_independence": "results/{run}/tables/path_independence.parquet"},
        tables=["path_independence"],
    ),
)
