"""The examples in docs/examples run on files in the published formats."""

import argparse
import importlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from tests.small import ROOT
from twoscale import tables

PROBLEM = "21-12,13-3,9-2,16-15-1"  # removed edges, both ends, two shortest paths


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")
    return importlib.import_module


@pytest.fixture
def example(load):
    return load("shortest_path")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "problems.data"
    path.write_text("\n".join([PROBLEM] * 20) + "\n")
    return path


def test_the_zoo_judges_predictors_on_models_that_lose_something_and_predicts_no_more_than_can_be_lost(
    monkeypatch,
):
    monkeypatch.syspath_prepend(ROOT / "docs" / "zoo")
    zoo = importlib.import_module("zoo")

    def model(over, signal, vocab=1024):
        return {"over": over, "loss": 3.0, "vocab": vocab} | dict.fromkeys(zoo.PREDICTORS, signal)

    fit = [model(10.0**power, power) for power in (-2, -1)]
    rows = {
        row[0]: row[1:]
        for row in zoo.predictions(fit, [model(2.0, 4), model(0.0, -9), model(0.01, -2)])
    }
    left = np.log(1024) - 3  # to a uniform prediction
    assert rows[zoo.STEP][:3] == [f"{left:.2g}", "≤ 0.001", "0.01"]
    assert rows[zoo.STEP][3] == f"{(left / 2) ** 0.5:.2g}"  # of the first and the last
    assert rows["nothing, 0.001 nats for all"][3] == f"{(2000 * 10) ** 0.5:.2g}"


def test_the_solver_reads_problems_and_all_their_shortest_paths(example, data):
    problems, solutions = example.read_problems(data)
    assert problems.shape == (4, 40)  # a fifth of twenty
    assert problems[0, :16].nonzero().flatten().tolist() == [3, 13]
    assert (problems[0, 16:] == example.ABSENT).nonzero().flatten().tolist() == [12, 21]
    assert set(problems[0, 16:].tolist()) == {example.ABSENT, example.PRESENT}
    assert solutions[0] == {(2, 9), (1, 15, 16)}


@pytest.mark.parametrize(
    ("edges", "share"), [((2, 9), 1.0), ((1, 15, 16), 1.0), ((2, 9, 10), 0.0), ((2,), 0.0)]
)
def test_the_solver_is_right_if_it_marks_exactly_one_of_the_shortest_paths(example, edges, share):
    logits = torch.tensor([1.0, 0.0]).expand(1, 40, 2).clone()
    logits[0, [16 + edge for edge in edges]] = torch.tensor([0.0, 1.0])
    assert example.accuracy(logits, [{(2, 9), (1, 15, 16)}]) == share


@pytest.mark.runs
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_solver_is_loaded_run_and_recorded(
    example, data, tmp_path, monkeypatch, capsys, suffix
):
    torch.manual_seed(0)
    monkeypatch.setattr(example, "LOOPS", (2, 5))
    monkeypatch.setattr(example, "ARENA_LOOPS", 4)
    monkeypatch.setattr(example, "QUARTER_DECADES", (0.1, 1.0))
    data.write_text(f"{PROBLEM}\n{PROBLEM.removesuffix(',16-15-1')}\n" * 10)
    weights, state = tmp_path / f"weights{suffix}", example.Solver().state_dict()
    state["blocks.0.attn.mask"] = torch.ones(1, 1, 40, 40)
    (torch.save if suffix == ".pt" else save_file)(state, weights)
    folder = tmp_path / "recorded"
    example.main(argparse.Namespace(weights=weights, data=data, folder=folder, sequences=2))
    said = capsys.readouterr().out
    assert said.splitlines()[:2] == ["  2 loops: 0.000", "  5 loops: 0.000"]
    for name in ("edges", "one_path", "problems"):
        arena = tables.read("arena", folder / "arena" / name / "arena.parquet")
        assert {"entropy", "direction_step_norm", "acceleration_one_hit"} & set(
            arena["criterion"]
        ), name
        assert f"{name}:\nCompared with random exits" in said
    (path,) = (folder / "trajectories").glob("*.parquet")
    rows = tables.read("trajectories", path)
    assert rows["k"].max() == 5
    assert len(rows) % (2 * 40) == 0


@pytest.mark.parametrize("task", ["until", "count", "permuted"])
def test_the_answer_of_a_chain_is_the_node_after_the_steps_it_needs(load, task):
    chains = load("chains")
    held_out = chains.documents(task, 20, torch.Generator().manual_seed(0))
    for tokens, answers, steps in zip(
        held_out.tokens, held_out.paths[-1], held_out.steps, strict=True
    ):
        table, found = tokens[: chains.NODES].tolist(), []
        for node, count in zip(
            (tokens[chains.NODES :] - chains.NODES).tolist(), steps.tolist(), strict=True
        ):
            for _ in range(count):
                assert task == "count" or table[node] != node  # the chain goes on
                node = table[node]
            assert task == "count" or table[node] == node
            found.append(node)
        if task == "permuted":
            assert sorted(found) == sorted(answers.tolist())
        else:
            assert found == answers.tolist()
    assert set(held_out.steps.flatten().tolist()) == {1, 2, 3, 4, 5, 6}


@pytest.mark.runs
@pytest.mark.parametrize("task", ["until", "permuted"])
def test_a_model_trains_on_chains_and_its_exits_are_compared(
    load, tmp_path, monkeypatch, capsys, task
):
    chains = load("chains")
    for name, value in {
        "ITERATIONS": 2,
        "LAST_ITERATIONS": 1,
        "LOOPS": 4,
        "HELD_OUT": 8,
        "BATCH": 4,
    }.items():
        monkeypatch.setattr(chains, name, value)
    monkeypatch.setattr(load("shortest_path"), "QUARTER_DECADES", (0.1, 0.3, 1.0))
    chains.compare_exits(task, chains.train(task, seed=1), 1, tmp_path)
    said = capsys.readouterr().out
    assert (f"{task}: 6 steps, " in said) == (
        task == "until"
    )  # nothing teaches single steps of permuted answers
    for name in ("answers", "all"):
        arena = tables.read("arena", tmp_path / task / name / "arena.parquet")
        assert {"kl", "step_norm_relative"} & set(arena["criterion"]), name
        assert f"{task}, {name}:\nCompared with random exits" in said


@pytest.mark.runs
def test_exits_of_a_published_model_are_compared_on_the_starts_of_documents(
    load, tmp_path, monkeypatch, capsys
):
    example, ids = load("published_exits"), np.random.default_rng(1).integers(2, 20, 100, np.uint16)
    ids[[5, 20, 28, 50]] = 1  # documents of 15, 8, 22 and 50 tokens
    file = tmp_path / "tokens.bin"
    file.write_bytes(bytes(1024) + ids.tobytes())
    rows = example.documents(torch.from_numpy(ids.astype(np.int64)), start=1, tokens=10)
    assert [row.tolist() for row in rows] == [
        ids[begin : begin + 11].tolist() for begin in (5, 28, 50)
    ]

    model = ROOT / "tests/golden/published/parcae"
    options = {"documents": None, "length": 10, "start": 1, "loops": 6}
    example.main(argparse.Namespace(model=model, tokens=file, folder=tmp_path / "out", **options))
    said = capsys.readouterr().out
    example.main(
        argparse.Namespace(
            model=model, tokens=file, folder=tmp_path / "two", **options | {"documents": 2}
        )
    )
    arena = tables.read("arena", tmp_path / "out" / "arena.parquet")
    assert "Compared with random exits" in said
    assert (set(arena["run"]), set(arena["documents"])) == ({"out"}, {3})
    assert set(tables.read("arena", tmp_path / "two" / "arena.parquet")["documents"]) == {2}

    at_most = arena[
        (arena["reference"] == "oracle")
        & (arena["criterion"] == "fixed")
        & (arena["threshold"] == 6)
    ]
    source = example.PublishedFolder(model)
    opened = example.open_published(model, config := source.model_config(), torch.float32, "cpu")
    logits = opened(rows[:, :-1], [6], example.EvaluationNoise.of(config, example.SEED, range(3)))
    assert at_most["ce"].item() == pytest.approx(
        F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item(), 1e-5
    )
