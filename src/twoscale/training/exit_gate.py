"""The default training loss, and training of the exit gate with the model.

That is Ouro's first stage (Zhu et al., arXiv 2510.25741). After loop step k the gate reads lambda^k from the state of
a token, and p^k = lambda^k prod_{j<k} (1 - lambda^j) is the probability that the token leaves there; the rest is that
of the last loop step. The loss of a token is

    sum_k p^k CE^k - beta H(p)

with CE^k the cross-entropy if all tokens leave with their x^k, decoded through the layers after the group, and H the
entropy of p in nats, which keeps p from collapsing onto one loop step: a uniform prior, up to a constant. Ouro has no
layers after its group and a fixed number of loop steps; here p is over the loop steps drawn for the iteration. The
gradient reaches the gate and, through both p and CE, the whole model.
"""

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from twoscale.config import TrainConfig
from twoscale.model.interface import Gated, LoopedModel, Noise
from twoscale.model.loss import exit_log_probabilities


def default_loss(
    model: LoopedModel, tokens: Tensor, targets: Tensor, loops: Sequence[int], noise: Noise, train: TrainConfig
) -> Tensor:
    """The `Loss` of an architecture without its own (`twoscale.model.registry`)."""
    if train.exit_gate is not None:
        return exit_gate_loss(cast(Gated, model), tokens, targets, loops[0], noise, train)
    return model.loss(model.hidden_states(tokens, loops, noise, train.backprop_depth, train.recompute), targets)


def exit_gate_loss(
    model: Gated, tokens: Tensor, targets: Tensor, loops: int, noise: Noise, train: TrainConfig
) -> Tensor:
    """Mean loss in nats of `tokens` (B, T) against the ids `targets` (B, T) after up to `loops` loop steps.

    `model` has one looped group and an exit gate. Of `train` it reads exit_gate, backprop_depth and recompute.
    """
    assert train.exit_gate is not None
    states, hidden = model.exit_states(tokens, loops, noise, train.backprop_depth, train.recompute)  # (K, B, T, C)
    log_p = exit_log_probabilities(model.exit_gate_logit(states))  # (K, B, T)
    p = log_p.exp()
    # `loss` is a mean over exits too
    expected = loops * model.loss(hidden, targets.expand(p.shape), p)
    entropy = -(p * log_p).sum(0).mean()
    return expected - train.exit_gate.entropy_weight * entropy
