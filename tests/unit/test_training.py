"""training: the recipe, and the same bits wherever a segment is cut, killed and resumed."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.small import ARCHITECTURES, job_config, learnable_tokens, model_config, train_config
from twoscale import tables
from twoscale.base import InputError
from twoscale.data.batches import held_out_sequences
from twoscale.jobs import machine
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.training.processes import World
from twoscale.training.state import (
    Segment,
    SegmentPaths,
    TrainingState,
    load_moments,
    load_partial,
    load_state,
    restore,
    save_partial,
    tensors_of,
)
from twoscale.training.trainer import (
    Trainer,
    TrainingData,
    draw_loops,
    held_out_loss,
    learning_rate,
    run_segment,
    train_segment,
)

SEED = 11
MODEL = model_config(hidden_size=16)
IDENTITY = {"seed": SEED, "data": "digest"}

# variant -> what it changes in the model and in the recipe
VARIANTS = {
    "default": ({}, {}),
    "branch": ({"sandwich": "branch"}, {}),
    "from input": ({"state_init": "input"}, {}),
    "from input plus noise": ({"state_init": "input_plus_noise"}, {}),
    "from zero": ({"state_init": "zero"}, {}),
    "loop noise": ({"loop_noise": 0.1}, {}),
    "blend": ({"adapter_init": "blend"}, {}),
    "normed exit": ({"exit_norm": "final_norm"}, {}),
    "truncated": ({}, {"backprop_depth": 2}),
    "one core": ({"groups": [[2, 3]]}, {}),
    "no groups": ({"groups": []}, {}),
    "Huginn": (ARCHITECTURES["Huginn"] | {"groups": [[2, 3]]}, {}),
    "Ouro": (ARCHITECTURES["Ouro"] | {"groups": [[1, 2, 3, 4]], "num_kv_heads": 1}, {}),
    "Parcae": (
        ARCHITECTURES["Parcae"]
        | {"groups": [[2, 3]], "looped_mlp_size": 12, "value_embeddings": ()},
        {},
    ),
    "retrofitted OLMo": (ARCHITECTURES["retrofitted OLMo"] | {"groups": [[2, 3]]}, {}),
    "exit gate": ({"groups": [[2, 3]], "exit_gate": True}, {"exit_gate": {"entropy_weight": 0.1}}),
}

# Losses of ten iterations of each variant at the size above, on CPU. They move when the model, its
# initial weights, the noise, the loop counts, the batches or the recipe do: then say why, and write
# the new ones.
GOLDEN = {
    "default": [
        3.87979,
        3.84178,
        3.67753,
        3.42910,
        3.29718,
        3.16455,
        2.86628,
        2.74664,
        2.55511,
        2.52691,
    ],
    "branch": [
        3.73402,
        3.69343,
        3.33960,
        3.21344,
        3.34212,
        3.09680,
        2.85070,
        2.72325,
        2.64475,
        2.63682,
    ],
    "from input": [
        3.93727,
        3.79122,
        3.62795,
        3.38495,
        3.21831,
        3.21966,
        2.88343,
        2.86359,
        2.68582,
        2.63776,
    ],
    "from input plus noise": [
        3.88741,
        3.85441,
        3.58086,
        3.38418,
        3.25713,
        3.25099,
        2.87659,
        2.82504,
        2.70480,
        2.65487,
    ],
    "from zero": [
        3.95117,
        3.78980,
        3.69774,
        3.38598,
        3.25175,
        3.14554,
        2.82770,
        2.74971,
        2.58521,
        2.48306,
    ],
    "loop noise": [
        3.87627,
        3.84116,
        3.68068,
        3.45046,
        3.31650,
        3.18591,
        2.89235,
        2.74977,
        2.54564,
        2.52128,
    ],
    "blend": [
        4.05695,
        3.90517,
        3.72065,
        3.49203,
        2.99678,
        2.79295,
        2.76432,
        2.58119,
        2.55408,
        2.47418,
    ],
    "normed exit": [
        3.87979,
        3.84210,
        3.67647,
        3.42610,
        3.29488,
        3.16052,
        2.85736,
        2.74111,
        2.55105,
        2.52441,
    ],
    "truncated": [
        3.87979,
        3.85284,
        3.69622,
        3.50499,
        3.30453,
        3.13639,
        2.90713,
        2.73325,
        2.53012,
        2.51208,
    ],
    "one core": [
        3.78199,
        3.70161,
        3.58206,
        3.42799,
        3.11261,
        2.89948,
        2.88721,
        2.79710,
        2.41381,
        2.29198,
    ],
    "no groups": [
        3.95286,
        3.91063,
        3.71870,
        3.64901,
        3.18037,
        2.90243,
        2.84001,
        2.62609,
        2.55520,
        2.49515,
    ],
    "Huginn": [
        3.82545,
        3.66414,
        3.71658,
        3.49330,
        3.32127,
        3.03563,
        2.93615,
        2.71205,
        2.49710,
        2.38950,
    ],
    "Ouro": [
        3.94583,
        3.48480,
        3.76118,
        3.12916,
        2.92052,
        2.85777,
        2.76176,
        2.69777,
        2.52886,
        2.49557,
    ],
    "Parcae": [
        3.94616,
        3.83266,
        3.49186,
        3.41416,
        3.20192,
        2.96831,
        2.93643,
        2.6807,
        2.52247,
        2.46394,
    ],
    "retrofitted OLMo": [
        3.89883,
        3.61099,
        3.21037,
        3.17184,
        3.01883,
        2.92114,
        2.79462,
        2.73625,
        2.73785,
        2.57637,
    ],
    "exit gate": [
        3.70522,
        3.60604,
        3.42536,
        3.31913,
        3.03225,
        2.81599,
        2.77340,
        2.67224,
        2.32234,
        2.14468,
    ],
}


HELD_OUT = held_out_sequences(learnable_tokens(100)[::-1].copy(), 36, MODEL.context_length, 3)


DATA = TrainingData(learnable_tokens(400), HELD_OUT)


def segment(model=MODEL, **changes):
    return job_config(seed=SEED, model=model, train=train_config(**changes))


def trainer(model=MODEL, **changes) -> Trainer:
    return Trainer(segment(model, **changes), DATA)


def start(model=MODEL, **changes) -> TrainingState:
    """The untrained state."""
    return restore(segment(model, **changes), initialise(model, SEED).state_dict(), {}, HEADER)


HEADER = Header("weights", 0, 0, IDENTITY, {})


def trained(until: int, partial: Path, model=MODEL, **changes) -> TrainingState:
    """The state after `until` iterations without a stop."""
    state = start(model, **changes)
    run_segment(trainer(model, **changes), state, until, partial, IDENTITY)
    return state


def assert_same_bits(one: TrainingState, other: TrainingState) -> None:
    for ours, theirs in zip(tensors_of(one), tensors_of(other), strict=True):
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert (one.iteration, one.tokens_seen) == (other.iteration, other.tokens_seen)


@pytest.mark.parametrize(("mean", "sigma"), [(12, 0.5), (4, 0.0), (3, 0.8)])
def test_loop_counts_have_the_moments_of_the_log_normal_poisson(mean, sigma):
    model = model_config(mean_loops=mean, loops_sigma=sigma, groups=[[1], [2, 3], [4]])
    counts = np.array([draw_loops(model, SEED, iteration) for iteration in range(3000)]).ravel()
    variance = mean + mean**2 * (math.exp(sigma**2) - 1)
    assert counts.min() >= 1
    assert counts.mean() == pytest.approx(mean + 1, abs=4 * math.sqrt(variance / counts.size))
    assert counts.var() == pytest.approx(variance, rel=0.12)


def test_the_learning_rate_warms_up_follows_a_cosine_and_stays_at_its_minimum():
    train = train_config(
        learning_rate=6e-4, min_learning_rate=6e-5, warmup_iterations=10, lr_decay_iterations=110
    )
    landmarks = {
        0: 6e-4 / 11,  # the first iteration already learns
        9: 6e-4 * 10 / 11,
        10: 6e-4,
        35: 6e-5 + 5.4e-4 * (1 + math.sqrt(0.5)) / 2,  # a quarter of the way
        60: (6e-4 + 6e-5) / 2,
        110: 6e-5,
        111: 6e-5,
        10**6: 6e-5,
    }
    assert {step: learning_rate(train, step) for step in landmarks} == pytest.approx(landmarks)


def test_the_learning_rate_can_stay_at_its_peak_and_need_no_warm_up():
    constant = train_config(learning_rate=1e-2, warmup_iterations=10, lr_decay_iterations=None)
    assert [learning_rate(constant, step) for step in (10, 10**6)] == [1e-2, 1e-2]
    assert learning_rate(train_config(warmup_iterations=0, learning_rate=1e-2), 0) == pytest.approx(
        1e-2
    )
    later = train_config(learning_rate=1e-2, warmup_iterations=28, lr_decay_iterations=None)
    assert learning_rate(later, 28) == 1e-2 != 1e-2 * 29 / 29  # the peak to the last bit


def test_one_iteration_is_one_step_of_adamw_with_clipping():
    changes = {"grad_clip": 0.05, "weight_decay": 0.3, "beta1": 0.8, "beta2": 0.9}
    state, train = start(**changes), train_config(**changes)
    assert state.optimizer.defaults["eps"] == 1e-8
    before = {name: value.detach().clone() for name, value in state.model.named_parameters()}
    trainer(**changes).iterate(state)
    rate, gradient_norm = (
        train.learning_rate / 6,
        state.log[0]["gradient_norm"],
    )  # the first of five warm-up steps
    assert state.log[0]["learning_rate"] == pytest.approx(rate)
    assert gradient_norm > 0.05
    _, moments = tensors_of(state)
    clipped = {name: moments[f"{name}.exp_avg"] / (1 - 0.8) for name in before}
    assert math.sqrt(
        sum(value.square().sum().item() for value in clipped.values())
    ) == pytest.approx(0.05, rel=1e-3)
    for name, value in state.model.named_parameters():
        decay = 0.3 if value.dim() > 1 else 0.0
        gradient = clipped[name]  # both moments are unbiased after one step: the update is g / |g|
        wanted = before[name] * (1 - rate * decay) - rate * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(value.detach(), wanted, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_micro_batches_give_the_gradient_of_the_whole_batch(micro_batches, tmp_path):
    whole = trained(1, tmp_path / "none")
    pieces = trained(1, tmp_path / "none", micro_batches=micro_batches)
    assert pieces.log[0]["loss"] == pytest.approx(whole.log[0]["loss"], rel=1e-6)
    assert pieces.log[0]["gradient_norm"] == pytest.approx(whole.log[0]["gradient_norm"], rel=1e-5)
    for name, moment in tensors_of(whole)[1].items():
        torch.testing.assert_close(
            tensors_of(pieces)[1][name], moment, rtol=1e-3, atol=1e-8, msg=name
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_ten_iterations_give_the_golden_losses(variant, tmp_path):
    changes, recipe = VARIANTS[variant]
    log = trained(10, tmp_path / "none", model_config(hidden_size=16, **changes), **recipe).log
    assert [row["loss"] for row in log] == pytest.approx(GOLDEN[variant], rel=1e-4)


def test_training_in_bfloat16_rounds_the_loss_and_keeps_weights_and_moments_in_float32(tmp_path):
    rounded, exact = (
        trained(10, tmp_path / "none", precision=name) for name in ("bfloat16", "float32")
    )
    losses, expected = ([row["loss"] for row in state.log] for state in (rounded, exact))
    assert losses != expected
    assert losses == pytest.approx(expected, rel=5e-3)
    assert rounded.log[-1]["held_out_loss"] != exact.log[-1]["held_out_loss"]
    assert {tensor.dtype for part in tensors_of(rounded) for tensor in part.values()} == {
        torch.float32
    }


def test_a_loss_that_is_not_finite_stops_with_the_iteration_and_both_numbers(tmp_path):
    state = trained(2, tmp_path / "none")
    with torch.no_grad():
        state.model.unlooped["1"].mlp_in.weight[0, 0] = math.inf
    with pytest.raises(InputError) as refusal:
        trainer().iterate(state)
    assert "iteration 3" in str(refusal.value)
    assert "loss nan" in str(refusal.value)
    assert "gradient norm nan" in str(refusal.value)
    assert len(state.log) == 2


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_held_out_loss_is_the_mean_surprise_at_a_fixed_loop_count(batch):
    model = initialise(MODEL, SEED)
    targets, surprise = HELD_OUT.targets, 0.0
    for row, sequence in enumerate(HELD_OUT.sequences):
        noise = EvaluationNoise(SEED, [sequence], MODEL.context_length)
        logits = model(HELD_OUT.inputs[row : row + 1], [5, 5], noise)[0]
        chances = logits.double().exp() / logits.double().exp().sum(-1, keepdim=True)
        surprise -= sum(
            chances[t, targets[row, t]].log().item() for t in range(MODEL.context_length)
        )
    found = held_out_loss(model, HELD_OUT, loops=5, seed=SEED, batch_size=batch)
    assert found == pytest.approx(surprise / targets.numel(), rel=1e-5)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> TrainingState:
    return trained(6, tmp_path_factory.mktemp("uninterrupted") / "none")


def segment_paths(folder: Path, first: int, until: int) -> SegmentPaths:
    at = [folder / f"iteration_{iteration:06d}.safetensors" for iteration in (first, until)]
    weights, optimizer = (
        [path.with_suffix(suffix) for path in at] for suffix in (".safetensors", ".opt")
    )
    starts = weights[:1] + (optimizer[:1] if first else [])
    log = weights[1].with_suffix(".parquet")
    return SegmentPaths(
        starts,
        folder / "partial.safetensors",
        weights[1],
        optimizer[1],
        log,
        folder / "loops.parquet",
    )


WHOLE = {
    "seed": SEED,
    "data": "digest",
    "model": job_config(model=MODEL).model.model_dump(mode="json"),
}


@pytest.fixture
def untrained(tmp_path) -> Path:
    header = Header("weights", 0, 0, WHOLE, {})
    checkpoints.save(
        tmp_path / "iteration_000000.safetensors", initialise(MODEL, SEED).state_dict(), header
    )
    return tmp_path


def test_segments_write_the_bits_of_a_run_without_stops_and_their_environments(
    untrained, uninterrupted
):
    for first, until in ((0, 2), (2, 6)):
        paths = segment_paths(untrained, first, until)
        train_segment(segment(), DATA, Segment(until, WHOLE), paths)
        assert [entry["first_iteration"] for entry in machine.recorded_environments(paths.log)] == [
            first + 1
        ]
        assert tables.read("training", paths.log)["iteration"].tolist() == list(
            range(first + 1, until + 1)
        )
    weights, header = checkpoints.load(paths.checkpoint, "weights", WHOLE)
    moments, _ = checkpoints.load(paths.optimizer, "optimizer", WHOLE)
    assert (header.iteration, header.tokens_seen) == (6, 6 * 32)
    assert_same_bits(restore(segment(), weights, moments, header), uninterrupted)
    assert not paths.partial.exists()


def test_a_segment_goes_on_from_its_partial_state_and_removes_it(untrained, uninterrupted):
    paths, whole = segment_paths(untrained, 0, 6), Segment(6, WHOLE)
    state = load_state(segment(), whole, paths)
    trainer().iterate(state)
    save_partial(paths.partial, state, whole.partial_identity(paths.start[0]))
    train_segment(segment(), DATA, whole, paths)
    assert not paths.partial.exists()
    weights, header = checkpoints.load(paths.checkpoint, "weights", WHOLE)
    moments, _ = checkpoints.load(paths.optimizer, "optimizer", WHOLE)
    assert_same_bits(restore(segment(), weights, moments, header), uninterrupted)
    log = tables.read("training", paths.log).to_dict("records")
    assert log[0]["tokens_per_s"] == pytest.approx(
        state.log[0]["tokens_per_s"], rel=1e-6
    )  # the first is not repeated


@pytest.fixture(scope="module")
def two_iterations(tmp_path_factory) -> TrainingState:
    return trained(2, tmp_path_factory.mktemp("two") / "none")


@pytest.fixture
def partial(two_iterations, tmp_path) -> Path:
    """The file of a partial state of two iterations."""
    path = tmp_path / "partial.safetensors"
    save_partial(path, two_iterations, IDENTITY)
    return path


def loaded(path, first=0, until=6, identity=IDENTITY):
    return load_partial(path, first, until, identity, segment())


def without(name: str):
    def change(path: Path) -> None:
        tensors, header = checkpoints.load(path, "partial", IDENTITY)
        del tensors[name]
        checkpoints.save(path, tensors, header)

    return change


@pytest.mark.parametrize(
    ("change", "identity", "said"),
    [
        (lambda path: None, IDENTITY | {"seed": 12}, f"seed is {SEED} there, expected 12"),
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), IDENTITY, "cannot be read"),
        (without("weights/final_norm.weight"), IDENTITY, "found no tensor final_norm.weight"),
        (
            without("optimizer/final_norm.weight.exp_avg"),
            IDENTITY,
            "found no tensor final_norm.weight.exp_avg",
        ),
    ],
)
def test_another_or_a_broken_partial_state_is_left_alone_with_a_notice(
    change, identity, said, partial, capsys
):
    change(partial)
    assert loaded(partial, identity=identity) is None
    found = capsys.readouterr().err
    assert found.startswith(f"restarting the segment: {partial}: ")
    assert said in found


@pytest.mark.parametrize(("first", "until"), [(2, 6), (0, 2), (1, 6), (3, 6)])
def test_the_partial_state_of_another_segment_counts_as_nothing(first, until, partial):
    assert loaded(partial) is not None
    assert loaded(partial, first, until) is None


def test_a_partial_state_without_a_row_for_each_iteration_counts_as_nothing(
    two_iterations, partial
):
    save_partial(partial, replace(two_iterations, log=two_iterations.log[1:]), IDENTITY)
    assert loaded(partial) is None


@pytest.mark.parametrize("changed", ["nothing", "code", "start"])
def test_a_partial_state_is_continued_by_the_same_code_from_the_same_start_alone(
    untrained, two_iterations, changed, capsys
):
    paths, segments = (
        segment_paths(untrained, 0, 6),
        {name: Segment(6, WHOLE, code=name) for name in ("old", "new")},
    )
    save_partial(paths.partial, two_iterations, segments["old"].partial_identity(paths.start[0]))
    if changed == "start":  # as after a training of the segment before by another version of torch
        weights, header = checkpoints.load(paths.start[0], "weights", {})
        checkpoints.save(
            paths.start[0], {name: 2 * tensor for name, tensor in weights.items()}, header
        )
    capsys.readouterr()
    state = load_state(segment(), segments["new" if changed == "code" else "old"], paths)
    assert state.iteration == (2 if changed == "nothing" else 0)
    said = capsys.readouterr().err
    assert ("restarting the segment" in said) == (changed != "nothing")
    assert changed == "nothing" or f"belongs to another configuration: {changed} is" in said


def test_a_model_with_an_exit_gate_resumes_without_moments_of_the_gate(tmp_path):
    model = model_config(hidden_size=16, exit_gate=True)
    state, path = trained(1, tmp_path / "none", model), tmp_path / "state.optimizer.safetensors"
    weights, moments = tensors_of(state)
    checkpoints.save(path, moments, Header("optimizer", 1, 4, IDENTITY, {}))
    found = load_moments(path, IDENTITY, segment(model), 1)
    assert (
        restore(segment(model), weights, found, Header("weights", 1, 4, IDENTITY, {})).iteration
        == 1
    )


def test_a_trained_exit_gate_resumes_with_its_moments_and_the_same_bits(tmp_path):
    changes, recipe = VARIANTS["exit gate"]
    model = model_config(hidden_size=16, **changes)
    whole = trained(4, tmp_path / "none", model, **recipe)
    half, path = trained(2, tmp_path / "none", model, **recipe), tmp_path / "partial.safetensors"
    save_partial(path, half, IDENTITY)
    resumed = restore(
        segment(model, **recipe),
        *load_partial(path, 0, 4, IDENTITY, segment(model, **recipe)),
    )
    run_segment(trainer(model, **recipe), resumed, 4, tmp_path / "none", IDENTITY)
    assert_same_bits(resumed, whole)
    untrained = initialise(model, SEED).gate
    assert not torch.equal(whole.model.gate.weight, untrained.weight)
    assert not torch.equal(whole.model.gate.bias, untrained.bias)
    assert (
        load_partial(path, 0, 4, IDENTITY, segment(model)) is None
    )  # without training of the gate


@pytest.mark.parametrize(
    ("peak", "processes", "utilisation"), [(1e-5, 1, 0.288), (1e-5, 2, 0.144), (None, 1, None)]
)
def test_speed_and_utilisation_are_those_computed_by_hand(peak, processes, utilisation):
    # one layer: 4 matrices of 4 x 4 and an MLP of 2 x 4 x 16, attention to 2 of 3 positions on
    # average, a head of 4 x 8
    model = model_config(
        num_layers=1,
        hidden_size=4,
        context_length=3,
        vocab_size=8,
        vocab_multiple=8,
        groups=(),
        mlp_size=16,
    )
    forward = 2 * (4 * 16 + 2 * 64) + 4 * 2 * 4 + 2 * 4 * 8  # 480 FLOPs per token
    data = TrainingData(learnable_tokens(50) % 8, HELD_OUT)
    measured = Trainer(
        segment(model, batch_size=2, peak_tflops=peak), data, World(size=processes)
    )._speed((), seconds=0.003)
    assert measured["tokens_per_s"] == pytest.approx(2 * 3 / 0.003)
    assert measured["tflops"] == pytest.approx(2000 * 3 * forward / 1e12)
    assert measured["tflops"] == pytest.approx(2.88e-6)
    assert measured["utilisation"] == (None if utilisation is None else pytest.approx(utilisation))
