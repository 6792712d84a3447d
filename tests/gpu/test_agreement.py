"""What has to hold on every device: on CUDA it is compared with the CPU."""

import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.gpu.test_decoding import KINDS
from tests.small import job_config, train_config
from tests.unit.test_engine import MAX_LOOPS, assert_close, decode_text, small_model, text
from tests.unit.test_training import DATA, HEADER, IDENTITY, MODEL, SEED
from twoscale.config import ConfigSlice, checked, preset
from twoscale.config.criteria import FACTS
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.parallel import evaluate
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.training.state import TrainingState, load_partial, restore
from twoscale.training.trainer import Trainer, run_segment

pytestmark = [pytest.mark.gpu, pytest.mark.limit(60)]
UNTIL, KILLED = 6, 3  # iterations of a segment, and before the kill
TINY = checked(preset("tiny")).model
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # relative, in norm
SAME_EXITS = 0.995  # share of exits at the same step; rounding may decide a tie


def config_of(device: str, **train) -> ConfigSlice:
    return job_config(
        seed=SEED,
        device=device,
        model=MODEL,
        train=train_config(**{"precision": "float32"} | train),
    )


def untrained(config: ConfigSlice) -> TrainingState:
    return restore(config, initialise(MODEL, SEED).state_dict(), {}, HEADER)


def trained(config: ConfigSlice, iterations: int, partial: Path) -> torch.Tensor:
    """Loss and norm of the gradient of each iteration."""
    state = untrained(config)
    run_segment(Trainer(config, DATA), state, iterations, partial, IDENTITY)
    return torch.tensor([[row["loss"], row["gradient_norm"]] for row in state.log])


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_compiled_iterations_train_as_eager_ones_do(device, tmp_path):
    torch._dynamo.reset()
    eager, compiled = (
        trained(config_of(device, compile=compile), 2, tmp_path / "none")
        for compile in (False, True)
    )
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3)


def test_an_iteration_in_bfloat16_has_nearly_the_loss_and_gradient_of_float32(device, tmp_path):
    exact, rounded = (
        trained(config_of(device, precision=precision), 1, tmp_path / "none")
        for precision in ("float32", "bfloat16")
    )
    assert 0 < ((rounded - exact).abs() / exact).max() < 0.05


class Killed(Trainer):
    """Kills its process before iteration KILLED + 1."""

    def iterate(self, state: TrainingState) -> None:
        if state.iteration == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        super().iterate(state)


def train_until_killed(device: str, partial: Path) -> None:
    config = config_of(device, save_seconds=1e-9)
    run_segment(Killed(config, DATA), untrained(config), UNTIL, partial, IDENTITY)


def test_a_killed_segment_goes_on_where_it_was_saved(device, tmp_path):
    partial, config = tmp_path / "partial.safetensors", config_of(device)
    process = multiprocessing.get_context("spawn").Process(
        target=train_until_killed, args=(device, partial)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    state = restore(config, *load_partial(partial, 0, UNTIL, IDENTITY, config))
    assert state.iteration == KILLED
    run_segment(Trainer(config, DATA), state, UNTIL, partial, IDENTITY)
    continued = torch.tensor([[row["loss"], row["gradient_norm"]] for row in state.log])
    # on CUDA sums of gradients have no fixed order
    torch.testing.assert_close(
        continued, trained(config, UNTIL, tmp_path / "none"), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("kind", ["captured", "compiled and captured"])
def test_captured_steps_are_the_same_function(device, kind):
    model, tokens = small_model(loop_noise=0.3).to(device), text(1, 9)[0]
    expected, found = (
        decode_text(
            Decoder(model, make_criterion("step_norm", 1.0), MAX_LOOPS, SEED, KINDS[name]), tokens
        )
        for name in ("eager", kind)
    )
    assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_loss_gradients_and_states_are_those_of_the_cpu(device, dtype):
    found = []
    for place in (device, "cpu"):
        source = torch.Generator().manual_seed(0)
        tokens = torch.randint(TINY.vocab_size, (2, TINY.context_length + 1), generator=source).to(
            place
        )
        model, noise = (
            initialise(TINY, 0).to(place, dtype),
            EvaluationNoise(0, (0, 1), TINY.context_length),
        )
        loops = [5] * len(TINY.groups)
        loss = model.loss(model.hidden_states(tokens[:, :-1], loops, noise), tokens[:, 1:])
        loss.backward()
        states = (
            state for stage in model.trace(tokens[:, :-1], loops, noise) for state in stage.states
        )
        found.append([loss, *(parameter.grad for parameter in model.parameters()), *states])
    for a, b in zip(*found, strict=True):
        assert (a.detach().cpu() - b).norm() <= TOLERANCE[dtype] * b.detach().norm().clamp_min(
            1e-30
        )


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["parallel", "captured", "eager"])
@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].grid])
def test_tokens_exit_where_they_do_in_the_parallel_engine_on_the_cpu(device, name, kind):
    source, noise = torch.Generator().manual_seed(0), EvaluationNoise(0, (0,), TINY.context_length)
    tokens = torch.randint(TINY.vocab_size, (1, TINY.context_length), generator=source)
    models = {place: initialise(TINY, 0).to(place, torch.float64) for place in (device, "cpu")}
    for threshold in FACTS[name].grid[1::3]:
        criterion = make_criterion(name, threshold)
        expected = evaluate(models["cpu"], tokens, criterion, MAX_LOOPS, noise)[1].evaluations[:, 0]
        if kind == "parallel":
            found = (
                evaluate(models[device], tokens.to(device), criterion, MAX_LOOPS, noise)[1]
                .evaluations[:, 0]
                .cpu()
            )
        else:
            found = decode_text(
                Decoder(models[device], criterion, MAX_LOOPS, 0, KINDS[kind]), tokens[0]
            )[1]
        assert (found == expected).double().mean() >= SAME_EXITS, threshold
