"""trajectories: every row of the tables against the states of the model's trace."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from tests.small import checkpoint, held_out, model_config
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import ModelConfig, PathTypesConfig, TrajectoriesConfig
from twoscale.dynamics import measures, vectors
from twoscale.dynamics.states import save_states
from twoscale.dynamics.trajectories import TABLES, extract, measure_batch
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import LoopedTransformer, initialise

SEED, ITERATION, LOOPS = 5, 200, 4
MODEL = model_config(num_layers=6, groups=[[2], [3, 4], [6]])
TOKENS = torch.randint(37, (5, 8), generator=torch.Generator().manual_seed(0))
CRITERIA = PathTypesConfig(window=3, max_period=2)


def float64_model(model: ModelConfig = MODEL) -> LoopedTransformer:
    return initialise(model, seed=3).double().requires_grad_(False)


def loaded(model: LoopedTransformer) -> LoadedCheckpoint:
    return checkpoint(model, SEED, ITERATION)


def trajectories_config(**changes) -> TrajectoriesConfig:
    values = {
        "loops": LOOPS,
        "tokens": 40,
        "batch_size": 2,
        "dtype": "float64",
        "states_sequence": 1,
    }
    return TrajectoriesConfig(**(values | changes))


def states_of(model: LoopedTransformer, sequences: list[int]) -> dict[str, np.ndarray]:
    """x^0 … x^K (K + 1, B, T, C) of every group and what enters it (B, T, C)."""
    labels = model.config.group_labels
    noise = EvaluationNoise(SEED, sequences, model.config.context_length)
    arrays, hidden = {}, None
    for stage in model.trace(TOKENS[sequences], [LOOPS] * len(labels), noise):
        if stage.stage is not None and stage.stage.is_group:
            label = labels[stage.stage.group]
            arrays |= {
                label: np.stack([state.numpy() for state in stage.states]),
                f"into {label}": hidden.numpy(),
            }
        hidden = stage.output
    return arrays


def measured(model: LoopedTransformer, sequences: list[int]) -> dict[str, pd.DataFrame]:
    frames = {table: [] for table in TABLES}
    batch = held_out(TOKENS[sequences], sequences=sequences)
    for table, columns in measure_batch(loaded(model), batch, LOOPS, CRITERIA):
        frames[table].append(pd.DataFrame(columns))
    return {table: pd.concat(parts) for table, parts in frames.items()}


def length(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt((vectors**2).sum(-1))


def expected_measures(states: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Measures of loop step k of states (K + 1, B, T, C) that are defined there, (B, T) each."""
    updates = np.diff(states, axis=0)
    wanted = {"state_norm": length(states[k]), "distance_to_final": length(states[k] - states[-1])}
    if k < LOOPS:
        wanted["step_norm"] = length(updates[k])
        wanted["step_norm_relative"] = length(updates[k]) / length(states[k])
    if 0 < k < LOOPS:
        norms, acceleration = (
            (length(updates[k]), length(updates[k - 1])),
            length(updates[k] - updates[k - 1]),
        )
        wanted["cosine"] = (updates[k] * updates[k - 1]).sum(-1) / norms[0] / norms[1]
        wanted["acceleration"] = acceleration
        wanted["acceleration_normalized"] = acceleration / (norms[0] + norms[1])
        wanted["acceleration_relative"] = acceleration / length(states[k])
    return wanted


def test_every_row_of_a_loop_is_what_the_states_of_the_trace_give():
    model, sequences = float64_model(), [3, 1]
    frame = measured(model, sequences)["trajectories"].set_index(
        ["group", "k", "sequence", "position"]
    )
    for label, states in states_of(model, sequences).items():
        if label.startswith("into"):
            continue
        for k in range(LOOPS + 1):
            rows, directions = frame.loc[(label, k)], states / length(states)[..., None]
            of_directions = {
                f"direction_{name}": v for name, v in expected_measures(directions, k).items()
            }
            wanted = expected_measures(states, k) | of_directions
            for name in rows.columns.drop(["iteration", "document"]):
                if name in wanted:
                    np.testing.assert_allclose(
                        rows[name], wanted[name].ravel(), rtol=1e-5, err_msg=f"{name} at {k}"
                    )
                else:
                    assert rows[name].isna().all(), f"{name} at {k}"


def test_every_row_of_a_path_is_what_the_states_of_the_trace_give():
    model, sequences = float64_model(), [3, 1]
    frame = measured(model, sequences)["token_paths"].set_index(["group", "sequence", "position"])
    assert len(frame) == len(frame.index.unique()) == 3 * 2 * 8
    for label, states in states_of(model, sequences).items():
        if label.startswith("into"):
            continue
        paths = torch.from_numpy(states).movedim(0, -2).flatten(0, 1)  # (tokens, K + 1, C)
        for (_, row), path in zip(frame.loc[label].iterrows(), paths, strict=True):
            distances, floor = (
                measures.path_distances(path),
                vectors.rounding_floor(vectors.norm(path[-1])),
            )
            steps = vectors.norm(path.diff(dim=0))[1:]  # without the leap from x^0
            rate = measures.contraction_rate(steps, steps > floor)
            assert row["contraction_rate"] == pytest.approx(rate.item(), rel=1e-5)
            dimension = measures.effective_dimension(distances)
            assert row["effective_dimension"] == pytest.approx(dimension.item(), rel=1e-5)
            path_type, period = classified(path)
            assert (row["path_type"], row["period"]) == (measures.PATH_TYPES[path_type], period)


def classified(path: torch.Tensor) -> tuple[int, int]:
    """Path type and period of a path (K + 1, C)."""
    norms = vectors.norm(path.diff(dim=0))
    floor = vectors.rounding_floor(vectors.norm(path))
    whole = measures.LoopPath(measures.path_distances(path), norms, floor, CRITERIA)
    return tuple(value.item() for value in measures.classify(whole))


@pytest.mark.parametrize("exit_norm", ["none", "final_norm"])
def test_every_reference_state_of_the_drift_is_the_jump_from_the_last_state_of_the_group_before(
    exit_norm,
):
    # in this sandwich a state is not normalised already, so what leaves a group differs from its
    # last state
    config = model_config(
        num_layers=6, groups=[[2], [3, 4], [6]], exit_norm=exit_norm, sandwich="branch"
    )
    model, sequences = float64_model(config), [0, 4]
    states = states_of(model, sequences)
    frame = (
        measured(model, sequences)["token_drift"]
        .set_index(["boundary", "reference_state", "sequence", "position"])
        .sort_index()
    )
    for number, (first, second) in enumerate([("2", "3-4"), ("3-4", "6")], start=1):
        adapter = model.groups[number].adapter.weight.numpy()
        side_by_side = np.concatenate([states[second][0], states[f"into {second}"]], axis=-1)
        references = {
            "first_state": states[second][1],
            "projected": side_by_side @ adapter.T,
            "final": states[second][LOOPS],
            "initial": states[second][0],
        }
        loop_steps = length(np.diff(states[first], axis=0))  # (K, B, T)
        for reference, state in references.items():
            rows, jump = (
                frame.loc[(f"{first}->{second}", reference)],
                length(state - states[first][LOOPS]),
            )
            wanted = {
                "jump": jump,
                "dlr": jump / loop_steps.mean(0),
                "jump_over_path": jump / loop_steps.sum(0),
            }
            for name, value in wanted.items():
                np.testing.assert_allclose(
                    rows[name], value.ravel(), rtol=1e-5, err_msg=f"{reference} {name}"
                )


@pytest.mark.parametrize("groups", [[[3, 4]], [[1, 2]], [[4, 5, 6]], [[1, 2, 3, 4, 5, 6]]], ids=str)
@pytest.mark.parametrize("exit_norm", ["none", "final_norm"])
def test_the_drift_around_the_only_group_is_the_jump_from_the_layer_before_and_to_the_layers_after(
    groups, exit_norm
):
    """prelude -> core -> coda, both over the mean loop step of the core."""
    model = float64_model(
        model_config(num_layers=6, groups=groups, exit_norm=exit_norm, sandwich="branch")
    )
    sequences, (label,) = [0, 4], model.config.group_labels
    tokens, noise = TOKENS[sequences], loaded(model).noise(sequences)
    stages = [stage for stage in model.trace(tokens, [LOOPS], noise) if stage.stage is not None]
    (site,) = [number for number, stage in enumerate(stages) if stage.stage.is_group]
    core, coda = stages[site], [stage.output for stage in stages[site + 1 :]]
    frame = measured(model, sequences)["token_drift"].set_index(["boundary", "reference_state"])
    entry = "embedding" if groups[0][0] == 1 else "prelude"
    wanted = {
        (f"{entry}->{label}", "first_state"): (core.entered, core.states[1]),
        (f"{entry}->{label}", "final"): (core.entered, core.states[-1]),
        (f"{entry}->{label}", "initial"): (core.entered, core.states[0]),
    }
    if coda:
        wanted |= {
            (f"{label}->coda", "first_state"): (core.states[-1], coda[0]),
            (f"{label}->coda", "projected"): (core.states[-1], core.output),
            (f"{label}->coda", "final"): (core.states[-1], coda[-1]),
        }
    assert set(frame.index) == {*wanted, (f"{entry}->{label}", "projected")}
    steps = torch.stack(
        [vectors.norm(after - before) for before, after in pairwise(core.states)]
    ).mean(0)
    for point, (before, after) in wanted.items():
        jump = vectors.norm(after - before)
        np.testing.assert_allclose(frame.loc[point]["jump"], jump.ravel(), rtol=1e-5)
        np.testing.assert_allclose(frame.loc[point]["dlr"], (jump / steps).ravel(), rtol=1e-5)


def test_a_model_without_groups_has_no_rows():
    model = float64_model(model_config(groups=[]))
    assert not list(measure_batch(loaded(model), held_out(TOKENS[:1]), LOOPS, CRITERIA))


def extracted(folder, tokens=TOKENS, **changes) -> dict[str, pd.DataFrame]:
    paths = {table: folder / f"{table}.parquet" for table in TABLES}
    extract(
        loaded(float64_model()), held_out(tokens), trajectories_config(**changes), CRITERIA, paths
    )
    return {table: tables.read(table, path) for table, path in paths.items()}


@pytest.mark.parametrize("batch_size", [1, 3, 5, 100])
def test_the_number_of_sequences_at_a_time_changes_no_value(batch_size, tmp_path):
    tables_of_two = extracted(tmp_path / "two")
    for table, frame in extracted(tmp_path / "other", batch_size=batch_size).items():
        wanted = tables_of_two[table]
        assert len(frame) == len(wanted)
        names = [
            name
            for name in ("sequence", "group", "boundary", "k", "reference_state", "position")
            if name in frame
        ]
        sort = {"by": names, "ignore_index": True}
        pd.testing.assert_frame_equal(
            frame.sort_values(**sort), wanted.sort_values(**sort), rtol=1e-6
        )


def test_each_batch_is_written_before_the_next_is_run(tmp_path):
    extracted(tmp_path, batch_size=2)
    assert (
        pq.ParquetFile(tmp_path / "trajectories.parquet").num_row_groups == 3 * 3
    )  # groups, batches of 2, 2 and 1
    assert pq.ParquetFile(tmp_path / "token_drift.parquet").num_row_groups == 2 * 3


def test_a_model_with_states_that_are_not_finite_is_refused_with_their_place(tmp_path):
    model = float64_model()
    next(model.groups[1].parameters()).data.fill_(torch.nan)
    message = (
        "^group 3-4, loop step 1, sequence {}, position 0: found a state of norm nan, expected"
        " finite numbers.$"
    )
    paths = {table: tmp_path / f"{table}.parquet" for table in TABLES}
    with pytest.raises(InputError, match=message.format(0)):
        extract(loaded(model), held_out(TOKENS), trajectories_config(), CRITERIA, paths)
    with pytest.raises(InputError, match=message.format(1)):
        save_states(
            loaded(model),
            held_out(TOKENS[1:2], sequences=[1]),
            ["w"] * 8,
            LOOPS,
            tmp_path / "states",
        )
    assert not any(tmp_path.iterdir())


def test_the_states_of_one_sequence_can_be_read_back_with_metadata_of_each_entry(tmp_path):
    path, model, words = (
        tmp_path / "states.safetensors",
        float64_model(),
        [f"w{n}" for n in range(8)],
    )
    save_states(loaded(model), held_out(TOKENS[1:2], sequences=[1]), words, LOOPS, path)
    with safe_open(path, framework="np") as file:
        states, header = file.get_tensor("states"), json.loads(file.metadata()["twoscale"])
    assert states.dtype == np.float32
    assert states.shape == (
        1 + 2 + 3 * (LOOPS + 1),
        8,
        8,
    )  # embedding, layers 1 and 5, three groups
    assert (header["iteration"], header["sequence"], header["tokens"]) == (ITERATION, 1, words)
    states_by_group = states_of(model, [1])
    for label in ("2", "3-4", "6"):
        rows = [row for row, site in enumerate(header["sites"]) if site["group"] == label]
        assert [header["sites"][row]["k"] for row in rows] == list(range(LOOPS + 1))
        np.testing.assert_allclose(states[rows], states_by_group[label][:, 0], rtol=1e-6)
    others = [(site["stage"], site["layer"]) for site in header["sites"] if site["group"] is None]
    assert others == [("embedding", None), ("layer", 1), ("layer", 5)]
    np.testing.assert_allclose(states[0], model.embed(TOKENS[1:2], torch.arange(8))[0], rtol=1e-6)
