"""compile_blocks: one compilation for all loop counts, and the numbers of the model as it is
written.
"""

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from tests.small import held_out, job_config, model_config, train_config
from twoscale.base import InputError
from twoscale.model.checkpoints import Header
from twoscale.model.kernels import lowered_weights
from twoscale.model.noise import training_noise
from twoscale.model.transformer import LoopedTransformer, initialise
from twoscale.training.state import compile_blocks, restore
from twoscale.training.trainer import autocast, draw_loops, held_out_loss

SEED = 11
PAPER_GROUPS = {"num_layers": 8, "groups": [[4], [5, 6], [7]]}
THREE_SIZES = {"num_layers": 7, "groups": [[1], [2, 3], [4, 5, 6]]}


@pytest.fixture
def compiler():
    """A compiler that counts graphs and runs them as they are; too many are an error, not a fall
    back.
    """
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=8):
        yield CompileCounter()
    torch._dynamo.reset()


def gradient_of(
    model: LoopedTransformer, loops: int, depth: int | None, recompute: bool
) -> dict[str, torch.Tensor]:
    """Gradients of one batch, and its loss under the name "loss"."""
    tokens = torch.arange(16).reshape(2, 8)
    model.zero_grad()
    logits = model(
        tokens, [loops] * len(model.config.groups), training_noise(SEED, 0, 0), depth, recompute
    )
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("groups", "depth", "recompute"),
    [(PAPER_GROUPS, None, False), (PAPER_GROUPS, 2, True), (THREE_SIZES, 2, False)],
    ids=["paper", "paper, truncated and recomputed", "three sizes, truncated"],
)
def test_graphs_are_compiled_per_group_and_not_per_loop_count_and_compute_what_the_model_does(
    groups, recompute, depth, compiler
):
    model = initialise(model_config(**groups), SEED)
    eager = gradient_of(model, 1, depth, recompute)
    compile_blocks(model, backend=compiler)
    gradient_of(model, 4, depth, recompute)  # with steps that have no gradient
    for name, compiled in gradient_of(model, 1, depth, recompute).items():
        torch.testing.assert_close(compiled, eager[name], msg=name)
    graphs = compiler.frame_count
    for loops in (2, 7):
        gradient_of(model, loops, depth, recompute)
    assert (
        compiler.frame_count == graphs <= 3 * len(model.config.groups) + 1
    )  # one for all unlooped layers


# depth, recompute, sizes of the parts of a batch -> graphs
DRAWS = [(None, False, (2,), 5), (2, True, (2, 3), 14)]


@pytest.mark.parametrize(
    ("depth", "recompute", "sizes", "graphs"), DRAWS, ids=["whole", "truncated and recomputed"]
)
def test_fifteen_draws_of_loop_counts_in_bfloat16_are_few_graphs_without_breaks(
    depth, recompute, sizes, graphs, compiler
):
    model = initialise(model_config(**PAPER_GROUPS), SEED)
    compile_blocks(model, backend=compiler)
    for iteration in range(15):
        tokens = torch.arange(8 * sizes[iteration % len(sizes)]).reshape(-1, 8)
        loops = draw_loops(model.config, SEED, iteration)
        with lowered_weights(model.blocks, torch.bfloat16):
            with autocast("cpu", "bfloat16"):
                hidden = model.hidden_states(
                    tokens, loops, training_noise(SEED, iteration, 0), depth, recompute
                )
                loss = model.loss(hidden, tokens)
            loss.backward()
    assert not counters["graph_break"]
    assert compiler.frame_count == graphs


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_states_are_float32_under_autocast(compiled, compiler):
    model, dtypes = initialise(model_config(loop_noise=0.1), SEED), []
    if compiled:
        compile_blocks(model, backend=compiler)

    def noise(group: int, k: int, like: torch.Tensor) -> torch.Tensor:
        dtypes.append(like.dtype)
        return torch.zeros_like(like)

    with autocast("cpu", "bfloat16"):
        model.hidden_states(torch.arange(16).reshape(2, 8), [4, 4], noise)
    assert dtypes == 2 * 4 * [torch.float32]
    assert bool(compiler.frame_count) is compiled


def restored(compile: bool) -> LoopedTransformer:
    config = job_config(train=train_config(compile=compile))
    return restore(
        config, initialise(config.model, SEED).state_dict(), {}, Header("weights", 0, 0, {}, {})
    ).model


def test_training_compiles_if_the_config_says_so_and_there_is_a_compiler():
    for compile in (False, True):
        assert {block._compiled_call_impl is not None for block in restored(compile).blocks} == {
            compile
        }
    # monkeypatch does not restore a key of this module
    without = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with without, pytest.raises(InputError, match=r"train\.compile: found no C\+\+ compiler"):
        restored(compile=True)


def test_measuring_the_held_out_loss_compiles_nothing(compiler):
    model = initialise(model_config(), SEED)
    compile_blocks(model, backend=compiler)
    held_out_loss(model, held_out(torch.arange(24).reshape(3, 8)), loops=3, seed=SEED, batch_size=2)
    assert compiler.frame_count == 0


@pytest.mark.parametrize(("before", "after"), [(8, 18), (64, 64)])
def test_the_limit_of_recompilations_is_raised_and_never_lowered(before, after, compiler):
    with torch._dynamo.config.patch(recompile_limit=before):
        compile_blocks(initialise(model_config(**PAPER_GROUPS), SEED), backend=compiler)
        assert torch._dynamo.config.recompile_limit == after
