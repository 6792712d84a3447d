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
    """Numbers in the matrices of a layer: 2 C² for queries and output, 2 C G D for keys and values,
    gate and MLP.
    """
    size, keys = model.hidden_size, model.kv_heads_of(number) * model.head_dim
    factors = 3 if model.mlp == "gated" else 2
    gate = (
        model.value_gate_channels * model.kv_heads_of(number)
        if number in model.value_embeddings
        else 0
    )
    return 2 * size * (size + keys) + gate + factors * size * model.mlp_width_of(number)


def layer_forward(model: ModelConfig, number: int, causal: bool) -> float:
    """One layer on one token: the matrices, and attention scores and averages over T positions 4 T
    C.
    """
    pairs = (model.context_length + 1) / 2 if causal else model.context_length
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
    of_exit = square if model.exit_projection else 0
    layers = {
        number: layer_forward(model, number, causal) for number in range(1, model.num_layers + 1)
    }
    head = 2 * model.hidden_size * model.padded_vocab_size
    forward = sum(layers[number] for number in layers if not model.is_looped(number)) + head
    backward = 2 * forward
    for group, steps in zip(model.groups, loops, strict=True):
        step = of_state + sum(layers[number] for number in group)
        followed = steps if backprop_depth is None else min(steps, backprop_depth)
        starts_from_gradient = model.state_init.startswith("input") and followed == steps
        forward += of_input + of_exit + steps * step  # the input's part once
        backward += (
            2 * (of_input + of_exit)
            + 2 * followed * step
            - (0 if starts_from_gradient else of_state)
        )
        backward += followed * step if recompute else 0
    return Flops(forward, backward)


def mean_flops_per_token(model: ModelConfig, train: TrainConfig) -> Flops:
    """At the mean loop count r + 1 of the sampler; with truncation the few draws below its depth
    are neglected.
    """
    loops = [model.mean_loops + 1] * len(model.groups)
    flops = flops_per_token(model, loops, train.backprop_depth, train.recompute)
    return flops if train.exit_gate is None else flops + exit_gate_flops(model, loops[0])


def exit_gate_flops(model: ModelConfig, loops: float, causal: bool = True) -> Flops:
    """FLOPs per token that training of the exit gate adds, for a model with one group of `loops`
    loop steps.

    Each state but the last is also decoded through the layers after the group and the head; the
    gate reads each.
    """
    behind = range(model.groups[-1][-1] + 1, model.num_layers + 1)
    decoding = sum(layer_forward(model, number, causal) for number in behind)
    decoding += (
        2
        * model.hidden_size
        * (model.padded_vocab_size + model.exit_projection * model.hidden_size)
    )
    forward = (loops - 1) * decoding + loops * 2 * model.hidden_size
    return Flops(forward, 2 * forward)


def parameters(model: ModelConfig) -> int:
    """Numbers of a model, a tied head counted once."""
    size = model.hidden_size
    tables = model.padded_vocab_size * (1 if model.tied_head else 2)
    tables += model.context_length if model.positions == "learned" else 0
    injection = {"projection": 2 * size**2, "diagonal": size**2 + 2 * size, "boundary": size}.get(
        model.injection, 0
    )
    per_group = (
        injection + (size**2 if model.exit_projection else 0) + (size if model.input_norm else 0)
    )
    gate = size + 1 if model.exit_gate else 0
    numbers = range(1, model.num_layers + 1)
    matrices = sum(layer_matrices(model, number) for number in numbers)
    norms = (4 if model.norms == "sandwich" else 2) * size * model.num_layers
    channels = (
        sum(model.num_heads + model.kv_heads_of(number) for number in numbers) * model.head_dim
    )
    of_heads = (model.qk_bias + (model.qk_norm is True)) * channels  # of queries and keys
    of_heads += (
        model.padded_vocab_size
        * model.head_dim
        * sum(map(model.kv_heads_of, model.value_embeddings))
    )
    return tables * size + matrices + norms + of_heads + per_group * len(model.groups) + size + gate


def cache_bytes(model: ModelConfig, slots: int, dtype: str) -> int:
    """Keys and values of one sequence of a whole block in decoding, with `slots` per looped
    layer.
    """
    numbers = range(1, model.num_layers + 1)
    heads = sum(
        model.kv_heads_of(number) * (slots if model.is_looped(number) else 1) for number in numbers
    )
    return 2 * heads * model.head_dim * BYTES[dtype] * model.context_length
