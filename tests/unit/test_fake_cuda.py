"""Exits, training and extraction on CUDA tensors without values: one device, no hidden waits, and
few kernels.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.fake_cuda import Seen, fake_cuda
from tests.small import (
    LATER_IF_LARGER,
    checkpoint,
    held_out,
    job_config,
    learnable_tokens,
    model_config,
    train_config,
)
from twoscale import config
from twoscale.base import InputError
from twoscale.config import PathTypesConfig
from twoscale.dynamics.trajectories import measure_batch
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.parallel import evaluate
from twoscale.model import registry
from twoscale.model.interface import LoopedModel
from twoscale.model.noise import EvaluationNoise
from twoscale.training.state import TrainingState, make_optimizer
from twoscale.training.trainer import Trainer, TrainingData

MAX_LOOPS = 5
OUROS = {
    "groups": [[2, 3]],
    "exit_gate": True,
    "num_kv_heads": 1,
    "positions": "rotary",
    "loop_noise": 0.1,
}
OPTIONS = [
    {},
    {"kv_slots": 2},
    {"readout": "remaining_layers"},
    {"warm_start": True},
    {"steps_per_graph": 1},
]
RECIPES = [
    *(
        {"precision": "float32"},
        {"micro_batches": 3},
        {"backprop_depth": 2, "recompute": True},
        {"prefetch": False},
    ),
]


def model_on(
    seen: Seen, preset: str, dtype: torch.dtype = torch.float32, **changes: Any
) -> LoopedModel:
    """The model of a preset with other keys."""
    values = config.preset(preset)
    values["model"] = values["model"] | changes
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # `Module.to` swaps tensors, which fake ones refuse
    try:
        return (
            seen.on_cuda(lambda: registry.build(config.checked(values).model))
            .eval()
            .requires_grad_(False)
        )
    finally:
        torch.set_default_dtype(before)


def kernels(seen: Seen, call: Callable[[], object]) -> int:
    """Kernels of a call, in which RMSNorm is one, as on a GPU."""

    def rms_norm(x: Tensor, *arguments: Any) -> Tensor:
        seen.kernels["rms_norm"] += 1
        return torch.empty_like(x)

    seen.clear()
    with torch.inference_mode(), patch("torch.rms_norm", rms_norm):
        call()
    return seen.kernels.total()


def waits(seen: Seen) -> Counter[str]:
    """Kind and file of twoscale -> how often the host waited there, without lines."""
    found: Counter[str] = Counter()
    for place, times in seen.syncs.items():
        found[place.partition(":")[0]] += times
    return found


def exits_waits(seen: Seen) -> dict[str, int]:
    """Without held-out noise, which is drawn on the host."""
    return {place: times for place, times in waits(seen).items() if "model/noise" not in place}


def never(name: str):
    return make_criterion(name, 100 if name in LATER_IF_LARGER else 1e-30)


def model_for(seen: Seen, name: str):
    model = model_on(seen, "tiny", **(OUROS if CRITERIA[name].needs_gate else {}))
    seen.clear()
    return model


def test_waits_are_recorded_by_kind_and_tensors_of_two_devices_are_refused():
    with fake_cuda() as seen:
        x = torch.empty(3, 4, device="cuda")
        x.sum().item()
        x[x > 0], x.nonzero()
        x.cpu()
        torch.empty(2).to("cuda"), torch.empty(2).to("cuda", non_blocking=True)
        counts = {"value": 1, "rows": 2, "to host": 1, "to device": 2}
        assert waits(seen) == {f"{kind} outside twoscale": count for kind, count in counts.items()}
        seen.clear()
        torch.empty(2).pin_memory()[1:].to("cuda", non_blocking=True)
        torch.empty((), pin_memory=True).copy_(x.sum(), non_blocking=True)
        assert (dict(seen.syncs), dict(seen.kernels)) == ({}, {"_to_copy": 1, "sum": 1, "copy_": 1})
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.empty(3, 4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_token_waits_only_for_its_decisions_if_loops_are_captured(options):
    """They come through pinned memory and an event, which is no operation on a tensor."""
    with fake_cuda() as seen:
        # with an option, one criterion is enough
        for names in (
            [["kl"]]
            if options
            else ([name for name in CRITERIA if name != "exit_gate"], ["exit_gate"])
        ):
            model = model_for(seen, names[0])
            decoder = Decoder(
                model, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, 0, DecoderOptions(**options)
            )
            seen.clear()
            for name in names:
                decoder.reset(never(name))
                _, evaluations = decoder.feed(1)
                assert evaluations == [MAX_LOOPS] * len(model.config.groups)
            decoder.feed(1, evaluations)
            assert not exits_waits(seen)


@pytest.mark.parametrize("name", CRITERIA)
def test_a_text_read_in_parallel_waits_for_the_exits_of_a_step_only(name):
    with fake_cuda() as seen:
        model = model_for(seen, name)
        tokens, noise = (
            torch.zeros(2, 9, dtype=torch.int64, device="cuda"),
            EvaluationNoise.of(model.config, 0, [0, 1]),
        )
        evaluate(model, tokens, never(name), MAX_LOOPS, noise)
        assert exits_waits(seen).keys() <= {"rows exits/parallel.py", "value exits/parallel.py"}
        # exits, tokens that stay, and the most that a sequence has
        assert sum(exits_waits(seen).values()) <= 3 * MAX_LOOPS * len(model.config.groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_takes_few_kernels_and_starts_few_outside_of_graphs(dtype):
    with fake_cuda() as seen:
        model = model_on(seen, "paper", dtype)
        decoder = Decoder(model, never("acceleration"), 3, 0)
        for group, layers in enumerate(model.config.groups):
            step = kernels(
                seen, lambda group=group: decoder._loops.recur(group, 1, decoder._loops.x0)
            )
            assert step <= 14 * len(layers) + 2
        logits, _ = decoder.feed(1)
        assert logits.dtype is dtype
        assert kernels(seen, lambda: decoder.feed(1)) <= 26


def prepared(
    seen: Seen, model: dict[str, Any] | None = None, **recipe: Any
) -> tuple[Trainer, TrainingState]:
    """A trainer on CUDA and an untrained state."""
    changes = {"held_out_every": 1000, "prefetch": True, "precision": "bfloat16", **recipe}
    config = job_config(
        device="cuda", model=model_config(**(model or {})), train=train_config(**changes)
    )
    built = seen.on_cuda(lambda: registry.build(config.model))
    held = held_out(torch.zeros(3, config.model.context_length, dtype=torch.int64))
    state = TrainingState(built, make_optimizer(built, config.train), 0, 0)
    return Trainer(config, TrainingData(learnable_tokens(500), held)), state


def iterate(trainer: Trainer, state: TrainingState) -> None:
    """Two iterations with zeros as gradients: autograd needs a GPU."""

    def backward(loss, *_, **__):
        for weights in state.model.parameters():
            weights.grad = torch.zeros_like(weights)

    with patch("torch.Tensor.backward", backward):
        trainer.iterate(state)
        trainer.iterate(state)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_an_iteration_does_not_wait_for_the_device_unless_its_batch_is_not_read_ahead(recipe):
    with fake_cuda() as seen:
        trainer, state = prepared(seen, {"loop_noise": 0.1}, **recipe)
        seen.clear()
        iterate(trainer, state)
        assert waits(seen) == (
            {} if recipe.get("prefetch", True) else {"to device training/trainer.py": 4}
        )
        moments = [
            moment for values in state.optimizer.state.values() for moment in values.values()
        ]
        assert {(moment.dtype, moment.device.type) for moment in moments} == {
            (torch.float32, "cuda")
        }


def test_a_number_that_is_not_finite_is_reported_with_its_iteration_though_it_is_read_late():
    with fake_cuda() as seen:
        trainer, state = prepared(seen)
        iterate(trainer, state)
        seen.value = lambda tensor: math.nan
        with pytest.raises(
            InputError, match="found the loss nan and the gradient norm nan at iteration 2"
        ):
            iterate(trainer, state)
    assert (state.iteration, len(state.log)) == (3, 1)


def test_trajectories_wait_for_the_device_only_where_columns_go_to_the_host():
    with fake_cuda() as seen, torch.no_grad():
        model = checkpoint(
            seen.on_cuda(lambda: registry.build(model_config())).requires_grad_(False)
        )
        batch = held_out(torch.zeros(2, 8, dtype=torch.int64))
        for copies in (2 * 2, 0):  # of the noise: sequences and groups
            seen.clear()
            list(measure_batch(model, batch, 4, PathTypesConfig()))
            found = waits(seen)
            assert found.pop("to host dynamics/trajectories.py")
            assert found.pop("to host dynamics/states.py")
            assert found.pop("to device dynamics/trajectories.py") == 1  # the tokens
            assert found == ({"to device model/noise.py": copies} if copies else {})
