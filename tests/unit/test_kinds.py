"""kinds: synthetic paths whose kind is known."""

import math

import pytest
import torch
from small import PATH_TYPES
from torch import Tensor

from twoscale.dynamics import path_types, measures
from twoscale import config
from twoscale.errors import InputError

STEPS, WIDTH = 30, 6


def criteria(**changes) -> config.PathTypesConfig:
    return config.PathTypesConfig(**(PATH_TYPES | changes))


def noise(scale: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(STEPS + 1, WIDTH, dtype=torch.float64, generator=generator)


def turning(angle: float, ratio: float = 1.0) -> Tensor:
    """x^k at `angle` k and radius `ratio`^k in a tilted plane of the space, around a point far from the origin."""
    plane, _ = torch.linalg.qr(noise(1.0, seed=1)[:WIDTH, :2])
    k = torch.arange(STEPS + 1, dtype=torch.float64)
    return 3 + (ratio**k)[:, None] * (torch.stack([(angle * k).cos(), (angle * k).sin()], dim=1) @ plane.T)


def cycle(period: int) -> Tensor:
    """The same `period` random states in turn: steps of unequal lengths."""
    return noise(1.0, seed=2)[:period].repeat(STEPS, 1)[: STEPS + 1]


def drift(speed: float = 0.1) -> Tensor:
    return torch.arange(STEPS + 1, dtype=torch.float64)[:, None] * torch.full((WIDTH,), speed, dtype=torch.float64)


def walk(seed: int = 3) -> Tensor:
    return noise(1.0, seed).cumsum(0)


def kind_of(path: Tensor, **changes) -> tuple[str, int]:
    """Kind and period of a path (K + 1, C)."""
    floor = measures.rounding_floor(measures.norm(path[-1]))
    found = path_types.classify(measures.path_distances(path), floor, criteria(**changes))
    return path_types.PATH_TYPES[found["path_type"].item()], found["period"].item()


PATHS = {
    "straight approach": (drift()[-1] - drift() * 0.7 ** torch.arange(STEPS + 1.0)[:, None], "converging", 0),
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
def test_a_path_of_known_kind_is_called_so(path, kind, period):
    assert kind_of(path) == (kind, period)


def test_a_path_that_arrived_converges_whatever_its_rounding_does():
    arrived = 1 + 1e-16 * noise(1.0)
    assert kind_of(arrived) == ("converging", 0)
    assert kind_of(arrived + 1e-12 * noise(1.0)) == ("undecided", 0)


def test_noise_is_hardly_ever_taken_for_something():
    generator = torch.Generator().manual_seed(4)
    paths = torch.randn(500, STEPS + 1, 64, dtype=torch.float64, generator=generator)
    found = path_types.classify(measures.path_distances(paths), torch.zeros(500), criteria())
    assert (found["path_type"] == path_types.PATH_TYPES.index("undecided")).double().mean() > 0.99


def test_each_token_is_judged_by_itself_with_the_numbers_that_decided():
    paths = torch.stack([turning(2.0, ratio=0.8), cycle(3), drift(), noise(1.0)])
    found = path_types.classify(measures.path_distances(paths), torch.full((4,), 1e-12), criteria())
    assert [path_types.PATH_TYPES[kind] for kind in found["path_type"]] == list(path_types.PATH_TYPES)
    assert found["period"].tolist() == [0, 3, 0, 0]
    assert found["settling_rate"][0].item() == pytest.approx(0.8)
    assert found["return_ratio"][1].item() == pytest.approx(0, abs=1e-9)
    assert found["return_ratio"][2].item() == pytest.approx(2)
    assert found["straightness"][2].item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("path", "changes", "path_type"),
    [
        (turning(2.0, ratio=0.8), {"converging_rate": 0.7}, "undecided"),
        (cycle(5), {"max_period": 4}, "undecided"),
        (cycle(3) + noise(0.05), {"return_tolerance": 0.01}, "undecided"),
        (turning(0.1), {"straightness": 0.99}, "undecided"),
        (torch.cat([drift()[:15], drift()[14:15].expand(16, -1) + noise(1.0)[:16]]), {"window": 30}, "undecided"),
    ],
    ids=["rate", "period", "tolerance", "straightness", "window"],
)
def test_every_criterion_can_be_set(path, changes, kind):
    assert kind_of(path, **changes)[0] == kind


def test_a_period_that_the_window_cannot_show_is_refused():
    with pytest.raises(InputError, match=r"kinds\.max_period: found 9, .* kinds\.window = 8\.$"):
        criteria(window=8, max_period=9)
