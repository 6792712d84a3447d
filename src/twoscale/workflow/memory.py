"""Bytes on disk and in memory that jobs take, computed from the config of their run."""

import math

from twoscale.config import Config
from twoscale.model.flops import BYTES, parameters

PUBLISHED_BYTES = BYTES["bfloat16"]  # of a published weight
# Sizes of the weights that training has on disk besides its checkpoints, at most: two moments to
# start from, and a partial state of weights and moments with the one that it replaces.
SEGMENT_STATES = 2 + 3 + 3
_LOADED = 4  # weights and two moments of a file, and the weights of the model that takes them
_TRAINED = 7  # weights, gradients and two moments, and weights and moments of a file


def states_bytes(run: Config) -> int:
    """The states of one sequence, for Fig. 1."""
    model = run.model
    unlooped = model.num_layers - sum(map(len, model.groups))
    states = 1 + unlooped + len(model.groups) * (run.trajectories.loops + 1)
    return states * model.context_length * model.hidden_size * BYTES["float32"]


def activation_bytes(run: Config) -> float:
    """Bytes in float32 that one sequence keeps for the backward pass at the mean loop count r + 1,
    without its logits.

    A layer keeps 8 hidden states, 2 more with both norms of a sandwich, and 2 states of the MLP (4
    if gated), the adapter or the norm of a boundary 1; with train.recompute a loop step keeps its
    state only. With train.exit_gate the layers after the group decode every state, and three stacks
    of states are kept. A test compares this with autograd.
    """
    model, train = run.model, run.train
    hidden = model.hidden_size

    def layer(number: int) -> int:
        states = 10 if model.norms == "sandwich" else 8
        mlp_states = 4 if model.mlp == "gated" else 2
        return states * hidden + mlp_states * model.mlp_width_of(number)

    numbers = range(1, model.num_layers + 1)
    kept: float = sum(layer(number) for number in numbers if not model.is_looped(number))
    # loop steps that are back-propagated through
    steps = min(model.mean_loops + 1, train.backprop_depth or math.inf)
    adapter = hidden if model.injection in ("projection", "diagonal", "boundary") else 0
    for group in model.groups:
        step = sum(map(layer, group)) + adapter
        if train.recompute:
            kept += step + steps * hidden  # one step at a time, from its state
        else:
            kept += steps * step
    if train.exit_gate is not None:
        decoding = sum(layer(number) for number in numbers if number > model.groups[-1][-1])
        kept += model.mean_loops * decoding
        kept += 3 * (model.mean_loops + 1) * hidden  # three stacks of states
    return kept * model.context_length * BYTES["float32"]


def loading_bytes(run: Config) -> int:
    """Bytes of the CPU's memory that the processes of a node take to load a model for train.shard.

    Each has all weights and moments from the file, and the whole model, before it keeps its part.
    """
    processes = run.train.processes // run.train.nodes
    return _LOADED * parameters(run.model) * BYTES["float32"] * processes


def training_bytes(run: Config) -> int:
    """Bytes of a node's memory that training on the CPU takes, without those of Python and its
    libraries.

    A process has weights, gradients and moments, those of a file that it reads or writes, the
    activations of its sequences, and four copies of their logits. Activations and logits are
    doubled, because loop counts are sampled and the allocator keeps what it has had: two runs of
    0.7 and 3.5 million parameters took half of the result at most.
    """
    model, train = run.model, run.train
    sequences = math.ceil(train.batch_size / (train.micro_batches * train.processes))
    logits = model.context_length * model.vocab_size * BYTES["float32"]
    states = _TRAINED * parameters(model) * BYTES["float32"]
    per_sequence = activation_bytes(run) + 4 * logits
    processes = train.processes // train.nodes
    return int((states + 2 * sequences * per_sequence) * processes)
