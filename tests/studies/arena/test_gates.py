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
from twoscale.exits.cost_matched import random_exits
from twoscale.replay.arena import compare, mean_over_draws
from twoscale.replay.oracle import cheapest_exits
from twoscale.replay.recording import read_exits, read_recording

DEPTHS, SEQUENCES, LENGTH = 6, 24, 40


def loss_table(seed=0, lengths=(LENGTH,) * SEQUENCES):
    """Losses that fall with the depth by a share that differs between tokens; two sequences in each
    document.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for sequence, length in enumerate(lengths):
        start, rate = generator.uniform(1, 4, length), generator.uniform(0.1, 0.9, length)
        for depth in range(1, DEPTHS + 1):
            loss = start * (0.4 + 0.6 * rate ** (depth - 1)) + generator.normal(0, 0.05, length)
            keys = {
                "document": sequence // 2,
                "sequence": sequence,
                "position": np.arange(length),
                "depth": depth,
            }
            rows.append(pd.DataFrame(keys | {"loss": loss}))
    return pd.concat(rows, ignore_index=True)


def exit_table(losses, depths, criterion="gate", threshold=0.5):
    """The exits at these depths, of the tokens in the order of `Recording`."""
    keys = pd.DataFrame({"sequence": losses.sequences, "position": losses.positions})
    return keys.assign(criterion=criterion, threshold=threshold, depth=depths)


def with_input(losses):
    """Losses (K + 1, M) with those of the state before the loop, where no token leaves."""
    return np.concatenate([np.full_like(losses.cost[:1], np.inf), losses.cost])


COLUMNS = {
    "depth_losses": ["document", "sequence", "position", "depth", "loss"],
    "gate_exits": list(tables.columns("gate_exits")),
}


def write(table, frame, path):
    frame[COLUMNS[table]].to_parquet(path, index=False)
    return path


@pytest.fixture
def losses(tmp_path):
    return read_recording(write("depth_losses", loss_table(), tmp_path / "losses.parquet"))


def arena(losses, depths):
    rows = compare(losses, {("gate", 0.5): np.asarray(depths)})
    return rows[rows["criterion"] == "gate"].set_index("reference")


def run(*arguments):
    """The command `twoscale exits check`, in the folder of the library."""
    command = [sys.executable, "-m", "twoscale.cli", "exits", "check", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False)


def test_a_gate_that_is_the_oracle_has_no_regret_and_gains(losses):
    rows = arena(losses, cheapest_exits(with_input(losses), 0.1))
    assert rows.loc["oracle", "gain"] == pytest.approx(0, abs=1e-9)
    assert rows.loc["random", "gain_low"] > 0.05
    assert rows.loc["fixed", "gain_low"] > 0.05
    benefit = losses.cost[0] - losses.cost[-1]
    worst = arena(losses, np.where(benefit < np.median(benefit), DEPTHS, 1))
    assert worst.loc["oracle", "gain_high"] < -0.1
    assert worst.loc["random", "gain_high"] < 0


def test_the_exact_mean_is_that_of_many_draws_of_the_engines_random_exits(losses):
    plan = torch.from_numpy(
        np.random.default_rng(2).choice([1, 2, 6], SEQUENCES * LENGTH, p=[0.5, 0.3, 0.2])
    )
    grid = plan.numpy().reshape(1, SEQUENCES, LENGTH)
    draws = [
        np.take_along_axis(
            losses.cost,
            random_exits(grid, tuple(range(SEQUENCES)), ("draw", i)).reshape(1, -1) - 1,
            axis=0,
        )[0]
        for i in range(200)
    ]
    expected, drawn = mean_over_draws(losses.cost, plan.numpy()), np.stack(draws)
    noise = drawn.std(0) / len(draws) ** 0.5
    assert (np.abs(drawn.mean(0) - expected) / noise).max() < 5
    assert drawn.mean().item() == pytest.approx(expected.mean().item(), abs=0.005)


def test_sequences_may_differ_in_length_and_rows_come_in_any_order(tmp_path):
    frame = loss_table(lengths=(3, 50, 20, 7))
    losses = read_recording(
        write("depth_losses", frame.sample(frac=1, random_state=0), tmp_path / "losses.parquet")
    )
    depths = np.arange(80) % DEPTHS + 1
    exits = exit_table(losses, depths).sample(frac=1, random_state=1)
    found = read_exits(write("gate_exits", exits, tmp_path / "exits.parquet"), losses)
    assert found["gate", 0.5].tolist() == depths.tolist()
    by_hand = frame.merge(exits, on=["sequence", "position", "depth"])["loss"].mean()
    assert arena(losses, depths).loc["random", "ce"] == pytest.approx(by_hand)


def test_an_array_of_losses_is_the_same_as_their_table(losses, tmp_path):
    """Sequences of different lengths, in float32; pandas may have written its index into a
    table.
    """
    lengths = (3, 50, 20, 7)
    table = loss_table(lengths=lengths)
    wide = np.full((4, 50, DEPTHS), np.nan, np.float32)
    wide[table["sequence"], table["position"], table["depth"] - 1] = table["loss"]
    np.savez(tmp_path / "losses.npz", losses=wide, documents=np.arange(4) // 2)
    table.iloc[::-1].to_parquet(tmp_path / "losses.parquet")
    as_array, as_table = (
        read_recording(tmp_path / f"losses.{kind}") for kind in ("npz", "parquet")
    )
    assert as_array.cost.dtype == np.float32
    assert np.array_equal(as_array.cost, as_table.cost.astype(np.float32))
    for name in ("documents", "sequences", "positions"):
        assert np.array_equal(getattr(as_array, name), getattr(as_table, name))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"nats": np.ones((2, 3, 4))}, "no array losses"),
        ({"losses": np.ones((2, 3))}, r"losses with shape \(2, 3\)"),
        ({"losses": np.ones((2, 3, 4)), "documents": np.arange(3)}, r"documents with shape \(3,\)"),
        (
            {"losses": np.ones((2, 3, 4)), "documents": np.array([0, np.nan])},
            "documents nan, expected whole numbers",
        ),
        ({"losses": np.full((2, 3, 4), "a")}, "losses with type <U1, expected numbers"),
        ({"losses": np.full((2, 3, 4), np.nan)}, "no losses besides NaN"),
        ({"losses": np.ones((2, 3, 1))}, "losses at 1 depth, expected at least 2"),
        (
            {"losses": np.where(np.arange(24).reshape(2, 3, 4) == 17, np.nan, 1)},
            "sequence 1, position 1",
        ),
    ],
)
def test_wrong_arrays_are_refused(arrays, words, tmp_path):
    np.savez(tmp_path / "losses.npz", **arrays)
    with pytest.raises(InputError, match=words):
        read_recording(tmp_path / "losses.npz")


def test_whole_numbers_may_be_stored_as_floats(losses, tmp_path):
    frame = loss_table().astype({"depth": float, "position": float, "document": float})
    as_floats = read_recording(write("depth_losses", frame, tmp_path / "floats.parquet"))
    assert np.array_equal(as_floats.cost, losses.cost)
    assert np.array_equal(as_floats.documents, losses.documents)
    exits = exit_table(losses, 3.0)
    found = read_exits(write("gate_exits", exits, tmp_path / "exits.parquet"), losses)
    assert set(found["gate", 0.5].tolist()) == {3}
    np.savez(
        tmp_path / "whole.npz",
        losses=np.arange(24).reshape(2, 3, 4),
        documents=np.array([0.0, 1.0]),
    )
    whole = read_recording(tmp_path / "whole.npz")
    assert whole.cost[:, 0].tolist() == [0, 1, 2, 3]


# (table, change, what the sentence says)
FAULTS = {
    "a missing depth": ("losses", lambda f: f[f.index != 7], "depths 2, 3, 4, 5, 6 for sequence 0"),
    "depths from 0": ("losses", lambda f: f.assign(depth=f["depth"] - 1), "depths 0, 1, 2, 3, 4"),
    "a repeated loss": (
        "losses",
        lambda f: pd.concat([f, f[:1]]),
        "depths 1, 1, 2, 3, 4, 5, 6 for",
    ),
    "a loss of NaN": (
        "losses",
        lambda f: f.assign(loss=f["loss"].where(f.index != 7)),
        "loss nan for sequence 0, position 7, depth 1",
    ),
    "a null of a depth": (
        "losses",
        lambda f: f.assign(depth=f["depth"].where(f.index != 7)),
        "depth nan, expected whole numbers",
    ),
    "half a depth": (
        "losses",
        lambda f: f.assign(depth=f["depth"] + 0.5),
        "depth 1.5, expected whole",
    ),
    "a depth in words": (
        "losses",
        lambda f: f.assign(depth="one"),
        "column depth of .*, expected numb",
    ),
    "one depth": ("losses", lambda f: f[f["depth"] == 1], "1 depth, expected at least 2"),
    "infinity": (
        "losses",
        lambda f: f.assign(loss=f["loss"].where(f.index != 7, np.inf)),
        "loss inf for sequence 0, position 7",
    ),
    "two documents": (
        "losses",
        lambda f: f.assign(document=f["position"]),
        "two in sequence 0, expected one document",
    ),
    "no losses": ("losses", lambda f: f[:0], "found no rows"),
    "beyond the depths": (
        "exits",
        lambda f: f.assign(depth=f["depth"] + 1),
        "depth 7, expected 1 … 6",
    ),
    "a repeated exit": (
        "exits",
        lambda f: pd.concat([f, f[:1]]),
        "961 exits for gate .* the 960 tokens",
    ),
    "a token without exit": ("exits", lambda f: f[1:], "959 exits for gate .* the 960 tokens"),
    "a null": ("exits", lambda f: f.assign(threshold=np.nan), "a threshold that is not finite"),
    "the name of a control": ("exits", lambda f: f.assign(criterion="fixed"), "criterion fixed"),
}


@pytest.mark.parametrize(("table", "change", "words"), FAULTS.values(), ids=FAULTS)
def test_wrong_tables_are_refused(table, change, words, losses, tmp_path):
    if table == "losses":
        path = write("depth_losses", change(loss_table()), tmp_path / "wrong.parquet")
    else:
        path = write("gate_exits", change(exit_table(losses, DEPTHS)), tmp_path / "wrong.parquet")
    with pytest.raises(InputError, match=words) as error:
        read_recording(path) if table == "losses" else read_exits(path, losses)
    assert str(path) in str(error.value)


def test_the_command_writes_a_page_a_figure_and_tables(losses, tmp_path):
    parts = [
        exit_table(losses, cheapest_exits(with_input(losses), price), threshold=price)
        for price in (0.03, 0.1, 0.3)
    ]
    write("gate_exits", pd.concat(parts), tmp_path / "mine.parquet")
    done = run(tmp_path / "losses.parquet", tmp_path / "mine.parquet", "--out", tmp_path / "out")
    assert done.stdout.startswith("Exit on gate at "), done.stderr
    assert (
        "| -0 |" not in (tmp_path / "out" / "arena.md").read_text()
    )  # the regret of the oracle's exits has no sign
    table = tables.read("arena", tmp_path / "out" / "arena.parquet")
    assert set(table["reference"]) == {"random", "fixed", "oracle"}
    assert (tmp_path / "out" / "arena.pdf").read_bytes().startswith(b"%PDF")
    failed = run(tmp_path / "mine.parquet", tmp_path / "mine.parquet", "--out", tmp_path / "out")
    assert failed.returncode == 1
    assert "mine.parquet: found depths 3, 5, 5 for sequence 0, position 0" in failed.stderr
    assert "Traceback" not in failed.stderr
