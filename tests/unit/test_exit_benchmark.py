"""The benchmark of the exit criteria: what its rows hold, and that they hold the truth."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from tests import reference_engine
from twoscale import config, tables
from twoscale.exits.benchmark import measure_check_cost, measure_latency, measure_quality, settings_grid
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise

SEED = 11
BLOCK = 8
CRITERIA = {
    "fixed": {"thresholds": [2, 6]},
    "step_norm": {"thresholds": [1.5]},
    "kl": {"thresholds": [0.02]},
    "acceleration": {"thresholds": [1.0e-300, 4]},  # never met, often met
}
GRID = [("fixed", 2), ("fixed", 6), ("step_norm", 1.5), ("kl", 0.02), ("acceleration", 1e-300), ("acceleration", 4)]


def small_model(groups=((2,), (3, 4)), vocab_size=11):
    model = config.ModelConfig(
        num_layers=4,
        num_heads=2,
        hidden_size=16,
        context_length=BLOCK,
        vocab_size=vocabulary,
        groups=groups,
        mean_loops=4,
        loops_sigma=0.5,
        sandwich="post_residual",
        state_init="noise",
        loop_noise=0.0,
        adapter_init="random",
        exit_norm="none",
    )
    return initialise(model, seed=0).double()


def exits(**changes):
    default = {
        "budget": 6,
        "criteria": CRITERIA,
        "decoder": "head",
        "kv_slots": None,
        "cuda_graphs": True,
        "dtype": "float64",
        "quality_tokens": 3 * BLOCK,
        "quality_batch_size": 2,
        "latency_tokens": 5,
        "latency_repeats": 2,
    }
    return config.ExitsConfig(**default | changes)


def held_out(sequences=3):
    """Inputs and targets (N, T): successive blocks of one random text."""
    tokens = torch.randint(11, (sequences * BLOCK + 1,), generator=torch.Generator().manual_seed(5))
    return tokens[:-1].unflatten(0, (sequences, BLOCK)), tokens[1:].unflatten(0, (sequences, BLOCK))


def quality(model, **changes):
    return pd.DataFrame(measure_quality(model, *held_out(), exits(**changes), SEED, "trial"))


def latency(model, repeats=2, **changes):
    return pd.DataFrame(measure_latency(model, held_out()[0][:repeats, :5], exits(**changes), SEED, "trial"))


def cross_entropy(logits, targets):
    """Mean of -log softmax(logits)[target] in nats, with NumPy: logits (T, V), targets (T,)."""
    logits = logits.numpy()
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -log_p[np.arange(len(targets)), targets.numpy()].mean()


def test_the_grid_is_every_rule_at_every_threshold():
    assert settings_grid(exits()) == GRID


@pytest.mark.parametrize("groups", [((2,), (3, 4)), ()], ids=["looped", "plain GPT"])
@pytest.mark.parametrize(("table", "measure"), [("exit_quality", quality), ("exit_latency", latency)])
def test_rows_fit_their_table(table, measure, groups, tmp_path):
    model = small_model(groups)
    frame = measure(model)
    labels = model.config.group_labels
    tables.write(table, frame, tmp_path / "table.parquet", labels)
    stored = tables.read(table, tmp_path / "table.parquet", labels)
    assert len(stored) == len(frame)
    assert (stored["run"] == "trial").all()
    assert not stored.isna().any(axis=None)


def test_quality_has_one_row_per_setting_and_sequence():
    frame = quality(small_model())
    keys = list(zip(frame["criterion"], frame["threshold"], frame["sequence"], strict=True))
    assert keys == [(name, threshold, sequence) for name, threshold in GRID for sequence in range(3)]
    assert (frame["tokens"] == BLOCK).all()


@pytest.mark.parametrize("changes", [{}, {"decoder": "remaining_layers"}, {"kv_slots": 2}, {"kv_slots": 6}], ids=str)
def test_quality_is_the_cross_entropy_and_cost_of_the_reference_engine(changes):
    model = small_model()
    inputs, targets = held_out()
    for row in quality(model, **changes).to_dict("records"):
        name, threshold, i = row["criterion"], row["threshold"], row["sequence"]
        logits, steps, evaluations = reference_engine.evaluate(
            model, inputs[i], name, threshold, 6, EvaluationNoise(SEED, [i], BLOCK), **changes
        )
        assert row["ce"] == pytest.approx(cross_entropy(logits, targets[i]), rel=1e-9)
        assert row["ppl"] == pytest.approx(math.exp(row["ce"]), rel=1e-12)
        for group, label in enumerate(("2", "3-4")):
            assert row[f"steps_g{label}"] == pytest.approx(steps[group].double().mean().item(), rel=1e-6)
            assert row[f"evaluations_g{label}"] == pytest.approx(evaluations[group].double().mean().item(), rel=1e-6)


def test_latency_times_the_function_that_quality_reads():
    model = small_model()
    for changes in ({"decoder": "remaining_layers"}, {"kv_slots": 2}):
        rows = latency(model, **changes)
        for row in rows.to_dict("records"):
            _, _, evaluations = reference_engine.evaluate(
                model, held_out()[0][row["repeat"], :5], row["criterion"], row["threshold"], 6,
                EvaluationNoise(SEED, [0], BLOCK), **changes,
            )  # fmt: skip
            for group, label in enumerate(("2", "3-4")):
                assert row[f"evaluations_g{label}"] == pytest.approx(evaluations[group].double().mean().item())


def test_cross_entropy_at_fixed_loops_is_that_of_the_forward_pass():
    model = small_model()
    inputs, targets = held_out()
    with torch.no_grad():
        logits = model(inputs, [2, 2], EvaluationNoise(SEED, range(3), BLOCK))
    frame = quality(model, criteria={"fixed": {"thresholds": [2]}})
    expected = [cross_entropy(logits[i], targets[i]) for i in range(3)]
    np.testing.assert_allclose(frame["ce"], expected, rtol=1e-9)


def test_share_at_budget_counts_the_tokens_that_spent_all_of_it():
    frame = quality(small_model()).set_index(["criterion", "threshold"])
    assert (frame.loc[("acceleration", 1e-300), "share_at_max_loops"] == 1).all()
    assert (frame.loc[("acceleration", 1e-300), "evaluations_g2"] == 6).all()
    assert (frame.loc[("fixed", 2.0), "share_at_max_loops"] == 0).all()
    often = frame.loc[("acceleration", 4.0), "share_at_max_loops"]
    assert often.between(0, 1, inclusive="left").all()


def test_quality_does_not_depend_on_the_batch():
    model = small_model()
    pd.testing.assert_frame_equal(quality(model, quality_batch_size=1), quality(model, quality_batch_size=3), rtol=1e-9)


USERS_RULE = """
from twoscale.exits import StepNorm


class Twice(StepNorm):
    def size(self, x, x_new):
        return 2 * super().size(x, x_new)
"""


def test_a_users_rule_is_measured_beside_the_others(tmp_path):
    (tmp_path / "twice.py").write_text(USERS_RULE)
    twice = {"thresholds": [3.0], "file": str(tmp_path / "twice.py"), "class": "Twice"}
    criteria = {"step_norm": {"thresholds": [1.5]}, "twice": twice}
    model = small_model()
    frame = quality(model, criteria=criteria).set_index("criterion")
    assert frame.loc["twice", "ce"].tolist() == frame.loc["step_norm", "ce"].tolist()
    assert set(latency(model, repeats=1, criteria=criteria)["criterion"]) == {"step_norm", "twice"}


def test_latency_has_one_row_per_setting_and_repeat_and_the_settings_take_turns():
    frame = latency(small_model())
    keys = list(zip(frame["repeat"], frame["criterion"], frame["threshold"], strict=True))
    assert keys == [(repeat, name, threshold) for repeat in range(2) for name, threshold in GRID]
    assert (frame["tokens"] == 5).all()


def test_latency_and_its_floor_are_positive_milliseconds():
    frame = latency(small_model())
    for column in ("latency_ms", "baseline_ms"):
        assert (frame[column] > 0).all()
        assert (frame[column] < 1e4).all()
    assert (frame["load_average"] >= 0).all()


def test_latency_times_the_evaluations_that_the_rule_asks_for():
    model = small_model()
    inputs, _ = held_out()
    for row in latency(model).to_dict("records"):
        _, _, evaluations = reference_engine.evaluate(
            model, inputs[row["repeat"], :5], row["criterion"], row["threshold"], 6, EvaluationNoise(SEED, [0], BLOCK)
        )
        means = [row["evaluations_g2"], row["evaluations_g3-4"]]
        np.testing.assert_allclose(means, evaluations.double().mean(1), rtol=1e-12)


def test_the_floor_repeats_the_evaluations_and_asks_no_rule():
    """Counted by calls: of final norm, once per decoded state, and of the loop blocks."""
    model = small_model()
    calls = {"decode": 0, "iteration": 0}

    def count(kind):
        def hook(*_):
            calls[kind] += 1

        return hook

    model.final_norm.register_forward_hook(count("decode"))
    for group in model.groups:
        group.register_forward_hook(count("iteration"))
    (row,) = latency(model, repeats=1, criteria={"kl": {"thresholds": [0.02]}}).to_dict("records")
    tokens, rounds = 5, 2  # the first round, of the same prompt, warms up
    evaluations = round(tokens * (row["evaluations_g2"] + row["evaluations_g3-4"]))
    assert calls["iteration"] == rounds * 2 * evaluations
    decoded_by_the_rule = evaluations + 2 * tokens  # each new state, and x^0 of both groups
    assert calls["decode"] == rounds * (2 * tokens + decoded_by_the_rule)


def test_latency_grows_with_the_loops():
    """Six loops against one, in sums over repeats, so that a hiccup of the machine does not decide."""
    frame = latency(small_model(), criteria={"fixed": {"thresholds": [1, 6]}}, repeats=3)
    total = frame.groupby("threshold")[["latency_ms", "baseline_ms"]].sum()
    assert (total.loc[6.0] > total.loc[1.0]).all()


def check_cost(model, **changes):
    return pd.DataFrame(measure_check_cost(model, held_out()[0][:2, :5], exits(**changes), SEED, "trial"))


@pytest.mark.parametrize("decoder", ["head", "remaining_layers"])
def test_a_check_and_a_step_are_timed_per_repeat_and_group(tmp_path, monkeypatch, decoder):
    monkeypatch.setattr(exit_benchmark, "CHECK_SECONDS", 1e-3)
    frame = check_cost(small_model(), decoder=decoder)
    tables.write("check_cost", frame, tmp_path / "table.parquet")
    assert list(zip(frame["repeat"], frame["group"], strict=True)) == [(r, g) for r in (0, 1) for g in ("2", "3-4")]
    assert frame[["check_ms", "loop_step_ms"]].gt(0).all(axis=None)


def test_a_check_costs_more_the_larger_the_vocabulary(monkeypatch):
    monkeypatch.setattr(exit_benchmark, "CHECK_SECONDS", 1e-3)
    costs = [check_cost(small_model(vocab_size=size))["check_ms"].sum() for size in (11, 100_000)]
    assert costs[1] > costs[0]


def test_a_plain_gpt_has_no_step_to_compare_a_check_with():
    assert check_cost(small_model(groups=())).empty
