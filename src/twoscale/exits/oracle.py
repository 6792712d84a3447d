"""Evaluations of an oracle that knows every later loop step of a token.

No criterion can know what it knows, so it bounds what exits per token can save. Two oracles: one leaves as soon as a
token is converged, the other buys loop steps where they reduce the loss most.
"""

import torch
from torch import Tensor


def converged_from(predictions: Tensor) -> Tensor:
    """First index along the first axis from which a value equals the last one: (L, …) -> (…) int64."""
    return _agrees_from(predictions == predictions[-1])


def converged_within(losses: Tensor, tolerance: float) -> Tensor:
    """First index along the first axis from which a loss stays at most `tolerance` above the last: (L, …) -> (…) int64.

    A loss below the last one counts as converged.
    """
    return _agrees_from(losses <= losses[-1] + tolerance)


def _agrees_from(agrees: Tensor) -> Tensor:
    """First index from which `agrees` is true to the end; true at the end: (L, …) -> (…) int64."""
    return len(agrees) - agrees.to(torch.int64).flip(0).cumprod(0).sum(0)


def exit_costs(states: int, device: torch.device) -> Tensor:
    """Evaluations that lead to each of the states x^0, x^1, …: int64 (states,).

    1 for x^0, because no criterion can decide before the first evaluation.
    """
    return torch.arange(states, device=device).clamp_(min=1)


def cheapest_exits(losses: Tensor, price: float) -> Tensor:
    """The exit of each token with the least loss + price x evaluations, for losses of x^0, x^1, …: (L, …) -> (…) int64.

    price: nats per evaluation. Of exits that cost the same the first one is taken. Over all prices these are the lower
    convex hull of what exits per token can reach: no choice of exits with the same mean evaluations has a lower loss
    than a point between two of them.
    """
    costs = exit_costs(len(losses), losses.device).to(losses.dtype)
    return (losses + price * costs.view(-1, *(1,) * (losses.dim() - 1))).argmin(0)
