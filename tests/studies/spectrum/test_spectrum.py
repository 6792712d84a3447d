"""The spectrum of a loop: diagonal blocks, eigenvalues, paths, and how well one predicts the
other.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tests import small
from tests.studies.spectrum.samples import LENGTH, SEQUENCES, token_table
from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics import arnoldi
from twoscale.model.interface import CausalAttention, Stage
from twoscale.model.registry import architecture
from twoscale.studies.spectrum import draw, measure
from twoscale.studies.spectrum.config import SpectrumConfig

ROTARY = {
    "positions": "rotary",
    "num_kv_heads": 1,
    "qk_norm": True,
    "qk_bias": True,
    "mlp": "gated",
}
PARCAE = {
    "positions": "rotary",
    "rotary_channels": 2,
    "norms": "pre",
    "injection": "diagonal",
    "qk_norm": "head",
}
PARCAE |= {"num_kv_heads": 1, "looped_kv_heads": 2, "activation": "gelu", "input_norm": True}
PARCAE |= {"value_embeddings": (3,)}


def rotation(modulus: float, angle: float) -> Tensor:
    """A 2 × 2 matrix with the eigenvalues modulus * exp(±i angle)."""
    turn = torch.tensor([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return modulus * turn


class LinearLoop:
    """A looped model with one group: x_t <- M_t x_t + c * (mean of x_s over s <= t) + input.

    The attention has the same weight for all tokens, so the diagonal block of the token at t is M_t
    + c I / (t + 1).
    """

    stages = (Stage(group=0),)

    def __init__(self, matrices: Tensor, coupling: float) -> None:
        self.config = small.model_config(
            groups=((1,),), num_heads=1, hidden_size=matrices.shape[-1]
        )
        self.matrices, self.coupling = matrices, coupling

    def parameters(self):
        yield self.matrices

    def embed(self, tokens, positions):
        return torch.nn.functional.one_hot(tokens, self.matrices.shape[-1]).to(self.matrices)

    def unlooped_layer(self, number, hidden, attend):
        raise AssertionError("all layers are looped")

    def init_state(self, group, entered, noise):
        return noise(group, 0, entered)

    def project_input(self, group, entered):
        return entered

    def add_noise(self, group, k, state, noise):
        return state

    def recur(self, group, k, state, injected, attend):
        unused = torch.zeros_like(state)[..., None, :]
        mean = attend(1, unused, unused, state[..., None, :])[..., 0, :]
        own = (self.matrices[attend.positions] @ state[..., None])[..., 0]
        return own + self.coupling * mean + injected

    def finish(self, group, state):
        return state

    def diagonal_block(self) -> Tensor:
        length, size = self.matrices.shape[:2]
        return (
            self.matrices
            + self.coupling * torch.eye(size) / torch.arange(1, length + 1)[:, None, None]
        )


def blocks_of(model, states: Tensor, injected: Tensor) -> arnoldi.LoopStepMap:
    """The diagonal blocks of one sequence (T, C)."""
    (blocks,) = measure.diagonal_blocks(
        model, 0, 0, states[None], injected[None], torch.arange(len(states))[None]
    )
    return blocks


def transformer(seed: int = 0, gain: float = 1.0, **changes):
    model = (
        architecture("transformer")
        .initialise(small.model_config(**changes), seed)
        .double()
        .requires_grad_(False)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
    return model


def random_states(number, length, size, seed=0):
    return torch.randn(
        number, length, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@torch.no_grad()
def rows_of(model, exact=(0, 1), ids=None, loops=3, **config):
    """The table of one batch of two sequences, as a dict of arrays (2, T) for each group."""
    ids = torch.arange(16).reshape(2, 8) % 7 if ids is None else ids
    settings = SpectrumConfig(**{"window": 12, "steps": 400} | config)
    found = measure.measure_batch(
        small.checkpoint(model, seed=3),
        small.held_out(ids),
        exact,
        measure.Loops(model, settings, loops),
    )
    return [{name: values.reshape(2, -1) for name, values in rows.items()} for rows in found]


# --- diagonal blocks and eigenvalues --------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, ROTARY, {"norms": "pre"}, PARCAE], ids=["plain", "rotary", "pre", "Parcae"]
)
def test_own_blocks_are_the_diagonal_of_a_block_lower_triangular_jacobian(changes):
    model = transformer(groups=((2, 3),), **changes)
    states, injected, vectors = random_states(3, 5, 8)
    attend = CausalAttention.of(torch.arange(5)[None])
    jacobian = torch.autograd.functional.jacobian(
        lambda x: model.recur(0, 0, x, injected[None], attend), states[None]
    )
    jacobian = jacobian[0, :, :, 0].transpose(1, 2)  # (T, T, C, C)
    later = torch.ones(5, 5).triu(1).bool()
    assert jacobian[later].abs().max() == 0
    assert jacobian[~later].abs().amax((-1, -2)).min() > 0
    blocks = blocks_of(model, states, injected)
    dense = blocks.dense()
    torch.testing.assert_close(dense, jacobian[range(5), range(5)])
    torch.testing.assert_close(blocks.product(vectors), torch.einsum("nij,nj->ni", dense, vectors))


def test_the_leading_eigenvalues_of_a_linear_loop_with_attention_are_known():
    model = LinearLoop(
        torch.stack([rotation(0.5, 1.2), rotation(0.8, 2.0), rotation(0.3, 0.4)]).double(),
        coupling=0.3,
    )
    blocks = blocks_of(model, torch.ones(3, 2).double(), torch.zeros(3, 2).double())
    torch.testing.assert_close(blocks.dense(), model.diagonal_block())
    expected = torch.tensor([0.5, 0.8, 0.3]) * torch.exp(
        1j * torch.tensor([1.2, 2.0, 0.4])
    ) + 0.3 / torch.arange(1, 4)
    modulus, angle = measure.leading(blocks, dense_size=2)
    torch.testing.assert_close(modulus, expected.abs().double())
    torch.testing.assert_close(angle, expected.angle().double())


def test_arnoldi_agrees_with_the_dense_blocks_and_what_does_not_converge_is_not_a_number(
    monkeypatch,
):
    blocks = blocks_of(transformer(gain=1.5, hidden_size=64), *random_states(2, 3, 64))
    (dense, dense_angle), (iterated, angle) = (measure.leading(blocks, size) for size in (64, 8))
    torch.testing.assert_close(iterated, dense, rtol=1e-7, atol=0)
    torch.testing.assert_close(angle, dense_angle, rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(arnoldi, "RESTARTS", 1)
    blocks = blocks_of(transformer(hidden_size=64), *random_states(2, 3, 64))
    assert measure.leading(blocks, dense_size=8)[0].isnan().all()


TF32 = {
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "fp32_precision": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


@pytest.mark.parametrize("allow_tf32", TF32.values(), ids=TF32)
def test_a_spectrum_in_float32_or_on_cuda_while_tf32_is_allowed_is_refused(allow_tf32):
    with pytest.raises(InputError, match="spectrum: found float32, expected float64"):
        measure.Loops(transformer().float(), SpectrumConfig(), 3)
    with FakeTensorMode():
        on_cuda, on_cpu = (
            torch.ones(1, 8, dtype=torch.float64, device=device) for device in ("cuda", "cpu")
        )
    arnoldi.check_precision(on_cuda)
    try:
        allow_tf32()
        arnoldi.check_precision(on_cpu)
        with pytest.raises(InputError, match="fp32_precision: found tf32, expected ieee"):
            arnoldi.check_precision(on_cuda)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = (
            "none"
        )


def test_the_prefix_modulus_is_the_largest_so_far():
    modulus = torch.tensor([[0.3, 0.6, 0.2, 0.6, 0.7]])
    largest, angle, source = measure.inherit(modulus, 10 * modulus)
    torch.testing.assert_close(largest, torch.tensor([[0.3, 0.6, 0.6, 0.6, 0.7]]))
    assert source.tolist() == [[0, 1, 1, 1, 4]]
    torch.testing.assert_close(angle, 10 * largest)


# --- paths ----------------------------------------------------------------------------------------


def test_a_window_ends_before_rounding_and_holds_the_last_updates():
    states = [torch.tensor([[1.0, 0.5**k]], dtype=torch.float64) for k in range(80)]
    late = measure.LatePath(8, states[0])
    for number, (before, after) in enumerate(pairwise(states)):
        if number < measure.FEWEST:
            assert all(value.isnan().all() for value in late.summary().values())
        late.add(before, after)
    assert late.converged.all()
    assert not late.is_open.any()
    floor = measure.MARGIN * 16 * torch.finfo(torch.float64).eps
    norms = late.updates[:, 0].norm(dim=-1)
    assert norms[-1] > floor >= norms[-1] / 2
    assert late.count.item() > 8
    assert late.summary()["rate"].item() == pytest.approx(0.5)
    assert late.summary()["cosine"].item() == pytest.approx(1)


def test_the_second_of_two_tokens_follows_the_slower_first_one():
    matrices = torch.stack([rotation(0.9, 1.0), rotation(0.4, 2.5)]).double()
    model = LinearLoop(matrices, coupling=0.05)
    own = torch.linalg.eigvals(model.diagonal_block())[:, 0]
    (rows,) = rows_of(model, ids=torch.tensor([[0, 1], [1, 0]]), steps=1500)
    assert rows["converged"].all()
    np.testing.assert_allclose(rows["leading_modulus"], own.abs().expand(2, 2), rtol=1e-6)
    np.testing.assert_array_equal(rows["source"], [[0, 0], [0, 0]])
    np.testing.assert_allclose(rows["prefix_angle"], own[0].angle().abs().expand(2, 2), rtol=1e-6)
    np.testing.assert_allclose(rows["rate"], own[0].abs().expand(2, 2), rtol=0.01)
    np.testing.assert_allclose(rows["cosine"], own[0].angle().cos().expand(2, 2), atol=0.05)


def test_paths_of_a_small_transformer_follow_the_inherited_eigenvalue_and_other_sequences_have_paths_only():
    model = transformer(seed=2, gain=1.6)
    rows = rows_of(model, steps=200)[0]
    others = rows_of(model, exact=(1,), steps=200)[0]
    assert others["exact"].tolist() == [[False] * 8, [True] * 8]
    for name in measure.EXACT:
        assert np.isnan(others[name][0]).all(), name
        np.testing.assert_allclose(others[name][1], rows[name][1], rtol=1e-4)
    assert (others["source"][0] == -1).all()
    np.testing.assert_allclose(others["rate"], rows["rate"], rtol=1e-4)
    assert rows["converged"].all()
    assert np.abs(rows["rate"] - rows["prefix_modulus"]).mean() < 0.03
    assert np.abs(rows["rate"] - rows["leading_modulus"]).mean() > 0.06


def test_a_token_after_one_without_a_fixed_point_has_none_and_is_counted():
    matrices = torch.stack([rotation(0.3, 1.0), rotation(1.0, 0.7), rotation(0.3, 1.0)]).double()
    (rows,) = rows_of(LinearLoop(matrices, coupling=0.0), ids=torch.tensor([[0, 1, 0], [1, 0, 1]]))
    np.testing.assert_array_equal(rows["converged"], [[True, False, False]] * 2)
    np.testing.assert_array_equal(rows["steps"] == -1, ~rows["converged"])
    assert np.isnan(rows["leading_modulus"][~rows["converged"]]).all()
    np.testing.assert_allclose(rows["rate"][:, 1], 1, rtol=1e-6)


def test_a_group_sees_the_states_of_earlier_groups_after_the_loops_of_the_trajectories(monkeypatch):
    model, passed, converge = transformer(seed=2, gain=1.6), [], measure.Loops.converge

    def recording(*arguments):
        passed.append(converge(*arguments).passed)
        return converge(*arguments)

    monkeypatch.setattr(measure.Loops, "converge", recording)
    ids = torch.arange(16).reshape(2, 8) % 7
    rows_of(model, (), ids, steps=10)
    with torch.no_grad():
        traced = [
            part
            for part in model.trace(ids, [3, 3], small.checkpoint(model, seed=3).noise([0, 1]))
            if part.stage
        ]
    for part, state in zip([part for part in traced if part.stage.is_group], passed, strict=True):
        torch.testing.assert_close(state, part.states[-1])


# --- agreement, figure ----------------------------------------------------------------------------


def agreed(folder, *frames):
    for number, frame in enumerate(frames):
        tables.write("token_spectrum", frame, folder / f"{number}.parquet")
    return draw.agreement(
        [folder / f"{number}.parquet" for number in range(len(frames))], "demo", seed=1
    )


def indexed(found):
    return found.set_index(["iteration", "group", "prediction", "quantity"]).sort_index()


@pytest.fixture
def agreement(tmp_path):
    return agreed(tmp_path, token_table(0), token_table(20))


def test_agreement_is_that_of_all_tokens_and_its_interval_contains_it(agreement):
    row, tokens = indexed(agreement).loc[(20, "4", "leading", "rate")], token_table()
    of_group = tokens[tokens["group"] == "4"]
    expected = np.corrcoef(of_group["leading_modulus"], of_group["rate"])[0, 1]
    assert row["correlation"] == pytest.approx(expected, abs=1e-6)
    assert row["difference"] == pytest.approx(
        (of_group["leading_modulus"] - of_group["rate"]).abs().mean(), abs=1e-6
    )
    assert len(agreement) == 2 * 2 * 4
    assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_a_prediction_that_is_right_has_correlation_one_and_no_difference(agreement):
    row = indexed(agreement).loc[(20, "5-6", "prefix", "rate")]
    assert row[["correlation", "difference", "nearer"]].tolist() == pytest.approx(
        [1, 0, 1], abs=1e-6
    )
    assert row["tokens"] == LENGTH * SEQUENCES
    constant = indexed(agreement).loc[(20, "4", "leading", "cosine")]
    assert constant[["correlation", "nearer"]].isna().all()  # no variance, and no other prediction


def test_tokens_without_a_fixed_point_or_without_exact_blocks_do_not_count(tmp_path):
    tokens = token_table(groups=("4",))
    tokens.loc[tokens["sequence"] == 0, "exact"] = False
    tokens.loc[tokens["position"] == 7, "converged"] = False
    found = indexed(agreed(tmp_path, tokens))
    assert found.loc[(20, "4", "prefix", "rate"), "tokens"] == (LENGTH - 1) * (SEQUENCES - 1)


def test_a_table_without_a_fixed_point_is_refused():
    with pytest.raises(
        InputError, match=r"found no token with a fixed point, .* raise spectrum\.steps"
    ):
        draw.draw_spectrum(
            token_table().assign(converged=False), pd.DataFrame({"iteration": []}), context=None
        )
