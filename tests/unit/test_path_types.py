"""path_types: synthetic paths whose type is known."""

import math

import pytest
import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.config import PathTypesConfig
from twoscale.config.types import build
from twoscale.dynamics import measures, vectors
from twoscale.dynamics.measures import LoopPath

STEPS, WIDTH = 30, 6


def criteria(**changes) -> PathTypesConfig:
    return build(PathTypesConfig, changes, "path_types")


def loop_path(path: Tensor, floor: float | None = None, **changes) -> LoopPath:
    """A path (..., K + 1, C); the rounding floor is that of its states, or the same for all of
    them.
    """
    norms = vectors.norm(path)
    floors = vectors.rounding_floor(norms) if floor is None else torch.full_like(norms, floor)
    step_norms = vectors.norm(path.diff(dim=-2))
    return LoopPath(measures.path_distances(path), step_norms, floors, criteria(**changes))


def noise(scale: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(STEPS + 1, WIDTH, dtype=torch.float64, generator=generator)


def turning(angle: float, ratio: float = 1.0) -> Tensor:
    """x^k at `angle` k and radius `ratio`^k in a tilted plane of the space, around a point far from
    the origin.
    """
    plane, _ = torch.linalg.qr(noise(1.0, seed=1)[:WIDTH, :2])
    k = torch.arange(STEPS + 1, dtype=torch.float64)
    return 3 + (ratio**k)[:, None] * (
        torch.stack([(angle * k).cos(), (angle * k).sin()], dim=1) @ plane.T
    )


def cycle(period: int) -> Tensor:
    """The same `period` random states in turn: steps of unequal lengths."""
    return noise(1.0, seed=2)[:period].repeat(STEPS, 1)[: STEPS + 1]


def drift(speed: float = 0.1) -> Tensor:
    return torch.arange(STEPS + 1, dtype=torch.float64)[:, None] * torch.full(
        (WIDTH,), speed, dtype=torch.float64
    )


def walk(seed: int = 3) -> Tensor:
    return noise(1.0, seed).cumsum(0)


def type_of(path: Tensor, **changes) -> tuple[str, int]:
    """Path type and period of a path (K + 1, C)."""
    path_type, period = measures.classify(loop_path(path, **changes))
    return measures.PATH_TYPES[path_type.item()], period.item()


PATHS = {
    "straight approach": (
        drift()[-1] - drift() * 0.7 ** torch.arange(STEPS + 1.0)[:, None],
        "converging",
        0,
    ),
    "spiral inwards": (turning(2.0, ratio=0.8), "converging", 0),
    "slow spiral inwards": (turning(2 * math.pi / 3, ratio=0.93), "converging", 0),
    "damped flip": (turning(math.pi, ratio=0.9), "converging", 0),
    "rest": (torch.ones(STEPS + 1, WIDTH, dtype=torch.float64), "converging", 0),
    "flip": (turning(math.pi), "orbiting", 2),
    "cycle of two": (cycle(2), "orbiting", 2),
    "cycle of three": (cycle(3), "orbiting", 3),
    "cycle of five": (cycle(5), "orbiting", 5),
    "circle of eight": (turning(2 * math.pi / 8), "orbiting", 8),
    "circle that nearly closes": (turning(2 * math.pi / 6.1), "orbiting", 6),
    "noisy cycle": (cycle(3) + noise(0.05), "orbiting", 3),
    "transient, then a cycle": (cycle(3) + turning(0.0, ratio=0.3), "orbiting", 3),
    "drift": (drift(), "sliding", 0),
    "noisy drift": (drift() + noise(0.02), "sliding", 0),
    "accelerating drift": (drift() ** 2, "sliding", 0),
    "arc of a wide circle": (turning(0.1), "sliding", 0),
    "noise": (noise(1.0), "undecided", 0),
    "random walk": (walk(), "undecided", 0),
    "spiral outwards": (turning(2.0, ratio=1.2), "undecided", 0),
    "circle too long for its lag": (turning(2 * math.pi / 12), "undecided", 0),
}


@pytest.mark.parametrize(("path", "path_type", "period"), PATHS.values(), ids=PATHS)
def test_a_path_of_known_type_is_called_so(path, path_type, period):
    assert type_of(path) == (path_type, period)


def test_a_path_that_arrived_converges_whatever_its_rounding_does():
    assert type_of(torch.zeros(STEPS + 1, WIDTH, dtype=torch.float64)) == ("converging", 0)
    arrived = 1 + 1e-16 * noise(1.0)
    assert type_of(arrived) == ("converging", 0)
    assert type_of(arrived + 1e-12 * noise(1.0)) == ("undecided", 0)


def test_the_last_step_decides_whether_a_path_has_arrived():
    arrived, left = drift(), drift()
    arrived[-1] = arrived[-2]
    left[:-7] = left[-8]  # the window of eight steps begins with a rest
    assert type_of(arrived, window=8) == ("converging", 0)
    assert type_of(left, window=8) == ("sliding", 0)


def test_each_step_is_compared_with_the_floor_of_the_state_it_starts_from():
    steps = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    states = torch.cat([torch.zeros(1, dtype=torch.float64), steps.cumsum(0)])[:, None]
    floors = torch.tensor(
        [9.0, 0.0, 9.0, 0.0, 0.0, 9.0], dtype=torch.float64
    )  # only the step of length 2 is below
    path = LoopPath(
        measures.path_distances(states), steps, floors, criteria(window=3, max_period=2)
    )
    above = torch.tensor([True, False, True, True])
    assert measures.PATH_MEASURES["contraction_rate"].compute(path) == measures.contraction_rate(
        steps[1:], above
    )


@pytest.mark.parametrize(
    ("path", "measure", "key", "path_type"),
    [
        (turning(2.0, ratio=0.8), "convergence_rate", "converging_rate", "converging"),
        (cycle(3) + noise(0.05), "return_ratio", "return_tolerance", "orbiting"),
        (turning(0.1), "straightness", "straightness", "sliding"),
    ],
    ids=["rate", "tolerance", "straightness"],
)
def test_a_path_meets_a_criterion_that_it_equals(path, measure, key, path_type):
    equal = measures.measure_path(loop_path(path))[measure].item()
    assert type_of(path, **{key: equal})[0] == path_type


def test_each_token_is_judged_by_itself_with_the_numbers_that_decide():
    path = loop_path(
        torch.stack([turning(2.0, ratio=0.8), cycle(3), drift(), noise(1.0)]), floor=1e-12
    )
    path_type, period = measures.classify(path)
    measured = measures.measure_path(path)
    assert [measures.PATH_TYPES[index] for index in path_type] == list(measures.PATH_TYPES)
    assert period.tolist() == [0, 3, 0, 0]
    assert measured["convergence_rate"][0].item() == pytest.approx(0.8)
    assert measured["return_ratio"][1].item() == pytest.approx(0, abs=1e-9)
    assert measured["return_ratio"][2].item() == pytest.approx(2)
    assert measured["straightness"][2].item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("path", "changes", "path_type"),
    [
        (turning(2.0, ratio=0.8), {"converging_rate": 0.7}, "undecided"),
        (cycle(5), {"max_period": 4}, "undecided"),
        (cycle(3) + noise(0.05), {"return_tolerance": 0.01}, "undecided"),
        (turning(0.1), {"straightness": 0.99}, "undecided"),
        (
            torch.cat([drift()[:15], drift()[14:15].expand(16, -1) + noise(1.0)[:16]]),
            {"window": 30},
            "undecided",
        ),
    ],
    ids=["rate", "period", "tolerance", "straightness", "window"],
)
def test_every_criterion_can_be_set(path, changes, path_type):
    assert type_of(path, **changes)[0] == path_type


def test_a_period_that_the_window_cannot_show_is_refused():
    with pytest.raises(
        InputError, match=r"path_types\.max_period: found 9, .* path_types\.window = 8\.$"
    ):
        criteria(window=8, max_period=9)
