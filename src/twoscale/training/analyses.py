"""The cost of the analyses of a run, computed from its config: FLOPs and tokens.

A study adds its cost in its module `plan`, a function `cost` of the config.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from twoscale import config
from twoscale.discovery import study_parts
from twoscale.model.flops import BYTES, flops_per_token, layer_matrices

# Exit criteria whose predictions pass the layers after the last group under exits.readout: remaining_layers; a test
# compares them with the registry of criteria.
READS_PREDICTIONS = frozenset({"kl", "entropy_diff", "argmax_stability", "minp_kl", "confidence", "margin", "entropy"})


class Cost(NamedTuple):
    """FLOPs of whole sequences, and tokens that are read one by one; both at most, without any exit."""

    flops: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Analyses:
    """The cost of a target besides training, at most: without any exit."""

    parallel_flops: float
    decoded_tokens: int
    decoded_bytes: float


def analyses(run: config.Config, supplementary: bool) -> Analyses:
    """The analyses behind the figures and claims, or those of all studies."""
    exits = run.exits
    if supplementary:
        costs = [part.cost(run) for part in study_parts("plan").values()] + [_probe_cost(run)]
    else:
        trajectories = passes_cost(run, [(checkpoints(run) * run.trajectory_sequences, run.trajectories.loops)])
        costs = [trajectories, exits_cost(run, exits, run.quality_sequences)]
    tokens = sum(cost.tokens for cost in costs)
    bytes_per_token = _weights_read(run.model, exits.max_loops) * BYTES[exits.dtype]
    return Analyses(sum(cost.flops for cost in costs), tokens, tokens * bytes_per_token)


def passes_cost(run: config.Config, passes: Iterable[tuple[float, int]]) -> Cost:
    """The cost of whole sequences: pairs of their number and the loop steps of every group."""
    return Cost(run.model.context_length * sum(count * forward(run.model, loops) for count, loops in passes))


def exits_cost(run: config.Config, exits: config.ExitsConfig, sequences: int) -> Cost:
    """The cost of an exit benchmark: quality of all operating points with their controls, and latency.

    Text under criteria that need predictions is read one by one where those pass the remaining layers; timed tokens are
    read twice.
    """
    controlled = points(exits) - len(exits.criteria["fixed"].thresholds if "fixed" in exits.criteria else ())
    whole = points(exits, sequential=False) + controlled * (exits.control_draws + 1)
    rounds = exits.latency_repeats + 1
    timed = 2 * exits.latency_tokens * rounds * points(exits)
    sequential = run.model.context_length * (rounds + sequences) * points(exits, sequential=True)
    return Cost(passes_cost(run, [(sequences * whole, exits.max_loops)]).flops, timed + sequential)


def checkpoints(run: config.Config) -> int:
    """Checkpoints that are analysed."""
    return 1 if run.model.source == "published" else 1 + len(config.checkpoint_iterations(run.train))


def forward(model: config.ModelConfig, loops: int) -> float:
    """FLOPs of a forward pass per token at the same loop count in all groups."""
    return flops_per_token(model, [loops] * len(model.groups)).forward


def oracle_forward(run: config.Config) -> float:
    """FLOPs of an oracle per token: all loop steps, and for each state of a group the layers after it."""
    model, loops = run.model, run.exits.max_loops
    total = forward(model, loops)
    for group in range(len(model.groups)):
        behind = [0] * (group + 1) + [loops] * (len(model.groups) - group - 1)
        # the run that the states are decoded in is computed again for every 8 of them
        total += 9 / 8 * (loops + 1) * flops_per_token(model, behind).forward
    return total


def _probe_cost(run: config.Config) -> Cost:
    """The probe is fitted on the states that an oracle decodes, if a grid has its criterion."""
    if not any("probe" in exits.criteria for exits in run.exit_grids.values()):
        return Cost()
    return Cost(run.model.context_length * run.sequences("probe") * oracle_forward(run))


def _weights_read(model: config.ModelConfig, loops: int) -> float:
    """Weights that one token reads in decoding: those of a layer once for each time it is applied, and the head."""
    applied = model.num_layers + sum(map(len, model.groups)) * (loops - 1)
    return applied * layer_matrices(model) + model.hidden_size * model.padded_vocab_size


def points(exits: config.ExitsConfig, sequential: bool | None = None) -> int:
    """Operating points of an exit benchmark; of those that process text position by position, or of the others."""
    return sum(
        len(entry.thresholds)
        for name, entry in exits.criteria.items()
        if sequential is None or sequential == is_sequential(exits, name)
    )


def is_sequential(exits: config.ExitsConfig, criterion: str) -> bool:
    """Whether text is processed position by position under a criterion."""
    return exits.readout != "head" and criterion in READS_PREDICTIONS
