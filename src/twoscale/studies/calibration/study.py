"""Figures and jobs of the study."""

from twoscale.analysis.costs import Cost, is_sequential, passes_cost
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.workflow.rows import Comparison, Measurement

FIGURES = (
    Figure(
        "calibration",
        table("calibration"),
        loops=exit_max_loops,
        title="Calibration: evaluations saved at a guaranteed quality",
    ),
)


def _cost(run: Config) -> Cost:
    """Whole sequences, or tokens one by one under criteria that process text position by position."""
    parallel = passes_cost(run, [(_sequences(run, sequential=False), run.exits.max_loops)])
    return Cost(parallel.flops, round(run.model.context_length * _sequences(run, sequential=True)))


def _sequences(run: Config, sequential: bool) -> float:
    """Sequences, each counted once for each of the thresholds under which it is read, at most."""
    exits, searched = run.exit_grids["calibration"], run.calibration.search_share
    total = 0.0
    for name, entry in exits.criteria.items():
        if sequential == is_sequential(exits, name):
            search, paths = calibration_points(len(entry.thresholds), len(run.model.groups))
            total += 1 + searched * search + (1 - searched) * paths  # 1: at full depth
    return run.calibration.sequences(run) * total


def calibration_points(thresholds: int, groups: int) -> tuple[int, int]:
    """Thresholds of all groups that the search of the calibration and its two paths measure, at most."""
    steps = groups * (thresholds - 1) if groups > 1 else 0  # of the path that changes one group at a time
    return thresholds + groups * steps, thresholds + steps + 1


OUTPUT = "results/{{run}}/calibration/{{criterion}}.{}.parquet"
JOBS = (
    Measurement(
        name="measure_calibration",
        function="twoscale.studies.calibration.measure.run",
        inputs=lambda runs: {"probe": runs.paths.probe_file()},
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
        threads=lambda runs, cores: runs.resources.exit_threads(cores, "calibration"),
        cpus=4,
        cost=_cost,
    ),
    Comparison(
        name="aggregate_calibration",
        function="twoscale.studies.calibration.compare.run",
        inputs=lambda runs: {
            f"{name}_files": runs.paths.each_criterion(OUTPUT.format(name), "calibration") for name in ("runs", "paths")
        },
        outputs={
            "calibration": "results/{run}/tables/calibration.parquet",
            "thresholds": "results/{run}/tables/calibrated_thresholds.parquet",
        },
        tables=["calibration", "calibrated_thresholds"],
        config=lambda runs: runs.params.slice("seed", "guarantees", max_loops=lambda config: config.exits.max_loops),
    ),
)
