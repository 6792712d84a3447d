"""The diagonal block of a token: the derivative of its next state by its state, and the leading eigenvalue.

The Jacobian of a loop step over a text of T tokens is block lower triangular, because attention is causal. Its
eigenvalues are the eigenvalues of the T blocks on its diagonal, C × C each: the derivative of a token's next state by
its state, its keys and values included, with the keys and values of all earlier tokens held.

N are tokens of one sequence in any order, as rows (N, C).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from twoscale.dynamics.arnoldi import SUBSPACE, TOLERANCE, arnoldi, check_precision, krylov, start_vectors
from twoscale.model.interface import Attend, AttendAt, CausalAttention, LoopedModel
from twoscale.studies.spectrum.late_path import axis_ratio

# --- one token's own step --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldKV:
    """Keys and values of one sequence at one loop step: layer -> (T, G, D) each."""

    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]


def record_kv(model: LoopedModel, group: int, k: int, states: Tensor, injected: Tensor) -> list[HeldKV]:
    """Keys and values of every layer of a group at loop step k, for states and input (B, T, C): B entries."""
    keys: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    causal = CausalAttention(torch.arange(states.shape[1], device=states.device))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys[layer], values[layer] = k, v
        return causal(layer, q, k, v)

    model.recur(group, k, states, injected, AttendAt(causal.positions, attend))
    return [
        HeldKV({layer: kv[b] for layer, kv in keys.items()}, {layer: kv[b] for layer, kv in values.items()})
        for b in range(len(states))
    ]


def attend_held(held: HeldKV, positions: Tensor) -> Attend:
    """Attention of tokens at `positions` (N,) to the held keys and values before them, and to their own."""
    length = len(next(iter(held.keys.values())))
    is_hidden = torch.arange(length, device=positions.device) >= positions[:, None, None]  # (N, 1, T)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q.shape[-2] // k.shape[-2]
        own_k, own_v, keys, values = (
            z.repeat_interleave(heads, -2) for z in (k, v, held.keys[layer], held.values[layer])
        )
        earlier = torch.einsum("nhd,thd->nht", q, keys).masked_fill(is_hidden, -torch.inf)
        scores = torch.cat([earlier, (q * own_k).sum(-1, keepdim=True)], dim=-1) * q.shape[-1] ** -0.5
        weights = scores.softmax(-1)
        return torch.einsum("nht,thd->nhd", weights[..., :-1], values) + weights[..., -1:] * own_v

    return AttendAt(positions, attend)


class OwnStep:
    """One loop step of tokens of one sequence, each with all earlier tokens held: states (N, C) -> (N, C).

    Args:
        model: The model.
        group: Its looped group.
        held: Keys and values of the sequence.
        injected: The tokens' input (N, C).
        positions: Their positions, int64 (N,).
    """

    def __init__(self, model: LoopedModel, group: int, held: HeldKV, injected: Tensor, positions: Tensor) -> None:
        self.model, self.group, self.injected = model, group, injected
        self.attend = attend_held(held, positions)

    def __call__(self, k: int, states: Tensor) -> Tensor:
        return self.model.recur(self.group, k, states, self.injected, self.attend)


class DiagonalBlocks:
    """The diagonal blocks of N tokens at their states (N, C) and loop step k, as products with vectors (N, C).

    The rows do not act on one another, so one product with all rows is N products with one block each. Raises
    InputError as `check_precision` does.
    """

    def __init__(self, step: OwnStep, k: int, states: Tensor) -> None:
        check_precision(states)
        self.step, self.k, self.states = step, k, states.detach()

    def product(self, vectors: Tensor) -> Tensor:
        """J v by forward differentiation: (N, C) -> (N, C)."""
        # without recorded gradients the layers take their plain operations, which have forward derivatives
        with torch.no_grad():
            return torch.func.jvp(lambda states: self.step(self.k, states), (self.states,), (vectors,))[1]

    def transposed_product(self, vectors: Tensor) -> Tensor:
        """J^T v by backward differentiation: (N, C) -> (N, C)."""
        leaf, result = self._graph
        return torch.autograd.grad(result, leaf, vectors, retain_graph=True)[0]

    @cached_property
    def _graph(self) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = self.states.clone().requires_grad_()
            return leaf, self.step(self.k, leaf)

    def dense(self) -> Tensor:
        """The blocks (N, C, C): entry (i, j) is the derivative of channel i by channel j."""
        rows = torch.eye(self.states.shape[-1], dtype=self.states.dtype, device=self.states.device)
        return torch.stack([self.transposed_product(row.expand_as(self.states)) for row in rows], dim=-2)


# --- leading eigenvalues ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leading:
    """The eigenvalue of largest modulus of each block, real or one of a complex pair: (N,) each.

    modulus: |λ|. angle: |arg λ| in radians, 0 … π: a spiral turns once in 2π/angle loop steps. axis_ratio: of the
    ellipse in the plane of its eigenvector (`late_path.axis_ratio`), 0 for a real one.
    """

    modulus: Tensor
    angle: Tensor
    axis_ratio: Tensor


def leading(blocks: DiagonalBlocks, dense_size: int) -> tuple[Leading, Tensor]:
    """Leading eigenvalues of the blocks, and their largest singular values (N,).

    Up to a hidden size of `dense_size` from the dense blocks, beyond by Arnoldi's and by Golub and Kahan's method. An
    eigenvalue that has not converged then is NaN.
    """
    if blocks.states.shape[-1] <= dense_size:
        dense = blocks.dense()
        return leading_dense(dense), torch.linalg.matrix_norm(dense, 2)
    value, vector, residual = arnoldi(blocks.product, start_vectors(blocks.states))
    value = value.where(residual <= TOLERANCE * value.abs(), complex(torch.nan, torch.nan))
    return _describe(value, vector), largest_singular_value(blocks)


def leading_dense(blocks: Tensor) -> Leading:
    """Leading eigenvalues of dense blocks (N, C, C)."""
    values, vectors = torch.linalg.eig(blocks)
    index = values.abs().argmax(-1, keepdim=True)
    return _describe(
        values.gather(-1, index)[..., 0], vectors.gather(-1, index[..., None, :].expand_as(vectors))[..., 0]
    )


def _describe(value: Tensor, vector: Tensor) -> Leading:
    return Leading(value.abs(), value.angle().abs(), axis_ratio(vector.real, vector.imag))


def slowed(blocks: DiagonalBlocks, factor: float, dense_size: int) -> Leading:
    """Leading eigenvalues of the tokens with the update scaled by `factor`, of (1 − factor) I + factor J."""
    if (size := blocks.states.shape[-1]) <= dense_size:
        identity = torch.eye(size, dtype=blocks.states.dtype, device=blocks.states.device)
        return leading_dense((1 - factor) * identity + factor * blocks.dense())

    def product(vectors: Tensor) -> Tensor:
        return (1 - factor) * vectors + factor * blocks.product(vectors)

    value, vector, _ = arnoldi(product, start_vectors(blocks.states))
    return _describe(value, vector)


def largest_singular_value(blocks: DiagonalBlocks, subspace: int = SUBSPACE) -> Tensor:
    """Largest singular values (N,) of the blocks, by Arnoldi's method for J^T J (Golub and Kahan), one cycle."""
    start = start_vectors(blocks.states)
    _, projected, _ = krylov(
        lambda vectors: blocks.transposed_product(blocks.product(vectors)), start, min(subspace, start.shape[-1])
    )
    return torch.linalg.eigvalsh((projected + projected.mT) / 2)[:, -1].clamp_min(0).sqrt()


def inherit(modulus: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest modulus at this position or before, its angle and its position, the first of equals: (B, T) each."""
    largest = modulus.cummax(-1).values
    is_new = torch.ones_like(modulus, dtype=torch.bool)
    is_new[:, 1:] = modulus[:, 1:] > largest[:, :-1]
    place = torch.arange(modulus.shape[-1], device=modulus.device).expand_as(is_new)
    source = torch.where(is_new, place, -1).cummax(-1).values
    return largest, angle.gather(-1, source), source
