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
    return acceleration(update, previous) / (norm(update) + norm(previous) + EPSILON)


def relative(length: Tensor, state: Tensor) -> Tensor:
    """A length over the norm of the state it starts from (§4, the scale-free forms)."""
    return length / (norm(state) + EPSILON)


def above_floor(update: Tensor, state: Tensor) -> Tensor:
    """Whether an update (..., C) is longer than the rounding of its state: (...) bool.

    Below 16 units of rounding its direction is that of the rounding errors, and the cosine of two such
    steps is near -0.5 whatever the model does.
    """
    return norm(update) > FLOOR_FACTOR * torch.finfo(state.dtype).eps * norm(state)


def step_measures(state: Tensor, update: Tensor, previous: Tensor | None) -> dict[str, Tensor]:
    """All measures of loop step k: x^k, x^{k+1} - x^k and the update before (None at k = 0), each (..., C).

    Undefined values are NaN: whatever compares two updates at k = 0, the cosine also where one of them is
    under the rounding floor.
    """
    length = norm(update)
    measured = {
        "state_norm": norm(state),
        "step_norm": length,
        "step_norm_relative": relative(length, state),
    }
    if previous is None:
        undefined = torch.full_like(length, torch.nan)
        names = ("cosine", "acceleration", "acceleration_normalized", "acceleration_relative")
        return measured | dict.fromkeys(names, undefined)
    sound = above_floor(update, state) & above_floor(previous, state)
    bend = acceleration(update, previous)
    return measured | {
        "cosine": cosine(update, previous).where(sound, torch.nan),
        "acceleration": bend,
        "acceleration_normalized": acceleration_normalized(update, previous),
        "acceleration_relative": relative(bend, state),
    }


def drift_to_loop(jump: Tensor, step_norms: Tensor) -> tuple[Tensor, Tensor]:
    """Drift-to-loop ratio (Eq. 2) and the same jump over the whole loop path.

    jump (...): the distance from the last state of a group to the first of the next. step_norms (K, ...):
    the norms of the K updates of the group left. The ratio to the mean step grows with K as the steps
    shrink; the ratio to their sum does not.
    """
    return jump / step_norms.mean(0), jump / step_norms.sum(0)
