"""Attention, norm and matrix products, with PyTorch's fastest kernel for the device.

On CPU PyTorch computes float32 products with MKL, which uses AVX-512 on Intel's processors alone.
oneDNN, which PyTorch brings too, uses it everywhere, and takes half the time of MKL on AMD's
processors that compute its vectors whole (tests/benchmarks/bench_kernels.py).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twoscale.base import cpu_capability

# --- attention ------------------------------------------------------------------------------------

_HALF = (torch.float16, torch.bfloat16)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each position to itself and those before it.

    q (B, T, H, D) and k, v (B, T, G, D) -> (B, T, H, D).
    """
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))  # (B, H or G, T, D)
    return attention(q, k, v, is_causal=True).transpose(1, 2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """softmax(q kᵀ / sqrt(D)) v, where G divides H.

    q (B, H, N, D) and k, v (B, G, T, D) -> (B, H, N, D). mask: true where a query sees a key,
    broadcastable to (B, H, N, T). is_causal, for N = T: a query sees the keys up to its own.
    """
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.is_cuda and (mask is not None or q.dtype not in _HALF):
        # Flash attention takes half precision without a mask. No other fused kernel on CUDA knows
        # that G < H; PyTorch would write all attention weights.
        copies = q.shape[1] // k.shape[1]
        # neighbours, because head g serves the query heads g H/G … (g + 1) H/G - 1
        k = k.repeat_interleave(copies, dim=1)  # (B, H, T, D)
        v = v.repeat_interleave(copies, dim=1)
        grouped = False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=grouped
    )


def row_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(q kᵀ / sqrt(D) + bias) v of one query for each of N texts.

    Two batched products, which on the CPU take half the time of PyTorch's fused kernel under a
    mask. q (N, H, D) and k, v (N, G, T, D) -> (N, H, D). bias: (N * G, 1, T), 0 where a query sees
    a key and -inf elsewhere.
    """
    # the H/G query heads of one head of keys are the rows of one product
    queries = q.unflatten(1, (k.shape[1], -1)).flatten(0, 1)  # (N * G, H / G, D)
    keys = k.flatten(0, 1).mT  # (N * G, D, T)
    logits = torch.baddbmm(bias, queries, keys, alpha=q.shape[-1] ** -0.5)  # (N * G, H / G, T)
    return torch.bmm(logits.softmax(-1), v.flatten(0, 1)).view_as(q)


# --- RMSNorm in few passes over memory (Zhang and Sennrich, arXiv 1910.07467) ---------------------

_ZERO = torch.zeros(())


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` over the last axis, as fast on CPU as on CUDA.

    PyTorch has fused kernels on CUDA; a compiler makes its own. On CPU PyTorch 2.13 composes the
    norm of six operations and autograd keeps an intermediate result of each, so there the gradient
    is written by hand.
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
        # in place, because no graph is recorded
        return (x * _inverse_rms(x, self.eps)).mul_(self.weight)

    def forward_row(self, x: Tensor) -> Tensor:
        """`forward` for one row (..., C) on the CPU, float32 or float64, without gradient.

        Two kernels, a norm and a scaled product, for less host work
        (tests/benchmarks/bench_decode.py).
        """
        # there is one row, so the norm of all numbers is that of the row
        mean_square = torch.linalg.vector_norm(x).item() ** 2 / x.numel()
        inverse = (mean_square + self.eps) ** -0.5  # 1 / rms(x)
        return torch.addcmul(_ZERO, x, self.weight, value=inverse)  # 0 + inverse * x * weight

    def forward_rows(self, x: Tensor) -> Tensor:
        """`forward` for few rows (N, C) on the CPU, float32 or float64, without gradient.

        Five kernels in place of seven.
        """
        epsilon = _scalar(self.eps, x.dtype)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (N, 1)
        scale = torch.addcmul(epsilon, norm, norm, value=1 / x.shape[-1])  # mean(x^2) + eps
        return (x * scale.rsqrt_()).mul_(self.weight)


@cache
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    """() of a number on the CPU; the dtype of what it is combined with saves a conversion."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis: (..., C) -> (..., 1)."""
    # the norm reads x once and writes no square of it
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """Keeps only its input and one number a row for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)  # 1 / rms(x), (..., 1)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        mean = torch.zeros_like(scale)
        outputs = [True, True, False]  # gradients of x and weight, none of a bias
        # The fused backward pass of LayerNorm with a mean of zero gives the gradient of the weight,
        # and that of x less scale * mean(gradient * weight) a row, which LayerNorm subtracts for
        # its mean.
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, weight.shape, mean, scale, weight, None, outputs
        )
        row_means = (gradient @ weight).unsqueeze(-1) / weight.numel()  # (..., 1)
        return of_x.add_(row_means.mul_(scale)), of_weight, None


# --- matrix products ------------------------------------------------------------------------------

# oneDNN prepares a kernel for each shape, which takes as long as a product of some hundred rows. So
# it is used for row counts that recur, as in whole batches, and not for the tokens that still loop
# under an exit criterion.
MULTIPLE = 64
# Below, as at width 64, the calls and copies around a product take longer than it gains.
MIN_MULTIPLICATIONS = 2**25
# Elsewhere, in halves and on Intel's, MKL is the faster one (docs/benchmarks.md). Not every build
# has oneDNN.
USES_ONEDNN = cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()


class Undrawn:
    """Base of modules without initial values, which `initialise` or a checkpoint sets.

    To draw them on the device "meta" would import torch._dynamo, a second of each job.
    """

    def reset_parameters(self) -> None:
        """Leave the parameters as they are."""


class Linear(Undrawn, nn.Linear):
    """`torch.nn.Linear` without bias."""

    lowered: Tensor | None = None  # a copy of the weight, see `lowered_weights`

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def used_weight(self) -> Tensor:
        """The matrix of `forward`: the weight, or its copy in lower precision."""
        return self.weight if self.lowered is None else _Lowered.apply(self.weight, self.lowered)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return linear(x, self.used_weight())

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual` (..., out_features) + `forward(x)`."""
        return residual + self.forward(x)

    def prepare(self) -> None:
        """Compute `forward` and `added` of few rows as `few_rows` from now on."""
        self.forward, self.added = few_rows(self.weight)  # type: ignore[method-assign, assignment]


@contextmanager
def lowered_weights(modules: Iterable[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """A context in which every `Linear` in `modules` multiplies by a copy of its weight in `dtype`,
    made once.

    It has to span the backward pass. Each product gives its gradient in the dtype of the weight, so
    the gradients of a layer that is looped are summed in that dtype. Autocast would make one copy,
    whose gradients are summed in `dtype`, and under torch.compile one for each product.
    """
    layers = [
        layer for module in modules for layer in module.modules() if isinstance(layer, Linear)
    ]
    for layer in layers:
        # outside of the graph: `_Lowered` gives its gradient to the weight
        layer.lowered = layer.weight.detach().to(dtype)
    try:
        yield
    finally:
        for layer in layers:
            layer.lowered = None


class _Lowered(torch.autograd.Function):
    """The copy of a weight; its gradient is the weight's."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, lowered: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return lowered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def few_rows(
    weight: Tensor,
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Two functions of x (..., I): x @ weight.T (..., O), and its sum with a residual (..., O).

    Without gradient. Each is one call of MKL for x (N, I), without the choice of a kernel.
    """
    columns = weight.detach().t()  # (I, O)

    def product(x: Tensor) -> Tensor:
        return torch.matmul(x, columns)

    def added(residual: Tensor, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return torch.addmm(residual, x, columns)
        return residual + torch.matmul(x, columns)

    return product, added


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.nn.functional.linear`, x @ weight.T: (..., I) and (O, I) -> (..., O)."""
    if not _suits_onednn(x, weight):
        return F.linear(x, weight)
    return _Linear.apply(x, weight) if torch.is_grad_enabled() else _onednn_linear(x, weight)


def weight_gradient(gradient: Tensor, x: Tensor, total: Tensor | None = None) -> Tensor:
    """gradient.T @ x, added to `total` (O, I) in place: (N, O) and (N, I) -> (O, I)."""
    if torch.is_autocast_enabled(x.device.type) or _suits_onednn(gradient.T, x.T):
        product = linear(gradient.T, x.T)
        return product.to(gradient.dtype) if total is None else total.add_(product)
    return torch.mm(gradient.T, x) if total is None else total.addmm_(gradient.T, x)


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    if not USES_ONEDNN or x.device.type != "cpu" or x.dtype is not torch.float32:
        return False
    if torch.compiler.is_compiling() or not torch.backends.mkldnn.enabled:
        return False
    if torch.is_autocast_enabled("cpu"):  # F.linear is what autocast knows
        return False
    rows = x.numel() // x.shape[-1]
    return rows % MULTIPLE == 0 and rows * weight.numel() >= MIN_MULTIPLICATIONS


def _onednn_linear(x: Tensor, weight: Tensor) -> Tensor:
    # the operator that torch.compile calls for a linear layer on CPU: input, weight, bias, and no
    # function on top
    return torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), None, "none", [], "")


def _dense(x: Tensor) -> Tensor:
    """`x` without gaps between its rows, for which oneDNN is slow; a transposed matrix is fine."""
    return x if x.is_contiguous() or x.mT.is_contiguous() else x.contiguous()


class _Linear(torch.autograd.Function):
    """The product of oneDNN with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        of_x = linear(gradient, weight.T) if needs_x else None  # (..., I)
        if not needs_weight:
            return of_x, None
        # dW = gradient^T x, a sum over all rows
        gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)  # (N, O), (N, I)
        # oneDNN copies its left operand where that is transposed, so the narrower one comes left
        if x.shape[1] < gradient.shape[1]:
            return of_x, linear(x.T, gradient.T).T.contiguous()
        return of_x, linear(gradient.T, x.T)
