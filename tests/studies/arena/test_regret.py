"""Exits on frozen trajectories and the oracles, against the causal engine and brute force."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from tests import act
from tests.held_out import CHECKPOINT, CHOSEN, assert_numbered
from tests.held_out import exits as exits_of_chosen
from tests.small import held_out
from tests.unit.test_benchmark import checkpoint, exits
from tests.unit.test_engine import PUBLISHED, VARIANTS
from tests.unit.test_engine import small_model as trainable_model
from twoscale import tables
from twoscale.base import InputError
from twoscale.exits.cost_matched import PrescribedExits
from twoscale.exits.criteria import make_criterion
from twoscale.exits.parallel import evaluate
from twoscale.exits.passes import Pass
from twoscale.model.loss import cross_entropies
from twoscale.model.noise import EvaluationNoise
from twoscale.replay.oracle import cheapest_exits, exit_costs
from twoscale.studies.arena.measure import frozen_groups, measure_regret

LOOPS, LENGTH = 3, 5
STRUCTURES = VARIANTS | PUBLISHED
THRESHOLDS = {
    "fixed": 2,
    "argmax_stability": 1,
    "exit_gate": 0.6,
    "step_norm": 2.0,
    "acceleration": 3.0,
}
TEXT = held_out(
    *torch.randint(11, (2, 4, LENGTH), generator=torch.Generator().manual_seed(1)),
    sequences=(0, 3, 2, 5),
)


def small_model(seed=0, **variants):
    return trainable_model(seed, **variants).requires_grad_(False)


def frozen_of(model, text=TEXT, loops=LOOPS):
    return list(
        frozen_groups(Pass.of(checkpoint(model), text.inputs, text.sequences, loops), text.inputs)
    )


def engine_losses(model, plan, text):
    """Losses (B, T) in the causal engine with the evaluations `plan` (G, B, T)."""
    noise = EvaluationNoise(checkpoint(model).seed, text.sequences, model.config.context_length)
    return cross_entropies(
        evaluate(model, text.inputs, PrescribedExits(plan), LOOPS, noise)[0], text.targets
    )


@pytest.mark.parametrize("structure", ["default", "loops at both ends", "Ouro", "Parcae"])
def test_a_token_that_leaves_early_alone_loses_what_it_loses_in_the_causal_engine(structure):
    model, text = small_model(**STRUCTURES[structure]), TEXT[:2]
    full = torch.full((len(model.config.groups), 2, LENGTH), LOOPS)
    for frozen in frozen_of(model, text):
        losses = frozen.losses(text.targets)
        torch.testing.assert_close(losses[LOOPS], engine_losses(model, full, text))
        for k, token in itertools.product(range(1, LOOPS), (0, 2, LENGTH - 1)):
            plan = full.clone()
            plan[frozen.group, :, token] = k
            torch.testing.assert_close(
                losses[k, :, token], engine_losses(model, plan, text)[:, token]
            )


@pytest.mark.parametrize(
    "name", ["fixed", "argmax_stability", "exit_gate", "step_norm", "acceleration"]
)
def test_the_first_token_leaves_the_first_group_as_in_the_causal_engine(name):
    model = small_model()
    criterion = make_criterion(name, THRESHOLDS.get(name, 0.02))
    exits = frozen_of(model, loops=6)[0].exits(criterion, "head")
    noise = EvaluationNoise(checkpoint(model).seed, TEXT.sequences, model.config.context_length)
    _, counts = evaluate(model, TEXT.inputs, criterion, 6, noise)
    assert exits.loop_steps[:, 0].tolist() == counts.loop_steps[0, :, 0].tolist()
    assert exits.evaluations[:, 0].tolist() == counts.evaluations[0, :, 0].tolist()


def test_a_loss_that_is_not_finite_is_refused_with_its_place():
    model = small_model()
    model.final_norm.weight.data[0] = torch.nan
    with pytest.raises(
        InputError, match=r"^group \S+, loop step 0, sequence 0, position 0: found a loss of nan"
    ):
        measure_regret(checkpoint(model), TEXT, exits(max_loops=LOOPS), 2)
    with pytest.raises(
        InputError, match=r"^config key exits.max_loops: found 1, expected at least 2"
    ):
        measure_regret(checkpoint(small_model()), TEXT, exits(max_loops=1), 2)


def test_a_weighted_mean_is_no_state_of_a_trajectory_and_has_no_regret():
    criteria = {
        "fixed": {"thresholds": [2]},
        "act": {"thresholds": [0.5], "file": act.__file__, "class": "ACT"},
    }
    tables_of = measure_regret(checkpoint(small_model()), TEXT, exits(criteria, max_loops=LOOPS), 2)
    assert {row["criterion"] for row in tables_of["exit_regret"]} == {"fixed"}


def test_the_remaining_layers_are_read_out_as_the_run_continues():
    """With predictions through the remaining layers, the prediction of x^k is that of a token that
    leaves at k.
    """
    model = small_model()
    frozen = frozen_of(model)[-1]
    exits = frozen.exits(make_criterion("argmax_stability", 1), "remaining_layers")
    predictions = torch.stack(
        [model.readout(hidden).argmax(-1) for hidden in frozen.behind(frozen.states)]
    )
    for (sequence, token), found in zip(
        itertools.product(range(4), range(LENGTH)), exits.evaluations.flatten(), strict=True
    ):
        path = predictions[1:, sequence, token].tolist()
        same = [k for k in range(2, LOOPS + 1) if path[k - 1] == path[k - 2]]
        assert found == (same[0] if same else LOOPS)


def test_no_assignment_of_exits_beats_the_budget_oracle():
    losses = np.random.default_rng(0).normal(size=(4, 3))
    costs = exit_costs(4)
    tokens = np.arange(3)
    assert costs.tolist() == [1, 1, 2, 3]
    for price in (0.0, 0.05, 0.3, 1.0, 9.0):
        chosen = cheapest_exits(losses, price)
        least = (losses[chosen, tokens] + price * costs[chosen]).sum()
        for assignment in itertools.product(range(4), repeat=3):
            other = np.array(assignment)
            assert least <= (losses[other, tokens] + price * costs[other]).sum() + 1e-12


def test_no_criterion_beats_an_oracle_on_the_same_trajectories(tmp_path):
    """Every row of the tables, at every price."""
    for rows in measure_regret(CHECKPOINT, CHOSEN, exits_of_chosen(), 2).values():
        assert_numbered(rows)
    model = small_model()
    criteria = {
        name: {"thresholds": [threshold]}
        for name, threshold in THRESHOLDS.items()
        if name != "fixed"
    }
    config = exits(criteria | {"kl": {"thresholds": [1e-4, 0.1]}}, max_loops=6)
    rows = measure_regret(checkpoint(model), TEXT, config, 3)
    regret, frontier = (pd.DataFrame(rows[name]) for name in ("exit_regret", "oracle_frontier"))
    for name, frame in (("exit_regret", regret), ("oracle_frontier", frontier)):
        tables.write(name, frame.assign(run="trial"), tmp_path / "table.parquet")
    both = regret.merge(frontier, on=["group", "sequence"], suffixes=("", "_least"))
    prices = both["price"]
    bought = both["ce_least"] + prices * both["evaluations_least"]
    assert (both["ce"] + prices * both["evaluations"] - bought >= -1e-9).all()
    assert set(regret.loc[regret["criterion"] == "fixed", "threshold"]) == {1, 2, 3, 4, 5, 6}
