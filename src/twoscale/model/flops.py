"""FLOPs, parameters and bytes of a model, counted from its config.

FLOPs are those of matrix products, two per multiply-add, as torch's own counter has them; norms, activations
and softmax are left out. Attention is counted over all pairs of positions ("full"), as a plain product
computes it, or over the pairs that a causal mask keeps ("causal"), to which utilisation refers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from twoscale.config import ModelConfig

BYTES = {"bool": 1, "int32": 4, "float32": 4, "int64": 8, "float64": 8, "string": 4}  # a text is a dictionary's key


@dataclass(frozen=True)
class Flops:
    """FLOPs per token of one training pass."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def layer_forward(model: ModelConfig, causal: bool) -> float:
    """One layer on one token: projections and MLP 24 C², attention scores and averages over T positions 4 T C."""
    pairs = (model.context_length + 1) / 2 if causal else model.context_length
    return 24 * model.hidden_size**2 + 4 * pairs * model.hidden_size


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
    square = 2 * model.hidden_size**2  # one C x C product
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


def parameters(model: ModelConfig) -> int:
    """Trained numbers, the tied head counted once."""
    per_layer = 12 * model.hidden_size**2 + 4 * model.hidden_size
    embeddings = (model.padded_vocab_size + model.context_length) * model.hidden_size
    return embeddings + model.num_layers * per_layer + 2 * len(model.groups) * model.hidden_size**2 + model.hidden_size


def cache_bytes(model: ModelConfig, slots: int, dtype: str) -> int:
    """Keys and values of one sequence of a whole block in decoding, with `slots` per looped layer."""
    looped = sum(len(group) for group in model.groups)
    return 2 * (model.num_layers - looped + looped * slots) * model.context_length * model.hidden_size * BYTES[dtype]
