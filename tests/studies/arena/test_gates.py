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
from twoscale.exits.references import cheapest_exits, random_plan
from twoscale.studies.arena import __main__ as gates

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
    rows = gates.compare(losses, {("gate", 0.5): torch.as_tensor(depths)})
    return rows[rows["criterion"] == "gate"].set_index("reference")


def run(*arguments):
    """The command `python -m twoscale.studies.arena`, in the folder of the library."""
    command = [sys.executable, "-m", "twoscale.studies.arena", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False)


def test_a_gate_that_is_the_oracle_has_no_regret_and_gains(losses):
    rows = arena(losses, cheapest_exits(losses.nats, 0.1))
    assert rows.loc["oracle", "gain"] == pytest.approx(0, abs=1e-9)
    assert rows.loc["random", "gain_low"] > 0.05
    assert rows.loc["fixed", "gain_low"] > 0.05
    benefit = losses.nats[1] - losses.nats[-1]
    worst = arena(losses, torch.where(benefit < benefit.median(), DEPTHS, 1))
    assert worst.loc["oracle", "gain_high"] < -0.1
    assert worst.loc["random", "gain_high"] < 0


def test_the_exact_mean_is_that_of_many_draws_of_the_engines_random_exits(losses):
    plan = torch.from_numpy(
        np.random.default_rng(2).choice([1, 2, 6], SEQUENCES * LENGTH, p=[0.5, 0.3, 0.2])
    )
    grid = plan.numpy().reshape(1, SEQUENCES, LENGTH)
    draws = [
        losses.nats.gather(
            0, torch.from_numpy(random_plan(grid, tuple(range(SEQUENCES)), ("draw", i))).view(1, -1)
        )[0]
        for i in range(200)
    ]
    expected, drawn = gates.mean_over_draws(losses.nats, plan), torch.stack(draws)
    noise = drawn.std(0) / len(draws) ** 0.5
    assert ((drawn.mean(0) - expected).abs() / noise).max() < 5
    assert drawn.mean().item() == pytest.approx(expected.mean().item(), abs=0.005)


def test_sequences_may_differ_in_length_and_rows_come_in_any_order(tmp_path):
    frame = loss_table(lengths=(3, 50, 20, 7))
    losses = gates.read_losses(
        write("depth_losses", frame.sample(frac=1, random_state=0), tmp_path / "losses.parquet")
    )
    depths = torch.arange(80) % DEPTHS + 1
    exits = exit_table(losses, depths.numpy()).sample(frac=1, random_state=1)
    found = gates.read_exits(write("gate_exits", exits, tmp_path / "exits.parquet"), losses)
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
        gates.read_losses(tmp_path / f"losses.{kind}") for kind in ("npz", "parquet")
    )
    assert as_array.nats.dtype == torch.float32
    assert torch.equal(as_array.nats, as_table.nats.float())
    assert as_array.tokens.astype(int).equals(as_table.tokens.astype(int))
    depths = np.arange(80) % DEPTHS + 1
    gains = [arena(each, depths)["gain"].to_numpy() for each in (as_array, as_table)]
    np.testing.assert_allclose(*gains, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"nats": np.ones((2, 3, 4))}, "no array losses"),
        ({"losses": np.ones((2, 3))}, r"losses with shape \(2, 3\)"),
        ({"losses": np.ones((2, 3, 4)), "documents": np.arange(3)}, r"documents with shape \(3,\)"),
        (
            {"losses": np.ones((2, 3, 4)), "documents": np.array([0, np.nan])},
            "documents that are not whole numbers",
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
        gates.read_losses(tmp_path / "losses.npz")


def test_whole_numbers_may_be_stored_as_floats(losses, tmp_path):
    frame = loss_table().astype({"depth": float, "position": float, "document": float})
    as_floats = gates.read_losses(write("depth_losses", frame, tmp_path / "floats.parquet"))
    assert torch.equal(as_floats.nats, losses.nats)
    assert as_floats.tokens.equals(losses.tokens)
    exits = exit_table(losses, 3.0)
    found = gates.read_exits(write("gate_exits", exits, tmp_path / "exits.parquet"), losses)
    assert set(found["gate", 0.5].tolist()) == {3}
    np.savez(
        tmp_path / "whole.npz",
        losses=np.arange(24).reshape(2, 3, 4),
        documents=np.array([0.0, 1.0]),
    )
    whole = gates.read_losses(tmp_path / "whole.npz")
    assert whole.nats[1:, 0].tolist() == [0, 1, 2, 3]


# (table, change, what the sentence says)
FAULTS = {
    "a missing depth": ("losses", lambda f: f[f.index != 7], "found 5 losses for|position 7"),
    "depths from 0": ("losses", lambda f: f.assign(depth=f["depth"] - 1), "each depth 1 … 5"),
    "a repeated loss": (
        "losses",
        lambda f: pd.concat([f, f[:1]]),
        "sequence 0, position 0, min 1, size 7",
    ),
    "a loss of NaN": (
        "losses",
        lambda f: f.assign(loss=f["loss"].where(f.index != 7)),
        "position 7.* loss nan",
    ),
    "a null of a depth": (
        "losses",
        lambda f: f.assign(depth=f["depth"].where(f.index != 7)),
        "position 7.* depth nan",
    ),
    "half a depth": (
        "losses",
        lambda f: f.assign(depth=f["depth"] + 0.5),
        "depth 1.5, .* a whole number in the col",
    ),
    "a depth in words": (
        "losses",
        lambda f: f.assign(depth="one"),
        "the column depth with type .*, expected a whole",
    ),
    "one depth": ("losses", lambda f: f[f["depth"] == 1], "losses at 1 depth, expected at least 2"),
    "infinity": (
        "losses",
        lambda f: f.assign(loss=f["loss"].where(f.index != 7, np.inf)),
        "position 7.* loss inf",
    ),
    "two documents": (
        "losses",
        lambda f: f.assign(document=f["position"]),
        "sequence 0, min 0, max 39",
    ),
    "no losses": ("losses", lambda f: f[:0], "found no rows"),
    "beyond the depths": (
        "exits",
        lambda f: f.assign(depth=f["depth"] + 1),
        "depth 7, expected a depth of 1 … 6",
    ),
    "a repeated exit": (
        "exits",
        lambda f: pd.concat([f, f[:1]]),
        "961 exits of 960 tokens for gate",
    ),
    "a token without exit": ("exits", lambda f: f[1:], "959 exits of 959 tokens for gate"),
    "a null": (
        "exits",
        lambda f: f.assign(threshold=np.nan),
        "position 0.*number in the column threshold",
    ),
    "a threshold of infinity": (
        "exits",
        lambda f: f.assign(threshold=np.inf),
        "threshold inf, .* finite number",
    ),
    "the name of a control": ("exits", lambda f: f.assign(criterion="fixed"), "criterion fixed"),
}


@pytest.mark.parametrize(("table", "change", "words"), FAULTS.values(), ids=FAULTS)
def test_wrong_tables_are_refused(table, change, words, losses, tmp_path):
    if table == "losses":
        path = write("depth_losses", change(loss_table()), tmp_path / "wrong.parquet")
    else:
        path = write("gate_exits", change(exit_table(losses, DEPTHS)), tmp_path / "wrong.parquet")
    with pytest.raises(InputError, match=words) as error:
        gates.read_losses(path) if table == "losses" else gates.read_exits(path, losses)
    assert str(path) in str(error.value)


def test_the_command_writes_a_page_a_figure_and_tables(losses, tmp_path):
    parts = [
        exit_table(losses, cheapest_exits(losses.nats, price).numpy(), threshold=price)
        for price in (0.03, 0.1, 0.3)
    ]
    write("gate_exits", pd.concat(parts), tmp_path / "mine.parquet")
    done = run(tmp_path / "losses.parquet", tmp_path / "mine.parquet", tmp_path / "out")
    assert "better: gate" in done.stdout, done.stderr
    assert (
        "| -0 |" not in (tmp_path / "out" / "arena.md").read_text()
    )  # the regret of the oracle's exits has no sign
    table = tables.read("arena", tmp_path / "out" / "arena.parquet")
    assert set(table["reference"]) == {"random", "fixed", "oracle"}
    assert (tmp_path / "out" / "arena.pdf").read_bytes().startswith(b"%PDF")
    failed = run(tmp_path / "mine.parquet", tmp_path / "mine.parquet", tmp_path / "out")
    assert failed.returncode == 1
    assert "expected those of the table 'depth_losses'" in failed.stderr
    assert "Traceback" not in failed.stderr
