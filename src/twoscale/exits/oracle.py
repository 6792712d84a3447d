"""What an oracle that knows every later loop step would spend on a token.

No criterion can know what it knows, so it bounds what exits per token can save.
"""

import torch
from torch import Tensor


def settled_from(predictions: Tensor) -> Tensor:
    """First index along the first axis from which a value is that of the last one: (L, …) -> (…) int64."""
    return _agrees_from(predictions == predictions[-1])


def settled_within(losses: Tensor, tolerance: float) -> Tensor:
    """First index along the first axis from which a loss stays at most `tolerance` above the last: (L, …) -> (…) int64.

    A loss below that of the last index is none: it counts as settled.
    """
    return _agrees_from(losses <= losses[-1] + tolerance)


def _agrees_from(agrees: Tensor) -> Tensor:
    """First index from which `agrees` is true to the end; true at the end: (L, …) -> (…) int64."""
    return len(agrees) - agrees.to(torch.int64).flip(0).cumprod(0).sum(0)
