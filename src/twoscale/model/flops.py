"""FLOPs, parameters and bytes of a model, counted from its config.

FLOPs are those of matrix products, two per multiply-add, as torch's own counter has them. Attention
is counted over all pairs of positions ("full"), or over the pairs that a causal mask keeps
("causal"), to which utilisation refers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from twoscale.config import ModelConfig, TrainConfig

BYTES = {"bool": 1, "bfloat16": 2, "int32": 4, "float32": 4, "int64": 8, "float64": 8, "string": 4}


@dataclass(frozen=True)
class Flops:
    """FLOPs per token of one training pass."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward

    def __add__(self, other: Self) -> Self:
        return type(self)(self.forward + other.forward, self.backward + other.backward)


def layer_matrices(model: ModelConfig, number: int) -> int:
    """Numbers in the matrices of a layer."""
    size, heads = model.hidden_size, model.kv_heads_of(number)
    total = 2 * size * size  # queries and output
    total += 2 * size * heads * model.head_dim  # keys and values
    # gate, value and output, or input and output
    total += (3 if model.mlp == "gated" else 2) * size * model.mlp_width_of(number)
    if number in model.value_embeddings:
        total += model.value_gate_channels * heads
    return total


def _layer_forward(model: ModelConfig, number: int, causal: bool) -> float:
    """One layer on one token: its matrices, and 4 T C for attention scores and averages."""
    # positions that one attends to, on average
    pairs = (model.context_length + 1) / 2 if causal else model.context_length
    # scores and averages are C multiply-adds a position each, and a multiply-add is 2 FLOPs
    return 2 * layer_matrices(model, number) + 4 * pairs * model.hidden_size


def flops_per_token(
    model: ModelConfig,
    loops: Sequence[float],
    backprop_depth: int | None = None,
    recompute: bool = False,
    causal: bool = True,
) -> Flops:
    """FLOPs per token of forward and backward at these loop counts, one per group.

    A backward pass costs two products for each of the forward pass, but no gradient flows into the
    state before the first step that has one. `recompute` adds a second forward pass of the steps
    with gradient.
    """
    square = 2 * model.hidden_size**2
    of_input = square if model.injection in ("projection", "diagonal") else 0
    of_state = square if model.injection == "projection" else 0  # the other half of the adapter
    once = of_input + (square if model.exit_projection else 0)  # not at every loop step
    numbers = range(1, model.num_layers + 1)
    layers = {number: _layer_forward(model, number, causal) for number in numbers}
    # a backward pass is one product for the gradient of each operand
    forward = sum(layers[number] for number in layers if not model.is_looped(number))
    forward += 2 * model.hidden_size * model.padded_vocab_size  # head
    backward = 2 * forward
    # what a loop step computes, `step`, and what a group computes once, `once`
    for group, steps in zip(model.groups, loops, strict=True):
        step = of_state + sum(layers[number] for number in group)
        # loop steps with a gradient
        followed = steps if backprop_depth is None else min(steps, backprop_depth)
        forward += once + steps * step
        of_group = 2 * once + 2 * followed * step
        if not model.state_init.startswith("input") or followed < steps:
            of_group -= of_state  # no gradient of the first state
        backward += of_group
        if recompute:
            backward += followed * step
    return Flops(forward, backward)


def mean_flops_per_token(model: ModelConfig, train: TrainConfig) -> Flops:
    """At the sampler's mean loop count r + 1; draws below the depth of truncation are neglected."""
    loops = [model.mean_loops + 1] * len(model.groups)
    flops = flops_per_token(model, loops, train.backprop_depth, train.recompute)
    return flops if train.exit_gate is None else flops + exit_gate_flops(model, loops[0])


def exit_gate_flops(model: ModelConfig, loops: float, causal: bool = True) -> Flops:
    """FLOPs per token that training of the exit gate adds, in one group of `loops` loop steps.

    Each state but the last is also decoded through the layers after the group and the head; the
    gate reads each.
    """
    size = model.hidden_size
    after = range(model.groups[-1][-1] + 1, model.num_layers + 1)  # layers after the group
    decoding = sum(_layer_forward(model, number, causal) for number in after)
    # the head, and the projection of the state
    decoding += 2 * size * (model.padded_vocab_size + model.exit_projection * size)
    # `flops_per_token` already counts the decoding of the last state
    forward = (loops - 1) * decoding + loops * 2 * size
    return Flops(forward, 2 * forward)


def parameters(model: ModelConfig) -> int:
    """Numbers of a model, a tied head counted once."""
    size, numbers = model.hidden_size, range(1, model.num_layers + 1)
    total = model.padded_vocab_size * size * (1 if model.tied_head else 2)
    if model.positions == "learned":
        total += model.context_length * size
    total += sum(layer_matrices(model, number) for number in numbers)
    # norms of the layers, and the final one
    total += ((4 if model.norms == "sandwich" else 2) * model.num_layers + 1) * size
    # of each group: injection, norm of the input, projection of the result
    injections = {"projection": 2 * size**2, "diagonal": size**2 + 2 * size, "boundary": size}
    of_group = injections.get(model.injection, 0)
    of_group += model.exit_projection * size**2 + model.input_norm * size
    total += of_group * len(model.groups)
    # biases and norms of queries and keys
    heads = sum(model.num_heads + model.kv_heads_of(number) for number in numbers)
    total += (model.qk_bias + (model.qk_norm is True)) * heads * model.head_dim
    # tables of value embeddings
    embedded = sum(model.kv_heads_of(number) for number in model.value_embeddings)
    total += model.padded_vocab_size * model.head_dim * embedded
    return total + (size + 1 if model.exit_gate else 0)


def cache_bytes(model: ModelConfig, slots: int, dtype: str) -> int:
    """Keys and values of one sequence of context_length tokens, `slots` of each looped layer."""
    heads = 0
    for number in range(1, model.num_layers + 1):
        heads += model.kv_heads_of(number) * (slots if model.is_looped(number) else 1)
    # 2: a key and a value
    return 2 * heads * model.head_dim * BYTES[dtype] * model.context_length
