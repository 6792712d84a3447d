"""Quality at fixed loop counts, and the reference of uniform loops, against the plain forward pass."""

import pandas as pd
import pytest
import torch

from tests import reference_engine
from tests.unit.test_benchmark import BLOCK, SEED, checkpoint, cross_entropy, exits, held_out, small_model
from twoscale import tables
from twoscale.config import ScalingConfig
from twoscale.exits.fixed_loops import measure_scaling, measure_uniform_loops
from twoscale.exits.oracle import settled_from, settled_within
from twoscale.model.noise import EvaluationNoise

LOOPS = (1, 2, 4, 6)


@torch.no_grad()
def logits_at(model, loops):
    inputs = held_out().inputs
    return model(inputs, [loops] * len(model.config.groups), EvaluationNoise(SEED, range(len(inputs)), BLOCK))


def scaling(model, batch_size=2):
    config = ScalingConfig(loops=LOOPS, batch_size=batch_size)
    return pd.DataFrame(measure_scaling(checkpoint(model), held_out(), config))


def reference(model, batch_size=2, **changes):
    fixed = {"fixed": {"thresholds": LOOPS}}
    config = exits(criteria=fixed, max_loops=LOOPS[-1], quality_batch_size=batch_size, **changes)
    return pd.DataFrame(measure_uniform_loops(checkpoint(model), held_out(), config))


def test_scaling_is_the_cross_entropy_of_the_forward_pass_at_each_loop_count():
    model, targets = small_model(), held_out().targets
    rows = scaling(model)
    assert list(zip(rows["loops"], rows["sequence"], strict=True)) == [(n, i) for n in LOOPS for i in range(3)]
    expected = [cross_entropy(logits_at(model, n)[i], targets[i]) for n in LOOPS for i in range(3)]
    assert rows["ce"].tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("measure", [scaling, reference])
def test_the_batch_changes_nothing(measure):
    model = small_model()
    pd.testing.assert_frame_equal(measure(model, batch_size=1), measure(model, batch_size=3), rtol=1e-9)


def test_rows_fit_their_tables(tmp_path):
    tables.write("scaling_quality", scaling(small_model()), tmp_path / "scaling.parquet")
    tables.write("uniform_loops", reference(small_model()).assign(run="trial"), tmp_path / "reference.parquet")


def test_a_prediction_is_settled_from_the_first_count_after_its_last_change():
    predicted = torch.tensor([[1, 2, 3, 1], [1, 1, 3, 3], [1, 2, 2, 3], [1, 2, 3, 3]])  # (counts, tokens)
    assert settled_from(predicted).tolist() == [0, 2, 3, 1]


def test_a_loss_is_settled_from_the_first_count_after_its_last_excess_over_the_tolerance():
    losses = torch.tensor([[2.0, 0.5, 1.15, 9.0], [1.2, 1.0, 0.9, 1.0], [0.9, 1.11, 1.0, 1.2], [1.0, 1.0, 1.0, 1.0]])
    assert settled_within(losses, 0.1).tolist() == [2, 3, 1, 3]
    assert settled_within(losses, 0.25).tolist() == [1, 0, 0, 1]
    assert settled_within(losses, 0.0).tolist() == [2, 3, 1, 3]


def test_the_reference_counts_every_token_at_the_least_loops_that_settle_its_prediction():
    """Token by token with a loop over the counts, from the last one down."""
    model, targets = small_model(), held_out().targets
    logits = [logits_at(model, n) for n in LOOPS]
    for i, row in enumerate(reference(model).to_dict("records")):
        loops, losses = [], []
        for t in range(BLOCK):
            least = len(LOOPS) - 1
            while least and logits[least - 1][i, t].argmax() == logits[-1][i, t].argmax():
                least -= 1
            loops.append(LOOPS[least])
            losses.append(cross_entropy(logits[least][i, t : t + 1], targets[i, t : t + 1]))
        assert row["loops"] == pytest.approx(sum(loops) / BLOCK)
        assert row["ce"] == pytest.approx(sum(losses) / BLOCK, rel=1e-9)
        assert row["share_at_max_loops"] == pytest.approx(loops.count(LOOPS[-1]) / BLOCK)
        assert len(set(loops)) > 1, "the case has to have tokens that settle at different counts"


def test_the_reference_shares_slots_as_the_criteria_do():
    model, inputs, targets = small_model(), held_out().inputs, held_out().targets
    shared = reference(model, kv_slots=2)
    pd.testing.assert_frame_equal(reference(model, kv_slots=LOOPS[-1]), reference(model))
    for i, row in enumerate(shared.to_dict("records")):
        read = [
            reference_engine.evaluate(
                model, inputs[i], "fixed", n, LOOPS[-1], EvaluationNoise(SEED, [i], BLOCK), kv_slots=2
            )[0]
            for n in LOOPS
        ]
        least = settled_from(torch.stack(read).argmax(-1)).tolist()
        assert row["loops"] == pytest.approx(sum(LOOPS[j] for j in least) / BLOCK)
        losses = [cross_entropy(read[j][t : t + 1], targets[i, t : t + 1]) for t, j in enumerate(least)]
        assert row["ce"] == pytest.approx(sum(losses) / BLOCK, rel=1e-9)
