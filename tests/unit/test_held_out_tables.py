"""Held-out sequences that are not consecutive: all tables name them alike, and their noise is that of their number."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from tests import small
from twoscale import tables
from twoscale.config import ExitsConfig, LensConfig, OracleConfig, PathTypesConfig, ScalingConfig, TrajectoriesConfig
from twoscale.data.batches import held_out_sequences
from twoscale.dynamics import trajectories
from twoscale.exits import benchmark
from twoscale.exits import fixed_loops as scaling
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.studies.arena import regret
from twoscale.studies.lens import measure as lens
from twoscale.studies.path_independence import measure as independence
from twoscale.training.trainer import held_out_loss

SEED, LOOPS, T = 3, 4, 8
END = 0
SHARD = np.random.default_rng(0).integers(0, 11, size=20 * T + 1).astype("<u2")
CHOSEN = held_out_sequences(SHARD, END, T, 3)
MODEL = initialise(small.model_config(context_length=T, vocab_size=11), SEED).double().requires_grad_(False)
CHECKPOINT = small.checkpoint(MODEL, SEED)
TRAJECTORIES = TrajectoriesConfig(loops=LOOPS, tokens=3 * T, batch_size=2, dtype="float64", states_sequence=0)
TABLES = [
    *trajectories.TABLES,
    "token_independence",
    "exit_quality",
    "exit_loops",
    "exit_controls",
    "exit_regret",
    "oracle_frontier",
    "scaling_quality",
    "uniform_loops",
    "lens",
]
EXITS = {"max_loops": LOOPS, "dtype": "float64", "quality_batch_size": 2}


def exits(**changes):
    return ExitsConfig(**EXITS | {"criteria": {"fixed": {"thresholds": [LOOPS]}}} | changes)


def table_of(name, folder):
    """One of the tables with a column `document`, of the sequences CHOSEN."""
    if name in trajectories.TABLES:
        paths = {table: folder / table for table in trajectories.TABLES}
        trajectories.extract(CHECKPOINT, CHOSEN, TRAJECTORIES, PathTypesConfig(window=3, max_period=2), paths)
        return tables.read(name, paths[name])
    match name:
        case "token_independence":
            independence.measure(CHECKPOINT, CHOSEN, TRAJECTORIES, 1, folder / name)
            return tables.read(name, folder / name)
        case "exit_quality" | "exit_loops" | "exit_controls":
            config = exits(criteria={"step_norm": {"thresholds": [0.5]}})
            rows = benchmark.measure_quality(CHECKPOINT, CHOSEN, config)[name]
        case "exit_regret" | "oracle_frontier":
            rows = regret.measure_regret(CHECKPOINT, CHOSEN, exits(), OracleConfig())[name]
        case "uniform_loops":
            rows = list(scaling.measure_uniform_loops(CHECKPOINT, CHOSEN, exits()))
        case "lens":
            config = small.job_config(
                "lens_steps", "lens_other_loops", model=MODEL.config, lens=LensConfig(batch_size=2)
            )
            rows = list(lens.measure_lens(CHECKPOINT, CHOSEN, config))
        case "scaling_quality":
            rows = list(scaling.measure_scaling(CHECKPOINT, CHOSEN, ScalingConfig(loops=(LOOPS,), batch_size=2)))
    return pd.DataFrame(rows)


def loss_under_own_noise(row):
    """Cross-entropy of one of the sequences, from the plain forward pass."""
    noise = EvaluationNoise(SEED, [CHOSEN.sequences[row]], T)
    logits = MODEL(CHOSEN.inputs[row : row + 1], [LOOPS, LOOPS], noise)[0]
    return torch.nn.functional.cross_entropy(logits, CHOSEN.targets[row]).item()


def test_the_held_out_sequences_are_apart_and_from_several_documents():
    assert CHOSEN.sequences == (0, 8, 16)
    assert len(set(CHOSEN.documents)) == 3


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_the_numbers_of_the_blocks_and_of_their_documents(name, tmp_path):
    frame = table_of(name, tmp_path)
    numbers = frame[["sequence", "document"]].drop_duplicates().itertuples(index=False, name=None)
    assert sorted(numbers) == list(zip(CHOSEN.sequences, CHOSEN.documents, strict=True))


@pytest.mark.parametrize("changes", [{}, {"kv_slots": 2}], ids=["in parallel", "by position"])
def test_quality_is_under_the_noise_of_the_block(changes):
    rows = benchmark.measure_quality(CHECKPOINT, CHOSEN, exits(**changes))["exit_quality"]
    if not changes:
        assert [row["ce"] for row in rows] == pytest.approx([loss_under_own_noise(row) for row in range(3)], rel=1e-9)
    renumbered = small.held_out(CHOSEN.inputs, CHOSEN.targets)
    others = benchmark.measure_quality(CHECKPOINT, renumbered, exits(**changes))["exit_quality"]
    assert rows[0]["ce"] == pytest.approx(others[0]["ce"], rel=1e-9)  # number 0 in both
    for row, other in zip(rows[1:], others[1:], strict=True):
        assert row["ce"] != pytest.approx(other["ce"], rel=1e-6)


def test_the_held_out_loss_scaling_and_quality_agree_on_every_sequence():
    expected = [loss_under_own_noise(row) for row in range(3)]
    rows = scaling.measure_scaling(CHECKPOINT, CHOSEN, ScalingConfig(loops=(LOOPS,), batch_size=2))
    assert [row["ce"] for row in rows] == pytest.approx(expected, rel=1e-9)
    assert [row["ce"] for row in scaling.measure_uniform_loops(CHECKPOINT, CHOSEN, exits())] == pytest.approx(expected)
    loss = held_out_loss(MODEL, CHOSEN, LOOPS, SEED, batch_size=2)
    assert loss == pytest.approx(np.mean(expected), rel=1e-6)  # float32


@pytest.mark.parametrize("place", [0, 1, 2])
def test_saved_states_are_those_of_the_trajectories(tmp_path, place):
    trajectory = table_of("trajectories", tmp_path)
    path = tmp_path / "states.safetensors"
    save_states(CHECKPOINT, CHOSEN[place : place + 1], ["w"] * T, LOOPS, path)
    with safe_open(path, framework="np") as file:
        states, header = file.get_tensor("states"), json.loads(file.metadata()["twoscale"])
    assert header["sequence"] == CHOSEN.sequences[place]
    last = next(row for row, where in enumerate(header["places"]) if where["group"] == "2" and where["k"] == LOOPS)
    rows = trajectory[(trajectory["sequence"] == header["sequence"]) & (trajectory["group"] == "2")]
    norms = rows[rows["k"] == LOOPS].sort_values("position")["state_norm"]
    np.testing.assert_allclose(np.linalg.norm(states[last], axis=-1), norms, rtol=1e-5)
