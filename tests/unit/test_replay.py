"""`twoscale exits`: rules with known worth on planted recordings, files of engines, wrong input."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.small import ROOT
from twoscale.base import InputError, markdown
from twoscale.cli import main
from twoscale.exits.contract import frozen_exits
from twoscale.exits.criteria import make_criterion
from twoscale.replay.arena import compare
from twoscale.replay.check import NOT_SHOWN, SHOWN, check
from twoscale.replay.gains import reliability
from twoscale.replay.oracle import split_half
from twoscale.replay.page import as_dict, draw, page, text
from twoscale.replay.random_exits import random_exits
from twoscale.replay.recording import Recording, read_exits, read_recording
from twoscale.replay.rules import (
    exit_steps,
    options,
    options_of_exits,
    with_contraction,
    with_signals,
)
from twoscale.replay.run_tables import read_run

DEPTHS, TOKENS = 8, 20


def planted(seed=0, documents=200, needed=None):
    """Each token loses 1/8 nat for every depth that it lacks, and has the signals

    `entropy`, which falls to noise at the depth that it needs, and `coin`, which knows nothing.
    """
    generator = np.random.default_rng(seed)
    count = documents * TOKENS
    need = generator.integers(1, DEPTHS + 1, count) if needed is None else np.full(count, needed)
    lacking = np.maximum(need - np.arange(1, DEPTHS + 1)[:, None], 0)
    loss = generator.normal(3, 0.5, count) + lacking / DEPTHS
    signals = {
        "entropy": lacking + generator.normal(0, 0.2, lacking.shape),
        "coin": generator.random(lacking.shape),
    }
    sequences = np.repeat(np.arange(documents), TOKENS)
    positions = np.tile(np.arange(TOKENS), documents)
    return Recording(Path("planted"), sequences, sequences, positions, loss, True, signals)


def checked(recording, tolerance=0.01, seed=0, pairs=()):
    return check(recording, lambda first: options(first, list(pairs)), tolerance, seed)


def of(result, rule):
    return next(found for found in result.found if found.option.rule == rule)


def table(recording, **columns):
    """The recording as a table of rows per token and depth, with further columns (K, M)."""
    rows = [
        {
            "document": recording.documents,
            "sequence": recording.sequences,
            "position": recording.positions,
            "depth": k + 1,
            **{name: values[k] for name, values in columns.items()},
        }
        for k in range(recording.depths)
    ]
    return pd.concat(map(pd.DataFrame, rows), ignore_index=True)


def twoscale(*arguments, **options):
    command = [sys.executable, "-m", "twoscale.cli", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT / "src"}
    return subprocess.run(command, text=True, check=False, **pipes | options)


# --- what is found -------------------------------------------------------------------------------


def test_a_rule_that_knows_is_recommended_and_saves_what_it_can():
    """The needed depth is 4.5 in the mean, so 44 % of the loop steps can be saved."""
    result = checked(planted())
    found = of(result, "entropy")
    assert found.verdict == SHOWN
    assert 1 - found.evaluations / DEPTHS > 0.3
    assert found.excess.value <= 0.01 < found.random
    assert DEPTHS - 1 < result.fixed < DEPTHS
    assert result.best is found
    assert result.sentence().startswith(f"Exit on {found.option.condition}: ")


def test_where_all_tokens_need_the_same_depth_the_fixed_count_is_recommended():
    result = checked(planted(needed=5))
    assert 4.9 < result.fixed < 5  # few tokens with 4 loop steps lose little
    assert result.best is None
    assert result.sentence().startswith(
        "Lower the fixed count from 8 to 5; no rule is shown to be better than random exits of the"
        " same cost"
    )


def test_a_rule_that_is_better_than_chance_but_takes_more_than_the_fixed_count_is_not_recommended():
    """Half of the tokens lose 0.004 nats before depth 8. The rule lets these leave at depth 8, and
    the others at 6.
    """
    recording = planted(documents=40, needed=6)
    leaves = np.tile([6, 8], len(recording.documents) // 2)
    depths = np.arange(1, DEPTHS + 1)[:, None]
    cost = np.where(depths < 6, 4, 3 + 0.004 * (depths < leaves))
    signals = {"entropy": (depths < leaves).astype(float)}
    result = checked(replace(recording, cost=cost, signals=signals))
    (found,) = result.found
    assert (found.verdict, found.evaluations, result.fixed) == (SHOWN, 7, 6)
    assert result.best is None
    assert result.sentence() == (
        f"Lower the fixed count from 8 to 6; exits on {found.option.condition} are shown to be"
        " better than random exits of the same cost, by 0.001 nats, but not to take fewer than 6"
        " loop steps: 7.00."
    )


def test_where_the_last_depth_is_needed_nothing_is_saved():
    result = checked(planted(needed=DEPTHS), tolerance=0.001)
    assert result.fixed == DEPTHS
    beginning = (
        "Run all 8 loop steps: no smaller count stays within 0.001 nats, and no rule is shown"
        " to be better than random exits of the same cost"
    )
    assert result.sentence().startswith(beginning)


def test_a_coin_is_seldom_shown_and_thresholds_hold_their_tolerance_on_the_other_half():
    draws = 60
    shown = held = kept = 0
    for seed in range(draws):
        result = checked(planted(seed), tolerance=0.03, seed=seed)
        shown += of(result, "coin").verdict != NOT_SHOWN
        for found in result.found:
            kept += 1
            held += found.excess.value <= 0.03
    assert shown <= 0.05 * draws + 2  # two more than expected at the level
    assert held >= 0.9 * kept


def test_random_exits_lose_what_the_mean_over_many_permutations_loses():
    recording = planted(documents=40)
    _, second = recording.halves(0)
    found = of(checked(recording, 0.05), "coin")
    depths = found.option.exits(second).evaluations
    excess = second.cost - second.cost[-1]
    generator = np.random.default_rng(1)
    dealt = (generator.permutation(depths) for _ in range(400))
    means = [excess[plan - 1, np.arange(len(plan))].mean() for plan in dealt]
    error = np.std(means) / len(means) ** 0.5
    assert found.random == pytest.approx(np.mean(means), abs=4 * error)


def test_a_pair_leaves_where_both_conditions_hold():
    recording = planted()
    result = checked(recording, pairs=[("entropy", "coin")])
    found = of(result, "entropy and coin")
    depths = found.option.exits(recording).evaluations
    entropy, coin = (float(part.split(" < ")[1]) for part in found.option.condition.split(" and "))
    holds = (recording.signals["entropy"] < entropy) & (recording.signals["coin"] < coin)
    share = (depths == exit_steps(holds).evaluations).mean()
    assert share > 0.99  # the printed thresholds are rounded


def test_a_condition_has_to_hold_as_often_as_patience_says():
    holds = np.array([[1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], bool).T
    assert exit_steps(holds).evaluations.tolist() == [1, 2, 6]
    assert exit_steps(holds, 2).evaluations.tolist() == [4, 3, 6]
    assert exit_steps(holds, 3).evaluations.tolist() == [6, 4, 6]


def test_acceleration_keeps_the_state_before_the_second_hit_and_its_random_exits_the_last():
    """Losses 5, 4, 3, 2, 1, 0.9; the acceleration is small from depth 3 on, so tokens leave after 4
    evaluations with the loss at 3.
    """
    losses = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.9])[:, None].repeat(4, axis=1)
    signal = np.array([9.0, 9.0, 0.1, 0.1, 0.1, 0.1])[:, None].repeat(4, axis=1)
    names = np.arange(4)
    signals = {"acceleration": signal, "entropy": signal}
    recording = Recording(Path("six"), names, names, 0 * names, losses, signals=signals)
    for (option,), excess in zip(small_options(recording, 1.0), (2.1, 2.1), strict=True):
        evaluations = {"acceleration": 4, "entropy": 3}[option.rule]
        of_document = [evaluations, excess, losses[evaluations - 1, 0] - 0.9, 1]
        assert option.units(recording) == pytest.approx(np.tile(of_document, (4, 1)))


def small_options(recording, threshold):
    """The option of each signal with the threshold nearest to one value."""
    return [
        [min(rule, key=lambda option: abs(option.threshold - threshold))]
        for rule in options(recording, [])
    ]


def test_a_rule_leaves_where_the_criterion_of_its_name_does():
    """A recording of the statistic, and the engine's decisions on the same states."""
    source = torch.Generator().manual_seed(3)
    steps = torch.randn(DEPTHS, 40, 3, generator=source, dtype=torch.float64)
    steps *= 0.6 ** torch.arange(DEPTHS)[:, None, None]
    states = torch.cat([torch.zeros(1, 40, 3, dtype=torch.float64), steps]).cumsum(0)
    statistic = np.full((DEPTHS, 40), np.nan)
    statistic[1:] = (steps[1:] - steps[:-1]).norm(dim=-1)
    names = np.arange(40)
    signals = {"acceleration": statistic}
    recording = Recording(Path("steps"), names, names, 0 * names, statistic, signals=signals)
    (rule,) = options(recording, [])
    for option in rule[::6]:
        expected = frozen_exits(states, make_criterion("acceleration", option.threshold), None)
        found = option.exits(recording)
        assert found.evaluations.tolist() == expected.evaluations.tolist()
        assert found.loop_steps.tolist() == expected.loop_steps.tolist()


@pytest.mark.parametrize("name", ["cosine", "cosine_distance", "top1_stability", "native_gate"])
def test_a_signal_with_the_name_of_a_criterion_is_tried_in_one_direction(name):
    recording = planted()
    recording = replace(recording, signals={name: recording.signals["entropy"]})
    (rule,) = options(recording, [])
    assert all((" < " in option.condition) == ("cosine" in name) for option in rule)


def test_a_column_that_is_no_signal_is_listed_and_tried_only_if_it_is_asked_for():
    """A column with the loss itself would be recommended."""
    recording = planted()
    entropy = recording.signals["entropy"]
    recording = replace(recording, signals={"entropy": entropy, "label": -recording.cost})
    known = with_signals(recording, [])
    assert list(known.signals) == ["entropy"]
    assert known.note == "not tried: label (--signals tries them)"
    assert list(with_signals(recording, ["label"]).signals) == ["label"]
    assert list(with_signals(recording, [], [("label", "entropy")]).signals) == ["entropy", "label"]
    with pytest.raises(InputError, match=r"^--signals: found labels, .*did you mean label"):
        with_signals(recording, ["labels"])


def test_contraction_is_the_rest_of_a_geometric_series():
    """Steps 1, 1/2, 1/4 …: after the step 2^-k, 2^-k of the way is left; no rest where they grow."""
    steps = np.array([[1.0, 1.0], [0.5, 2.0], [0.25, 1.0]])
    found = with_contraction({"step_norm": steps, "norm": np.full((3, 2), 4.0)})
    expected = [[np.nan, np.nan], [0.5 / 4, np.nan], [0.25 / 4, 1.0 / 4]]
    assert found["contraction"] == pytest.approx(np.array(expected), nan_ok=True)
    assert found["step_norm_relative"] == pytest.approx(steps / 4)


def test_exits_of_another_program_are_rules_with_their_own_thresholds():
    recording = planted(documents=80)
    need = exit_steps(recording.signals["entropy"] < 0.5).evaluations
    exits = {("gate", 0.5): need, ("gate", 0.9): np.full_like(need, DEPTHS)}
    result = check(recording, lambda first: options_of_exits(exits), 0.01)
    assert [found.option.condition for found in result.found] == ["gate at 0.5"]
    assert result.found[0].verdict == SHOWN


SOLVER = {  # rows of the table in docs/arena.md -> threshold, against random exits, fixed loops
    ("entropy", "entropy, confidence, margin"): (10**-1.5, 10**-0.75),
    ("minp_kl", "min-p KL"): (0.1, 0.1),
    ("kl", "KL of successive predictions"): (0.01, 0.01),
    ("cosine", "cosine"): (0.1, 0.1),
    ("direction_step_norm", "step norm of the direction x/‖x‖"): (10**-0.5, 10**-0.5),
    ("step_norm", "step norm, raw"): (10.0, 10.0),
}


def test_the_kept_recording_of_the_solver_gives_the_published_numbers():
    """The table of docs/arena.md, and the released table of gains at every threshold."""
    folder = ROOT / "docs" / "arena"
    recording = read_recording(folder / "solver_losses.parquet")
    exits = read_exits(folder / "solver_depths.parquet", recording)
    points = {(name, tau) for (name, _), taus in SOLVER.items() for tau in taus}
    chosen = {point: exits[min(exits, key=lambda kept: far(kept, point))] for point in points}
    found = compare(recording, chosen).round({"threshold": 6})
    at = ["criterion", "threshold", "reference"]
    found = found.set_index(at).sort_index()
    released = pd.read_parquet(folder / "solver_edges.parquet").round({"threshold": 6})
    released = released.set_index(at).loc[found.index]
    for column in ("evaluations", "ce", "gain", "gain_low", "gain_high"):
        assert found[column].to_numpy() == pytest.approx(released[column].to_numpy(), abs=1e-5)
    page = (folder.parent / "arena.md").read_text(encoding="utf-8").replace("**", "")
    for (name, label), taus in SOLVER.items():
        cells = []
        for tau, reference in zip(taus, ("random", "fixed"), strict=True):
            row = found.loc[(name, round(tau, 6), reference)]
            ends = f"[{row['gain_low']:.3f}, {row['gain_high']:.3f}]"
            cells.append(f"{row['gain']:.3f} {ends}".replace("-", "−"))
        assert f"| {label} | {' | '.join(cells)} |" in page


def far(kept, point):
    """Distance of two thresholds of the same criterion."""
    return (kept[0] != point[0], abs(kept[1] - point[1]))


# --- known numbers -------------------------------------------------------------------------------


def known():
    """Half of the tokens need depth 2 and half depth 6, which `entropy` knows exactly.

    A token loses 1/8 nat for every depth that it lacks, and 1/128 nat at each but the last one.
    """
    recording = planted(documents=40)
    need = np.tile([2, 6], len(recording.documents) // 2)
    depths = np.arange(1, DEPTHS + 1)[:, None]
    lacking = np.maximum(need - depths, 0)
    cost = 3 + lacking / DEPTHS + (depths < DEPTHS) / 128
    return replace(recording, cost=cost, signals={"entropy": lacking.astype(float)})


def test_the_numbers_of_a_check_that_can_be_computed_by_hand():
    """The rule takes 4 of 8 depths in the mean and loses 1/128. Dealt at random, its depths give 2
    to a quarter of the tokens that need 6, which lose 1/2 more. Of fixed counts, 5 lose 9/128 and 6
    lose 1/128, so 6 for 97 % of the tokens and 5 for the others is the first mixture within 0.01.
    """
    result = checked(known())
    assert result.sentence() == (
        "Exit on entropy < 1: 50% fewer loop steps than 8 at 0.0078 nats; random exits of the same"
        " cost lose 0.13 nats, and the smallest fixed count within the tolerance is 5.97."
    )
    _, _, _, fixed, rule = (line.split("  ") for line in text(result).splitlines())
    cells = ["fixed at 5.97 of 8", "5.97", "25%", "0.00969"]
    assert [cell.strip() for cell in fixed if cell] == cells
    cells = ["entropy < 1", "4.00", "50%", "0.00781", "0.133", "shown"]
    assert [cell.strip() for cell in rule if cell] == cells
    written = page(result)
    row = "| entropy < 1 | 4.00 | 50% | 0.00781 | 0.00781 … 0.00781 | 0.133 | 0.125 | 0.125 … 0.125"
    assert f"{row} | shown |" in written
    assert "800 tokens of 40 documents, at most 8 loop steps." in " ".join(written.split())
    assert "of the other half, 20 documents." in " ".join(written.split())
    assert "The smallest fixed count within the tolerance is **5.97**." in written
    lost = ["0.383", "0.258", "0.195", "0.133", "0.0703", "0.00969", "0.00781", "0.00781", "0"]
    for depth, excess in zip([1, 2, 3, 4, 5, 5.97, 6, 7, 8], lost, strict=True):
        assert f"| {depth} | {excess} |" in written


def test_the_numbers_of_check_json_and_of_its_figure_can_be_computed_by_hand():
    result = checked(known())
    found = as_dict(result)
    small = pytest.approx(1 / 128)
    random, gain = pytest.approx(1 / 8 + 1 / 128), pytest.approx(1 / 8)
    assert found["recommended"] == "entropy < 1"
    assert (found["tolerance"], found["unit"], found["depths"]) == (0.01, "nats per token", 8)
    assert (found["reported_documents"], found["smallest_fixed_count"]) == (20, pytest.approx(5.97))
    assert found["fixed_excess"][3] == pytest.approx(3 / 16 + 1 / 128)
    assert found["fixed_excess"][8] == 0
    (rule,) = found["rules"]
    assert (rule["rule"], rule["threshold"], rule["loop_steps"]) == ("entropy", 1, 4)
    assert (rule["excess"], rule["excess_interval"]) == (small, [small, small])
    assert (rule["gain_over_random"], rule["gain_interval"]) == (gain, [gain, gain])
    assert (rule["random_excess"], rule["would_have_been_shown"]) == (random, pytest.approx(0))
    (axes,) = draw(result).axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    excess = found["fixed_excess"]
    assert (list(excess), pytest.approx(list(excess.values()))) in drawn
    assert ([4.0, 4.0], [small, random]) in drawn
    assert ([4.0], [small]) in drawn
    assert ([4.0], [random]) in drawn


# --- the oracle ----------------------------------------------------------------------------------


def reliability_of(losses, tolerance):
    """Of losses (K, documents, TOKENS) at depths 1 … K."""
    halves = split_half(np.concatenate([losses[:1], losses]), tolerance)
    rows = pd.DataFrame({name: values.mean(axis=-1) for name, values in halves.items()})
    documents = range(losses.shape[1])
    rows = rows.assign(group="loop", sequence=documents, document=documents, tokens=TOKENS)
    return reliability(rows)


@pytest.mark.parametrize(
    ("worth", "beyond", "expected"),
    [
        pytest.param(1 / DEPTHS, 0, 1, id="flat after the needed depth"),
        pytest.param(1 / DEPTHS, 1 / DEPTHS, 1, id="rising after the needed depth"),
        pytest.param(0, 0, 0, id="no depth is needed"),
    ],
)
def test_the_oracle_is_as_reliable_as_the_planted_depths(worth, beyond, expected):
    """Losses fall to the needed depth and are flat or rise after it; noise is below the tolerance,
    or, where no depth is needed, all that there is.
    """
    generator = np.random.default_rng(0)
    need = generator.integers(1, DEPTHS + 1, (200, TOKENS))
    lacking = need - np.arange(1, DEPTHS + 1)[:, None, None]
    noise = generator.normal(0, 0.002 if worth else 0.5, lacking.shape)
    losses = worth * np.maximum(lacking, 0) + beyond * np.maximum(-lacking, 0) + noise
    same, other = reliability_of(losses, tolerance=0.01)
    assert same.value == pytest.approx(expected, abs=0.15)
    assert same.low <= same.value <= same.high
    assert other.value == pytest.approx(0, abs=0.05)
    if not beyond:  # the depth of the lowest loss follows the noise
        assert reliability_of(losses, tolerance=0)[0].value < 0.5


# --- files ---------------------------------------------------------------------------------------


def test_rows_of_a_table_come_in_any_order_and_without_documents(tmp_path):
    recording = planted(documents=6)
    frame = table(recording, loss=recording.cost, **recording.signals)
    path = tmp_path / "table.parquet"
    frame.drop(columns="document").sample(frac=1, random_state=0).to_parquet(path)
    read = read_recording(path)
    assert np.array_equal(read.documents, recording.documents)
    assert read.cost == pytest.approx(recording.cost)
    for name, values in recording.signals.items():
        assert read.signals[name] == pytest.approx(values, abs=1e-6)


def rows_of(recording):
    return table(recording, loss=recording.cost, **recording.signals)


@pytest.mark.parametrize(
    "with_index",
    [
        pytest.param(lambda rows: rows[rows["position"] > 0], id="of a filtered DataFrame"),
        pytest.param(lambda rows: rows.rename_axis("row").sample(frac=1), id="with a name"),
        pytest.param(lambda rows: rows.reset_index(names="Unnamed: 0"), id="of a CSV"),
        pytest.param(lambda rows: rows.reset_index(names="Unnamed: 0.1"), id="of a CSV of a CSV"),
        pytest.param(lambda rows: rows[::-1].reset_index(), id="of reset_index"),
        pytest.param(lambda rows: rows.reset_index(names="level_0"), id="of reset_index twice"),
        pytest.param(
            lambda rows: rows.reset_index(names="__index_level_0__"), id="of another library"
        ),
    ],
)
def test_the_index_of_a_table_is_no_signal(with_index, tmp_path):
    path = tmp_path / "table.parquet"
    with_index(rows_of(planted(documents=6))).to_parquet(path)
    assert sorted(read_recording(path).signals) == ["coin", "entropy"]


def test_an_index_of_places_is_read_as_columns(tmp_path):
    path = tmp_path / "table.parquet"
    recording = planted(documents=6)
    rows_of(recording).set_index(["sequence", "position", "depth"]).to_parquet(path)
    read = read_recording(path)
    assert read.cost == pytest.approx(recording.cost)
    assert sorted(read.signals) == ["coin", "entropy"]


def hook_trajectory(prompts=12, passes=20, first=0):
    """A table in the layout of vLLM-Hook: a pass over each prompt, then one token a pass.

    `first` is the number of the first iteration.
    """
    generator = np.random.default_rng(0)
    rows, forward = [], 0
    for _ in range(prompts):
        for number in range(passes + 1):
            tokens = 3 if number == 0 else 1
            for token in range(tokens):
                need = generator.integers(1, DEPTHS + 1)
                for k in range(DEPTHS):
                    rest = max(0, need - k - 1)
                    rows.append(
                        {
                            "forward_index": forward,
                            "iteration": k + first,
                            "token_index": token,
                            "is_decode": number > 0,
                            "has_prediction_metrics": number > 0,
                            "hidden_delta": 2.0**-k,
                            "hidden_norm": 5.0,
                            "normalized_displacement": 2.0**-k / 5,
                            "entropy": rest + generator.normal(0, 0.1),
                            "top1_token": 7 if rest == 0 else 100 + rest,
                            "predictive_kl": None,
                        }
                    )
            forward += 1
    frame = pd.DataFrame(rows)
    whole = ("forward_index", "iteration", "token_index", "top1_token")
    return frame.astype(dict.fromkeys(whole, "Int64") | {"is_decode": "boolean"})


def test_a_trajectory_of_vllm_hook_is_read_as_published(tmp_path):
    path = tmp_path / "huginn.parquet"
    hook_trajectory().to_parquet(path)
    recording = read_recording(path)
    assert len(np.unique(recording.documents)) == 12
    assert recording.cost.shape == (DEPTHS, 12 * 20)  # without the tokens of prompts
    assert not recording.is_loss
    assert not recording.cost[-1].any()
    names = {"step_norm", "norm", "step_norm_relative", "entropy", "argmax_stability"}
    assert set(recording.signals) == names
    done = twoscale("exits", "check", path, "--tolerance", "0.02")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Exit on entropy < ")
    assert "contraction" in done.stdout


@pytest.mark.parametrize("first", [0, 1])
def test_the_iterations_of_a_trajectory_count_from_0_or_1_and_the_page_says_which(first, tmp_path):
    path = tmp_path / "hook.parquet"
    hook_trajectory().to_parquet(path)
    expected = read_recording(path)
    hook_trajectory(first=first).to_parquet(path)
    recording = read_recording(path)
    assert np.array_equal(recording.cost, expected.cost)
    for name, values in expected.signals.items():
        assert np.array_equal(recording.signals[name], values)
    result = checked(recording, tolerance=0.02)
    note = f"iteration {first} was read as the first loop step"
    assert note in text(result)
    assert note in page(result)
    assert note in as_dict(result)["note"]


def without(rows, iteration, token=100):
    """Without this iteration of one token."""
    is_of = (rows["forward_index"] == token) & (rows["iteration"] == iteration)
    return rows[~is_of]


HOOK_WRONG = {
    "iterations that start at 2": (
        lambda: hook_trajectory(first=2),
        "found iteration 2 as the first, expected 0 or 1.",
    ),
    "without a first iteration": (
        lambda: without(hook_trajectory(), 0),
        "found iterations 1, 2, 3, 4, 5, 6, 7 for forward_index 100, token_index 0, expected each"
        " of 0 … 7 once",
    ),
    "without a first iteration, from 1": (
        lambda: without(hook_trajectory(first=1), 1),
        "found iterations 2, 3, 4, 5, 6, 7, 8 for forward_index 100, token_index 0, expected each"
        " of 1 … 8 once",
    ),
    "a loss that is not finite": (
        lambda: hook_trajectory().assign(loss=lambda rows: np.where(rows.index == 31, np.nan, 1)),
        "found the loss nan for forward_index 1, token_index 0, iteration 7, expected a finite",
    ),
}


@pytest.mark.parametrize("case", HOOK_WRONG)
def test_a_wrong_trajectory_is_told_in_the_words_and_numbers_of_its_file(case, tmp_path):
    make, sentence = HOOK_WRONG[case]
    path = tmp_path / "hook.parquet"
    make().to_parquet(path)
    with pytest.raises(InputError) as refused:
        read_recording(path)
    assert sentence in str(refused.value)


def predicted(recording):
    """The recording without losses: the cost is 1 where a prediction differs from the last one."""
    cost = (recording.signals["entropy"] > 1).astype(float)
    return replace(recording, cost=cost, is_loss=False)


@pytest.mark.parametrize(
    ("recording", "tolerance", "excess", "sentence"),
    [
        (
            planted(),
            0.01,
            "**Excess** is the loss above that at full depth, in nats per token.",
            r"Exit on entropy < \S+: \d+% fewer loop steps than 8 at \S+ nats; random exits of the"
            r" same cost lose \S+ nats, and the smallest fixed count within the tolerance is 7\.45\.",
        ),
        (
            predicted(planted()),
            0.01,
            "**Excess** is the share of predicted tokens that differ from those at full depth.",
            r"Exit on entropy < \S+: \d+% fewer loop steps than 8 at \S+% of predictions changed;"
            r" random exits of the same cost have \S+% of predictions changed, and the smallest"
            r" fixed count within the tolerance is 7\.88\.",
        ),
    ],
)
def test_the_page_names_the_cost_in_sentences_that_can_be_read(
    recording, tolerance, excess, sentence
):
    result = checked(recording, tolerance)
    assert re.fullmatch(sentence, result.sentence())
    shown = " ".join(page(result).split())
    assert f"**{result.sentence()}**" in shown  # as it is, without an escape
    assert excess in shown
    unit = "nats per token" if result.data.is_loss else "share of changed predictions"
    assert f"whose excess over full depth is at most 0.01 ({unit}), with a margin" in shown
    (axes,) = draw(result).axes
    assert axes.get_ylabel() == f"excess over full depth\n({unit})"


def test_the_command_writes_a_page_a_figure_json_and_exits(tmp_path):
    recording = planted(documents=40)
    path, folder = tmp_path / "table.parquet", tmp_path / "out"
    table(recording, loss=recording.cost, **recording.signals).to_parquet(path)
    done = twoscale("exits", "check", path, "--out", folder, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((folder / "check.json").read_text()) == result
    assert markdown(result["sentence"]) in (folder / "check.md").read_text()
    assert (folder / "check.svg").stat().st_size > 5000
    exits = pd.read_parquet(folder / "exits.parquet")
    assert exits.groupby("criterion")["depth"].mean()["entropy"] == pytest.approx(4.5, abs=0.5)
    dealt = random_exits(folder / "exits.parquet", "entropy", seed=3)
    depths = [depth for of_sequence in dealt.values() for depth in of_sequence]
    entropy = exits[exits["criterion"] == "entropy"]
    assert sorted(depths) == sorted(entropy["depth"])
    assert depths != entropy["depth"].tolist()
    assert {name: len(of) for name, of in dealt.items()} == {str(n): TOKENS for n in range(40)}


def test_exits_without_losses_are_not_compared_in_nats(tmp_path):
    recording = planted(documents=12)
    path = tmp_path / "table.parquet"
    top1 = (recording.signals["entropy"] > 1).astype(int)  # changes until the depth needed is near
    table(recording, top1=top1, **recording.signals).to_parquet(path)
    written = twoscale("exits", "check", path, "--out", tmp_path / "first")
    assert written.returncode == 0, written.stderr
    exits, folder = tmp_path / "first" / "exits.parquet", tmp_path / "second"
    done = twoscale("exits", "check", path, exits, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "changed" in done.stdout
    assert (folder / "check.md").exists()
    assert not [*folder.glob("arena.*")]


def test_the_exits_of_a_pair_are_dealt_too(tmp_path):
    recording = planted(documents=40)
    path = tmp_path / "table.parquet"
    table(recording, loss=recording.cost, **recording.signals).to_parquet(path)
    options = ("--both", "entropy", "coin", "--out", tmp_path)
    done = twoscale("exits", "check", path, *options)
    assert done.returncode == 0, done.stderr
    dealt = tmp_path / "depths.json"
    exits = tmp_path / "exits.parquet"
    done = twoscale("exits", "random", exits, "--criterion", "entropy and coin", "--out", dealt)
    assert done.returncode == 0, done.stderr
    chosen = pd.read_parquet(exits).query("criterion == 'entropy and coin'")["depth"]
    depths = [
        depth for of_sequence in json.loads(dealt.read_text()).values() for depth in of_sequence
    ]
    assert sorted(depths) == sorted(chosen)


def test_the_folder_of_a_run_has_the_means_of_its_tables():
    """Loss, evaluations and random exits of every operating point of the released demo."""
    folder = ROOT / "docs" / "demo-release" / "demo"
    quality, loops, matched = (
        pd.read_parquet(folder / "tables" / f"exit_{name}.parquet")
        for name in ("quality", "loops", "cost_matched")
    )
    run = read_run(folder)
    count = run.tokens.sum()
    at = ["criterion", "threshold"]
    full = quality[(quality["criterion"] == "fixed") & (quality["threshold"] == run.depths)]
    mean_at_full = np.average(full["ce"], weights=full["tokens"])
    assert len(run.points) == len(quality[quality["criterion"] != "fixed"].groupby(at))
    for point, units in run.points.items():
        evaluations, excess, random_excess, _ = units.sum(axis=0) / count
        own = quality.set_index(at).loc[[point]]
        ce = np.average(own["ce"], weights=own["tokens"])
        assert excess == pytest.approx(ce - mean_at_full, abs=1e-9)
        # sequences have equally many tokens
        spent = loops.set_index(at).loc[[point]]["evaluations"].mean()
        assert evaluations == pytest.approx(spent)
        random = matched.set_index([*at, "reference"]).loc[[(*point, "random")]]["ce"].mean()
        assert random_excess == pytest.approx(random - mean_at_full, abs=1e-9)
    first, second = run.halves(0)
    assert sorted([*first.documents, *second.documents]) == sorted(run.documents)
    result = check(run, lambda first: run.options(), 0.01)
    assert result.fixed == pytest.approx(2.865)
    whole = int(np.ceil(result.fixed))  # random tokens may take one loop step more than others
    assert result.sentence().startswith(f"Lower the fixed count from 30 to {whole}; no rule")


# --- wrong input ---------------------------------------------------------------------------------

WRONG = {
    "a missing depth": (
        lambda rows: rows.iloc[1:],
        "found depths 2, 3, 4, 5, 6, 7, 8 for sequence",
    ),
    "a depth twice": (lambda rows: pd.concat([rows, rows[:1]]), "expected each of 1 … 8 once"),
    "no losses": (lambda rows: rows.drop(columns="loss"), "found neither losses nor predictions"),
    "a loss that is not finite": (
        lambda rows: rows.assign(loss=rows["loss"].where(rows.index != 5)),
        "found the loss nan for sequence 0, position 5, depth 1",
    ),
    "one document": (
        lambda rows: rows.assign(document=0),
        "found 1 document, expected at least 4",
    ),
    "no depths": (lambda rows: rows.drop(columns="depth"), "found no column depth"),
    "a depth that is no number": (
        lambda rows: rows.assign(depth="one"),
        "found the column depth of",
    ),
    "half a depth": (lambda rows: rows.assign(depth=rows["depth"] / 2), "found depth 0.5"),
    "one depth": (lambda rows: rows[rows["depth"] == 1], "found 1 depth, expected at least 2"),
    "no rows": (lambda rows: rows[:0], "found no rows"),
    "no signals": (
        lambda rows: rows[rows.columns[:5]],
        "found no signals, expected the signal of a criterion",
    ),
    "an index and no signals": (
        lambda rows: rows[rows.columns[:5]][::-1],
        "found no signals, expected the signal of a criterion",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_one_sentence(case, tmp_path, monkeypatch, capsys):
    change, sentence = WRONG[case]
    recording = planted(documents=5)
    rows = change(table(recording, loss=recording.cost, **recording.signals))
    rows.to_parquet(tmp_path / "table.parquet")
    monkeypatch.setattr(
        sys, "argv", ["twoscale", "exits", "check", str(tmp_path / "table.parquet")]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    said = str(ended.value.code)
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    assert sentence in said


@pytest.mark.parametrize("name", ["entropy", "loss", "sequence", "note"])
def test_two_columns_of_one_name_are_one_sentence(name, tmp_path):
    path = tmp_path / "table.parquet"
    columns = pa.Table.from_pandas(rows_of(planted(documents=6)).assign(note="text"))
    pq.write_table(columns.append_column(name, columns["coin"]), path)
    with pytest.raises(InputError, match=f"found two columns {name}, expected one of each name"):
        read_recording(path)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_table_that_is_damaged_anywhere_is_read_or_one_sentence(tmp_path):
    """Pages have no checksums, so some damage cannot be noticed."""
    path = small_table(tmp_path / "table.parquet")
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        first = generator.choice([4, len(content) - 3000])  # the pages, or the footer
        at = generator.integers(first, len(content) - 8)
        damaged[at : at + 8] = generator.bytes(8)
        path.write_bytes(damaged)
        try:
            read_recording(path)
        except InputError:
            refused += 1
    assert refused > 50


def cut(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def with_a_damaged_member(path):
    content = path.read_bytes()
    path.write_bytes(content[:300] + bytes(100) + content[400:])


RAGGED = np.array([np.ones((3, 4)), np.ones((2, 4))], dtype=object)
NO_ARRAYS = {
    "losses of sequences of unequal length": lambda path: np.savez(path, losses=RAGGED),
    "documents that are texts": lambda path: np.savez(
        path, losses=np.ones((4, 3, 4)), documents=np.array(list("aabb"), dtype=object)
    ),
    "a file that was cut": lambda path: (np.savez(path, losses=np.ones((4, 9, 4))), cut(path, 0.5)),
    "an empty file": lambda path: path.touch(),
    "a text": lambda path: path.write_text("losses"),
    "a damaged member": lambda path: (
        np.savez_compressed(path, losses=np.random.default_rng(0).random((4, 9, 4))),
        with_a_damaged_member(path),
    ),
    "one array": lambda path: np.save(path.open("wb"), np.ones((4, 3, 4))),
    "no file": lambda path: None,
}


@pytest.mark.parametrize("case", NO_ARRAYS)
def test_a_file_that_is_no_npz_of_numbers_is_one_sentence(case, tmp_path):
    path = tmp_path / "losses.npz"
    NO_ARRAYS[case](path)
    with pytest.raises(InputError) as refused:
        read_recording(path)
    sentence = str(refused.value)
    assert sentence.startswith(f"{path}: ")
    assert sentence.endswith("expected an .npz with arrays of numbers, losses and documents.")


def test_an_npz_that_is_damaged_anywhere_is_read_or_one_sentence(tmp_path):
    path = tmp_path / "losses.npz"
    np.savez_compressed(path, losses=np.random.default_rng(0).random((4, 9, 4)))
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        at = generator.integers(0, len(content) - 3)
        damaged[at : at + 3] = generator.bytes(3)
        path.write_bytes(damaged)
        with suppress(InputError):
            read_recording(path)


def test_a_signal_that_never_fires_has_no_threshold_within_the_tolerance():
    recording = planted(documents=20)
    signals = {"entropy": np.full_like(recording.cost, np.nan), "coin": recording.signals["coin"]}
    result = checked(Recording(**{**vars(recording), "signals": signals}), tolerance=0)
    assert result.none_within == ["coin"]
    assert result.found == []


def test_exits_have_to_name_every_token_once(tmp_path):
    recording = planted(documents=4)
    keys = {"sequence": recording.sequences, "position": recording.positions}
    exits = pd.DataFrame({"criterion": "gate", "threshold": 0.5, **keys, "depth": 3})
    path = tmp_path / "exits.parquet"
    exits.to_parquet(path)
    assert read_exits(path, recording)["gate", 0.5].tolist() == [3] * (4 * TOKENS)
    for wrong, sentence in (
        (exits[1:], "found 79 exits for gate at threshold 0.5"),
        (exits.assign(depth=9), "found depth 9, expected 1 … 8"),
        (exits.assign(criterion="fixed"), "found the criterion fixed"),
        (exits.drop(columns="position"), "expected those of the table 'gate_exits'"),
        (exits.assign(criterion=None), "found a criterion that is missing"),
        (
            pd.concat([exits, exits.assign(criterion=np.nan)]),
            "found a criterion that is missing, expected the name of one for each exit",
        ),
    ):
        wrong.to_parquet(path)
        with pytest.raises(InputError, match=sentence):
            read_exits(path, recording)


def small_table(path):
    recording = planted(documents=6)
    table(recording, loss=recording.cost, **recording.signals).to_parquet(path)
    return path


TOO_LONG = "x" * 300
REFUSED = {
    "a file in place of the folder": (
        ("exits", "check", "table.parquet", "--out", "table.parquet"),
        "table.parquet: found the error 'File exists', expected a folder, or nothing,",
    ),
    "a folder below a file": (
        ("exits", "check", "table.parquet", "--out", "table.parquet/out"),
        "table.parquet/out: found the error 'Not a directory', expected no file where",
    ),
    "a folder where there can be none": (
        ("exits", "check", "table.parquet", "--out", "/proc/out"),
        "/proc/out: found the error 'No such file or directory', expected a path that can be",
    ),
    "a name that is too long": (
        ("exits", "check", "table.parquet", "--out", TOO_LONG),
        "x: found the error 'File name too long', expected a shorter name.",
    ),
    "a table with a name that is too long": (
        ("exits", "check", TOO_LONG),
        "x: found the error 'File name too long', expected a shorter name.",
    ),
    "a folder in place of a file": (
        ("exits", "random", "exits.parquet", "--out", "folder"),
        "folder: found the error 'Is a directory', expected the name of a file.",
    ),
    "the working folder in place of a file": (
        ("exits", "random", "exits.parquet", "--out", "."),
        ".: found the error 'Device or resource busy', expected a path that is not in use.",
    ),
    "a file in place of the folder of a file": (
        ("exits", "random", "exits.parquet", "--out", "table.parquet/depths.json"),
        "table.parquet: found the error 'File exists', expected a folder, or nothing,",
    ),
    "a folder of a run with a name that is too long": (
        ("draw", TOO_LONG),
        "x: found the error 'File name too long', expected a shorter name.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_path_that_the_system_refuses_is_one_sentence(case, tmp_path):
    arguments, sentence = REFUSED[case]
    small_table(tmp_path / "table.parquet")
    (tmp_path / "folder").mkdir()
    exits = {"criterion": "gate", "threshold": 0.5, "sequence": [0], "position": 0, "depth": 3}
    pd.DataFrame(exits).to_parquet(tmp_path / "exits.parquet")
    done = twoscale(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr


def test_a_disk_that_takes_no_more_is_one_sentence(tmp_path):
    path, folder = small_table(tmp_path / "table.parquet"), tmp_path / "out"
    with open("/dev/full", "w") as full:
        done = twoscale("exits", "check", path, stdout=full)
    expected = "error: output: found the error 'No space left on device', expected free space on"
    assert done.returncode == 1
    assert done.stderr.startswith(expected)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = twoscale("exits", "check", path, "--out", folder, preexec_fn=limit)
    expected = f"error: {folder / 'check.svg'}: found the error 'File too large', expected a file"
    assert done.returncode == 1
    assert done.stderr.startswith(expected)
    assert list(folder.iterdir()) == []


def test_an_interrupt_ends_the_command_without_a_traceback(tmp_path):
    """The command waits for the other end of a pipe."""
    os.mkfifo(tmp_path / "table.npz")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " from twoscale.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "exits", "check", tmp_path / "table.npz"]
    process = subprocess.Popen(command, cwd=ROOT / "src", stderr=subprocess.PIPE, text=True)
    watched, before = psutil.Process(process.pid), None
    # it waits once it has loaded its libraries and takes no more processor time
    while process.poll() is None and before != (before := (watched.status(), watched.cpu_times())):
        time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGINT, "")
