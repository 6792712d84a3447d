"""Quality at fixed loop counts against the plain forward pass, and the count from which a token is converged."""

import pandas as pd
import pytest
import torch

from tests.unit.test_benchmark import BLOCK, SEED, checkpoint, cross_entropy, held_out, small_model
from twoscale.config import ScalingConfig
from twoscale.exits.evaluation import measure_scaling
from twoscale.exits.oracle import converged_from, converged_within
from twoscale.model.noise import EvaluationNoise

LOOPS = (1, 2, 4, 6)


@torch.no_grad()
def logits_at(model, loops):
    inputs = held_out().inputs
    return model(inputs, [loops] * len(model.config.groups), EvaluationNoise(SEED, range(len(inputs)), BLOCK))


def scaling(model, batch_size=2):
    config = ScalingConfig(loops=LOOPS, batch_size=batch_size)
    return pd.DataFrame(measure_scaling(checkpoint(model), held_out(), config))


def test_scaling_is_the_cross_entropy_of_the_forward_pass_at_each_loop_count():
    model, targets = small_model(), held_out().targets
    rows = scaling(model)
    assert list(zip(rows["loops"], rows["sequence"], strict=True)) == [(n, i) for n in LOOPS for i in range(3)]
    expected = [cross_entropy(logits_at(model, n)[i], targets[i]) for n in LOOPS for i in range(3)]
    assert rows["ce"].tolist() == pytest.approx(expected, rel=1e-9)


def test_the_batch_changes_nothing():
    model = small_model()
    pd.testing.assert_frame_equal(scaling(model, batch_size=1), scaling(model, batch_size=3), rtol=1e-9)


def test_a_prediction_is_converged_from_the_first_count_after_its_last_change():
    predicted = torch.tensor([[1, 2, 3, 1], [1, 1, 3, 3], [1, 2, 2, 3], [1, 2, 3, 3]])  # (counts, tokens)
    assert converged_from(predicted).tolist() == [0, 2, 3, 1]


def test_a_loss_is_converged_from_the_first_count_after_its_last_excess_over_the_tolerance():
    losses = torch.tensor([[2.0, 0.5, 1.15, 9.0], [1.2, 1.0, 0.9, 1.0], [0.9, 1.11, 1.0, 1.2], [1.0, 1.0, 1.0, 1.0]])
    assert converged_within(losses, 0.1).tolist() == [2, 3, 1, 3]
    assert converged_within(losses, 0.25).tolist() == [1, 0, 0, 1]
    assert converged_within(losses, 0.0).tolist() == [2, 3, 1, 3]
