"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.studies.rows import Comparison, Measurement

FIGURES = (
    Figure(
        "calibration",
        table("calibration"),
        loops=exit_max_loops,
        title="Calibration: evaluations saved at a promised quality",
    ),
)


OUTPUT = "results/{{run}}/calibration/{{criterion}}.{}.parquet"
JOBS = (
    Measurement(
        name="measure_calibration",
        function="twoscale.studies.calibration.measure.run",
        inputs=lambda runs: {"probe": runs.probe_file()},
        outputs={name: OUTPUT.format(name) for name in ("runs", "paths")},
        tables=["calibration_runs", "calibration_paths"],
        config=lambda runs: runs.exit_slice(
            "calibration",
            sequences=lambda config: config.calibration.sequences(config),
            search_share=lambda config: config.calibration.search_share,
            report_share=lambda config: config.calibration.report_share,
            path_end=lambda config: config.calibration.path_end,
        ),
        dtype="exits",
        minutes=240,
        threads=lambda runs, cores: runs.exit_threads(cores, "calibration"),
        cpus=4,
    ),
    Comparison(
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
        config=lambda runs: runs.slice("seed", "promises", max_loops=lambda config: config.exits.max_loops),
    ),
)
