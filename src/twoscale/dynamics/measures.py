"""The geometry of a loop, once: step norms, angles, acceleration, drift (design of the paper §2, §3.1, §4).

All functions work on states x^k of any leading shape (..., C) and reduce the last axis. Index 0 is the
initial state: the update k leads from x^k to x^{k+1}, and what compares two updates belongs to the later.
"""

import torch
from torch import Tensor

EPSILON = 1e-8  # keeps ratios finite
FLOOR_FACTOR = 16  # a step norm below this many units of rounding of the state is noise


def norm(vector: Tensor) -> Tensor:
    """Euclidean norm over the width: (..., C) -> (...)."""
    return torch.linalg.vector_norm(vector, dim=-1)


def cosine(update: Tensor, previous: Tensor) -> Tensor:
    """cos of the angle between two updates (paper §2): (..., C) twice -> (...)."""
    return (update * previous).sum(-1) / (norm(update) * norm(previous))


def acceleration(update: Tensor, previous: Tensor) -> Tensor:
    """a^k = ||update^k - update^{k-1}|| (Eq. 5): (..., C) twice -> (...)."""
    return norm(update - previous)


def acceleration_normalized(update: Tensor, previous: Tensor) -> Tensor:
    """a^k over the sum of both step norms (Eq. 6).

    The paper bounds it by 2; by the triangle inequality it never exceeds 1.
    """
    return over_both(acceleration(update, previous), norm(update), norm(previous))


def over_both(bend: Tensor, length: Tensor, previous_length: Tensor) -> Tensor:
    """The ratio of Eq. 6 from norms that are known already."""
    return bend / (length + previous_length + EPSILON)


def relative(length: Tensor, state: Tensor) -> Tensor:
    """A length over the norm of the state it starts from (§4, the scale-free forms)."""
    return length / (norm(state) + EPSILON)


def rounding_floor(state_norm: Tensor) -> Tensor:
    """The step norm up to which a step out of a state of this norm (...) is rounding.

    Below 16 units of rounding the direction of an update is that of the rounding errors, and the cosine of
    two such updates is near -0.5 whatever the model does.
    """
    return FLOOR_FACTOR * torch.finfo(state_norm.dtype).eps * state_norm


def step_measures(state: Tensor, update: Tensor, previous: Tensor | None) -> dict[str, Tensor]:
    """All measures of loop step k: x^k, x^{k+1} - x^k and the update before (None at k = 0), each (..., C).

    Undefined values are NaN: whatever compares two updates at k = 0, the cosine also where one of them is
    under the rounding floor.
    """
    size, length = norm(state), norm(update)
    measured = {
        "state_norm": size,
        "step_norm": length,
        "step_norm_relative": relative(length, state),
    }
    if previous is None:
        undefined = torch.full_like(length, torch.nan)
        names = ("cosine", "acceleration", "acceleration_normalized", "acceleration_relative")
        return measured | dict.fromkeys(names, undefined)
    previous_length, bend = norm(previous), acceleration(update, previous)
    sound = torch.minimum(length, previous_length) > rounding_floor(size)
    return measured | {
        "cosine": cosine(update, previous).where(sound, torch.nan),
        "acceleration": bend,
        "acceleration_normalized": over_both(bend, length, previous_length),
        "acceleration_relative": relative(bend, state),
    }


def drift_to_loop(jump: Tensor, step_norms: Tensor) -> tuple[Tensor, Tensor]:
    """Drift-to-loop ratio (Eq. 2) and the same jump over the whole loop path.

    jump (...): the distance from the last state of a group to the first of the next. step_norms (K, ...):
    the norms of the K updates of the group left. The ratio to the mean step grows with K as the steps
    shrink; the ratio to their sum does not.
    """
    return jump / step_norms.mean(0), jump / step_norms.sum(0)


def path_distances(path: Tensor) -> Tensor:
    """Distances between all states of a loop: x^0 … x^K (..., K + 1, C) -> (..., K + 1, K + 1).

    They hold the shape of a path whatever its place and direction: the step norms stand beside the diagonal,
    the distances to the final state in the last column. Differences are taken before they are squared, so a
    small distance between large states keeps its digits.
    """
    return torch.cdist(path, path, compute_mode="donot_use_mm_for_euclid_dist")


def effective_dimension(distances: Tensor) -> Tensor:
    """Participation ratio (sum λ)² / sum λ² of the covariance of a path: `path_distances` -> (...).

    1 on a straight line, 2 on a circle, n where n directions share the variance; NaN for a path that rests.
    The covariance and the centred Gram matrix of the states share their eigenvalues λ, and the latter is the
    squared distances centred twice (classical scaling), so the sums are a trace and a Frobenius norm.
    """
    squared = distances.square()
    gram = (squared.mean(-1, keepdim=True) + squared.mean(-2, keepdim=True) - squared) / 2
    gram -= squared.mean((-2, -1), keepdim=True) / 2
    return gram.diagonal(dim1=-2, dim2=-1).sum(-1).square() / gram.square().sum((-2, -1))


def contraction_rate(step_norms: Tensor, sound: Tensor) -> Tensor:
    """Factor by which a step norm shrinks from one loop step to the next, fitted: (..., K) -> (...).

    exp of the least-squares slope of log ||update^k|| over the steps that `sound` (..., K) marks, those above
    the rounding floor; NaN where fewer than two are.
    """
    weight = sound.to(step_norms.dtype)
    count = weight.sum(-1, keepdim=True)
    k = torch.arange(step_norms.shape[-1], dtype=step_norms.dtype, device=step_norms.device)
    offset = (k - (weight * k).sum(-1, keepdim=True) / count) * weight  # from the mean of the sound steps
    logarithm = step_norms.log().where(sound, 0)
    slope = (offset * logarithm).sum(-1) / offset.square().sum(-1)
    return slope.exp()
