"""The cost of the study."""

from twoscale.config.sections import Config
from twoscale.training.analyses import Cost, checkpoints, passes_cost


def cost(run: Config) -> Cost:
    """Whole sequences under every draw of the noise, for every checkpoint."""
    draws = run.path_independence.draws + 1 if run.model.draws_noise else 0
    return passes_cost(run, [(checkpoints(run) * draws * run.sequences("path_independence"), run.trajectories.loops)])
