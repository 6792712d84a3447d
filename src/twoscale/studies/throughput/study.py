"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.studies.rows import Measurement, all_cores

FIGURES = (
    Figure(
        "throughput",
        table("throughput"),
        loops=exit_max_loops,
        title="Throughput: sequences decoded together",
    ),
)


TRIED = "results/{run}/exits/throughput/{criterion}.txt"
JOBS = (
    Measurement(
        name="try_criterion",
        function="twoscale.exits.jobs.try_criterion",
        outputs={"tried": TRIED},
        config=lambda runs: runs.exit_slice("throughput"),
        dtype="exits",
        minutes=30,
    ),
    Measurement(
        name="benchmark_throughput",
        function="twoscale.studies.throughput.measure.run",
        inputs=lambda runs: {
            "criteria": runs.each_criterion(TRIED, "throughput", of_users=True),
            "probe": runs.probe_file("throughput"),
        },
        outputs={
            "throughput": "results/{run}/tables/throughput.parquet",
            "throughput_loops": "results/{run}/tables/throughput_loops.parquet",
        },
        tables=["throughput", "throughput_loops"],
        config=lambda runs: runs.exit_slice("throughput", sections=["throughput"]),
        dtype="exits",
        minutes=240,
        threads=all_cores,
        cpus=4,
    ),
)
