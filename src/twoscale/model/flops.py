"""FLOPs, parameters and bytes of a model, counted from its config.

FLOPs are those of matrix products, two per multiply-add, as torch's own counter has them; norms, activations
and softmax are left out. Attention is counted over all pairs of positions ("full"), as a plain product
computes it, or over the pairs that a causal mask keeps ("causal"), to which utilisation refers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from twoscale.config import ModelConfig

# a text is a dictionary's key
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
        return Flops(self.forward + other.forward, self.backward + other.backward)


def layer_matrices(model: ModelConfig) -> int:
    """Numbers in the matrices of a layer: 2 C² for queries and output, 2 C G D for keys and values, and the MLP's."""
    size = model.hidden_size
    factors = 3 if model.mlp == "gated" else 2
    return 2 * size * (size + model.kv_heads * model.head_dim) + factors * size * model.mlp_width


def layer_forward(model: ModelConfig, causal: bool) -> float:
    """One layer on one token: the matrices, and attention scores and averages over T positions 4 T C."""
    pairs = (model.context_length + 1) / 2 if causal else model.context_length
    return 2 * layer_matrices(model) + 4 * pairs * model.hidden_size


def flops_per_token(
    model: ModelConfig,
    loops: Sequence[float],
    backprop_depth: int | None = None,
    recompute: bool = False,
    causal: bool = True,
) -> Flops:
    """FLOPs per token of forward and backward at these loop counts, one per group.

    A backward pass costs two products for each of the forward pass, but no gradient flows into the state
    before the first step that has one, and steps before it have none at all. `recompute` adds a second
    forward pass of the steps with gradient.
    """
    square = 2 * model.hidden_size**2 if model.injection == "projection" else 0  # one half of the adapter
    layer = layer_forward(model, causal)
    head = 2 * model.hidden_size * model.padded_vocab_size
    looped = sum(len(group) for group in model.groups)
    forward = (model.num_layers - looped) * layer + head
    backward = 2 * forward
    for group, steps in zip(model.groups, loops, strict=True):
        step = square + len(group) * layer
        followed = steps if backprop_depth is None else min(steps, backprop_depth)
        starts_from_gradient = model.state_init.startswith("input") and followed == steps
        forward += square + steps * step  # the input's half of the adapter once
        backward += 2 * square + 2 * followed * step - (0 if starts_from_gradient else square)
        backward += followed * step if recompute else 0
    return Flops(forward, backward)


def exit_gate_flops(model: ModelConfig, loops: float, causal: bool = True) -> Flops:
    """FLOPs per token that training of the exit gate adds, for a model with one group of `loops` loop steps.

    Each state but the last is decoded through the layers behind the group and the head in addition, and the gate reads
    each. With a truncated gradient a little less.
    """
    behind = model.num_layers - model.groups[-1][-1]
    decoding = behind * layer_forward(model, causal) + 2 * model.hidden_size * model.padded_vocab_size
    forward = (loops - 1) * decoding + loops * 2 * model.hidden_size
    return Flops(forward, 2 * forward)


def parameters(model: ModelConfig) -> int:
    """Numbers of a model, a tied head counted once."""
    size = model.hidden_size
    tables = model.padded_vocab_size * (1 if model.tied_head else 2)
    tables += model.context_length if model.positions == "learned" else 0
    adapters = 2 * size**2 * len(model.groups) if model.injection == "projection" else 0
    gate = size + 1 if model.exit_gate else 0
    per_layer = layer_matrices(model) + _layer_vectors(model)
    return tables * size + model.num_layers * per_layer + adapters + size + gate


def _layer_vectors(model: ModelConfig) -> int:
    """Numbers in the norms and biases of a layer."""
    heads = (model.num_heads + model.kv_heads) * model.head_dim  # channels of queries and keys
    return (4 if model.norms == "sandwich" else 2) * model.hidden_size + (model.qk_bias + model.qk_norm) * heads


def cache_bytes(model: ModelConfig, slots: int, dtype: str) -> int:
    """Keys and values of one sequence of a whole block in decoding, with `slots` per looped layer."""
    looped = sum(len(group) for group in model.groups)
    per_position = 2 * model.kv_heads * model.head_dim * BYTES[dtype]
    return (model.num_layers - looped + looped * slots) * model.context_length * per_position
