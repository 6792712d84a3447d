"""FLOPs and tokens of measurements, from a config: the rows of jobs state their cost with these functions.

Also the scale of a run compared with the paper's, the defaults of the config.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from twoscale import config
from twoscale.claims.scale import Scale, Scales
from twoscale.model.flops import BYTES, flops_per_token, layer_matrices, parameters


class Cost(NamedTuple):
    """FLOPs of whole sequences, and tokens that are read one by one; both at most, without any exit."""

    flops: float = 0.0
    tokens: int = 0


def passes_cost(run: config.Config, passes: Iterable[tuple[float, int]]) -> Cost:
    """The cost of whole sequences: pairs of their number and the loop steps of every group."""
    return Cost(run.model.context_length * sum(count * forward(run.model, loops) for count, loops in passes))


def exits_cost(run: config.Config, exits: config.ExitsConfig, sequences: int) -> Cost:
    """The cost of an exit benchmark: quality of all operating points with their cost_matched, and latency.

    Text under criteria that need predictions is read one by one where those pass the remaining layers; timed tokens are
    read twice.
    """
    controlled = points(exits) - len(exits.criteria["fixed"].thresholds if "fixed" in exits.criteria else ())
    whole = points(exits, sequential=False) + controlled * (exits.random_draws + 1)
    rounds = exits.latency_repeats + 1
    timed = 2 * exits.latency_tokens * rounds * points(exits)
    sequential = run.model.context_length * (rounds + sequences) * points(exits, sequential=True)
    return Cost(passes_cost(run, [(sequences * whole, exits.max_loops)]).flops, timed + sequential)


def oracle_cost(run: config.Config, sequences: int) -> Cost:
    """The cost of an oracle: all loop steps, and for each state of a group the layers after it."""
    model, loops = run.model, run.exits.max_loops
    total = forward(model, loops)
    for group in range(len(model.groups)):
        after = [0] * (group + 1) + [loops] * (len(model.groups) - group - 1)
        # the run that the states are decoded in is computed again for every 8 of them
        total += 9 / 8 * (loops + 1) * flops_per_token(model, after).forward
    return Cost(model.context_length * sequences * total)


def checkpoints(run: config.Config) -> int:
    """Checkpoints that are analysed."""
    return 1 if run.model.source == "published" else 1 + len(config.checkpoint_iterations(run.train))


def forward(model: config.ModelConfig, loops: int) -> float:
    """FLOPs of a forward pass per token at the same loop count in all groups."""
    return flops_per_token(model, [loops] * len(model.groups)).forward


def decoded_bytes(run: config.Config) -> float:
    """Bytes of the weights that one token reads in decoding: a layer each time it is applied, and the head."""
    model, exits = run.model, run.exits
    applied = {number: exits.max_loops if model.is_looped(number) else 1 for number in range(1, model.num_layers + 1)}
    layers = sum(times * layer_matrices(model, number) for number, times in applied.items())
    weights = layers + model.hidden_size * model.padded_vocab_size
    return weights * BYTES[exits.dtype]


def points(exits: config.ExitsConfig, sequential: bool | None = None) -> int:
    """Operating points of an exit benchmark; of those that process text position by position, or of the others."""
    return sum(
        len(entry.thresholds)
        for name, entry in exits.criteria.items()
        if sequential is None or sequential == is_sequential(exits, name)
    )


def is_sequential(exits: config.ExitsConfig, criterion: str) -> bool:
    """Whether text is processed position by position under a criterion; a user's one is taken for one that is not."""
    from twoscale.exits.criteria import CRITERIA  # here, because planning imports no torch

    known = CRITERIA.get(criterion)
    return exits.readout != "head" and known is not None and known.needs_readout


def training_tokens(run: config.Config) -> int:
    """Tokens that a run is trained on, repeated ones included."""
    return run.train.iterations * run.train.batch_size * run.model.context_length


def scales(run: config.Config) -> Scales:
    """The scale of a run, with the kind of its device as hardware, and the paper's scale, without hardware."""
    return Scales(_scale(run), replace(_scale(config.Config()), hardware="not stated"))


def _scale(run: config.Config) -> Scale:
    tokens = None if run.model.source == "published" else training_tokens(run)
    loops = run.model.mean_loops, run.trajectories.loops
    return Scale(tokens, parameters(run.model), *loops, hardware={"cuda": "GPU", "cpu": "CPU"}[run.compute.device])
