"""noise: which number a token gets depends on what it is for and on nothing else."""

import math
from unittest.mock import patch

import pytest
import torch

from twoscale import rng
from twoscale.model import noise as module
from twoscale.model.noise import DrawnNoise, EvaluationNoise, draw_on_device, training_noise

CONTEXT_LENGTH, HIDDEN_SIZE = 16, 12
BOUND = 3 * math.sqrt(2 / 5)


def like(
    sequences: int,
    length: int = CONTEXT_LENGTH,
    dtype: torch.dtype = torch.float64,
    hidden_size: int = HIDDEN_SIZE,
) -> torch.Tensor:
    return torch.empty(sequences, length, hidden_size, dtype=dtype)


def evaluation(seed: int = 1, sequence: int = 3, group: int = 0, k: int = 0) -> torch.Tensor:
    """The noise (T, C) of one held-out sequence."""
    return EvaluationNoise(seed, [sequence], CONTEXT_LENGTH)(group, k, like(1))[0]


def training(
    seed: int = 1, iteration: int = 5, sample: int = 2, group: int = 0, k: int = 0
) -> torch.Tensor:
    """The noise (T, C) of one sample of a training batch."""
    return training_noise(seed, iteration, sample)(group, k, like(1))[0]


@pytest.mark.parametrize("length", [1, 5, CONTEXT_LENGTH])
def test_the_noise_of_a_position_depends_neither_on_the_length_of_the_text_nor_on_its_batch(length):
    batch = EvaluationNoise(1, [7, 3, 0], CONTEXT_LENGTH)(0, 0, like(3, length))
    assert batch.shape == (3, length, HIDDEN_SIZE)
    for row, sequence in enumerate([7, 3, 0]):
        assert torch.equal(batch[row], evaluation(sequence=sequence)[:length])


def test_kept_noise_is_the_noise_and_is_drawn_once():
    kept = DrawnNoise()
    for sequences in ([3, 4], [4, 5]):
        for group, k in ((0, 0), (1, 2)):
            noise = EvaluationNoise(1, sequences, CONTEXT_LENGTH, drawn=kept)(group, k, like(2))
            assert torch.equal(
                noise, EvaluationNoise(1, sequences, CONTEXT_LENGTH)(group, k, like(2))
            )
    with patch.object(module, "truncated_normal", side_effect=AssertionError("drawn again")):
        for group, k in ((0, 0), (1, 2)):
            EvaluationNoise(1, [5, 3], CONTEXT_LENGTH, drawn=kept)(group, k, like(2))


CHANGES = [
    {"seed": 2},
    {"context_length": 8},
    {"std": 0.5},
    {"sequences": [4]},
    {"group": 1},
    {"k": 1},
    {"dtype": torch.float32},
    {"hidden_size": 6},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_noise_that_is_kept_for_one_purpose_is_not_that_of_another(change):
    kept = DrawnNoise()

    def drawn(
        kept, seed=1, sequences=(3,), context_length=CONTEXT_LENGTH, std=1.0, group=0, k=0, **shape
    ):
        noise = EvaluationNoise(seed, sequences, context_length, std, kept)
        return noise(group, k, like(1, context_length, **shape))

    first = drawn(kept)
    other = drawn(kept, **change)
    assert torch.equal(other, drawn(None, **change))
    assert first.dtype != other.dtype or not torch.equal(first, other)


def drawn_on_device(key: tuple, std: float = math.sqrt(2 / 5), size: int = 100_000) -> torch.Tensor:
    """Training noise as on CUDA, by the generator of this device."""
    out = torch.full((1, size), torch.nan, dtype=torch.float64)
    draw_on_device(out, [key], std)
    return out[0]


def test_noise_on_a_device_is_a_normal_of_variance_two_fifths_cut_at_three_deviations():
    drawn = drawn_on_device((1, "training", 5, 0, 0, 0))
    assert -BOUND <= drawn.min() < -0.97 * BOUND
    assert 0.97 * BOUND < drawn.max() <= BOUND
    assert drawn.mean().abs() < 0.01
    assert drawn.std().item() == pytest.approx(0.9866 * math.sqrt(2 / 5), rel=0.01)
    share = (drawn.abs() < math.sqrt(2 / 5)).double().mean().item()  # within one deviation
    assert share == pytest.approx(math.erf(1 / math.sqrt(2)) / math.erf(3 / math.sqrt(2)), abs=0.01)


@pytest.mark.parametrize("std", [0.01, 2.0])
def test_noise_of_another_deviation_is_the_same_noise_scaled(std):
    for one, other in (
        (EvaluationNoise(1, [3], CONTEXT_LENGTH), EvaluationNoise(1, [3], CONTEXT_LENGTH, std)),
        (training_noise(1, 5, 0), training_noise(1, 5, 0, std)),
    ):
        scaled = one(0, 0, like(1)) * (std / math.sqrt(2 / 5))
        torch.testing.assert_close(other(0, 0, like(1)), scaled, rtol=1e-6, atol=0)


def uncorrelated(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two draws look independent: a correlation within four standard errors."""
    correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
    return correlation.abs().item() < 4 / math.sqrt(one.numel())


def test_noise_on_a_device_is_a_function_of_the_whole_key_and_no_noise_changes_other_generators():
    key = (1, "training", 5, 2, 0, 0)
    before = torch.get_rng_state()
    evaluation(), training()
    drawn, several = drawn_on_device(key, size=500), torch.empty(2, 500, dtype=torch.float64)
    draw_on_device(several, [(1, "training", 5, 1, 0, 0), key], math.sqrt(2 / 5))
    assert torch.equal(several[1], drawn)
    for part in (0, 2, 3, 4, 5):
        other = (*key[:part], key[part] + 1, *key[part + 1 :])
        assert uncorrelated(drawn, drawn_on_device(other, size=500))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_training_on_cuda_draws_every_sample_on_the_device_under_its_own_key():
    states = torch.empty(2, 4, HIDDEN_SIZE, device="cuda")
    drawn = training_noise(1, 5, 7)(1, 2, states)
    for row in range(2):
        expected = torch.empty_like(states[:1])
        draw_on_device(expected, [(1, "training", 5, 7 + row, 1, 2)], math.sqrt(2 / 5))
        assert torch.equal(drawn[row], expected[0])


def test_no_more_noise_is_kept_than_its_limit(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        module, "MOST_KEPT", 2 * CONTEXT_LENGTH * HIDDEN_SIZE * 8
    )  # bytes of two arrays
    monkeypatch.setattr(
        module, "truncated_normal", lambda *key: (drawn.append(key), rng.truncated_normal(*key))[1]
    )
    noise = EvaluationNoise(1, [0, 1, 2], CONTEXT_LENGTH, drawn=DrawnNoise())
    assert torch.equal(noise(0, 0, like(3)), noise(0, 0, like(3)))
    assert len(drawn) == 3 + 1
