"""The bare matrix products of decoding: the cost of tokens without norms, attention, decisions and
host work.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twoscale.model.interface import any_weight
from twoscale.model.transformer import LoopedTransformer


def bare_products(
    model: LoopedTransformer, loops: Sequence[int], batch: int = 1
) -> Callable[[], None]:
    """A call that computes every matrix product of one token of each of `batch` sequences at these
    loop counts.

    There is one count per group. Each weight matrix is applied as often as in decoding, in the same
    order, to rows (batch, in) in the dtype and on the device of the model: unlooped layers, the
    input's part of an injection, the projection of an exit and the head once, the state's half of
    an adapter and the layers of a group at every loop step. Results are dropped.
    """
    like = any_weight(model)
    weights = list(_weights(model, loops))
    rows = {size: like.new_ones(batch, size) for size in {weight.shape[1] for weight in weights}}
    pairs = [(rows[weight.shape[1]], weight) for weight in weights]

    @torch.inference_mode()
    def call() -> None:
        for row, weight in pairs:
            F.linear(row, weight)

    return call


def _weights(model: LoopedTransformer, loops: Sequence[int]) -> Iterable[Tensor]:
    """The matrices (out, in) in the order in which one token meets them."""
    size = model.config.hidden_size
    for stage in model.stages:
        if not stage.is_group:
            yield from _matrices(model.unlooped[str(stage.layer)])
            continue
        group: Any = model.groups[stage.index]  # of a class that depends on the injection
        projects = model.config.injection == "projection"
        if projects:
            yield group.adapter.weight[:, size:]
        if model.config.injection == "diagonal":
            yield group.of_input.weight
        for _ in range(loops[stage.index]):
            if projects:
                yield group.adapter.weight[:, :size]
            yield from _matrices(group.layers)
        if model.config.exit_projection:
            yield cast(nn.Linear, model.exit_projections[stage.index]).weight
    yield model.head_weight


def _matrices(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.dim() == 2]
