"""FLOPs of training, and bytes of its states on disk and in memory, computed from a config."""

import math

from twoscale import config
from twoscale.model.flops import BYTES, Flops, exit_gate_flops, flops_per_token, parameters

PUBLISHED_BYTES = BYTES["bfloat16"]  # of a published weight
# Sizes of the weights that training has on disk besides its checkpoints, at most: two moments to start from, and a
# partial state of weights and moments with the one that it replaces.
SEGMENT_STATES = 2 + 3 + 3
LOADED = 4  # weights and two moments of a file, and the weights of the model that takes them


def mean_flops_per_token(model: config.ModelConfig, train: config.TrainConfig, causal: bool = True) -> Flops:
    """At the mean loop count r + 1 of the sampler; with truncation the few draws below its depth are neglected."""
    loops = [model.mean_loops + 1] * len(model.groups)
    flops = flops_per_token(model, loops, train.backprop_depth, train.recompute, causal)
    return flops if train.exit_gate is None else flops + exit_gate_flops(model, loops[0], causal)


def states_bytes(run: config.Config) -> int:
    """Bytes of the states of one sequence, for Fig. 1."""
    model = run.model
    states = 1 + model.num_layers - sum(map(len, model.groups)) + len(model.groups) * (run.trajectories.loops + 1)
    return states * model.context_length * model.hidden_size * BYTES["float32"]


def activation_bytes(run: config.Config) -> float:
    """Bytes in float32 that one sequence keeps for the backward pass at the mean loop count r + 1, without its logits.

    A layer keeps 8 hidden states, 2 more with both norms of a sandwich, and 2 states of the MLP (4 if gated), the
    adapter 1; with train.recompute a loop step keeps its state only. With train.exit_gate the layers after the group
    decode every state, and three stacks of states are kept. A test compares this with autograd.
    """
    model, train = run.model, run.train
    layers = {number: _layer_activations(model, number) for number in range(1, model.num_layers + 1)}
    steps = min(model.mean_loops + 1, train.backprop_depth or math.inf)
    adapter = model.hidden_size if model.injection in ("projection", "diagonal") else 0
    kept: float = sum(layers[number] for number in layers if not model.is_looped(number))
    for group in model.groups:
        step = sum(layers[number] for number in group) + adapter
        kept += step + steps * model.hidden_size if train.recompute else steps * step
    if train.exit_gate is not None:
        behind = sum(layers[number] for number in layers if number > model.groups[-1][-1])
        kept += model.mean_loops * behind + 3 * (model.mean_loops + 1) * model.hidden_size
    return kept * model.context_length * BYTES["float32"]


def _layer_activations(model: config.ModelConfig, number: int) -> int:
    """Numbers that a layer keeps of one token for the backward pass."""
    states = (10 if model.norms == "sandwich" else 8) * model.hidden_size
    return states + (4 if model.mlp == "gated" else 2) * model.mlp_width_of(number)


def gathered_bytes(model: config.ModelConfig) -> int:
    """Bytes of the weights and gradients in float32 that train.shard gathers on a process at a time.

    Those of everything but the unlooped layers, of which two are gathered at a time, one ahead. FSDP's buffers for
    communication are not counted.
    """
    unlooped = model.num_layers - sum(map(len, model.groups))
    layer = parameters(model) - parameters(model.model_copy(update={"num_layers": model.num_layers - 1}))
    return 2 * (parameters(model) - max(0, unlooped - 2) * layer) * BYTES["float32"]


def loading_bytes(run: config.Config) -> int:
    """Bytes of the CPU's memory that the processes of a node take to load a model for train.shard.

    Each has all weights and moments from the file, and the whole model, before it keeps its part.
    """
    loaded = LOADED * parameters(run.model) * BYTES["float32"]
    return loaded * (run.train.processes // run.train.nodes)
