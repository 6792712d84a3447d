"""The cost of the lens."""

from twoscale.config.sections import Config
from twoscale.model.flops import flops_per_token
from twoscale.studies.lens.steps import other_loops, steps_of
from twoscale.training.analyses import Cost


def cost(run: Config) -> Cost:
    """The loop steps of each group, and for each decoded k the layers after it, at most."""
    model, steps, other = run.model, steps_of(run), other_loops(run)
    total = 0.0
    for group in range(len(model.groups)):
        behind = len(model.groups) - group - 1
        total += flops_per_token(model, [other] * group + [steps[-1]] + [0] * behind).forward
        total += len(steps) * flops_per_token(model, [0] * (group + 1) + [other] * behind).forward
    return Cost(model.context_length * run.sequences("lens") * total)
