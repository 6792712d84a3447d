"""The examples in docs/examples run on files in the published formats."""

import argparse
import importlib.util

import pytest
import torch
from safetensors.torch import save_file

from tests.small import ROOT
from twoscale import tables

PROBLEM = "21-12,13-3,9-2,16-15-1"  # removed edges, both ends, two shortest paths


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("shortest_path", ROOT / "docs" / "examples" / "shortest_path.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "problems.data"
    path.write_text("\n".join([PROBLEM] * 20) + "\n")
    return path


def test_the_solver_reads_problems_and_all_their_shortest_paths(example, data):
    problems, solutions = example.read_problems(data)
    assert problems.shape == (4, 40)  # a fifth of twenty
    assert problems[0, :16].nonzero().flatten().tolist() == [3, 13]
    assert (problems[0, 16:] == example.ABSENT).nonzero().flatten().tolist() == [12, 21]
    assert set(problems[0, 16:].tolist()) == {example.ABSENT, example.PRESENT}
    assert solutions[0] == {(2, 9), (1, 15, 16)}


@pytest.mark.parametrize(("edges", "share"), [((2, 9), 1.0), ((1, 15, 16), 1.0), ((2, 9, 10), 0.0), ((2,), 0.0)])
def test_the_solver_is_right_if_it_marks_exactly_one_of_the_shortest_paths(example, edges, share):
    logits = torch.tensor([1.0, 0.0]).expand(1, 40, 2).clone()
    logits[0, [16 + edge for edge in edges]] = torch.tensor([0.0, 1.0])
    assert example.accuracy(logits, [{(2, 9), (1, 15, 16)}]) == share


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_solver_is_loaded_run_and_recorded(example, data, tmp_path, monkeypatch, capsys, suffix):
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
        assert {"entropy", "direction_step_norm", "acceleration_one_hit"} & set(arena["criterion"]), name
        assert f"{name}:\nCompared with random exits" in said
    (path,) = (folder / "trajectories").glob("*.parquet")
    rows = tables.read("trajectories", path)
    assert rows["k"].max() == 5
    assert len(rows) % (2 * 40) == 0
