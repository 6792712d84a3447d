"""model: every verb against its formula, written out in float64.

The formulas below are the test's own: RMS norm, attention and MLP spelled out head by head, with the
weights of the model as plain matrices.
"""

import math

import pytest
import torch
from small import model_config
from torch import Tensor

from twoscale.model.transformer import NOISE_STD, LoopedTransformer, Place, causal_attention, initial_std, initialise

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
    return torch.randn(2, 8, 8, generator=source, dtype=torch.float64)[: like.shape[0], : like.shape[1]]


# --- the formulas ----------------------------------------------------------------------------------------------


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
    for layer in looped.num_layers:
        x = layer_formula(x, layer, model.config.sandwich)
    return x


def start_formula(model: LoopedTransformer, group: int, entered: Tensor) -> Tensor:
    return {
        "noise": noise(group, 0, entered),
        "input": entered,
        "input_plus_noise": entered + noise(group, 0, entered),
        "zero": 0 * entered,
    }[model.config.state_init]


def embedding_formula(model: LoopedTransformer, tokens: Tensor) -> Tensor:
    positions = model.position_embedding.weight[: tokens.shape[1]]
    return (model.token_embedding.weight[tokens] + positions) * math.sqrt(model.config.hidden_size)


def logits_formula(model: LoopedTransformer, hidden: Tensor) -> Tensor:
    head = model.token_embedding.weight[: model.config.vocab_size]
    return rms_norm(hidden, model.final_norm.weight) @ head.T


def forward_formula(model: LoopedTransformer, tokens: Tensor, loops, backprop_depth: int | None = None) -> Tensor:
    """Logits of a model of four layers whose groups are (2,) and (3,)."""
    sandwich = model.config.sandwich
    hidden = layer_formula(embedding_formula(model, tokens), model.unlooped["1"], sandwich)
    for group, steps in enumerate(loops):
        state = start_formula(model, group, hidden)
        for k in range(steps):
            if k:
                state = state + model.config.loop_noise / NOISE_STD * noise(group, k, state)
            state = step_formula(model, group, state, hidden)
            if backprop_depth is not None and k < steps - backprop_depth:
                state = state.detach()
        final = rms_norm(state, model.final_norm.weight)
        hidden = final if model.config.exit_norm == "final_norm" else state
    return logits_formula(model, layer_formula(hidden, model.unlooped["4"], sandwich))


# --- the verbs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sandwich", ["post_residual", "branch"])
def test_a_layer_normalises_where_its_reading_says(sandwich):
    model = random_model(sandwich=sandwich)
    x = noise(0, 1, torch.empty(2, 6, 8))
    torch.testing.assert_close(model.unlooped_layer(1, x), layer_formula(x, model.unlooped["1"], sandwich))


def test_the_two_readings_of_the_sandwich_are_different_models():
    x = noise(0, 1, torch.empty(2, 6, 8))
    one, other = (random_model(sandwich=sandwich).unlooped_layer(1, x) for sandwich in ("post_residual", "branch"))
    assert (one - other).abs().max() > 0.1


def test_the_two_halves_of_the_adapter_are_the_projection_of_state_and_input_side_by_side():
    model = random_model()
    state, entered = noise(0, 1, torch.empty(2, 6, 8)), noise(0, 2, torch.empty(2, 6, 8))
    projected = model.project(1, state, model.project_input(1, entered))
    torch.testing.assert_close(projected, torch.cat([state, entered], dim=-1) @ model.groups[1].adapter.weight.T)


def test_a_step_runs_all_layers_of_its_group_on_the_projection():
    model = random_model(groups=[[2, 3]])
    state, entered = noise(0, 1, torch.empty(2, 6, 8)), noise(0, 2, torch.empty(2, 6, 8))
    stepped = model.recur(0, state, model.project_input(0, entered))
    torch.testing.assert_close(stepped, step_formula(model, 0, state, entered))


@pytest.mark.parametrize("state_init", ["noise", "input", "input_plus_noise", "zero"])
def test_a_group_starts_from_the_state_of_its_reading(state_init):
    model = random_model(state_init=state_init)
    entered = noise(1, 5, torch.empty(2, 6, 8))
    assert torch.equal(model.init_state(1, entered, noise), start_formula(model, 1, entered))


def test_embeddings_are_summed_and_multiplied_by_the_root_of_the_width():
    model = random_model()
    torch.testing.assert_close(model.embed(TOKENS), embedding_formula(model, TOKENS))


def test_embedding_the_rest_of_a_text_continues_its_positions():
    model = random_model()
    assert torch.equal(model.embed(TOKENS[:, 4:], start=4), model.embed(TOKENS)[:, 4:])


def test_the_head_is_the_embedding_without_the_rows_that_pad():
    model = random_model()
    hidden = noise(0, 1, torch.empty(2, 6, 8))
    logits = model.readout(hidden)
    assert model.token_embedding.weight.shape == (64, 8)
    assert logits.shape == (2, 6, 37)
    torch.testing.assert_close(logits, logits_formula(model, hidden))
    assert not [name for name, _ in model.named_parameters() if "head" in name]


def test_attention_is_asked_by_layer_number_with_heads_apart():
    asked = []

    def attend(layer, q, k, v):
        asked.append((layer, tuple(q.shape)))
        return causal_attention(layer, q, k, v)

    model = random_model(groups=[[2, 3]])
    hidden = noise(0, 1, torch.empty(2, 6, 8))
    model.recur(0, hidden, model.project_input(0, hidden), attend)
    model.unlooped_layer(4, hidden, attend)
    assert asked == [(number, (2, 6, 2, 4)) for number in (2, 3, 4)]


# --- the whole way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference_state",
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
def test_the_logits_are_those_of_the_written_out_model(reading):
    model = random_model(**reading)
    torch.testing.assert_close(model(TOKENS, LOOPS, noise), forward_formula(model, TOKENS, LOOPS))


def test_without_groups_the_model_is_a_plain_stack_of_layers():
    model = random_model(groups=[])
    hidden = embedding_formula(model, TOKENS)
    for number in range(1, 5):
        hidden = layer_formula(hidden, model.unlooped[str(number)], "post_residual")
    torch.testing.assert_close(model(TOKENS, [], noise), logits_formula(model, hidden))


def test_the_walk_passes_every_place_in_the_order_of_the_layers():
    model = random_model(layers=5, groups=[[1], [3, 4]])
    places = [place for place, _ in model.walk(TOKENS, [2, 1], noise)]
    assert places == [
        Place("embedding"),
        *(Place("loop", group=0, k=k) for k in range(3)),
        Place("left", group=0),
        Place("layer", layer=2),
        *(Place("loop", group=1, k=k) for k in range(2)),
        Place("left", group=1),
        Place("layer", layer=5),
    ]


def test_the_walk_shows_the_states_as_they_are_before_they_are_disturbed():
    model = random_model(loop_noise=0.3)
    states = [hidden for place, hidden in model.walk(TOKENS, [3, 1], noise) if place.group == 0]
    entered = layer_formula(embedding_formula(model, TOKENS), model.unlooped["1"], "post_residual")
    assert torch.equal(states[0], noise(0, 0, entered))
    torch.testing.assert_close(states[1], step_formula(model, 0, states[0], entered))
    disturbed = states[1] + 0.3 / math.sqrt(2 / 5) * noise(0, 1, entered)
    torch.testing.assert_close(states[2], step_formula(model, 0, disturbed, entered))


@pytest.mark.parametrize("reference_state", [{}, {"groups": [[2, 3]], "state_init": "input_plus_noise", "loop_noise": 0.1}])
def test_later_tokens_change_no_earlier_state(reading):
    model = random_model(**reading)
    loops = LOOPS[: len(model.groups)]
    changed = TOKENS.clone()
    changed[:, 4:] = 11
    for (place, before), (_, after) in zip(
        model.walk(TOKENS, loops, noise), model.walk(changed, loops, noise), strict=True
    ):
        torch.testing.assert_close(before[:, :4], after[:, :4], rtol=1e-12, atol=1e-12)
        if place.stage == "layer":
            assert not torch.allclose(before[:, 4:], after[:, 4:])


# --- gradients -------------------------------------------------------------------------------------------------


def gradients(model: LoopedTransformer, logits: Tensor) -> dict[str, Tensor]:
    """Gradients of an arbitrary smooth function of the logits."""
    model.zero_grad()
    logits.log_softmax(-1).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("state_init", ["noise", "input"])
@pytest.mark.parametrize("depth", [None, 1, 2, 5])
def test_truncation_cuts_the_gradient_where_a_written_out_detach_does(depth, state_init):
    model = random_model(state_init=state_init, loop_noise=0.1)
    cut = gradients(model, model(TOKENS, [4, 2], noise, backprop_depth=depth))
    by_hand = gradients(model, forward_formula(model, TOKENS, [4, 2], backprop_depth=depth))
    for name, gradient in cut.items():
        torch.testing.assert_close(gradient, by_hand[name], msg=name)


def test_truncation_changes_no_value_and_some_gradient():
    model = random_model()
    whole, cut = model(TOKENS, LOOPS, noise), model(TOKENS, LOOPS, noise, backprop_depth=1)
    assert torch.equal(whole, cut)
    adapter = "groups.0.adapter.weight"
    assert not torch.allclose(gradients(model, whole)[adapter], gradients(model, cut)[adapter])


@pytest.mark.parametrize("depth", [None, 2])
def test_recomputing_changes_no_gradient(depth):
    model = random_model(loop_noise=0.1)
    kept = gradients(model, model(TOKENS, [4, 2], noise, depth))
    again = gradients(model, model(TOKENS, [4, 2], noise, depth, recompute=True))
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, msg=name)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("reference_state", [{}, {"state_init": "input", "loop_noise": 0.1}], ids=str)
def test_steps_without_gradient_take_no_memory(reading, recompute):
    model = random_model(**reading)
    held = [bytes_for_backward(model, steps, backprop_depth=2, recompute=recompute) for steps in (4, 5, 8, 16)]
    assert len(set(held)) == 1


@pytest.mark.parametrize("reference_state", [{}, {"loop_noise": 0.1}, {"sandwich": "branch", "groups": [[2, 3]]}], ids=str)
def test_a_recomputed_step_takes_the_memory_of_one_state(reading):
    model = random_model(**reading)
    state = TOKENS.numel() * 8 * 8 * len(model.groups)  # a float64 state of each group
    kept, again = (
        [bytes_for_backward(model, steps, recompute=recompute) for steps in (4, 5, 8, 16)]
        for recompute in (False, True)
    )
    assert [later - again[0] for later in again] == [0, state, 4 * state, 12 * state]
    assert kept[1] - kept[0] > 10 * state


def bytes_for_backward(model: LoopedTransformer, steps: int, **options) -> int:
    """Bytes of the different tensors that the graph of one forward pass holds for the backward pass."""
    held = {}  # the storages are kept too, so that no two have one address

    def pack(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(TOKENS, [steps] * len(model.groups), noise, **options)
    return sum(storage.nbytes() for storage in held.values())


# --- initial weights -------------------------------------------------------------------------------------------


def test_initial_weights_have_the_deviation_of_the_formula_and_no_tails():
    width, layers, mean_loops = 128, 3, 5
    chosen = model_config(width=width, layers=layers, mean_loops=mean_loops, groups=[[2]], vocabulary=500)
    depth = 2 + 1 * mean_loops  # two single layers, one looped five times
    sigma = math.sqrt(2 / (5 * width))
    kept = math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2)))
    assert kept == pytest.approx(0.9866, abs=1e-4)  # deviation of a normal cut at three
    seen = set()
    for name, parameter in initialise(chosen, seed=3).named_parameters():
        kind = name.split(".")[-2]
        seen.add(kind)
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.ones(width)), name
            continue
        wanted = sigma / math.sqrt(2 * depth) if kind in ("attention_out", "mlp_out") else sigma
        error = 5 / math.sqrt(2 * parameter.numel())  # five standard errors of a measured deviation
        assert parameter.std().item() == pytest.approx(kept * wanted, rel=error), name
        assert abs(parameter.mean().item()) < 5 * wanted / math.sqrt(parameter.numel()), name
        assert parameter.abs().max().item() <= 3 * wanted * (1 + 1e-6), name
    assert {"token_embedding", "position_embedding", "adapter", "qkv", "attention_out", "mlp_in", "mlp_out"} <= seen


def test_output_projections_of_the_paper_are_divided_by_the_root_of_112():
    paper = model_config(layers=12, heads=12, width=768, groups=[[4], [5, 6], [7]], mean_loops=12)
    assert initial_std(paper, "single.1.qkv.weight") == pytest.approx(math.sqrt(2 / 3840))
    for name in ("groups.0.layers.0.attention_out.weight", "single.1.mlp_out.weight"):
        assert initial_std(paper, name) == pytest.approx(math.sqrt(2 / 3840 / 112))


def test_the_blend_adapter_starts_as_half_the_state_and_half_the_input():
    random, blend = (initialise(model_config(adapter_init=reading), 3) for reading in ("random", "blend"))
    half = torch.eye(8) / 2
    for group in range(2):
        wanted = torch.cat([half, half], dim=1) + 0.02 * random.groups[group].adapter.weight
        torch.testing.assert_close(blend.groups[group].adapter.weight, wanted)
    assert torch.equal(blend.unlooped["1"].qkv.weight, random.unlooped["1"].qkv.weight)


def test_initial_weights_are_a_function_of_the_seed():
    one, same, other = (initialise(model_config(), seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["token_embedding.weight"], other["token_embedding.weight"])
    assert not torch.equal(one["single.1.qkv.weight"], one["single.4.qkv.weight"])


def test_another_reading_changes_no_weight_that_it_does_not_concern():
    one = initialise(model_config(), 3).state_dict()
    other = initialise(model_config(groups=[[2]], mean_loops=3), 3).state_dict()
    for name in (
        "token_embedding.weight",
        "position_embedding.weight",
        "single.1.qkv.weight",
        "groups.0.adapter.weight",
    ):
        assert torch.equal(one[name], other[name]), name
