"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.jobs.rows import LocalJob, TorchJob

FIGURES = (
    Figure(
        "calibration",
        table("calibration"),
        loops=exit_max_loops,
        title="Calibration: evaluations saved at a guaranteed quality",
    ),
)


def calibration_points(thresholds: int, groups: int) -> tuple[int, int]:
    """Thresholds of all groups that the search of the calibration and its two paths measure, at most."""
    steps = groups * (thresholds - 1) if groups > 1 else 0  # of the path that changes one group at a time
    return thresholds + groups * steps, thresholds + steps + 1


OUTPUT = "results/{{run}}/calibration/{{criterion}}.{}.parquet"
JOBS = (
    TorchJob(
        name="measure_calibration",
        function="twoscale.studies.calibration.measure.run",
        inputs=lambda runs: {"probe": runs.probe_file()},
        outputs={name: OUTPUT.format(name) for name in ("runs", "paths")},
        tables=["calibration_runs", "calibration_paths"],
        config=lambda runs: runs.params.exit_slice(
            "calibration",
            sequences=lambda config: config.calibration.sequences(config),
            search_share=lambda config: config.calibration.search_share,
            report_share=lambda config: config.calibration.report_share,
            path_end=lambda config: config.calibration.path_end,
        ),
        dtype="exits",
        minutes=240,
        threads=lambda runs, cores: runs.params.exit_threads(cores, "calibration"),
        cpus=4,
    ),
    LocalJob(
        name="aggregate_calibration",
        function="twoscale.studies.calibration.compare.run",
        inputs=lambda runs: {
            f"{name}_files": runs.each_criterion(OUTPUT.format(name), "calibration") for name in ("runs", "paths")
        },
        outputs={
            "calibration": "results/{run}/tables/calibration.parquet",
            "thresholds": "results/{run}/tables/calibrated_thresholds.parquet",
        },
        tables=["calibration", "calibrated_thresholds"],
        config=lambda runs: runs.params.slice("seed", "guarantees", max_loops=lambda config: config.exits.max_loops),
    ),
)
