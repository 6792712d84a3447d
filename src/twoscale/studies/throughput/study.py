"""Figures and jobs of the study."""

from twoscale.analysis.costs import Cost, points
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.workflow.rows import Measurement, all_cores

FIGURES = (
    Figure(
        "throughput",
        table("throughput"),
        loops=exit_max_loops,
        title="Throughput: sequences decoded together",
    ),
)


def _cost(run: Config) -> Cost:
    """Tokens with the prompts, counted as if each was decoded alone."""
    texts = sum(run.throughput.sequences) * points(run.exit_grids["throughput"])
    return Cost(tokens=texts * sum(run.throughput.lengths(run)) * (run.throughput.repeats + 1))


TRIED = "results/{run}/exits/throughput/{criterion}.txt"
JOBS = (
    Measurement(
        name="try_criterion",
        function="twoscale.exits.jobs.try_criterion",
        outputs={"tried": TRIED},
        config=lambda runs: runs.params.exit_slice("throughput"),
        dtype="exits",
        minutes=30,
    ),
    Measurement(
        name="benchmark_throughput",
        function="twoscale.studies.throughput.measure.run",
        inputs=lambda runs: {
            "criteria": runs.paths.each_criterion(TRIED, "throughput", of_users=True),
            "probe": runs.paths.probe_file("throughput"),
        },
        outputs={
            "throughput": "results/{run}/tables/throughput.parquet",
            "throughput_loops": "results/{run}/tables/throughput_loops.parquet",
        },
        tables=["throughput", "throughput_loops"],
        config=lambda runs: runs.params.exit_slice(
            "throughput", sections=["throughput"], lengths=lambda config: config.throughput.lengths(config)
        ),
        dtype="exits",
        minutes=240,
        threads=all_cores,
        cpus=4,
        cost=_cost,
    ),
)
