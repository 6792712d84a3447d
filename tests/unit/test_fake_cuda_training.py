"""Training and extraction on CUDA, on fake tensors: dtypes, kernels, and where the host waits for the device."""

import math
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from tests.fake_cuda import Seen, _run_backward, fake_cuda
from tests.small import checkpoint, held_out, job_config, learnable_tokens, model_config, train_config
from twoscale.base import InputError
from twoscale.config import PathTypesConfig
from twoscale.dynamics.trajectories import measure_batch
from twoscale.model import registry
from twoscale.model.attention import attention
from twoscale.model.linear import lowered_weights
from twoscale.model.noise import training_noise
from twoscale.model.transformer import LoopedTransformer, initialise
from twoscale.training.recipe import autocast, make_optimizer
from twoscale.training.state import TrainingState
from twoscale.training.trainer import Trainer, TrainingData, run_segment

RECIPES = {
    "whole": {},
    "recomputed": {"recompute": True},
    "truncated": {"backprop_depth": 2},
    "truncated and recomputed": {"backprop_depth": 2, "recompute": True},
    "micro-batches": {"micro_batches": 3},
}
GATED = {"groups": [[2, 3]], "exit_gate": True}


def prepared(seen: Seen, model: dict[str, Any] | None = None, **recipe: Any) -> tuple[Trainer, TrainingState]:
    """A trainer on CUDA and an untrained state."""
    changes = {"held_out_every": 1000, "prefetch": True, **recipe}
    config = job_config(device="cuda", model=model_config(**(model or {})), train=train_config(**changes))
    built = seen.on_cuda(lambda: registry.build(config.model))
    held = held_out(torch.zeros(3, config.model.context_length, dtype=torch.int64))
    trainer = Trainer(config, TrainingData(learnable_tokens(500), held))
    return trainer, TrainingState(built, make_optimizer(built, config.train), 0, 0)


def waits_by_module(seen: Seen) -> Counter[str]:
    """The waits without the numbers of lines."""
    waits: Counter[str] = Counter()
    for place, count in seen.syncs.items():
        waits[place.partition(":")[0]] += count
    return waits


def test_waits_are_recorded_by_kind_and_an_asynchronous_copy_is_none():
    with fake_cuda() as seen:
        x = torch.empty(3, 4, device="cuda")
        x.sum().item()
        x[x > 0], x.nonzero()
        x.cpu()
        torch.empty(2).to("cuda"), torch.empty(2).to("cuda", non_blocking=True)
        assert seen.syncs == {f"{kind} outside twoscale": n for kind, n in WAITS.items()}
        seen.clear()
        torch.empty(2).pin_memory()[1:].to("cuda", non_blocking=True)
        torch.empty((), pin_memory=True).copy_(x.sum(), non_blocking=True)
        x + torch.tensor(1.0)
        assert not seen.syncs
        assert seen.kernels == {"_to_copy": 1, "sum": 1, "copy_": 1, "add": 1}


WAITS = {"value": 1, "rows": 2, "to host": 1, "to device": 2}


def test_tensors_of_two_devices_are_refused():
    with fake_cuda():
        x = torch.empty(3, device="cuda")
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.empty(3)
        with pytest.raises(RuntimeError, match="two devices"):
            F.embedding(torch.zeros(3, dtype=torch.int64), x[:, None])


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradients_of_a_walk_through_the_graph_are_those_of_autograd(recompute):
    found = []
    for run_backward in (torch.autograd._engine_run_backward, _run_backward):
        model = initialise(model_config(**GATED, tied_head=False), 3).double()
        with patch("torch.autograd._engine_run_backward", run_backward):
            loss_of(model, torch.arange(16).reshape(2, 8), recompute=recompute).backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    expected, walked = found
    assert walked.keys() == expected.keys()
    for name, gradient in walked.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def loss_of(
    model: LoopedTransformer, tokens: torch.Tensor, loops: int = 4, depth: int | None = None, recompute: bool = False
) -> torch.Tensor:
    counts = [loops] * len(model.config.groups)
    return model.loss(model.hidden_states(tokens, counts, training_noise(1, 0, 0), depth, recompute), tokens)


@pytest.mark.parametrize(("recipe", "precision"), [("whole", "float32"), *((recipe, "bfloat16") for recipe in RECIPES)])
def test_an_iteration_does_not_wait_for_the_device(recipe, precision):
    with fake_cuda() as seen:
        trainer, state = prepared(seen, {"loop_noise": 0.1}, precision=precision, **RECIPES[recipe])
        seen.clear()
        trainer.iterate(state)
        trainer.iterate(state)
        assert not seen.syncs
        assert seen.kernels["_foreach_copy_"] == 2 * (precision == "bfloat16")  # all weights, once an iteration
        moments = [moment for values in state.optimizer.state.values() for moment in values.values()]
        assert {(moment.dtype, moment.device.type) for moment in moments} == {(torch.float32, "cuda")}


def test_training_of_an_exit_gate_does_not_wait_for_the_device():
    with fake_cuda() as seen:
        trainer, state = prepared(seen, GATED, precision="bfloat16", exit_gate={"entropy_weight": 0.1})
        state.model.gate.requires_grad_(True)
        seen.clear()
        trainer.iterate(state)
        assert not seen.syncs


def test_batches_that_are_not_read_ahead_are_waited_for():
    with fake_cuda() as seen:
        trainer, state = prepared(seen, prefetch=False)
        seen.clear()
        trainer.iterate(state)
        assert waits_by_module(seen) == {"to device training/recipe.py": 2}


@pytest.mark.parametrize("recipe", RECIPES)
def test_states_are_float32_under_autocast(recipe):
    options, dtypes = RECIPES[recipe], []

    def noise(group: int, k: int, like: torch.Tensor) -> torch.Tensor:
        dtypes.append(like.dtype)
        return torch.zeros_like(like)

    with fake_cuda() as seen, autocast("cuda", "bfloat16"):
        model = seen.on_cuda(lambda: registry.build(model_config(loop_noise=0.1)))
        tokens = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
        depth, recompute = options.get("backprop_depth"), options.get("recompute", False)
        hidden = model.hidden_states(tokens, [4, 4], noise, depth, recompute)
        assert seen.kernels["_scaled_dot_product_flash_attention"] == 2 + 2 * 4  # in bfloat16
    assert (len(dtypes), {*dtypes, hidden.dtype}) == (2 * 4, {torch.float32})


# precision -> kernels of one layer and its adapter in a loop step, forward and backward. PyTorch for the CPU composes
# each of the four norms of others, where CUDA has one forward and one backward.
MOST_KERNELS = {"float32": 122, "bfloat16": 138}


@pytest.mark.parametrize("precision", MOST_KERNELS)
def test_the_kernels_of_a_loop_step_are_bounded(precision):
    with fake_cuda() as seen:
        model = seen.on_cuda(lambda: registry.build(model_config()))
        tokens = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
        counts = []
        for loops in (2, 3):
            seen.clear()
            lowered = model.blocks if precision == "bfloat16" else ()
            with lowered_weights(lowered, torch.bfloat16):
                with autocast("cuda", precision):
                    loss = loss_of(model, tokens, loops)
                loss.backward()
            counts.append(seen.kernels.total())
        assert (counts[1] - counts[0]) / len(model.config.groups) <= MOST_KERNELS[precision]


def test_the_noise_of_the_held_out_loss_is_copied_to_the_device_once():
    with fake_cuda() as seen:
        trainer, state = prepared(seen, batch_size=2)
        trainer.iterate(state)
        for copies in (3 * 2, 0):  # sequences and groups
            seen.clear()
            trainer.measure_held_out(state)
            assert waits_by_module(seen)["to device model/noise.py"] == copies


def test_every_row_is_logged_and_shown_once_and_in_order(tmp_path):
    shown = []
    with fake_cuda() as seen:
        trainer, state = prepared(seen, held_out_every=3)
        trainer.record = lambda row: shown.append((row["iteration"], row["held_out_loss"]))
        run_segment(trainer, state, 5, tmp_path / "partial", {})
    assert shown == [(1, None), (2, None), (3, 1.0), (4, None), (5, 1.0)]
    assert [row["iteration"] for row in state.log] == [1, 2, 3, 4, 5]


def test_a_number_that_is_not_finite_is_reported_with_its_iteration_though_it_is_read_late(tmp_path):
    with fake_cuda() as seen:
        trainer, state = prepared(seen)
        trainer.iterate(state)
        trainer.iterate(state)
        seen.value = lambda tensor: math.nan
        with pytest.raises(InputError, match="found the loss nan and the gradient norm nan at iteration 2"):
            trainer.iterate(state)
    assert (state.iteration, len(state.log)) == (3, 1)


@pytest.mark.parametrize(("until", "keys"), [(5, {"save_seconds": 1e-9}), (1, {})], ids=["saved", "ends"])
def test_a_number_that_is_not_finite_is_noticed_before_the_state_is_saved_or_the_segment_ends(until, keys, tmp_path):
    with fake_cuda() as seen:
        trainer, state = prepared(seen, **keys)
        seen.value = lambda tensor: math.nan
        with pytest.raises(InputError, match=r"found the loss nan and the gradient norm .* at iteration 1"):
            run_segment(trainer, state, until, tmp_path / "partial", {})
    assert not (tmp_path / "partial").exists()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_shared_keys_and_values_is_one_fused_kernel(dtype, masked):
    with fake_cuda() as seen:
        q, k = (torch.empty(2, count, 16, 8, device="cuda", dtype=dtype) for count in (6, 2))
        mask = torch.empty(2, 1, 16, 16, dtype=torch.bool, device="cuda") if masked else None
        assert attention(q, k, k, mask, is_causal=not masked).shape == q.shape
        kernel = "flash" if dtype is torch.bfloat16 and not masked else "efficient"
        assert seen.kernels[f"_scaled_dot_product_{kernel}_attention"] == 1
        assert not {"bmm", "_safe_softmax", "_softmax"} & seen.kernels.keys()


def test_trajectories_wait_for_the_device_only_where_columns_go_to_the_host():
    with fake_cuda() as seen, torch.no_grad():
        model = checkpoint(seen.on_cuda(lambda: registry.build(model_config())).requires_grad_(False))
        batch = held_out(torch.zeros(2, 8, dtype=torch.int64))
        for copies in (2 * 2, 0):  # of the noise: sequences and groups
            seen.clear()
            tables = [name for name, _ in measure_batch(model, batch, 4, PathTypesConfig())]
            assert tables == ["trajectories", "token_paths", "trajectories", "token_paths", "token_drift"]
            waits = waits_by_module(seen)
            assert waits.pop("to host dynamics/trajectories.py")
            assert waits.pop("to host dynamics/states.py")
            assert waits.pop("to device dynamics/trajectories.py") == 1  # the tokens
            assert waits == ({"to device model/noise.py": copies} if copies else {})
