"""RMSNorm in few passes over memory (Zhang and Sennrich, arXiv 1910.07467)."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

_ZERO = torch.zeros(())


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` over the last axis, as fast on CPU as on CUDA.

    PyTorch has fused kernels on CUDA; a compiler makes its own. On CPU PyTorch 2.13 composes the norm of six
    operations and autograd keeps an intermediate result of each, so there the gradient is written by hand.
    """

    eps: float

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        # bfloat16 under autocast, which knows this norm on CUDA alone, and only in PyTorch 2.13
        x = x.to(self.weight.dtype)
        if x.is_cuda or torch.compiler.is_compiling():
            return super().forward(x)
        if torch.is_grad_enabled():
            return _RMSNorm.apply(x, self.weight, self.eps)
        return (x * inverse_rms(x, self.eps)).mul_(self.weight)

    def forward_row(self, x: Tensor) -> Tensor:
        """`forward` for one row (..., C) on the CPU, float32 or float64, without gradient.

        Two kernels, a norm and a scaled product, for less host work (tests/benchmarks/bench_decode.py).
        """
        mean_square = torch.linalg.vector_norm(x).item() ** 2 / x.numel()
        return torch.addcmul(_ZERO, x, self.weight, value=(mean_square + self.eps) ** -0.5)

    def forward_rows(self, x: Tensor) -> Tensor:
        """`forward` for few rows (N, C) on the CPU, float32 or float64, without gradient: five kernels for seven."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(_scalar(self.eps, x.dtype), norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return (x * scale).mul_(self.weight)


@cache
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    """() of a number on the CPU; the dtype of what it is combined with saves a conversion."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis: (..., C) -> (..., 1)."""
    # the norm reads x once and writes no square of it
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """Keeps only its input and one number a row for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = inverse_rms(x, eps)  # (..., 1)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        # The fused backward pass of LayerNorm with a mean of zero gives the gradient of the weight, and that of x
        # less scale * mean(gradient * weight) a row, which LayerNorm subtracts for its mean.
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, weight.shape, torch.zeros_like(scale), scale, weight, None, [True, True, False]
        )
        row_means = (gradient @ weight).unsqueeze(-1) / weight.numel()
        return of_x.add_(row_means.mul_(scale)), of_weight, None
