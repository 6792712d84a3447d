"""The reference of uniform loops against the plain forward pass."""

import pandas as pd
import pytest
import torch

from tests import reference_engine
from tests.held_out import CHECKPOINT, CHOSEN, assert_numbered, loss_under_own_noise
from tests.held_out import exits as exits_of_chosen
from tests.unit.test_benchmark import BLOCK, SEED, checkpoint, cross_entropy, exits, held_out, small_model
from tests.unit.test_fixed_loops import LOOPS, logits_at
from twoscale import tables
from twoscale.exits.oracle import converged_from
from twoscale.model.noise import EvaluationNoise
from twoscale.studies.arena.uniform_loops import measure_uniform_loops


def reference(model, batch_size=2, **changes):
    fixed = {"fixed": {"thresholds": LOOPS}}
    config = exits(criteria=fixed, max_loops=LOOPS[-1], quality_batch_size=batch_size, **changes)
    return pd.DataFrame(measure_uniform_loops(checkpoint(model), held_out(), config))


def test_the_batch_changes_nothing():
    model = small_model()
    pd.testing.assert_frame_equal(reference(model, batch_size=1), reference(model, batch_size=3), rtol=1e-9)


def test_rows_fit_their_table(tmp_path):
    tables.write("uniform_loops", reference(small_model()).assign(run="trial"), tmp_path / "reference.parquet")


def test_the_reference_counts_every_token_at_the_least_loops_that_fix_its_prediction():
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
        least = converged_from(torch.stack(read).argmax(-1)).tolist()
        assert row["loops"] == pytest.approx(sum(LOOPS[j] for j in least) / BLOCK)
        losses = [cross_entropy(read[j][t : t + 1], targets[i, t : t + 1]) for t, j in enumerate(least)]
        assert row["ce"] == pytest.approx(sum(losses) / BLOCK, rel=1e-9)


def test_the_table_has_the_losses_of_the_held_out_sequences_under_their_numbers():
    rows = list(measure_uniform_loops(CHECKPOINT, CHOSEN, exits_of_chosen()))
    assert_numbered(rows)
    assert [row["ce"] for row in rows] == pytest.approx([loss_under_own_noise(row) for row in range(3)])
