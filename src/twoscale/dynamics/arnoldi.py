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

Product = Callable[
    [Tensor], Tensor
]  # vectors (N, C) -> the product of each operator with its vector


def check_precision(tensor: Tensor) -> None:
    """Raise InputError unless a weight or a state is in float64 and, if it is on a GPU, TF32 is
    off.

    Products of float64 are never rounded to TF32, but parts of a model that compute in float32
    would be.
    """
    if tensor.dtype != torch.float64:
        raise InputError(
            f"spectrum: found {str(tensor.dtype).removeprefix('torch.')}, expected float64."
        )
    if tensor.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32":
        raise InputError(
            "torch.backends.cuda.matmul.fp32_precision: found tf32, expected ieee, for the"
            " spectrum on CUDA "
            "(set by allow_tf32, set_float32_matmul_precision or TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)."
        )


@dataclass(frozen=True)
class LoopStepMap:
    """The Jacobians of a loop step at N states, of the study and of recorded modules."""

    step: Callable[
        [Tensor], Tensor
    ]  # from the states (N, ...) to the next ones; a state does not act on another one
    state: Tensor  # in float64

    def product(self, vectors: Tensor) -> Tensor:
        """J v by forward differentiation: (N, C) -> (N, C), with C entries of a state."""
        # without recorded gradients the layers take their plain operations, which have forward
        # derivatives
        with torch.no_grad():
            return torch.func.jvp(self.step, (self.state,), (vectors.view_as(self.state),))[
                1
            ].flatten(1)

    def dense(self) -> Tensor:
        """The Jacobians (N, C, C) of states (N, C) by backward differentiation, one row at a
        time.
        """
        with torch.enable_grad():
            leaf = self.state.detach().clone().requires_grad_()
            after = self.step(leaf)
        rows = torch.eye(leaf.shape[-1], dtype=leaf.dtype, device=leaf.device)
        return torch.stack(
            [
                torch.autograd.grad(after, leaf, row.expand_as(leaf), retain_graph=True)[0]
                for row in rows
            ],
            dim=-2,
        )


def start_vectors(like: Tensor) -> Tensor:
    """The same unit vector for every row of (N, C)."""
    vector = torch.from_numpy(
        rng.truncated_normal(("spectrum", "start"), (1, like.shape[-1]), 1.0)
    ).to(like)
    return (vector / vector.norm()).expand_as(like)


def arnoldi(
    product: Product,
    start: Tensor,
    subspace: int = SUBSPACE,
    cycles: int | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Leading eigenvalues (N,) of N operators by Arnoldi's method with restarts, eigenvectors (N,
    C), both complex, and the norms of their residuals (N,).

    It starts with unit vectors (N, C), and ends at residuals of `tolerance` times the modulus, or
    after `cycles` (default: `RESTARTS`) of `subspace` vectors.
    """
    for _ in range(cycles or RESTARTS):
        basis, projected, last = krylov(product, start, min(subspace, start.shape[-1]))
        values, vectors = torch.linalg.eig(projected)
        order = values.abs().argsort(-1, descending=True)
        vectors = vectors.gather(-1, order[..., None, :].expand_as(vectors))
        value = values.gather(-1, order)[..., 0]
        ritz = torch.einsum("nmc,nmj->ncj", basis.to(vectors.dtype), vectors[..., :KEPT_RITZ])
        residual = last * vectors[..., -1, 0].abs()
        if (residual <= tolerance * value.abs()).all():
            break
        start = ritz.sum(-1).real
        start = start / start.norm(dim=-1, keepdim=True)
    return value, ritz[..., 0], residual


def krylov(product: Product, start: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis (N, m, C), the operators in it (N, m, m), and the norm of what is left
    over (N,).
    """
    basis, columns = [start], []
    for j in range(size):
        vector = product(basis[-1])
        known = torch.stack(basis, dim=-2)
        column = torch.einsum("nmc,nc->nm", known, vector)
        vector = vector - torch.einsum("nmc,nm->nc", known, column)
        again = torch.einsum(
            "nmc,nc->nm", known, vector
        )  # a second pass keeps the basis orthogonal
        vector = vector - torch.einsum("nmc,nm->nc", known, again)
        norm = vector.norm(dim=-1, keepdim=True)
        columns.append(
            torch.cat([column + again, norm, norm.new_zeros(len(norm), size - 1 - j)], dim=-1)
        )
        # the basis spans an invariant subspace where nothing is left over
        basis.append(
            torch.where(norm > 1e-14 * column.norm(dim=-1, keepdim=True), vector / norm, 0)
        )
    projected = torch.stack(columns, dim=-1)  # (N, m + 1, m)
    return torch.stack(basis[:-1], dim=-2), projected[:, :size], projected[:, size, -1]
