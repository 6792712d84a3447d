"""A Universal Transformer (Dehghani et al., arXiv 1807.03819) with adaptive computation time, as a
user would add it.

All layers loop from the embedding on, without a projection of the input; a sinusoid of k is added
before loop step k. The output is the mean of the states, weighted by the halting probabilities
(Graves, arXiv 1603.08983).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twoscale.config import ModelConfig, TrainConfig
from twoscale.config.types import NonNegative, key
from twoscale.model.flops import flops_per_token
from twoscale.model.interface import Attend, Noise
from twoscale.model.registry import Architecture
from twoscale.model.transformer import LoopedTransformer
from twoscale.model.transformer import initialise as initialise_weights

EPSILON = 0.01


class Config(ModelConfig):
    """Architecture of the model, with the price of its loop steps; `exit_gate` is its halting
    unit.
    """

    ponder_weight: NonNegative = key(
        0.01, "Weight of the ponder cost in the training loss.", source="ours"
    )


class UniversalTransformer(LoopedTransformer):
    """A `LoopedTransformer` of one group that halts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.gate.requires_grad_(True)

    def recur(self, group: int, k: int, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        angles = k / 10000 ** torch.linspace(
            0, 1, state.shape[-1], dtype=state.dtype, device=state.device
        )
        return super().recur(group, k, state + angles.sin(), injected, attend)

    def ponder(
        self, tokens: Tensor, loops: Sequence[int], *options: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """Halting-weighted mean (B, T, C) of x^1 … x^loops, and the ponder cost N + R (B, T) of
        each token.
        """
        states, _ = self.exit_states(tokens, loops[0], *options, **named)  # (K, B, T, C)
        halting = self.exit_gate(states)  # (K, B, T)
        total = halting.cumsum(0)
        goes_on = (total < 1 - EPSILON) & (torch.arange(len(total)) < len(total) - 1)[:, None, None]
        runs = torch.cat(
            [torch.ones_like(goes_on[:1]), goes_on[:-1]]
        )  # whether the token takes the loop step
        remainder = 1 - (total - halting)
        weights = runs * torch.where(goes_on, halting, remainder)
        return (weights[..., None] * states).sum(0), runs.sum(0) + (
            runs * ~goes_on * remainder
        ).sum(0)

    def hidden_states(self, *arguments: Any, **options: Any) -> Tensor:
        return self.finish(0, self.ponder(*arguments, **options)[0])


def loss(
    model: UniversalTransformer,
    tokens: Tensor,
    targets: Tensor,
    loops: Sequence[int],
    noise: Noise,
    train: TrainConfig,
) -> Tensor:
    """Mean cross-entropy in nats, plus the mean ponder cost times its weight."""
    mean, cost = model.ponder(tokens, loops, noise, train.backprop_depth, train.recompute)
    return model.loss(model.finish(0, mean), targets) + model.config.ponder_weight * cost.mean()


def initialise(config: Config, seed: int) -> UniversalTransformer:
    """An untrained model with the weights of the untrained `LoopedTransformer`."""
    model = UniversalTransformer(config)
    model.load_state_dict(initialise_weights(config, seed).state_dict())
    return model


ARCHITECTURE = Architecture(Config, UniversalTransformer, initialise, flops_per_token, loss)
