"""The spectrum of a loop: diagonal blocks, eigenvalues, the ends of paths, and what tokens inherit."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tests import configs, small
from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics import arnoldi
from twoscale.model.interface import CausalAttention, Stage
from twoscale.model.registry import architecture
from twoscale.studies.spectrum import diagonal_block, late_path
from twoscale.studies.spectrum import measure as spectrum
from twoscale.studies.spectrum.config import SpectrumConfig
from twoscale.studies.spectrum.diagonal_block import DiagonalBlocks, OwnStep
from twoscale.studies.spectrum.directions import DirectionBlocks

ROTARY = {"positions": "rotary", "num_kv_heads": 1, "qk_norm": True, "qk_bias": True, "mlp": "gated"}
PARCAE = {"positions": "rotary", "rotary_channels": 2, "norms": "pre", "injection": "diagonal", "qk_norm": "head"}
PARCAE |= {"num_kv_heads": 1, "looped_kv_heads": 2, "activation": "gelu", "input_norm": True}


def rotation(modulus: float, angle: float) -> Tensor:
    """A 2 × 2 matrix with the eigenvalues modulus * exp(±i angle)."""
    turn = torch.tensor([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return modulus * turn


class LinearLoop:
    """A looped model with one group: x_t <- M_t x_t + c * (mean of x_s over s <= t) + input.

    The attention has the same weight for all tokens, so the diagonal block of the token at t is M_t + c I / (t + 1).
    """

    stages = (Stage(group=0),)

    def __init__(self, matrices: Tensor, coupling: float) -> None:
        self.config = small.model_config(groups=((1,),), num_heads=1, hidden_size=matrices.shape[-1])
        self.matrices, self.coupling = matrices, coupling

    def parameters(self):
        yield self.matrices

    def embed(self, tokens, positions):
        return torch.nn.functional.one_hot(tokens, self.matrices.shape[-1]).to(self.matrices)

    def init_state(self, group, entered, noise):
        return noise(group, 0, entered)

    def project_input(self, group, entered):
        return entered

    def recur(self, group, k, state, injected, attend):
        unused = torch.zeros_like(state)[..., None, :]
        mean = attend(1, unused, unused, state[..., None, :])[..., 0, :]
        own = (self.matrices[attend.positions] @ state[..., None])[..., 0]
        return own + self.coupling * mean + injected

    def finish(self, group, state):
        return state

    def diagonal_block(self) -> Tensor:
        length, size = self.matrices.shape[:2]
        return self.matrices + self.coupling * torch.eye(size) / torch.arange(1, length + 1)[:, None, None]


def blocks_of(model, states: Tensor, injected: Tensor, group: int = 0) -> DiagonalBlocks:
    """The diagonal blocks of one sequence (T, C)."""
    (held,) = diagonal_block.record_kv(model, group, 0, states[None], injected[None])
    return DiagonalBlocks(OwnStep(model, group, held, injected, torch.arange(len(states))), 0, states)


def transformer(seed: int = 0, gain: float = 1.0, **changes):
    model = architecture("transformer").initialise(small.model_config(**changes), seed).double().requires_grad_(False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
    return model


def rows_of(model, exact=(0, 1), ids=None, loops=3, text=None, **config):
    """The table of one batch of two sequences, as a dict of arrays (2, T) for each group."""
    length = 8 if ids is None else ids.shape[1]
    ids = torch.arange(2 * length).reshape(2, length) % 7 if ids is None else ids
    settings = SpectrumConfig(**{"window": 12, "steps": 400, "slowed_position": 1} | config)
    checkpoint, batch = small.checkpoint(model, seed=3), small.held_out(ids)
    with torch.no_grad():
        found = spectrum.measure_batch(
            checkpoint, batch, exact, text or spectrum.Text(0), spectrum.Loops(model, settings, loops)
        )
        return [{name: values.reshape(2, -1) for name, values in rows.items()} for rows in found]


@pytest.mark.parametrize("changes", [{}, ROTARY, {"norms": "pre"}, PARCAE], ids=["plain", "rotary", "pre", "Parcae"])
def test_own_blocks_are_the_diagonal_of_a_block_lower_triangular_jacobian(changes):
    model = transformer(groups=((2, 3),), **changes)
    states, injected = torch.randn(2, 1, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attend = CausalAttention(torch.arange(5))
    jacobian = torch.autograd.functional.jacobian(lambda x: model.recur(0, 0, x, injected, attend), states)
    jacobian = jacobian[0, :, :, 0].transpose(1, 2)  # (T, T, C, C)
    later = torch.ones(5, 5).triu(1).bool()
    assert jacobian[later].abs().max() == 0
    assert jacobian[~later].abs().amax((-1, -2)).min() > 0
    torch.testing.assert_close(blocks_of(model, states[0], injected[0]).dense(), jacobian[range(5), range(5)])


@pytest.mark.parametrize("changes", [ROTARY, PARCAE], ids=["rotary", "Parcae"])
def test_both_products_are_those_of_the_dense_block(changes):
    model = transformer(**changes)
    states, injected, vectors = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    blocks = blocks_of(model, states, injected)
    dense = blocks.dense()
    with torch.no_grad():
        torch.testing.assert_close(blocks.product(vectors), torch.einsum("nij,nj->ni", dense, vectors))
        torch.testing.assert_close(blocks.transposed_product(vectors), torch.einsum("nij,ni->nj", dense, vectors))


def test_the_leading_eigenvalues_of_a_linear_loop_with_attention_are_known():
    model = LinearLoop(torch.stack([rotation(0.5, 1.2), rotation(0.8, 2.0), rotation(0.3, 0.4)]).double(), coupling=0.3)
    blocks = blocks_of(model, torch.ones(3, 2).double(), torch.zeros(3, 2).double())
    torch.testing.assert_close(blocks.dense(), model.diagonal_block())
    expected = torch.tensor([0.5, 0.8, 0.3]) * torch.exp(1j * torch.tensor([1.2, 2.0, 0.4])) + 0.3 / torch.arange(1, 4)
    found, gain = diagonal_block.leading(blocks, dense_size=2)
    torch.testing.assert_close(found.modulus, expected.abs().double())
    torch.testing.assert_close(found.angle, expected.angle().double())
    torch.testing.assert_close(found.axis_ratio, torch.ones(3).double())  # rotations have circular spirals
    torch.testing.assert_close(gain, expected.abs().double())


@pytest.mark.parametrize("seed", range(2))
def test_arnoldi_agrees_with_the_dense_blocks(seed):
    model = transformer(seed, gain=1.5, hidden_size=64)
    states, injected = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    blocks = blocks_of(model, states, injected)
    (dense, dense_gain), (iterated, gain) = (diagonal_block.leading(blocks, size) for size in (64, 8))
    torch.testing.assert_close(iterated.modulus, dense.modulus, rtol=1e-7, atol=0)
    torch.testing.assert_close(iterated.angle, dense.angle, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(iterated.axis_ratio, dense.axis_ratio, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gain, dense_gain, rtol=1e-6, atol=0)
    slowed = [diagonal_block.slowed(blocks, 0.3, size).modulus for size in (64, 8)]
    torch.testing.assert_close(slowed[1], slowed[0], rtol=1e-6, atol=0)


def test_an_eigenvalue_that_does_not_converge_is_not_a_number(monkeypatch):
    monkeypatch.setattr(arnoldi, "RESTARTS", 1)
    states, injected = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, _ = diagonal_block.leading(blocks_of(transformer(hidden_size=64), states, injected), dense_size=8)
    assert found.modulus.isnan().all()


def test_slowing_a_token_moves_its_eigenvalues_towards_one():
    model = LinearLoop(torch.diag(torch.tensor([0.5, -0.9])).double()[None], coupling=0.0)
    blocks = blocks_of(model, torch.ones(1, 2).double(), torch.zeros(1, 2).double())
    found = diagonal_block.slowed(blocks, 0.2, dense_size=2)
    assert (found.modulus.item(), found.angle.item()) == pytest.approx((0.9, 0.0))  # 0.8 + 0.2 * 0.5


def test_the_prefix_modulus_is_the_largest_so_far():
    modulus = torch.tensor([[0.3, 0.6, 0.2, 0.6, 0.7]])
    largest, angle, source = diagonal_block.inherit(modulus, 10 * modulus)
    torch.testing.assert_close(largest, torch.tensor([[0.3, 0.6, 0.6, 0.6, 0.7]]))
    assert source.tolist() == [[0, 1, 1, 1, 4]]
    torch.testing.assert_close(angle, 10 * largest)


def spiral(modulus: float, angle: float, ratio: float, steps: int) -> Tensor:
    """Updates of an elliptic spiral in three dimensions: (steps, 1, 3)."""
    phase = 0.3 + torch.arange(steps, dtype=torch.float64) * angle
    plane = torch.stack([phase.cos(), ratio * phase.sin(), torch.zeros_like(phase)], dim=-1)
    return (modulus ** torch.arange(steps, dtype=torch.float64)[:, None] * plane)[:, None]


@pytest.mark.parametrize(("angle", "ratio"), [(0.7, 1.0), (0.7, 0.2), (2.5, 0.5), (np.pi, 0.0), (0.0, 0.0)])
def test_a_path_on_a_spiral_gives_its_eigenvalue_back(angle, ratio):
    updates = spiral(0.8, angle, ratio, 16)
    found = late_path.fit_recurrence(updates, torch.ones(16, 1, dtype=torch.bool))
    assert found["path_modulus"].item() == pytest.approx(0.8)
    assert found["path_angle"].item() == pytest.approx(angle, abs=1e-6)
    assert found["path_residual"].item() < 1e-10
    if 0 < angle < np.pi:
        assert found["path_axis_ratio"].item() == pytest.approx(ratio)
    else:
        assert found["path_axis_ratio"].isnan().all()


@pytest.mark.parametrize("ratio", [1.0, 0.6, 0.1])
@pytest.mark.parametrize("angle", [0.5, 1.1, 2.7])
def test_the_mean_cosine_of_a_spiral_depends_on_the_ratio_of_its_axes(angle, ratio):
    updates = spiral(1.0, angle, ratio, 20_000)
    expected = late_path.mean_cosine(updates, torch.ones(20_000, 1, dtype=torch.bool))
    found = late_path.mean_spiral_cosine(torch.tensor([angle]).double(), torch.tensor([ratio]).double())
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_the_mean_cosine_is_between_that_of_a_circle_and_of_a_line():
    angle = torch.tensor([0.9]).double()
    circle, line = (late_path.mean_spiral_cosine(angle, torch.tensor([ratio]).double()) for ratio in (1.0, 1e-9))
    assert circle.item() == pytest.approx(np.cos(0.9))
    assert line.item() == pytest.approx(1 - 2 * 0.9 / np.pi, abs=1e-2)


def test_a_window_ends_before_rounding_and_holds_the_last_updates():
    states = [torch.tensor([[1.0, 0.5**k]], dtype=torch.float64) for k in range(80)]
    late = late_path.LatePath(8, 1e-3, states[0])
    for before, after in pairwise(states):
        late.add(before, after)
    assert late.converged.all()
    assert not late.is_open.any()
    floor = late_path.MARGIN * 16 * torch.finfo(torch.float64).eps
    norms = late.updates[:, 0].norm(dim=-1)
    assert norms[-1] > floor >= norms[-1] / 2
    assert late.count.item() > 8
    assert late.loops.item() == 10  # 2^-10 is the first step norm below 1e-3
    assert late.summary()["rate"].item() == pytest.approx(0.5)


def test_few_updates_have_no_rate():
    late = late_path.LatePath(8, 1e-3, torch.ones(1, 2).double())
    for k in range(late_path.FEWEST - 1):
        late.add(torch.ones(1, 2).double() * 0.5**k, torch.ones(1, 2).double() * 0.5 ** (k + 1))
    assert all(value.isnan().all() for value in late.summary().values())


def test_the_second_of_two_tokens_follows_the_slower_first_one_until_that_one_is_held():
    matrices = torch.stack([rotation(0.9, 1.0), rotation(0.4, 2.5)]).double()
    model = LinearLoop(matrices, coupling=0.05)
    own = torch.linalg.eigvals(model.diagonal_block())[:, 0]
    (rows,) = rows_of(model, ids=torch.tensor([[0, 1], [1, 0]]), slowed_position=0, slow_factor=0.5, steps=1500)
    assert rows["converged"].all()
    np.testing.assert_allclose(rows["leading_modulus"], own.abs().expand(2, 2), rtol=1e-6)
    np.testing.assert_array_equal(rows["source"], [[0, 0], [0, 0]])
    np.testing.assert_allclose(rows["rate"], own[0].abs().expand(2, 2), rtol=0.01)
    np.testing.assert_allclose(rows["path_angle"], own[0].angle().abs().expand(2, 2), rtol=1e-3)
    np.testing.assert_allclose(rows["isolated_rate"], own.abs().expand(2, 2), rtol=0.01)
    np.testing.assert_allclose(rows["isolated_cosine"], own.angle().cos().expand(2, 2), atol=0.01)
    # the slowed first token has the eigenvalues 0.5 + 0.5 λ, and the second one follows
    slowed = (0.5 + 0.5 * own[0]).abs().item()
    np.testing.assert_allclose(rows["slowed_modulus"][:, 1], slowed, rtol=1e-6)
    np.testing.assert_allclose(rows["slowed_rate"][:, 1], slowed, rtol=0.01)
    assert np.isnan(rows["slowed_rate"][:, 0]).all()


def test_a_token_keeps_its_own_eigenvalue_where_earlier_tokens_are_faster():
    matrices = torch.stack([rotation(0.3, 1.0), rotation(0.8, 2.5)]).double()
    model = LinearLoop(matrices, coupling=0.05)
    (rows,) = rows_of(model, ids=torch.tensor([[0, 1], [1, 0]]), slowed_position=0)
    np.testing.assert_array_equal(rows["source"], [[0, 1], [0, 1]])
    np.testing.assert_allclose(rows["rate"], rows["leading_modulus"], rtol=0.01)


def test_paths_of_a_small_transformer_follow_the_inherited_eigenvalue():
    rows = rows_of(transformer(seed=2, gain=1.6))[0]
    assert rows["converged"].all()
    predictions = {"rate": "prefix_modulus", "path_modulus": "prefix_modulus", "isolated_rate": "leading_modulus"}
    for measured, predicted in predictions.items():
        assert np.abs(rows[measured] - rows[predicted]).mean() < 0.03, measured
    assert np.abs(rows["rate"] - rows["leading_modulus"]).mean() > 0.06


def test_a_token_after_one_without_a_fixed_point_has_none_and_is_counted():
    matrices = torch.stack([rotation(0.3, 1.0), rotation(1.0, 0.7), rotation(0.3, 1.0)]).double()
    (rows,) = rows_of(LinearLoop(matrices, coupling=0.0), ids=torch.tensor([[0, 1, 0], [1, 0, 1]]), slowed_position=0)
    np.testing.assert_array_equal(rows["converged"], [[True, False, False]] * 2)
    np.testing.assert_array_equal(rows["steps"] == -1, ~rows["converged"])
    assert np.isnan(rows["leading_modulus"][~rows["converged"]]).all()
    np.testing.assert_allclose(rows["rate"][:, 1], 1, rtol=1e-6)


class WithoutInput(LinearLoop):
    """x_t <- M_t x_t, whose directions are those of a linear map."""

    def project_input(self, group, entered):
        return torch.zeros_like(entered)


DIRECTION_EIGENVALUES = ("direction_modulus", "direction_half_modulus", "direction_angle", "direction_prefix_modulus")


def linear_rows(*matrices, loop=WithoutInput, **config):
    """Rows of the loop x <- M x of one token after another, each with one of the matrices."""
    model = loop(torch.stack([torch.as_tensor(matrix).double() for matrix in matrices]), coupling=0.0)
    ids = torch.arange(2 * len(matrices)).reshape(2, -1) % len(matrices[0])
    (rows,) = rows_of(model, ids=ids, **{"slowed_position": 0, "steps": 200} | config)
    return rows


def test_a_linear_map_of_radius_above_one_has_the_ratio_of_its_eigenvalues_on_directions():
    rows = linear_rows(torch.diag(torch.tensor([1.3, -1.04, 0.3])), torch.diag(torch.tensor([1.2, 1.14, 0.1])))
    assert not rows["converged"].any()
    assert rows["direction_frozen"].all()
    for name in ("direction_modulus", "direction_half_modulus"):
        np.testing.assert_allclose(rows[name], [[0.8, 0.95]] * 2, rtol=1e-2)
    np.testing.assert_allclose(rows["direction_angle"], [[np.pi, 0]] * 2, atol=1e-4)
    np.testing.assert_allclose(rows["direction_prefix_modulus"], [[0.8, 0.95]] * 2, rtol=1e-3)
    np.testing.assert_allclose(rows["direction_rate"], [[np.nan, 0.95]] * 2, rtol=1e-3)  # the first one is rounding
    assert np.isnan(rows["leading_modulus"]).all()


def test_a_translation_has_a_direction_that_converges_as_its_state_grows():
    """x <- x + b: at norm n = k the map on directions is n / (n + 1), so steps fall as 1 / k^2."""
    rows = linear_rows(torch.eye(3), torch.eye(3), loop=LinearLoop, steps=400)
    assert not rows["converged"].any()
    assert rows["direction_frozen"].all()
    np.testing.assert_allclose(rows["direction_modulus"], 1 - 1 / 400, atol=1e-4)
    np.testing.assert_allclose(rows["direction_half_modulus"], 1 - 1 / 200, atol=2e-4)
    np.testing.assert_allclose(rows["direction_exponent"], -2, atol=0.1)
    np.testing.assert_allclose(rows["direction_rate"], 1 - 2 / 400, atol=1e-3)


@pytest.mark.parametrize("modulus", [1.0, 1.1])
def test_a_rotation_has_neither_a_fixed_point_nor_a_direction_with_a_limit(modulus):
    rows = linear_rows(rotation(modulus, 0.7), 0.5 * torch.eye(2))
    assert not rows["converged"].any()  # an earlier token has no fixed point
    assert not rows["direction_frozen"].any()
    for name in DIRECTION_EIGENVALUES:
        assert np.isnan(rows[name]).all(), name


def test_a_token_with_a_fixed_point_has_no_columns_of_directions():
    rows = linear_rows(0.5 * torch.eye(2), torch.diag(torch.tensor([1.2, 0.6])), loop=LinearLoop)
    np.testing.assert_array_equal(rows["converged"], [[True, False]] * 2)
    assert rows["direction_frozen"].all()
    for name in spectrum.DIRECTION:
        assert np.isnan(rows[name][:, 0]).all(), name
    np.testing.assert_allclose(rows["direction_prefix_modulus"][:, 1], 0.5, rtol=1e-4)
    assert np.isfinite(rows["leading_modulus"][:, 0]).all()
    assert np.isnan(rows["leading_modulus"][:, 1]).all()


@pytest.mark.parametrize("changes", [{}, ROTARY, {"norms": "pre"}, PARCAE], ids=["plain", "rotary", "pre", "Parcae"])
def test_direction_blocks_are_the_derivative_of_the_map_on_directions(changes):
    model = transformer(groups=((2, 3),), **changes)
    states, injected, tangents = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (held,) = diagonal_block.record_kv(model, 0, 0, states[None], injected[None])
    step = OwnStep(model, 0, held, injected, torch.arange(5))
    blocks = DirectionBlocks(step, 0, states)
    n = states.norm(dim=-1, keepdim=True)
    unit = states / n

    def on_directions(u):
        after = step(0, n * u / u.norm(dim=-1, keepdim=True))
        return after / after.norm(dim=-1, keepdim=True)

    jacobian = torch.autograd.functional.jacobian(on_directions, unit)[range(5), :, range(5)]
    dense = blocks.dense()
    torch.testing.assert_close(dense, jacobian)
    with torch.no_grad():
        torch.testing.assert_close(blocks.product(tangents), torch.einsum("nij,nj->ni", dense, tangents))


def test_sequences_outside_the_exact_subset_have_paths_only():
    rows, *_ = rows_of(transformer(), exact=(1,))
    assert rows["exact"].tolist() == [[False] * 8, [True] * 8]
    for name in spectrum.EXACT:
        assert np.isnan(rows[name][0]).all(), name
    assert np.isfinite(rows["rate"]).all()
    assert np.isfinite(rows["leading_modulus"][1]).all()
    assert (rows["source"][0] == -1).all()


def test_a_group_sees_the_states_of_earlier_groups_after_the_loops_of_the_trajectories():
    model = transformer(seed=2, gain=1.6)
    tokens = torch.arange(8)[None]
    converged = []

    class Recording(spectrum.Loops):
        def converge(self, *arguments):
            converged.append(super().converge(*arguments))
            return converged[-1]

    checkpoint = small.checkpoint(model, seed=3)
    loops = Recording(model, SpectrumConfig(slowed_position=1), 3)
    with torch.no_grad():
        list(spectrum.measure_batch(checkpoint, small.held_out(tokens), (), spectrum.Text(0), loops))
        traced = [stage for stage in model.trace(tokens, [3, 3], checkpoint.noise([0])) if stage.stage in model.stages]
    groups = [stage for stage in traced if stage.stage.is_group]
    for stage, group in zip(groups, converged, strict=True):
        torch.testing.assert_close(group.start, stage.states[0])
        torch.testing.assert_close(group.passed, stage.states[-1])


def test_the_values_do_not_depend_on_how_sequences_are_batched():
    model, ids = transformer(seed=2, gain=1.6), torch.arange(16).reshape(2, 8) % 7
    config = SpectrumConfig(slowed_position=1)
    text, checkpoint = spectrum.Text(0), small.checkpoint(model, seed=3)
    together, *_ = rows_of(model, ids=ids, window=config.window, steps=config.steps)
    with torch.no_grad():
        second = replace(small.held_out(ids))[1:2]
        alone, *_ = spectrum.measure_batch(checkpoint, second, (1,), text, spectrum.Loops(model, config, 3))
    for name in ("leading_modulus", "rate", "isolated_rate", "slowed_rate", "path_angle"):
        np.testing.assert_allclose(alone[name], together[name][1], rtol=1e-4, err_msg=name)


def test_the_table_of_a_checkpoint_has_the_rows_of_all_batches(tmp_path):
    model, ids = transformer(seed=2, gain=1.6), torch.arange(16).reshape(2, 8) % 7
    config = SpectrumConfig(slowed_position=1, steps=60, batch_size=1)
    checkpoint, held, text = small.checkpoint(model, seed=3), small.held_out(ids), spectrum.Text(0)
    loops = spectrum.Loops(model, config, 3)
    spectrum.measure(checkpoint, held, (), text, loops, tmp_path / "spectrum.parquet")
    found = tables.read("token_spectrum", tmp_path / "spectrum.parquet")
    with torch.no_grad():
        expected = [
            rows for one in held.batches(1) for rows in spectrum.measure_batch(checkpoint, one, (), text, loops)
        ]
    assert found["rate"].tolist() == pytest.approx(np.concatenate([rows["rate"] for rows in expected]), nan_ok=True)
    assert found["sequence"].tolist() == np.concatenate([rows["sequence"] for rows in expected]).tolist()


@pytest.mark.parametrize(
    "build",
    [lambda model: spectrum.Loops(model, SpectrumConfig(), 3), lambda _: DiagonalBlocks(None, 0, torch.ones(1, 8))],
    ids=["model", "states"],
)
def test_a_spectrum_in_float32_is_refused(build):
    with pytest.raises(InputError, match="spectrum: found float32, expected float64"):
        build(transformer().float())


@pytest.fixture
def default_precision():
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize(
    "allow_tf32",
    [
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ],
    ids=["allow_tf32", "float32_matmul_precision", "fp32_precision"],
)
def test_a_spectrum_on_cuda_is_refused_while_tf32_is_allowed(allow_tf32, default_precision):
    with FakeTensorMode():
        on_cuda, on_cpu = (torch.ones(1, 8, dtype=torch.float64, device=device) for device in ("cuda", "cpu"))
    DiagonalBlocks(None, 0, on_cuda)
    allow_tf32()
    DiagonalBlocks(None, 0, on_cpu)
    with pytest.raises(InputError, match="fp32_precision: found tf32, expected ieee"):
        DiagonalBlocks(None, 0, on_cuda)


def test_places_and_frequencies_of_tokens():
    text = spectrum.Text(end_of_text=9, counts=torch.tensor([1.0, 3.0] + [0.0] * 8))
    assert text.token_classes(torch.tensor([[1, 9, 0, 1], [9, 1, 1, 9]])).tolist() == [
        *("first", "end of text", "after end of text", "other"),
        *("first", "after end of text", "other", "end of text"),
    ]
    assert text.frequency(torch.tensor([0, 1, 5])).tolist() == [250_000, 750_000, 0]
    assert spectrum.Text(0).frequency(torch.tensor([1])).isnan().all()


def test_the_frequencies_are_those_of_the_whole_training_text(tmp_path, monkeypatch):
    monkeypatch.setattr(spectrum, "COUNTED", 4)
    train, metadata = tmp_path / "train.bin", tmp_path / "tokens.json"
    ids = np.array([1, 0, 1, 3, 1, 3, 2, 1, 1, 1], np.uint16)
    ids.tofile(train)
    parts = {"train.bin": small.shard_part(ids)}
    metadata.write_text(json.dumps({"dtype": "uint16", "end_of_text": 3, "parts": parts}))
    text = spectrum.open_text(train, metadata, vocab_size=5)
    assert text.end_of_text == 3
    assert text.frequency(torch.arange(5)).tolist() == [100_000, 600_000, 100_000, 200_000, 0]
    assert spectrum.open_text(None, metadata, vocab_size=5).counts is None


@pytest.mark.parametrize(
    ("key", "found", "section"),
    [
        ("data.held_out_tokens", "spectrum.tokens", {"tokens": 1_000_448}),
        ("spectrum.slowed_position", "511", {"slowed_position": 511}),
    ],
)
def test_text_that_is_too_short_for_the_section_is_refused(key, found, section):
    configs.assert_refused(key, found, spectrum=section)


@pytest.mark.parametrize(("exact", "sequences"), [(1, 1), (1024, 2), (8192, 4)])
def test_exact_blocks_are_those_of_whole_sequences_at_most_of_all(exact, sequences):
    config = configs.paper(spectrum={"tokens": 2048, "exact_tokens": exact})
    assert (config.sequences("spectrum"), config.spectrum.exact_sequences(config)) == (4, sequences)
