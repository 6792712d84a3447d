"""How the trajectory of a token ends: converging, orbiting or sliding; and the per-trajectory measures.

Geiping et al. (2025) see these three path types in projections of the latent space. Here each has a criterion,
applied in the full space to the last `path_types.window` loop steps; a path that meets none is undecided.
All tensors begin with the axes of the tokens (...).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from twoscale.config import PathTypesConfig
from twoscale.dynamics import measures
from twoscale.dynamics.measures import path_measure

PATH_TYPES = ("converging", "orbiting", "sliding", "undecided")


@dataclass(frozen=True)
class LoopPath:
    """The path x^0 … x^K of tokens through one group; quantities that several measures need are computed once."""

    distances: Tensor  # `measures.path_distances`, (..., K + 1, K + 1)
    step_norms: Tensor  # of the updates, (..., K)
    rounding_floor: Tensor  # step norm up to which a step from each state is rounding, (..., K + 1)
    config: PathTypesConfig

    @property
    def last_floor(self) -> Tensor:
        return self.rounding_floor[..., -1]

    @cached_property
    def window(self) -> Tensor:
        """Distances between the last window + 1 states, (..., window + 1, window + 1); all states of a shorter path."""
        states = self.config.window + 1
        return self.distances[..., -states:, -states:]

    @cached_property
    def window_steps(self) -> Tensor:
        """Step norms in the window, (..., window)."""
        return lagged(self.window, 1)

    @cached_property
    def convergence_rate(self) -> Tensor:
        return measures.contraction_rate(self.window_steps, self.window_steps > self.last_floor[..., None])

    @cached_property
    def return_ratios(self) -> Tensor:
        """Mean distance at lags of 2 … max_period in the window, in mean steps, (..., lags)."""
        lags = range(2, min(self.config.max_period, self.window_steps.shape[-1]) + 1)
        returns = torch.stack([lagged(self.window, lag).mean(-1) for lag in lags], dim=-1)
        return returns / self.window_steps.mean(-1, keepdim=True)

    @cached_property
    def straightness(self) -> Tensor:
        return self.window[..., 0, -1] / self.window_steps.sum(-1)


@path_measure("contraction_rate", unit="1")
def contraction_rate(path: LoopPath) -> Tensor:
    """Fitted decay of the step norms above the rounding floor.

    The first step is left out: it starts from x^0, which is noise by default.
    """
    steps = path.step_norms[..., 1:]
    return measures.contraction_rate(steps, steps > path.rounding_floor[..., 1:-1])


@path_measure("effective_dimension", unit="1")
def effective_dimension(path: LoopPath) -> Tensor:
    return measures.effective_dimension(path.distances)


@path_measure("convergence_rate", unit="1")
def convergence_rate(path: LoopPath) -> Tensor:
    """Fitted decay of the step norms in the window."""
    return path.convergence_rate


@path_measure("return_ratio", unit="1")
def return_ratio(path: LoopPath) -> Tensor:
    """Smallest mean distance at a lag of 2 … max_period in the window, in mean steps."""
    return path.return_ratios.amin(-1)


@path_measure("straightness", unit="1")
def straightness(path: LoopPath) -> Tensor:
    """Distance between the two ends of the window over the length of the path in it."""
    return path.straightness


def measure_path(path: LoopPath) -> dict[str, Tensor]:
    """All registered per-trajectory measures, (...) each."""
    return {name: measure.compute(path) for name, measure in measures.PATH_MEASURES.items()}


def classify(path: LoopPath) -> tuple[Tensor, Tensor]:
    """The path type as an index into `PATH_TYPES`, and the period of an orbit (0 for other types); (...) each.

    The criteria are tried in this order. A path is

    - converging, if its steps shrink by `converging_rate` or faster, or have reached the rounding floor;
    - orbiting with the smallest period p >= 2 after which it is back, on average, to within
      `return_tolerance` of a mean step;
    - sliding, if the ends of the window are at least `straightness` times the length of its path apart.
    """
    config = path.config
    closed = path.return_ratios <= config.return_tolerance  # (..., lags)
    at_floor = path.window_steps[..., -1] <= path.last_floor
    converging = (path.convergence_rate <= config.converging_rate) | at_floor
    orbiting = closed.any(-1) & ~converging
    # written in the reverse order of the criteria, so that an earlier one overwrites a later one
    path_type = torch.full_like(converging, PATH_TYPES.index("undecided"), dtype=torch.long)
    path_type[path.straightness >= config.straightness] = PATH_TYPES.index("sliding")
    path_type[orbiting] = PATH_TYPES.index("orbiting")
    path_type[converging] = PATH_TYPES.index("converging")
    period = closed.int().argmax(-1) + 2  # argmax of 0 and 1 is the first lag that closes; lags begin at 2
    return path_type, period.where(orbiting, 0)


def lagged(distances: Tensor, lag: int) -> Tensor:
    """Distances between the states k and k + lag of a path of n states: (..., n, n) -> (..., n - lag)."""
    return distances.diagonal(lag, -2, -1)
