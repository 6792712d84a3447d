"""The cost of the study."""

from twoscale.config.sections import Config
from twoscale.training.analyses import Cost, checkpoints, passes_cost


def cost(run: Config) -> Cost:
    """Whole sequences at every fixed loop count, for every checkpoint."""
    return passes_cost(run, [(checkpoints(run) * run.sequences("scaling"), loops) for loops in run.scaling.loops])
