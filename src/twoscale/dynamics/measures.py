"""The geometry of a loop: step norms, angles, acceleration and drift (paper §2, §3.1, §4).

States x^k have any leading shape (..., C). Index 0 is the initial state: update k leads from x^k to
x^{k+1}, and a comparison of two updates has the index of the later one. A measure per loop step is
a function of one `LoopStep`:

    @loop_measure("step_norm_squared", unit="state^2")
    def step_norm_squared(step: LoopStep) -> Tensor:
        return step.step_norm**2

Its column in the table "trajectories", its unit there and its rows in "loop_metrics" follow from
the registry. So does its second reading, in the column direction_<name>: the same function of
directions x^k / ||x^k||, which is what a readout that begins with a norm sees. Per-trajectory
measures do the same with `path_measure` and "token_paths".

The unit "state" is the unit of the hidden states; "1" marks a ratio.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from twoscale.config import PathTypesConfig
from twoscale.dynamics.vectors import (
    acceleration,
    cosine_from_norms,
    norm,
    over_both,
    over_norm,
    rounding_floor,
)

DIRECTION = "direction_"  # prefix of a measure of directions

# --- measures per loop step -----------------------------------------------------------------------


@dataclass(frozen=True)
class LoopStep:
    """Loop step k, or the last state x^K, which no update follows."""

    state: Tensor  # x^k (..., C)
    update: Any  # x^{k+1} - x^k (..., C); None at the last state
    previous_update: Any  # x^k - x^{k-1} (..., C); None at k = 0
    previous_norm: Any  # its norm (...); None at k = 0
    distance_to_final: Tensor  # ||x^K - x^k|| (...)
    # of the states before they were converted to be measured; None: they were not
    precision: torch.dtype | None = None

    @cached_property
    def state_norm(self) -> Tensor:
        return norm(self.state)

    @cached_property
    def step_norm(self) -> Tensor:
        return norm(self.update)

    @cached_property
    def acceleration(self) -> Tensor:
        return acceleration(self.update, self.previous_update)

    @cached_property
    def above_floor(self) -> Tensor:
        """Whether the updates, one at k = 0, exceed the rounding floor, bool (...)."""
        shorter = self.step_norm
        if self.previous_norm is not None:
            shorter = torch.minimum(shorter, self.previous_norm)
        return shorter > rounding_floor(self.state_norm, self.precision)

    def unless_rounding(self, comparison: Tensor) -> Tensor:
        """A comparison of both updates (...); NaN if one of them is under the rounding floor."""
        return comparison.where(self.above_floor, torch.nan)


@dataclass(frozen=True)
class Measure:
    """A registered measure."""

    name: str  # of its column, and in the column `measure` of aggregated tables
    unit: str
    compute: Callable[[Any], Tensor]  # `LoopStep` or `LoopPath` -> (...)
    needs_update: bool = True  # it is undefined at the last state
    needs_previous: bool = False  # it is undefined at k = 0
    of_direction: bool = False  # it is computed of the `LoopStep` of directions

    def defined(self, step: LoopStep) -> bool:
        if step.update is None and self.needs_update:
            return False
        return not (step.previous_update is None and self.needs_previous)


LOOP_MEASURES: dict[str, Measure] = {}  # in the order of their columns in "trajectories"
PATH_MEASURES: dict[str, Measure] = {}  # in the order of their columns in "token_paths"


def loop_measure(
    name: str,
    *,
    unit: str,
    needs_update: bool = True,
    needs_previous: bool = False,
    of_direction: bool = True,
) -> Callable:
    """Register a function `LoopStep` -> (...) as a measure of states, and one of directions.

    It is called only for steps with the updates that it needs; for others the measure is NaN.
    `of_direction` is false where the measure of directions would be constant or equal to another
    one.
    """

    def decorator(function: Callable[[LoopStep], Tensor]) -> Callable[[LoopStep], Tensor]:
        of_state = Measure(name, unit, function, needs_update, needs_previous)
        _register(LOOP_MEASURES, of_state)
        if of_direction:
            unit_of_direction = unit.replace("state", "1")
            second = replace(of_state, name=DIRECTION + name, unit=unit_of_direction)
            _register(LOOP_MEASURES, replace(second, of_direction=True))
        return function

    return decorator


def path_measure(name: str, *, unit: str) -> Callable:
    """Register a function `LoopPath` -> (...) as a per-trajectory measure."""

    def decorator(function: Callable[["LoopPath"], Tensor]) -> Callable[["LoopPath"], Tensor]:
        _register(PATH_MEASURES, Measure(name, unit, function))
        return function

    return decorator


def _register(registry: dict[str, Measure], measure: Measure) -> None:
    if measure.name in registry:
        raise ValueError(f"measure {measure.name!r} is registered twice")
    registry[measure.name] = measure


def loop_steps(
    states: Iterable[Tensor],
    distances_to_final: Iterable[Tensor],
    precision: torch.dtype | None = None,
) -> Iterator[LoopStep]:
    """The loop steps of one group, then its last state.

    `states` are x^0 … x^K (..., C), of which three are held at a time, and `distances_to_final`
    theirs (...).
    """
    previous_update = previous_norm = None
    ends: Iterator[tuple[Any, Any]] = pairwise(chain(states, [None]))  # (x^k, x^{k+1})
    for (state, after), distance in zip(ends, distances_to_final, strict=False):
        update = None if after is None else after - state  # Δ^k (Eq. 1)
        step = LoopStep(state, update, previous_update, previous_norm, distance, precision)
        yield step
        if update is not None:
            previous_update = update
            previous_norm = step.step_norm


def measure_step(step: LoopStep, measures: Iterable[Measure] | None = None) -> dict[str, Tensor]:
    """Measures of a loop step, by default all of states, name -> (...); NaN where undefined."""
    undefined = torch.full_like(step.state_norm, torch.nan)
    return {
        measure.name: measure.compute(step) if measure.defined(step) else undefined
        for measure in measures or measures_of(directions=False)
    }


def measures_of(directions: bool) -> list[Measure]:
    """The registered measures per loop step of states, or of directions."""
    return [measure for measure in LOOP_MEASURES.values() if measure.of_direction is directions]


def measure_steps(
    states: Sequence[Tensor], distances_to_final: Tensor, precision: torch.dtype | None = None
) -> dict[str, Tensor]:
    """All registered measures of all loop steps and the last state, name -> (K + 1, ...).

    The arguments are those of `loop_steps`, `distances_to_final` (K + 1, ...).
    """
    directions = [direction(state) for state in states]
    from_last = torch.stack([norm(directions[-1] - start) for start in directions])  # (K + 1, ...)
    of_states = loop_steps(states, distances_to_final, precision)
    rows = [measure_step(step) for step in of_states]
    of_directions = loop_steps(directions, from_last, precision)
    registered = measures_of(directions=True)
    for row, step in zip(rows, of_directions, strict=True):
        row |= measure_step(step, registered)
    return {name: torch.stack([row[name] for row in rows]) for name in LOOP_MEASURES}


def direction(state: Tensor) -> Tensor:
    """x / ||x||, what a readout that begins with a norm sees: (..., C) -> (..., C).

    NaN for a state of norm zero.
    """
    return state / norm(state)[..., None]


# The norm of a direction is constant, its relative step norm equals its step norm.
loop_measure("state_norm", unit="state", needs_update=False, of_direction=False)(
    attrgetter("state_norm")
)
loop_measure("step_norm", unit="state")(attrgetter("step_norm"))
# ||Δ^k|| / ||x^k||, the normalized variant of §4
loop_measure("step_norm_relative", unit="1", of_direction=False)(
    lambda step: over_norm(step.step_norm, step.state_norm)
)


@loop_measure("cosine", unit="1", needs_previous=True)
def _cosine(step: LoopStep) -> Tensor:
    # cos of the angle between Δ^k and Δ^{k-1} (§2)
    cosine = cosine_from_norms(
        step.update, step.previous_update, step.step_norm, step.previous_norm
    )
    return step.unless_rounding(cosine)


loop_measure("acceleration", unit="state", needs_previous=True)(
    lambda step: step.unless_rounding(step.acceleration)
)


@loop_measure("acceleration_normalized", unit="1", needs_previous=True)
def _acceleration_normalized(step: LoopStep) -> Tensor:
    # a^k / (||Δ^k|| + ||Δ^{k-1}||) (Eq. 6)
    return step.unless_rounding(over_both(step.acceleration, step.step_norm, step.previous_norm))


@loop_measure("acceleration_relative", unit="1", needs_previous=True, of_direction=False)
def _acceleration_relative(step: LoopStep) -> Tensor:
    # a^k / ||x^k||, the other denominator that §4 names
    return step.unless_rounding(over_norm(step.acceleration, step.state_norm))


loop_measure("distance_to_final", unit="state", needs_update=False)(attrgetter("distance_to_final"))


# --- whole trajectories and drift between groups --------------------------------------------------


def drift_to_loop(jump: Tensor, step_norms: Tensor) -> tuple[Tensor, Tensor]:
    """Drift-to-loop ratio (Eq. 2), and the same jump over the whole path of the loop.

    The jump (...) leads from the last state of a group to the reference state of the next, and
    step_norms (K, ...) are those of the first group. The ratio to their mean grows with K as steps
    shrink, that to their sum does not.
    """
    return jump / step_norms.mean(0), jump / step_norms.sum(0)


def path_distances(path: Tensor) -> Tensor:
    """Distances between all states of a loop: x^0 … x^K (..., K + 1, C) -> (..., K + 1, K + 1).

    The step norms are next to the diagonal, the distances to the final state in the last column.
    Differences are computed before they are squared, so a small distance between large states keeps
    its digits.
    """
    return torch.cdist(path, path, compute_mode="donot_use_mm_for_euclid_dist")


def effective_dimension(distances: Tensor) -> Tensor:
    """Participation ratio (sum λ)² / sum λ² of the covariance of a path: `path_distances` -> (...).

    1 on a straight line, 2 on a circle, n if n directions share the variance; NaN if all states are
    equal.
    """
    # The covariance and the centred Gram matrix of the states have the same eigenvalues λ, and the
    # Gram matrix is the matrix of squared distances centred twice (classical scaling). So sum λ is
    # a trace, sum λ² a squared Frobenius norm.
    squared = distances.square()  # (..., K + 1, K + 1)
    of_rows = squared.mean(-1, keepdim=True)
    of_columns = squared.mean(-2, keepdim=True)
    of_all = squared.mean((-2, -1), keepdim=True)
    # G_ij = (mean_j d_ij^2 + mean_i d_ij^2 - d_ij^2 - mean_ij d_ij^2) / 2
    gram = (of_rows + of_columns - squared) / 2
    gram -= of_all / 2
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)  # sum λ
    frobenius = gram.square().sum((-2, -1))  # sum λ²
    return trace.square() / frobenius


def contraction_rate(step_norms: Tensor, above_floor: Tensor) -> Tensor:
    """Fitted factor by which step norms shrink per loop step: (..., K) twice -> (...).

    exp of the least-squares slope of log ||update^k|| over the steps above the rounding floor
    (bool); NaN if these are fewer than two.
    """
    weight = above_floor.to(step_norms.dtype)  # 1 for the steps that are fitted
    count = weight.sum(-1, keepdim=True)
    k = torch.arange(step_norms.shape[-1], dtype=step_norms.dtype, device=step_norms.device)
    mean = (weight * k).sum(-1, keepdim=True) / count
    offset = (k - mean) * weight  # from the mean of the fitted k; 0 for steps that are left out
    # a step of norm 0 would make the sum NaN through 0 times -inf
    logarithm = step_norms.log().where(above_floor, 0)
    # least squares: sum (k - mean) log ||update^k|| / sum (k - mean)^2
    slope = (offset * logarithm).sum(-1) / offset.square().sum(-1)
    return slope.exp()


# --- path types: how the trajectory of a token ends -----------------------------------------------

# Geiping et al. (2025) see the first three in projections of the latent space. Here each has a
# criterion, applied in the full space to the last `path_types.window` loop steps; a path that meets
# none is undecided.
PATH_TYPES = ("converging", "orbiting", "sliding", "undecided")


@dataclass(frozen=True)
class LoopPath:
    """The path x^0 … x^K of tokens through one group.

    Quantities that several measures need are computed once.
    """

    distances: Tensor  # `path_distances`, (..., K + 1, K + 1)
    step_norms: Tensor  # of the updates, (..., K)
    rounding_floor: Tensor  # step norm up to which a step from each state is rounding, (..., K + 1)
    config: PathTypesConfig

    @cached_property
    def window(self) -> Tensor:
        """Distances between the last window + 1 states, (..., window + 1, window + 1).

        A shorter path has all its states.
        """
        states = self.config.window + 1
        return self.distances[..., -states:, -states:]

    @cached_property
    def window_steps(self) -> Tensor:
        """Step norms in the window, (..., window)."""
        return lagged(self.window, 1)

    @cached_property
    def convergence_rate(self) -> Tensor:
        """Fitted decay of the step norms in the window, (...)."""
        is_above = self.window_steps > self.rounding_floor[..., -1:]  # that of the last state
        return contraction_rate(self.window_steps, is_above)

    @cached_property
    def return_ratios(self) -> Tensor:
        """Mean distance at lags of 2 … max_period in the window, in mean steps, (..., lags)."""
        most = min(self.config.max_period, self.window_steps.shape[-1])
        lags = range(2, most + 1)
        returns = torch.stack([lagged(self.window, lag).mean(-1) for lag in lags], dim=-1)
        return returns / self.window_steps.mean(-1, keepdim=True)  # 0: closed

    @cached_property
    def straightness(self) -> Tensor:
        """Distance between the two ends of the window over the length of the path in it."""
        return self.window[..., 0, -1] / self.window_steps.sum(-1)  # 1: straight, 0: closed


@path_measure("contraction_rate", unit="1")
def _contraction_rate(path: LoopPath) -> Tensor:
    """Fitted decay of the step norms above the rounding floor.

    The first step is left out: it starts from x^0, which is noise by default.
    """
    steps = path.step_norms[..., 1:]
    # the floor of a step is that of the state from which it starts
    return contraction_rate(steps, steps > path.rounding_floor[..., 1:-1])


path_measure("effective_dimension", unit="1")(lambda path: effective_dimension(path.distances))
path_measure("convergence_rate", unit="1")(attrgetter("convergence_rate"))
path_measure("return_ratio", unit="1")(lambda path: path.return_ratios.amin(-1))  # the smallest
path_measure("straightness", unit="1")(attrgetter("straightness"))


def measure_path(path: LoopPath) -> dict[str, Tensor]:
    return {name: measure.compute(path) for name, measure in PATH_MEASURES.items()}


def classify(path: LoopPath) -> tuple[Tensor, Tensor]:
    """The path type as an index into `PATH_TYPES`, and the period of an orbit, (...) each.

    The period is 0 for other types. The criteria are tried in this order. A path is

    - converging, if its steps shrink by `converging_rate` or faster, or have reached the rounding
      floor;
    - orbiting with the smallest period p >= 2 after which it is back, on average, to within
      `return_tolerance` of a mean step;
    - sliding, if the ends of the window are at least `straightness` times the length of its path
      apart.
    """
    config = path.config
    closed = path.return_ratios <= config.return_tolerance  # (..., lags)
    at_floor = path.window_steps[..., -1] <= path.rounding_floor[..., -1]
    converging = (path.convergence_rate <= config.converging_rate) | at_floor
    orbiting = closed.any(-1) & ~converging
    # written in the reverse order of the criteria, so that an earlier one overwrites a later one
    number = {name: place for place, name in enumerate(PATH_TYPES)}
    sliding = path.straightness >= config.straightness
    path_type = torch.full_like(converging, number["undecided"], dtype=torch.long)
    path_type[sliding] = number["sliding"]
    path_type[orbiting] = number["orbiting"]
    path_type[converging] = number["converging"]
    period = closed.int().argmax(-1) + 2  # argmax of 0 and 1: the first lag; lags begin at 2
    return path_type, period.where(orbiting, 0)


def lagged(distances: Tensor, lag: int) -> Tensor:
    """Distances between states k and k + lag of n states: (..., n, n) -> (..., n - lag)."""
    return distances.diagonal(lag, -2, -1)
