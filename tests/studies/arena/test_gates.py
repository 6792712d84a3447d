"""The arena without a model: exits with known answers, wrong tables, and the command."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from tests.small import ROOT
from twoscale import tables
from twoscale.base import InputError
from twoscale.exits.cost_matched import random_plan
from twoscale.exits.oracle import cheapest_exits
from twoscale.studies.arena import gates, page

DEPTHS, SEQUENCES, LENGTH = 6, 24, 40
TOLERANCE = 0.01


def loss_table(seed=0, lengths=(LENGTH,) * SEQUENCES):
    """Losses that fall with the depth by a share that differs between tokens; two sequences in each document."""
    generator = np.random.default_rng(seed)
    rows = []
    for sequence, length in enumerate(lengths):
        start, rate = generator.uniform(1, 4, length), generator.uniform(0.1, 0.9, length)
        for depth in range(1, DEPTHS + 1):
            loss = start * (0.4 + 0.6 * rate ** (depth - 1)) + generator.normal(0, 0.05, length)
            keys = {"document": sequence // 2, "sequence": sequence, "position": np.arange(length), "depth": depth}
            rows.append(pd.DataFrame(keys | {"loss": loss}))
    return pd.concat(rows, ignore_index=True)


def exit_table(losses, depths, criterion="gate", threshold=0.5):
    """The exits at these depths, of the tokens in the order of `gates.Losses`."""
    keys = losses.tokens[["sequence", "position"]]
    return keys.assign(criterion=criterion, threshold=threshold, depth=depths)


def write(table, frame, path):
    frame[list(tables.columns(table))].to_parquet(path, index=False)
    return path


@pytest.fixture
def losses(tmp_path):
    return gates.read_losses(write("depth_losses", loss_table(), tmp_path / "losses.parquet"))


def arena(losses, depths):
    rows = gates.compared(losses, {("gate", 0.5): torch.as_tensor(depths)}, TOLERANCE)
    return rows[(rows["criterion"] == "gate") & (rows["group"] == "all")].set_index("reference")


def run(*arguments):
    """The command `python -m twoscale.studies.arena`, in the folder of the library."""
    command = [sys.executable, "-m", "twoscale.studies.arena", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False)


def test_a_gate_that_is_the_oracle_has_no_regret_and_gains(losses):
    rows = arena(losses, cheapest_exits(losses.nats, 0.1))
    assert rows.loc["oracle", "gain"] == pytest.approx(0, abs=1e-9)
    assert rows.loc["oracle", "saved"] == pytest.approx(0, abs=1e-6)
    assert rows.loc["random", "gain_low"] > 0.05
    assert rows.loc["fixed", "gain_low"] > 0.05


def test_a_gate_that_spends_depth_where_it_helps_least_has_a_regret_and_loses(losses):
    benefit = losses.nats[1] - losses.nats[-1]
    rows = arena(losses, torch.where(benefit < benefit.median(), DEPTHS, 1))
    assert rows.loc["oracle", "gain_high"] < -0.1
    assert rows.loc["random", "gain_high"] < 0


def test_a_gate_that_uses_every_depth_equals_its_cost_matched_exits(losses):
    rows = arena(losses, torch.full((SEQUENCES * LENGTH,), DEPTHS))
    for reference in ("random", "fixed"):
        assert rows.loc[reference, ["gain", "gain_low", "gain_high"]].tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert rows.loc["oracle", "evaluations"] == DEPTHS
    assert rows.loc["oracle", "ce"] == pytest.approx(losses.nats[-1].mean().item())


def test_random_gates_gain_nothing_within_their_intervals(losses):
    """The interval of a gain of 0 misses it in about 5 % of 20 gates, and after widening for all in none."""
    generator = np.random.default_rng(1)
    random = {
        ("gate", float(i)): torch.from_numpy(generator.integers(1, DEPTHS + 1, SEQUENCES * LENGTH)) for i in range(20)
    }
    rows = gates.compared(losses, random, TOLERANCE)
    gains = rows[rows["reference"] == "random"]
    missed = (gains["gain_low"] > 0) | (gains["gain_high"] < 0)
    assert missed.sum() <= 4
    assert (gains["gain_high"] - gains["gain_low"]).between(0.001, 0.2).all()
    assert "random exits of the same cost: no difference shown with gate." in page.summary(rows)


def test_the_exact_mean_is_that_of_many_draws_of_the_engines_random_exits(losses):
    plan = torch.from_numpy(np.random.default_rng(2).choice([1, 2, 6], SEQUENCES * LENGTH, p=[0.5, 0.3, 0.2]))
    grid = plan.numpy().reshape(1, SEQUENCES, LENGTH)
    draws = [
        losses.at(torch.from_numpy(random_plan(grid, tuple(range(SEQUENCES)), ("draw", i))).flatten())
        for i in range(400)
    ]
    expected, drawn = gates.mean_over_draws(losses.nats, plan), torch.stack(draws)
    noise = drawn.std(0) / len(draws) ** 0.5
    assert ((drawn.mean(0) - expected).abs() / noise).max() < 5
    assert drawn.mean().item() == pytest.approx(expected.mean().item(), abs=0.005)


def test_sequences_may_differ_in_length_and_rows_come_in_any_order(tmp_path):
    frame = loss_table(lengths=(3, 50, 20, 7))
    losses = gates.read_losses(write("depth_losses", frame.sample(frac=1, random_state=0), tmp_path / "losses.parquet"))
    depths = torch.arange(80) % DEPTHS + 1
    exits = exit_table(losses, depths.numpy()).sample(frac=1, random_state=1)
    found = gates.read_exits(write("gate_exits", exits, tmp_path / "exits.parquet"), losses)
    assert found["gate", 0.5].tolist() == depths.tolist()
    by_hand = frame.merge(exits, on=["sequence", "position", "depth"])["loss"].mean()
    assert arena(losses, depths).loc["random", "ce"] == pytest.approx(by_hand)


LOSS_FAULTS = {
    "a missing depth": (
        lambda f: f[(f["depth"] != 3) | (f["sequence"] != 1) | (f["position"] != 5)],
        "1, position 5, exp",
    ),
    "depths from 0": (lambda f: f.assign(depth=f["depth"] - 1), "expected each of 1 … 5"),
    "a duplicate": (lambda f: pd.concat([f, f[:1]]), "several rows for sequence 0, position 0, depth 1"),
    "NaN": (
        lambda f: f.assign(loss=f["loss"].where(f.index != 7)),
        "found the loss sequence 0, position 7, depth 1, loss",
    ),
    "infinity": (lambda f: f.assign(loss=f["loss"].where(f.index != 7, np.inf)), "loss inf, expected a finite number"),
    "text as position": (lambda f: f.assign(position="first"), "column position with type"),
    "a sequence of two documents": (lambda f: f.assign(document=f["position"]), "a sequence with several documents"),
    "no row": (lambda f: f[:0], "found no rows"),
}


@pytest.mark.parametrize("fault", LOSS_FAULTS)
def test_wrong_losses_are_one_sentence(fault, tmp_path):
    change, words = LOSS_FAULTS[fault]
    path = write("depth_losses", change(loss_table()), tmp_path / "losses.parquet")
    with pytest.raises(InputError, match=words) as error:
        gates.read_losses(path)
    assert str(path) in str(error.value)


EXIT_FAULTS = {
    "beyond the depths": (lambda f: f.assign(depth=f["depth"] + 1), "depth 7, expected a depth of 1 … 6"),
    "before the first": (lambda f: f.assign(depth=0), "depth 0, expected a depth of 1 … 6"),
    "a duplicate": (lambda f: pd.concat([f, f[:1]]), "several rows for criterion gate, threshold 0.5, sequence 0, pos"),
    "a token without exit": (lambda f: f[1:], "no exit of 1 of the 960 tokens"),
    "no common tokens": (lambda f: f.assign(sequence=f["sequence"] + 100), "no exit of 960 of the 960 tokens"),
    "a null": (lambda f: f.assign(threshold=np.nan), "a null in the column threshold"),
    "the name of a control": (lambda f: f.assign(criterion="fixed"), "found the criterion fixed"),
}


@pytest.mark.parametrize("fault", EXIT_FAULTS)
def test_wrong_exits_are_one_sentence(fault, losses, tmp_path):
    change, words = EXIT_FAULTS[fault]
    path = write("gate_exits", change(exit_table(losses, DEPTHS)), tmp_path / "exits.parquet")
    with pytest.raises(InputError, match=words) as error:
        gates.read_exits(path, losses)
    assert str(path) in str(error.value)


def test_the_command_writes_a_page_a_figure_and_tables(losses, tmp_path):
    parts = [
        exit_table(losses, cheapest_exits(losses.nats, price).numpy(), threshold=price) for price in (0.03, 0.1, 0.3)
    ]
    write("gate_exits", pd.concat(parts), tmp_path / "mine.parquet")
    done = run(tmp_path / "losses.parquet", tmp_path / "mine.parquet", tmp_path / "out")
    assert "better with gate" in done.stdout, done.stderr
    text = (tmp_path / "out" / "arena.md").read_text()
    assert "run **mine** on losses.parquet" in text
    assert "No model was run" in text
    assert "{" not in text
    assert "| -0 |" not in text  # the regret of the oracle's exits has no sign
    table = tables.read("arena", tmp_path / "out" / "arena.parquet")
    assert set(table["reference"]) == {"random", "fixed", "oracle"}
    assert len(tables.read("convergence", tmp_path / "out" / "convergence.parquet")) == 3 + DEPTHS
    assert (tmp_path / "out" / "arena.pdf").read_bytes().startswith(b"%PDF")
    failed = run(tmp_path / "mine.parquet", tmp_path / "mine.parquet", tmp_path / "out")
    assert failed.returncode == 1
    assert "expected those of the table 'depth_losses'" in failed.stderr
    assert "Traceback" not in failed.stderr
