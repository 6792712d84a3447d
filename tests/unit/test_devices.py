"""What has to hold on every device: each test runs on the CPU and, with the mark gpu, on CUDA."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from tests.small import job_config, train_config
from tests.unit.test_batched import alone_by_decoder, check, decode, threshold_of
from tests.unit.test_engine import MAX_LOOPS, PUBLISHED, assert_close, decode_text, small_model, text
from tests.unit.test_training import DATA, HEADER, IDENTITY, MODEL, SEED, assert_same_bits
from twoscale.config import ConfigSlice, checked, preset
from twoscale.config.exits import DENSE_GRIDS
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.parallel import evaluate
from twoscale.gpu.latency import KINDS
from twoscale.model.interface import LoopedModel
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.training.state import Segment, TrainingState, load_partial, restore, tensors_of
from twoscale.training.trainer import Trainer, run_segment

UNTIL = 6  # iterations of a segment
KILLED = 3  # iterations before the kill


CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
# Compilation takes up to a minute on a CPU.
# `make test-runs` runs them in the check of test_gpu_check.py
COMPILED = [pytest.mark.long, pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")]


@pytest.fixture(params=["cpu", CUDA])
def device(request) -> str:
    return request.param


def config_of(device: str, **train) -> ConfigSlice:
    return job_config(seed=SEED, device=device, model=MODEL, train=train_config(**{"precision": "float32"} | train))


def untrained(config: ConfigSlice) -> TrainingState:
    return restore(config, initialise(MODEL, SEED).state_dict(), {}, HEADER)


def trained(config: ConfigSlice, iterations: int, partial: Path) -> TrainingState:
    state = untrained(config)
    run_segment(Trainer(config, DATA), state, iterations, partial, IDENTITY)
    return state


def logged(state: TrainingState) -> torch.Tensor:
    """Loss and norm of the gradient of each iteration."""
    return torch.tensor([[row["loss"], row["gradient_norm"]] for row in state.log])


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=COMPILED), CUDA])
def test_compiled_iterations_train_as_eager_ones_do(device, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    counters.clear()
    eager, compiled = (trained(config_of(device, compile=compile), 2, tmp_path / "none") for compile in (False, True))
    assert counters["stats"]["unique_graphs"] > 0
    torch.testing.assert_close(logged(compiled), logged(eager), rtol=1e-3, atol=1e-3)


def test_an_iteration_in_bfloat16_has_nearly_the_loss_and_gradient_of_float32(device, tmp_path):
    exact, rounded = (
        trained(config_of(device, precision=precision), 1, tmp_path / "none") for precision in ("float32", "bfloat16")
    )
    difference = (logged(rounded) - logged(exact)).abs() / logged(exact)
    assert 0 < difference.max() < 0.05
    assert {tensor.dtype for part in tensors_of(rounded) for tensor in part.values()} == {torch.float32}


class Killed(Trainer):
    """Kills its process before iteration KILLED + 1."""

    def iterate(self, state: TrainingState) -> None:
        if state.iteration == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        super().iterate(state)


def train_until_killed(device: str, partial: Path) -> None:
    torch.set_num_threads(1)
    config = config_of(device, save_seconds=1e-9)
    run_segment(Killed(config, DATA), untrained(config), UNTIL, partial, IDENTITY)


def test_a_killed_segment_goes_on_where_it_was_saved(device, tmp_path):
    partial, config = tmp_path / "partial.safetensors", config_of(device)
    process = multiprocessing.get_context("spawn").Process(target=train_until_killed, args=(device, partial))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    continued = restore(config, *load_partial(partial, 0, Segment(UNTIL, IDENTITY), config))
    assert continued.iteration == KILLED
    run_segment(Trainer(config, DATA), continued, UNTIL, partial, IDENTITY)
    whole = trained(config, UNTIL, tmp_path / "none")
    # on CUDA sums of gradients have no fixed order
    torch.testing.assert_close(logged(continued), logged(whole), rtol=1e-3, atol=1e-3)
    if device == "cpu":
        assert_same_bits(continued, whole)


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", [1, 3, 5])
@pytest.mark.parametrize("variant", [{}, PUBLISHED["retrofitted Llama"]], ids=["equal heads", "grouped heads"])
def test_many_sequences_get_what_each_gets_alone(variant, sequences):
    model = small_model(**variant)
    criterion = make_criterion("acceleration", threshold_of("acceleration", model))
    model.to("cuda")
    check(model, criterion, decode(model, criterion, sequences), alone_by_decoder(model, criterion, replay=False))


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=COMPILED), CUDA])
def test_compiled_and_captured_steps_of_one_sequence_are_the_same_function(device):
    model, tokens = small_model(loop_noise=0.3).to(device), text(1, 9)[0]
    expected, found = (
        decode_text(Decoder(model, make_criterion("step_norm", 1.0), MAX_LOOPS, SEED, KINDS[kind]), tokens)
        for kind in ("eager", "compiled and captured")
    )
    assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


TINY = checked(preset("tiny")).model
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # relative, in norm
SAME_EXITS = 0.995  # share of exits at the same step; rounding may decide a tie


def tiny(device: str, dtype: torch.dtype) -> tuple[LoopedModel, torch.Tensor, EvaluationNoise]:
    """Model, token ids (2, T + 1) and noise."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(TINY.vocab_size, (2, TINY.context_length + 1), generator=source)
    noise = EvaluationNoise(0, (0, 1), TINY.context_length)
    return initialise(TINY, 0).to(device, dtype), tokens.to(device), noise


def loss_gradients_and_states(device: str, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    model, tokens, noise = tiny(device, dtype)
    loops = [5] * len(TINY.groups)
    loss = model.loss(model.hidden_states(tokens[:, :-1], loops, noise), tokens[:, 1:])
    loss.backward()
    yield loss
    yield from (parameter.grad for parameter in model.parameters())
    yield from (state for stage in model.trace(tokens[:, :-1], loops, noise) for state in stage.states)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_loss_gradients_and_states_are_those_of_the_cpu(device, dtype):
    pairs = zip(*(loss_gradients_and_states(place, dtype) for place in (device, "cpu")), strict=True)
    differences = [(a.detach().cpu() - b.detach()).norm() / b.detach().norm().clamp_min(1e-30) for a, b in pairs]
    assert max(differences) <= TOLERANCE[dtype]


def evaluations_of(device: str, criterion: ExitCriterion, options: DecoderOptions | None) -> torch.Tensor:
    """Evaluations (G, T) of a text under the parallel engine, or under the decoder with these options."""
    model, tokens, _ = tiny(device, torch.float64)
    noise = EvaluationNoise(0, (0,), TINY.context_length)
    if options is None:
        return evaluate(model, tokens[:1, :-1], criterion, MAX_LOOPS, noise)[1].evaluations[:, 0].cpu()
    return decode_text(Decoder(model, criterion, MAX_LOOPS, 0, options), tokens[0, :-1].cpu())[1]


@torch.inference_mode()
@pytest.mark.parametrize("options", [None, *(KINDS[kind] for kind in ("captured", "eager"))], ids=str)
@pytest.mark.parametrize("name", DENSE_GRIDS)
def test_an_engine_lets_tokens_exit_where_the_parallel_one_does_on_the_cpu(device, name, options):
    for threshold in DENSE_GRIDS[name][1::3]:
        criterion = make_criterion(name, threshold)
        found, expected = evaluations_of(device, criterion, options), evaluations_of("cpu", criterion, None)
        assert (found == expected).double().mean() >= SAME_EXITS, threshold
