"""The cost of the study."""

from twoscale.config.sections import Config
from twoscale.training.analyses import Cost, points


def cost(run: Config) -> Cost:
    """Tokens with those of the prompts, counted as if each was decoded alone."""
    texts = sum(run.throughput.sequences) * points(run.exit_grids["throughput"])
    return Cost(tokens=texts * sum(run.throughput.lengths(run)) * (run.throughput.repeats + 1))
