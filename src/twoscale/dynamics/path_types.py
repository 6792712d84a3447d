"""Kinds of trajectories: what a token's path through a loop has come to by its last steps.

Geiping et al. (2025) see three in projections of the latent space: paths that converge, orbits, and
sliders, which drift on in one direction. Here each has a criterion, applied to the last `path_types.window` loop
steps in the full space; a path that meets none is undecided. All tensors have the tokens' axes first (...).
"""

import torch
from torch import Tensor

from twoscale.dynamics import measures
from twoscale import config

PATH_TYPES = ("converging", "orbiting", "sliding", "undecided")


def classify(distances: Tensor, floor: Tensor, chosen: config.PathTypesConfig) -> dict[str, Tensor]:
    """The kind of each path, as an index into PATH_TYPES, and the numbers that decided it; each (...).

    distances: `measures.path_distances`, (..., K + 1, K + 1). floor: what the last step has to exceed to be
    more than rounding, (...). In this order, a path is

    - converging, if its steps shrink by `converging_rate` or faster, or have reached the floor;
    - orbiting with the smallest period p >= 2 after which it is back, on average, to within
      `return_tolerance` of a mean step;
    - sliding, if the window's two ends are at least `straightness` times its length apart.

    "settling_rate" is the fitted decay of the step norms in the window, "return_ratio" the smallest mean
    distance at a lag of 2 … `max_period`, in mean steps, "straightness" the ends' distance over the length,
    "period" that of an orbit and 0 for all other kinds.
    """
    tail = distances[..., -chosen.window - 1 :, -chosen.window - 1 :]
    steps = lagged(tail, 1)  # (..., window)
    rate = measures.contraction_rate(steps, steps > floor[..., None])
    returns = torch.stack([lagged(tail, p).mean(-1) for p in range(2, chosen.max_period + 1)], dim=-1)
    returns /= steps.mean(-1, keepdim=True)
    closed = returns <= chosen.return_tolerance
    straightness = tail[..., 0, -1] / steps.sum(-1)

    converging = (rate <= chosen.converging_rate) | (steps[..., -1] <= floor)
    orbiting = closed.any(-1) & ~converging
    kind = torch.full_like(rate, PATH_TYPES.index("undecided"), dtype=torch.long)
    kind[straightness >= chosen.straightness] = PATH_TYPES.index("sliding")
    kind[orbiting] = PATH_TYPES.index("orbiting")
    kind[converging] = PATH_TYPES.index("converging")
    period = closed.int().argmax(-1) + 2  # the first lag that closes
    return {
        "path_type": kind,
        "period": period.where(orbiting, 0),
        "settling_rate": rate,
        "return_ratio": returns.amin(-1),
        "straightness": straightness,
    }


def lagged(distances: Tensor, lag: int) -> Tensor:
    """Distances between the states k and k + lag of a path of n states: (..., n - lag)."""
    return distances.diagonal(lag, -2, -1)
