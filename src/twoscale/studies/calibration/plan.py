"""The cost of the study."""

from twoscale.config.sections import Config
from twoscale.training.analyses import Cost, is_sequential, passes_cost


def cost(run: Config) -> Cost:
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
            total += 1 + searched * search + (1 - searched) * paths  # 1: at all loop steps
    return run.calibration.sequences(run) * total


def calibration_points(thresholds: int, groups: int) -> tuple[int, int]:
    """Thresholds of all groups that the search of the calibration measures, and those of its two paths, at most."""
    steps = groups * (thresholds - 1) if groups > 1 else 0  # of the path that changes one group at a time
    return thresholds + groups * steps, thresholds + steps + 1
