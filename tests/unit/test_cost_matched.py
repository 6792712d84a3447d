"""Random exits and fixed loops at the cost of an exit criterion."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_benchmark import BLOCK, SEED, checkpoint, exits, held_out, small_model
from twoscale import tables
from twoscale.exits.benchmark import measure_quality
from twoscale.exits.cost_matched import (
    FIXED,
    RANDOM,
    PrescribedExits,
    cost_matched_exits,
    fixed_evaluations,
    random_exits,
)
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions, evaluate_prescribed
from twoscale.exits.parallel import evaluate
from twoscale.model.noise import EvaluationNoise

MAX_LOOPS = 6
SEQUENCES = (4, 0, 7)
POINT = ["criterion", "threshold"]
TEXT = held_out()
NOISE = EvaluationNoise(SEED, range(3), BLOCK)
counts = st.integers(1, 4).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(1, 9), min_size=3 * length, max_size=3 * length),
        min_size=1,
        max_size=3,
    ).map(lambda groups: np.array(groups).reshape(len(groups), 3, length))
)


def measured(**changes):
    """The tables of exit_quality, exit_loops and exit_cost_matched."""
    criteria = {
        "fixed": {"thresholds": [6]},
        "step_norm": {"thresholds": [1e-300, 1.5]},
        "kl": {"thresholds": [0.02]},
    }
    config = exits(criteria, random_draws=2, **changes)
    return {
        name: pd.DataFrame(rows)
        for name, rows in measure_quality(checkpoint(small_model()), TEXT, config).items()
    }


@given(counts)
def test_random_exits_have_the_histogram_of_the_criterion_in_every_group(evaluations):
    drawn = random_exits(evaluations, SEQUENCES, (1,))
    assert drawn.shape == evaluations.shape
    for of_group, found in zip(drawn, evaluations, strict=True):
        assert sorted(of_group.ravel()) == sorted(found.ravel())
    costs = drawn.sum(axis=2)  # (G, N), nearly the same for every sequence
    spread = evaluations.max(axis=(1, 2)) - evaluations.min(axis=(1, 2))
    assert (costs.max(axis=1) - costs.min(axis=1) <= spread).all()


@given(counts)
def test_fixed_loops_cost_what_the_criterion_costs_and_differ_by_at_most_one(evaluations):
    fixed = fixed_evaluations(evaluations)
    assert (fixed.sum(axis=(1, 2)) == evaluations.sum(axis=(1, 2))).all()
    assert (fixed.max(axis=(1, 2)) - fixed.min(axis=(1, 2)) <= 1).all()


def test_draws_differ_and_are_a_function_of_their_key():
    evaluations = np.arange(60).reshape(1, 3, 20) % 7
    first, again = (list(cost_matched_exits(evaluations, SEQUENCES, 2, (key,))) for key in (5, 5))
    assert [(reference, draw) for reference, draw, _ in first] == [
        (RANDOM, 0),
        (RANDOM, 1),
        (FIXED, 0),
    ]
    for (*_, drawn), (*_, same) in zip(first, again, strict=True):
        assert (drawn == same).all()
    assert (first[0][2] != first[1][2]).any()
    assert (first[0][2] != next(cost_matched_exits(evaluations, SEQUENCES, 2, (6,)))[2]).any()


def test_every_token_of_random_exits_is_equally_likely_to_get_the_most():
    evaluations = np.ones((1, 2, 4), dtype=np.int64)
    evaluations[0, 1, 3] = 9
    drawn = sum(random_exits(evaluations, (0, 1), (draw,)) == 9 for draw in range(400))
    assert drawn.sum() == 400
    assert (abs(drawn - 50) < 28).all()  # four standard deviations


@pytest.mark.parametrize("name", ["step_norm", "fixed"])
def test_the_evaluations_of_a_criterion_give_the_result_of_the_criterion(name):
    model = small_model()
    criterion = make_criterion(name, 1.5 if name == "step_norm" else 3)
    logits, taken = evaluate(model, TEXT.inputs, criterion, MAX_LOOPS, NOISE)
    assert name == "fixed" or len(taken.evaluations.unique()) > 2, (
        "the case has to have different exits"
    )
    prescribed, counts = evaluate(
        model, TEXT.inputs, PrescribedExits(taken.evaluations), MAX_LOOPS, NOISE
    )
    torch.testing.assert_close(prescribed, logits, rtol=0, atol=0)
    assert (counts.evaluations == taken.evaluations).all()
    assert (counts.loop_steps == taken.evaluations).all()


def test_prescribed_exits_are_the_same_function_in_decoding():
    model = small_model()
    plan = torch.from_numpy(np.random.default_rng(0).integers(1, MAX_LOOPS + 1, size=(2, 3, BLOCK)))
    parallel, _ = evaluate(model, TEXT.inputs, PrescribedExits(plan), MAX_LOOPS, NOISE)
    decoder = Decoder(
        model, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, SEED, DecoderOptions(replay=False)
    )
    torch.testing.assert_close(evaluate_prescribed(decoder, TEXT.inputs, plan, range(3)), parallel)


@pytest.mark.parametrize("changes", [{}, {"kv_slots": 2}, {"readout": "remaining_layers"}], ids=str)
def test_controls_cost_what_their_criterion_costs(changes, tmp_path):
    found = measured(**changes)
    loops, cost_matched = found["exit_loops"], found["exit_cost_matched"]
    tables.write(
        "exit_cost_matched", cost_matched.assign(run="trial"), tmp_path / "cost_matched.parquet"
    )
    expected = loops[loops["criterion"] != "fixed"].groupby(POINT)["evaluations"].mean()
    for draw, rows in cost_matched.groupby(["reference", "draw"]):
        means = rows.groupby(POINT)["evaluations"].mean()
        pd.testing.assert_series_equal(means, expected, rtol=1e-6, obj=f"evaluations of {draw}")
        assert rows["sequence"].tolist() == 3 * [0, 1, 2]


def test_where_no_token_exits_early_the_controls_are_the_criterion_and_elsewhere_every_draw_is_evaluated():
    found = measured()
    some = found["exit_cost_matched"].query("criterion == 'kl' and sequence == 0")
    assert some["ce"].nunique() == 3  # two random ones, and fixed loops
    of = {name: frame[frame["threshold"] == 1e-300] for name, frame in found.items()}
    for _, rows in of["exit_cost_matched"].groupby(["reference", "draw"]):
        assert rows["ce"].tolist() == pytest.approx(of["exit_quality"]["ce"].tolist(), rel=1e-12)
