"""Random streams: independence, reproducibility, and the truncated normal distribution."""

import hashlib
import math

import numpy as np
import pytest
import torch

from tests.small import model_config
from twoscale import rng
from twoscale.claims import bootstrap
from twoscale.data.batches import Batches
from twoscale.exits.generate import Sampling
from twoscale.model.noise import EvaluationNoise, training_noise
from twoscale.model.transformer import initialise
from twoscale.training.trainer import draw_loops


@pytest.mark.parametrize(
    "other", [(2, "loops", 3), (1, "batch", 3), (1, "loops", 4), (1, "loops"), (1, "loops", "3")]
)
def test_every_part_of_the_name_selects_another_stream(other):
    assert not np.any(rng.stream(1, "loops", 3).random(5) == rng.stream(*other).random(5))
    assert rng.integer_key(1, "loops", 3) != rng.integer_key(*other)
    assert rng.integer_key(1, 23) != rng.integer_key(12, 3)


def test_names_that_json_cannot_represent_exactly_are_refused():
    with pytest.raises(TypeError):
        rng.stream(1, np.int64(3))


@pytest.mark.parametrize(("std", "bound"), [(math.sqrt(2 / 5), 3.0), (2.0, 1.5)])
def test_truncated_normal_has_the_truncated_distribution_function(std, bound):
    values = rng.truncated_normal((2, "noise"), (500, 400), std, bound)
    assert (values.dtype, values.shape) == (np.float64, (500, 400))
    assert 0.98 * bound * std < np.abs(values).max() <= bound * std
    at_bound = math.erf(bound / math.sqrt(2))
    for point in (-1.2, -0.5, 0.0, 0.3, 1.0):
        expected = (math.erf(point / math.sqrt(2)) + at_bound) / (2 * at_bound)
        assert np.mean(values <= std * point) == pytest.approx(expected, abs=0.005)


def test_extreme_uniforms_map_to_the_bound(monkeypatch):
    class Extremes:
        def random(self, shape):
            return np.array([0.0, 0.5, 1.0 - 2**-53])

    monkeypatch.setattr(rng, "stream", lambda *parts: Extremes())
    lowest, middle, highest = rng.truncated_normal((1,), (3,), 1.0)
    assert lowest == pytest.approx(-3.0)
    assert middle == pytest.approx(0.0, abs=1e-12)
    assert highest == pytest.approx(3.0)
    assert max(-lowest, highest) <= 3.0


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_first_rows_do_not_depend_on_how_many_follow(rows):
    whole = rng.truncated_normal((1, "noise"), (100, 33), 1.0)
    np.testing.assert_array_equal(rng.truncated_normal((1, "noise"), (rows, 33), 1.0), whole[:rows])


def test_the_bits_do_not_depend_on_the_number_of_threads():
    threads = torch.get_num_threads()
    try:
        samples = []
        for count in (1, 2):
            torch.set_num_threads(count)
            samples.append(rng.truncated_normal((1, "noise"), (300, 301), 1.0))
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(*samples)


STATES = torch.empty(2, 8, 4, dtype=torch.float64)
IDS = np.arange(400, dtype="<u2")

# purpose -> a few draws
PURPOSES = {
    "integer key": lambda: [rng.integer_key(1, "loops", 3) % 2**53],
    "initial weights": lambda: next(initialise(model_config(), 1).parameters()).detach().numpy(),
    "loops": lambda: [
        draw_loops(model_config(mean_loops=12), 1, iteration) for iteration in range(50)
    ],
    "permutation": lambda: [
        Batches(IDS, 8, 4, "permutation", 1).indices(iteration) for iteration in range(30)
    ],
    "offsets": lambda: [
        Batches(IDS, 8, 4, "offsets", 1).indices(iteration) for iteration in range(30)
    ],
    "training": lambda: training_noise(1, 5, 2)(1, 2, STATES).numpy(),
    "evaluation": lambda: EvaluationNoise(1, [3, 4], 8)(1, 0, STATES).numpy(),
    "evaluation, later loop step": lambda: EvaluationNoise(1, [3, 4], 8)(1, 2, STATES).numpy(),
    "bootstrap": lambda: bootstrap.totals(np.arange(20.0), seed=1)[:50],
    "generation": lambda: [
        Sampling(temperature=1.0, seed=1).choose(torch.zeros(1000), position)
        for position in range(20)
    ],
}
DIGESTS = {
    "integer key": "f523a830bd3801d3",
    "initial weights": "2aaacb97b9199139",
    "loops": "0787ce37781f123c",
    "permutation": "bc65038769db0137",
    "offsets": "7fbc894763e5cb30",
    "training": "fcfb4ee78a3cbc14",
    "evaluation": "80e4950660ba9912",
    "evaluation, later loop step": "15a45e1bdf5a5eec",
    "bootstrap": "971ac6df84bb0bfb",
    "generation": "efda989d189a5997",
}


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_seed_gives_the_same_numbers_in_every_version(purpose):
    """Digests of the draws to nine decimals. Whoever changes one changes the results of every seed:
    then say why.
    """
    numbers = np.round(np.asarray(PURPOSES[purpose](), dtype=np.float64), 9) + 0.0
    assert hashlib.sha256(numbers.astype("<f8").tobytes()).hexdigest()[:16] == DIGESTS[purpose]
