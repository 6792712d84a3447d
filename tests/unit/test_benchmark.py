"""The benchmark of exit criteria: its rows against the reference engine."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from tests import reference_engine, small
from twoscale import config, tables
from twoscale.claims.costs import summarise_times
from twoscale.exits import benchmark, costs
from twoscale.exits.benchmark import measure_latency, measure_quality
from twoscale.exits.costs import measure_costs
from twoscale.exits.criteria import make_criterion
from twoscale.exits.evaluation import make_criteria, make_decoder
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
GRID = [
    ("fixed", 2),
    ("fixed", 6),
    ("step_norm", 1.5),
    ("kl", 0.02),
    ("acceleration", 1e-300),
    ("acceleration", 4),
]


def small_model(groups=((2,), (3, 4)), vocab_size=11):
    model = small.model_config(
        hidden_size=16, context_length=BLOCK, vocab_size=vocab_size, groups=groups, mean_loops=4
    )
    return initialise(model, seed=0).double()


def exits(criteria=CRITERIA, **changes):
    default = {
        "max_loops": 6,
        "dtype": "float64",
        "quality_tokens": 3 * BLOCK,
        "quality_batch_size": 2,
        "latency_tokens": 5,
        "latency_repeats": 2,
    }
    return config.ExitsConfig(**default | changes, criteria=criteria)


def checkpoint(model):
    return small.checkpoint(model, SEED)


def held_out(sequences=3):
    """Successive blocks of one random text."""
    tokens = torch.randint(11, (sequences * BLOCK + 1,), generator=torch.Generator().manual_seed(5))
    return small.held_out(
        *(part.unflatten(0, (sequences, BLOCK)) for part in (tokens[:-1], tokens[1:]))
    )


def grid_under(changes):
    """All criteria, or two of them where another readout or shared slots are compared, which takes
    longer.
    """
    return {name: CRITERIA[name] for name in ("kl", "acceleration")} if changes else CRITERIA


def quality(model, **changes):
    """The tables exit_quality and exit_loops."""
    rows = measure_quality(checkpoint(model), held_out(), exits(**{"random_draws": 1} | changes))
    names = ("exit_quality", "exit_loops")
    return frames(names, [rows[name] for name in names])


def latency(model, repeats=2, **changes):
    """The table exit_latency, alone in a list."""
    rows = timed(measure_latency, model, held_out()[:repeats], exits(**changes))
    return frames(("exit_latency",), [rows])


def timed(measure, model, prompts, config):
    decoder = make_decoder(checkpoint(model), config)
    return measure(decoder, make_criteria(config), prompts, config)


def frames(names, parts):
    return [
        pd.DataFrame(rows, columns=list(tables.columns(name))[1:])
        for name, rows in zip(names, parts, strict=True)
    ]


def cross_entropy(logits, targets):
    """Mean of -log softmax(logits)[target] in nats, with NumPy: logits (T, V), targets (T,)."""
    logits = logits.numpy()
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -log_p[np.arange(len(targets)), targets.numpy()].mean()


@pytest.mark.parametrize("groups", [((2,), (3, 4)), ()], ids=["looped", "plain GPT"])
@pytest.mark.parametrize("measure", [quality, latency])
def test_rows_fit_their_tables(measure, groups, tmp_path):
    names = ("exit_quality", "exit_loops") if measure is quality else ("exit_latency",)
    for name, frame in zip(names, measure(small_model(groups)), strict=True):
        tables.write(name, frame.assign(run="trial"), tmp_path / "table.parquet")
        stored = tables.read(name, tmp_path / "table.parquet")
        assert len(stored) == len(frame)
        assert stored.empty == (not groups and name.endswith("loops"))
        assert not stored.isna().any(axis=None)


@pytest.mark.parametrize("changes", [{}, {"readout": "remaining_layers"}, {"kv_slots": 2}], ids=str)
def test_quality_is_the_cross_entropy_and_cost_of_the_reference_engine(changes):
    model = small_model()
    inputs, targets = held_out().inputs, held_out().targets
    frame, loops = quality(model, criteria=grid_under(changes), **changes)
    loops = loops.set_index(["criterion", "threshold", "sequence", "group"])
    for row in frame.to_dict("records"):
        name, threshold, i = key = row["criterion"], row["threshold"], row["sequence"]
        logits, steps, evaluations = reference_engine.evaluate(
            model, inputs[i], name, threshold, 6, EvaluationNoise(SEED, [i], BLOCK), **changes
        )
        assert row["ce"] == pytest.approx(cross_entropy(logits, targets[i]), rel=1e-9)
        for group, label in enumerate(("2", "3-4")):
            means = loops.loc[(*key, label)]
            assert means["loop_steps"] == pytest.approx(
                steps[group].double().mean().item(), rel=1e-6
            )
            assert means["evaluations"] == pytest.approx(
                evaluations[group].double().mean().item(), rel=1e-6
            )


@pytest.mark.parametrize("changes", [{}, {"readout": "remaining_layers"}, {"kv_slots": 2}], ids=str)
def test_latency_times_the_evaluations_of_the_reference_engine_at_places_spread_over_the_context(
    changes,
):
    model, text = small_model(), held_out()
    # of eight positions: one token in each of the first two parts, two in the last; timed from the last on
    positions = [5, 6, 3, 0]
    segments = benchmark.timed_segments(BLOCK, 4, 3)
    settings = exits(grid_under(changes), **changes)
    decoder = make_decoder(checkpoint(model), settings)
    for ((name, threshold), criterion), prompt in itertools.product(
        make_criteria(settings).items(), (0, 1)
    ):
        _, _, evaluations = reference_engine.evaluate(
            model,
            text.inputs[prompt],
            name,
            threshold,
            6,
            EvaluationNoise(SEED, [prompt], BLOCK),
            **changes,
        )
        decoder.reset(criterion, prompt)
        found = benchmark.time_segments(decoder, text.inputs[prompt].tolist(), segments)
        assert found[2] == evaluations[:, positions].T.tolist()


@pytest.mark.parametrize(
    ("context", "tokens", "segments", "positions"),
    [
        (8, 4, 3, [0, 3, 5, 6]),
        (128, 24, 4, [*range(13, 19), *range(45, 51), *range(77, 83), *range(109, 115)]),
    ],
)
def test_timed_positions_are_centred_in_equal_parts_of_the_context(
    context, tokens, segments, positions
):
    places = [
        p
        for part in benchmark.timed_segments(context, tokens, segments)
        for p in range(part.start, part.stop)
    ]
    assert places == positions
    for tokens, segments in itertools.product(range(1, 17), (1, 3, 20)):
        parts = benchmark.timed_segments(16, tokens, segments)
        places = {position for part in parts for position in range(part.start, part.stop)}
        assert places <= set(range(16))
        assert len(places) == tokens


def test_latency_has_one_row_per_operating_point_and_repeat_and_the_points_take_turns():
    (frame,) = latency(small_model())
    keys = list(zip(frame["repeat"], frame["criterion"], frame["threshold"], strict=True))
    assert keys == [
        (repeat, *point)
        for repeat in range(2)
        for point in [*GRID[3 * repeat :], *GRID[: 3 * repeat]]
    ]
    assert (frame["tokens"] == 5).all()
    assert frame[["latency_ms", "baseline_ms"]].stack().between(0, 1e4, inclusive="neither").all()
    assert (frame["load_average"] >= 0).all()
    assert (frame["cpus"] >= 1).all()


def test_the_baseline_repeats_the_evaluations_and_calls_no_criterion():
    """Counted by calls: of final norm, once per decoded state, and of the loop blocks."""
    model, criteria = small_model(), {"kl": {"thresholds": [0.02]}}
    _, loops = quality(model, criteria=criteria)  # the same exits
    calls = {"readout": 0, "recur": 0}

    def count(kind):
        def hook(*_):
            calls[kind] += 1

        return hook

    model.final_norm.register_forward_hook(count("readout"))
    for group in model.groups:
        group.register_forward_hook(count("recur"))
    latency(model, repeats=1, criteria=criteria, latency_tokens=BLOCK, latency_segments=1)
    tokens, rounds = BLOCK, 2  # the first one, of the same prompt, is a warm-up
    evaluations = round(tokens * loops[loops["sequence"] == 0]["evaluations"].sum())
    assert calls["recur"] == rounds * 2 * evaluations
    read_out_by_the_criterion = evaluations + 2 * tokens  # each new state, and x^0 of both groups
    assert calls["readout"] == rounds * (2 * tokens + read_out_by_the_criterion)


def test_a_model_in_bfloat16_is_measured_with_nats_in_float32():
    model = small_model().bfloat16()
    frame, loops = quality(model, dtype="bfloat16", criteria={"fixed": {"thresholds": [6]}})
    text = held_out()
    noise = EvaluationNoise.of(model.config, SEED, text.sequences)
    with torch.no_grad():
        logits = model(text.inputs, [6] * len(model.config.groups), noise).double()
    expected = [cross_entropy(*row) for row in zip(logits, text.targets, strict=True)]
    assert frame["ce"].to_numpy() == pytest.approx(np.array(expected), abs=1e-5)
    (timed,) = latency(model, dtype="bfloat16")
    assert timed["latency_ms"].gt(0).all()
    assert loops["evaluations"].between(1, 6).all()


def exit_costs(model, **changes):
    rows = timed(measure_costs, model, held_out()[:2], exits(**changes))
    return pd.DataFrame(rows, columns=list(tables.columns("exit_costs"))[1:])


@pytest.mark.parametrize("changes", [{}, {"readout": "remaining_layers"}, {"kv_slots": 2}], ids=str)
def test_costs_are_measured_per_criterion_group_and_repeat(tmp_path, changes):
    frame = exit_costs(small_model(), cost_repeats=2, **changes)
    tables.write("exit_costs", frame.assign(run="trial"), tmp_path / "table.parquet")
    keys = frame[["criterion", "repeat", "group"]].itertuples(index=False, name=None)
    names = ("step_norm", "kl", "acceleration")
    assert sorted(keys) == sorted(itertools.product(names, (0, 1), ("2", "3-4")))
    assert frame[["loop_step_ms", "outside_ms"]].gt(0).all(axis=None)


def test_nothing_is_measured_where_loop_steps_cannot_be_told_from_the_rest():
    fixed = {"fixed": {"thresholds": [1]}}
    assert exit_costs(small_model(groups=())).empty
    assert exit_costs(small_model(), max_loops=1, criteria=fixed).empty
    assert exit_costs(small_model(), criteria=fixed).empty


def test_costs_are_solved_from_tokens_whose_times_they_give(monkeypatch):
    """A clock that advances by the costs of what is computed gives them back."""
    model = small_model()
    seconds = {"now": 0.0}
    spent = {"recur 0": 2.0, "recur 1": 3.0, "readout": 7.0, "embed": 11.0}

    def advances(kind):
        def hook(*_):
            seconds["now"] += spent[kind]

        return hook

    model.token_embedding.register_forward_hook(advances("embed"))
    model.final_norm.register_forward_hook(advances("readout"))
    for number, group in enumerate(model.groups):
        group.register_forward_hook(advances(f"recur {number}"))
    monkeypatch.setattr(costs, "processor_clock", lambda model: lambda: seconds["now"])
    frame = exit_costs(model, cost_repeats=99)
    assert frame["repeat"].max() == costs.FEWEST_REPEATS - 1  # known exactly from the first one on
    found = frame.groupby(["criterion", "group"], sort=False).median() / 1e3
    for criterion, decision in (("step_norm", 0.0), ("kl", 7.0), ("acceleration", 0.0)):
        assert found.loc[criterion, "loop_step_ms"].tolist() == pytest.approx([2.0, 3.0])
        assert found.loc[criterion, "decision_ms"].tolist() == pytest.approx([decision] * 2)
        assert found.loc[criterion, "outside_ms"].tolist() == pytest.approx([11.0 + 7.0] * 2)
        # KL reads out x^0 of both groups, too
        assert found.loc[criterion, "start_ms"].tolist() == pytest.approx([2 * decision] * 2)


def test_decisions_that_are_not_followed_change_no_state():
    model = small_model()
    tokens = held_out().inputs[0].tolist()
    never, at_once = (make_criterion("acceleration", threshold) for threshold in (1e-300, 1e300))
    logits = []
    for criterion in (None, never, at_once):
        decoder = make_decoder(checkpoint(model), exits())
        fed = [decoder.feed(token, [4, 2], criterion) for token in tokens]
        assert [evaluations for _, evaluations in fed] == [[4, 2]] * len(tokens)
        logits.append(torch.stack([of_token for of_token, _ in fed]))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


def test_measurement_ends_when_every_relative_cost_is_known():
    precise = [1.2 + 0.001 * number for number in range(12)]
    assert costs._is_precise([precise, precise])
    assert not costs._is_precise([precise, [1.0, 1.4] * 6])


def test_computed_times_are_of_the_size_of_measured_ones():
    """A wide factor, because the machine of a test has other work."""
    model = small_model()
    thresholds = {"thresholds": [1e-300]}
    criteria = {"fixed": {"thresholds": [6]}, "kl": thresholds, "acceleration": thresholds}
    frame = exit_costs(model, criteria=criteria, cost_repeats=10)
    (measured,) = latency(model, criteria=criteria)
    _, loops = quality(model, criteria=criteria)
    for name, column in (("fixed", "bare_ms"), ("kl", "time_ms"), ("acceleration", "time_ms")):
        times = summarise_times(loops, frame).set_index("criterion")
        computed = times.loc[name, column]
        median = measured[measured["criterion"] == name]["latency_ms"].median()
        assert 0.25 < computed / median < 4
