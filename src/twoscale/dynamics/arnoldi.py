"""Exact Jacobians of loop steps, and their leading eigenvalues by Arnoldi's method with restarts.

N operators take one vector each, as rows (N, C), so one product with all rows is one with every
operator.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale import rng
from twoscale.base import InputError

SUBSPACE = 40  # vectors of one cycle of Arnoldi's method
RESTARTS = 25  # most cycles of Arnoldi's method
KEPT_RITZ = 4  # leading Ritz vectors whose sum starts the next cycle
TOLERANCE = 1e-8  # residual of a converged eigenvalue, over its modulus

# vectors (N, C) -> the product of each operator with its vector
Product = Callable[[Tensor], Tensor]


def check_precision(tensor: Tensor) -> None:
    """Raise InputError unless a tensor is in float64 and, if it is on a GPU, TF32 is off.

    Products of float64 are never rounded to TF32, but parts of a model that compute in float32
    would be.
    """
    if tensor.dtype != torch.float64:
        found = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"spectrum: found {found}, expected float64.")
    if tensor.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32":
        raise InputError(
            "torch.backends.cuda.matmul.fp32_precision: found tf32, expected ieee, for the"
            " spectrum on CUDA (set by allow_tf32, set_float32_matmul_precision or"
            " TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)."
        )


@dataclass(frozen=True)
class LoopStepMap:
    """The Jacobians of a loop step at N states, of the study and of recorded modules."""

    # from the states (N, ...) to the next ones; a state does not act on another one
    step: Callable[[Tensor], Tensor]
    state: Tensor  # (N, ...), in float64

    def product(self, vectors: Tensor) -> Tensor:
        """J v by forward differentiation: (N, C) -> (N, C), with C entries of a state."""
        tangents = vectors.view_as(self.state)
        with torch.no_grad():  # then layers take plain operations, which have forward derivatives
            product = torch.func.jvp(self.step, (self.state,), (tangents,))[1]
        return product.flatten(1)

    def dense(self) -> Tensor:
        """The Jacobians (N, C, C) of states (N, C) by backward differentiation, row by row."""
        with torch.enable_grad():
            leaf = self.state.detach().clone().requires_grad_()
            after = self.step(leaf)
        rows: list[Tensor] = []
        for unit in torch.eye(leaf.shape[-1], dtype=leaf.dtype, device=leaf.device):
            # row i of J is e_i^T J
            row = torch.autograd.grad(after, leaf, unit.expand_as(leaf), retain_graph=True)
            rows += row
        return torch.stack(rows, dim=-2)


def start_vectors(like: Tensor) -> Tensor:
    """The same unit vector for every row of (N, C)."""
    drawn = rng.truncated_normal(("spectrum", "start"), (1, like.shape[-1]), 1.0)
    vector = torch.from_numpy(drawn).to(like)
    return (vector / vector.norm()).expand_as(like)


def arnoldi(
    product: Product,
    start: Tensor,
    subspace: int = SUBSPACE,
    cycles: int | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Leading eigenvalues of N operators by Arnoldi's method with restarts.

    It starts with unit vectors (N, C), and ends at residuals of `tolerance` times the modulus, or
    after `cycles` (default: `RESTARTS`) of `subspace` vectors.

    Returns eigenvalues (N,) and eigenvectors (N, C), both complex, and the norms of their
    residuals (N,).
    """
    size = min(subspace, start.shape[-1])
    for _ in range(cycles or RESTARTS):
        basis, projected, last = _krylov(product, start, size)
        values, vectors = torch.linalg.eig(projected)  # (N, m) and, in columns, (N, m, m)
        order = values.abs().argsort(-1, descending=True)
        value = values.gather(-1, order)[..., 0]
        by_column = order[..., None, :].expand_as(vectors)
        leading = vectors.gather(-1, by_column)[..., :KEPT_RITZ]
        # Ritz vectors V y from the basis V and eigenvectors y of the projection: (N, C, KEPT_RITZ)
        ritz = torch.einsum("nmc,nmj->ncj", basis.to(leading.dtype), leading)
        # ||A v - λ v|| of a Ritz vector is what is left over times its last coordinate
        residual = last * leading[..., -1, 0].abs()
        if (residual <= tolerance * value.abs()).all():
            break
        # the next cycle starts from real vectors near the space of the leading eigenvectors
        start = ritz.sum(-1).real
        start = start / start.norm(dim=-1, keepdim=True)
    return value, ritz[..., 0], residual


def _krylov(product: Product, start: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis of the Krylov space of N operators, and the operators in it.

    Returns the basis (N, m, C), the operators (N, m, m) and the norm of what is left over (N,).
    """
    basis, columns = [start], []
    for j in range(size):
        vector = product(basis[-1])
        known = torch.stack(basis, dim=-2)  # (N, j + 1, C)
        # Gram-Schmidt; a second pass keeps the basis orthogonal
        column = torch.einsum("nmc,nc->nm", known, vector)
        vector = vector - torch.einsum("nmc,nm->nc", known, column)
        again = torch.einsum("nmc,nc->nm", known, vector)
        vector = vector - torch.einsum("nmc,nm->nc", known, again)
        norm = vector.norm(dim=-1, keepdim=True)
        below = norm.new_zeros(len(norm), size - 1 - j)  # the projection is a Hessenberg matrix
        # what both passes removed, and the norm of the rest: column j of the projection
        entries = [column + again, norm, below]
        columns.append(torch.cat(entries, dim=-1))
        # the basis spans an invariant subspace where nothing is left over
        least = 1e-14 * column.norm(dim=-1, keepdim=True)
        following = torch.where(norm > least, vector / norm, 0)
        basis.append(following)
    projected = torch.stack(columns, dim=-1)  # (N, m + 1, m)
    rest = projected[:, size, -1]
    return torch.stack(basis[:-1], dim=-2), projected[:, :size], rest
