"""transformer: every method against its formula, written out in float64.

The formulas below are the test's own: RMS norm, attention and MLP spelled out head by head, with
the weights of the model as plain matrices.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.small import model_config, saved_bytes
from twoscale.model.interface import Stage
from twoscale.model.noise import NOISE_STD
from twoscale.model.transformer import LoopedTransformer, initialise

LOOPS = [3, 2]
TOKENS = torch.tensor([[5, 1, 30, 36, 0, 2], [7, 7, 8, 9, 21, 4]])


def random_model(**changes) -> LoopedTransformer:
    """A float64 model in which no weight, norms included, has a special value."""
    made = LoopedTransformer(model_config(**changes)).double()
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
            parameter.copy_(0.3 * noise if parameter.dim() > 1 else 1 + 0.3 * noise)
    return made


def noise(group: int, k: int, like: Tensor) -> Tensor:
    """Fixed numbers per (group, k), another row for every position."""
    source = torch.Generator().manual_seed(100 * group + k)
    return torch.randn(2, 8, 8, generator=source, dtype=torch.float64)[
        : like.shape[0], : like.shape[1]
    ]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / ((x**2).mean(-1, keepdim=True) + 1e-6).sqrt()


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def attention(x: Tensor, layer, heads: int) -> Tensor:
    """x (B, T, C); every head reads its own D columns of q, k and v."""
    width = x.shape[-1]
    depth = width // heads
    query, key, value = (x @ part.T for part in layer.qkv.weight.split(width))
    future = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
    mixed = []
    for head in range(heads):
        own = slice(head * depth, (head + 1) * depth)
        scores = query[..., own] @ key[..., own].transpose(1, 2) / math.sqrt(depth)
        weights = scores.masked_fill(future, -math.inf).exp()
        mixed.append(weights / weights.sum(-1, keepdim=True) @ value[..., own])
    return torch.cat(mixed, dim=-1) @ layer.attention_out.weight.T


def mlp(x: Tensor, layer) -> Tensor:
    return silu(x @ layer.mlp_in.weight.T) @ layer.mlp_out.weight.T


def layer_formula(x: Tensor, layer, sandwich: str) -> Tensor:
    n1, n2, n3, n4 = (norm.weight for norm in (layer.norm1, layer.norm2, layer.norm3, layer.norm4))
    if sandwich == "post_residual":
        x = rms_norm(attention(rms_norm(x, n1), layer, heads=2) + x, n2)
        return rms_norm(mlp(rms_norm(x, n3), layer) + x, n4)
    x = x + rms_norm(attention(rms_norm(x, n1), layer, heads=2), n2)
    return x + rms_norm(mlp(rms_norm(x, n3), layer), n4)


def step_formula(model: LoopedTransformer, group: int, state: Tensor, entered: Tensor) -> Tensor:
    looped = model.groups[group]
    x = torch.cat([state, entered], dim=-1) @ looped.adapter.weight.T
    for layer in looped.layers:
        x = layer_formula(x, layer, model.config.sandwich)
    return x


def embedding_formula(model: LoopedTransformer, tokens: Tensor) -> Tensor:
    positions = model.position_embedding.weight[: tokens.shape[1]]
    return (model.token_embedding.weight[tokens] + positions) * math.sqrt(model.config.hidden_size)


def logits_formula(model: LoopedTransformer, hidden: Tensor) -> Tensor:
    head = model.token_embedding.weight[: model.config.vocab_size]
    return rms_norm(hidden, model.final_norm.weight) @ head.T


def forward_formula(
    model: LoopedTransformer, tokens: Tensor, loops, backprop_depth: int | None = None
) -> Tensor:
    """Logits of a model of four layers whose groups are (2,) and (3,)."""
    sandwich = model.config.sandwich
    hidden = layer_formula(embedding_formula(model, tokens), model.unlooped["1"], sandwich)
    for group, steps in enumerate(loops):
        drawn = noise(group, 0, hidden)
        starts = {
            "noise": drawn,
            "input": hidden,
            "input_plus_noise": hidden + drawn,
            "zero": 0 * hidden,
        }
        state = starts[model.config.state_init]
        for k in range(steps):
            if k:
                state = state + model.config.loop_noise / NOISE_STD * noise(group, k, state)
            state = step_formula(model, group, state, hidden)
            if backprop_depth is not None and k < steps - backprop_depth:
                state = state.detach()
        final = rms_norm(state, model.final_norm.weight)
        hidden = final if model.config.exit_norm == "final_norm" else state
    return logits_formula(model, layer_formula(hidden, model.unlooped["4"], sandwich))


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"sandwich": "branch"},
        {"state_init": "input"},
        {"state_init": "input_plus_noise", "loop_noise": 0.3},
        {"state_init": "zero", "exit_norm": "final_norm"},
        {"loop_noise": 0.3},
    ],
    ids=str,
)
def test_the_logits_are_those_of_the_written_out_model(variant):
    model = random_model(**variant)
    torch.testing.assert_close(model(TOKENS, LOOPS, noise), forward_formula(model, TOKENS, LOOPS))


def test_the_trace_has_every_stage_in_the_order_of_the_layers():
    model = random_model(num_layers=5, groups=[[1], [3, 4]], loop_noise=0.3)
    trace = list(model.trace(TOKENS, [2, 1], noise))
    stages = [None, Stage(group=0), Stage(layer=2), Stage(group=1), Stage(layer=5)]
    assert [part.stage for part in trace] == stages
    assert [len(part.states) for part in trace] == [1, 3, 1, 2, 1]
    for before, after in itertools.pairwise(trace):
        assert after.entered is before.output
    torch.testing.assert_close(model.readout(trace[-1].output), model(TOKENS, [2, 1], noise))
    # the states are without the noise that a loop step adds
    x0, x1, x2 = trace[1].states
    assert torch.equal(x0, noise(0, 0, x0))
    torch.testing.assert_close(x1, step_formula(model, 0, x0, trace[1].entered))
    noisy = x1 + 0.3 / math.sqrt(2 / 5) * noise(0, 1, x1)
    torch.testing.assert_close(x2, step_formula(model, 0, noisy, trace[1].entered))


def gradients(model: LoopedTransformer, logits: Tensor) -> dict[str, Tensor]:
    """Gradients of an arbitrary smooth function of the logits."""
    model.zero_grad()
    logits.log_softmax(-1).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("state_init", ["noise", "input"])
@pytest.mark.parametrize("depth", [None, 1, 2, 5])
def test_truncation_cuts_the_gradient_where_a_written_out_detach_does_and_recomputing_changes_none(
    depth, state_init
):
    model = random_model(state_init=state_init, loop_noise=0.1)
    by_hand = gradients(model, forward_formula(model, TOKENS, [4, 2], backprop_depth=depth))
    for recompute in (False, True):
        for name, found in gradients(model, model(TOKENS, [4, 2], noise, depth, recompute)).items():
            torch.testing.assert_close(found, by_hand[name], msg=name)


def bytes_for_backward(model: LoopedTransformer, **options) -> list[int]:
    """Bytes that a forward pass of 4, 5, 8 and 16 loop steps holds for the backward pass."""
    groups = len(model.config.groups)
    return [
        saved_bytes(model, lambda k=k: model(TOKENS, [k] * groups, noise, **options))
        for k in (4, 5, 8, 16)
    ]


@pytest.mark.parametrize(
    "variant", [{"loop_noise": 0.1}, {"sandwich": "branch", "groups": [[2, 3]]}], ids=str
)
def test_a_recomputed_step_takes_the_memory_of_one_state_and_one_without_gradient_none(variant):
    model = random_model(**variant)
    state = TOKENS.numel() * 8 * 8 * len(model.config.groups)  # a float64 state of each group
    kept, again = (bytes_for_backward(model, recompute=recompute) for recompute in (False, True))
    assert [later - again[0] for later in again] == [0, state, 4 * state, 12 * state]
    assert kept[1] - kept[0] > 10 * state
    for recompute in (False, True):
        assert len(set(bytes_for_backward(model, backprop_depth=2, recompute=recompute))) == 1


def test_initial_weights_have_the_deviation_of_the_formula_and_no_tails():
    size, mean_loops = 128, 5
    config = model_config(
        hidden_size=size, num_layers=3, mean_loops=mean_loops, groups=[[2]], vocab_size=500
    )
    depth = 2 + 1 * mean_loops  # two unlooped layers, one looped five times
    sigma = math.sqrt(2 / (5 * size))
    kept = math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2)))
    assert kept == pytest.approx(0.9866, abs=1e-4)  # deviation of a normal cut at three
    seen = set()
    for name, parameter in initialise(config, seed=3).named_parameters():
        kind = name.split(".")[-2]
        seen.add(kind)
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.ones(size)), name
            continue
        wanted = sigma / math.sqrt(2 * depth) if kind in ("attention_out", "mlp_out") else sigma
        error = 5 / math.sqrt(2 * parameter.numel())  # five standard errors of a measured deviation
        assert parameter.std().item() == pytest.approx(kept * wanted, rel=error), name
        assert abs(parameter.mean().item()) < 5 * wanted / math.sqrt(parameter.numel()), name
        assert parameter.abs().max().item() <= 3 * wanted * (1 + 1e-6), name
    assert {
        "token_embedding",
        "position_embedding",
        "adapter",
        "qkv",
        "attention_out",
        "mlp_in",
        "mlp_out",
    } <= seen


def test_a_gated_mlp_starts_with_a_small_value_half_and_biases_at_zero():
    """As in Geiping's code; the gate half starts as any matrix does."""
    config = model_config(hidden_size=64, mlp="gated", mlp_size=96, qk_bias=True, exit_gate=True)
    model = initialise(config, seed=3)
    for name, parameter in model.named_parameters():
        if name.endswith("mlp_in.weight"):
            gate, value = parameter.split(96)
            ratio = (value.std() / gate.std()).item()
            assert ratio == pytest.approx(1 / math.sqrt(2 * config.effective_depth), rel=0.05)
        if name.endswith("bias"):
            assert not parameter.any(), name


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_share_starts_the_adapter_as_that_share_of_the_state_and_the_rest_of_the_input(share):
    random = initialise(model_config(), 3)
    blend = initialise(model_config(adapter_init="blend", adapter_share=share), 3)
    for group in range(2):
        blocks = blend.groups[group].adapter.weight.split(8, dim=1)
        noises = random.groups[group].adapter.weight.split(8, dim=1)
        for block, noise, part in zip(blocks, noises, (share, 1 - share), strict=True):
            torch.testing.assert_close(block, part * (torch.eye(8) + 0.04 * noise))


def test_the_blend_has_the_bits_that_it_had_before_it_had_a_share():
    """Half the state, half the input, and 0.02 of the random weights, in this order of
    operations.
    """
    random, blend = (initialise(model_config(adapter_init=init), 3) for init in ("random", "blend"))
    half = torch.eye(8) / 2
    for group in range(2):
        before = (
            random.groups[group]
            .adapter.weight.detach()
            .mul(0.02)
            .add(torch.cat([half, half], dim=1))
        )
        assert torch.equal(blend.groups[group].adapter.weight, before)
    assert torch.equal(blend.unlooped["1"].qkv.weight, random.unlooped["1"].qkv.weight)
