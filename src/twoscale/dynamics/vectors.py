"""Norms, angles and acceleration of states and updates (paper §2, §4), each defined once.

All functions take vectors of any leading shape (..., C) and reduce the last axis.
"""

import torch
from torch import Tensor

FLOOR_FACTOR = 16  # a step norm below this many units of rounding of the state is noise
CACHED_NUMBERS = 2**18  # floats that fit into the cache of a core


def norm(vector: Tensor) -> Tensor:
    """Euclidean norm over the hidden size: (..., C) -> (...)."""
    return torch.linalg.vector_norm(vector, dim=-1)


def cosine(update: Tensor, previous: Tensor) -> Tensor:
    """Cosine of the angle between two updates (paper §2): (..., C) twice -> (...)."""
    return cosine_from_norms(update, previous, norm(update), norm(previous))


def cosine_from_norms(
    update: Tensor, previous: Tensor, update_norm: Tensor, previous_norm: Tensor
) -> Tensor:
    """`cosine` of updates (..., C) whose norms (...) are known."""
    return (update * previous).sum(-1) / (update_norm * previous_norm)


def acceleration(update: Tensor, previous: Tensor) -> Tensor:
    """a^k = ||update^k - update^{k-1}|| (Eq. 5): (..., C) twice -> (...)."""
    return norm(update - previous)


def acceleration_normalized(update: Tensor, previous: Tensor) -> Tensor:
    """a^k over the sum of both step norms (Eq. 6): (..., C) twice -> (...).

    At most 1, by the triangle inequality.
    """
    return over_both(acceleration(update, previous), norm(update), norm(previous))


def over_both(acceleration: Tensor, update_norm: Tensor, previous_norm: Tensor) -> Tensor:
    """The ratio of Eq. 6 from norms: (...) each; 0 for two steps of length zero."""
    tiny = torch.finfo(acceleration.dtype).tiny  # an absolute ε would decide ratios of short steps
    return acceleration / (update_norm + previous_norm + tiny)


def relative(length: Tensor, state: Tensor) -> Tensor:
    """A length (...) over the norm of the state (..., C) that it starts from (scale-free, §4)."""
    return over_norm(length, norm(state))


def over_norm(length: Tensor, state_norm: Tensor) -> Tensor:
    """`relative` from norms: (...) each.

    The ε below Eq. 3 is one unit of rounding of the length, so the ratio is finite for a state of
    norm zero too: it is 1 / eps, or 0 for a length of zero.
    """
    precision = torch.finfo(length.dtype)
    return length / (state_norm + precision.eps * length + precision.tiny)


def rounding_floor(state_norm: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The step norm up to which a step from a state of this norm (...) is rounding.

    Below 16 units of rounding, rounding errors decide the direction of an update, and the cosine of
    two such updates is near -0.5 for any model. `dtype` is the dtype of the states, if they were
    converted to be measured.
    """
    return FLOOR_FACTOR * torch.finfo(dtype or state_norm.dtype).eps * state_norm


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats of distributions given as logarithms: (N, V) twice -> (N,)."""
    rows = max(1, CACHED_NUMBERS // log_p.shape[-1])
    if log_p.is_cuda or len(log_p) <= rows:
        return torch.linalg.vecdot(log_p.exp(), log_p - log_q)  # sum over V of p (log p - log q)
    parts = []  # three times as fast in parts that fit into the cache
    for p, q in zip(log_p.split(rows), log_q.split(rows), strict=True):
        parts.append(kl_divergence(p, q))
    return torch.cat(parts)
