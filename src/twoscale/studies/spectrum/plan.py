"""The cost of the study."""

from twoscale.config.sections import Config
from twoscale.training.analyses import Cost, checkpoints, passes_cost


def cost(run: Config) -> Cost:
    """At most three paths to a fixed point, and products with diagonal Jacobian blocks."""
    spectrum, exact = run.spectrum, run.spectrum.exact_sequences(run)
    count = checkpoints(run) if spectrum.checkpoints == "all" else 1
    products = 2 * min(run.model.hidden_size, spectrum.dense_size)  # a backward pass costs two forward ones
    paths = run.sequences("spectrum") + 2 * exact
    return passes_cost(run, [(count * paths, spectrum.steps), (count * exact, products)])
