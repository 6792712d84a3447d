"""Matrix products with the fastest available kernel.

On CPU PyTorch computes float32 products with MKL, which keeps to AVX2 on other processors than Intel's. oneDNN, which
PyTorch brings too, uses AVX-512 wherever it is, and then takes half the time (tests/benchmarks/bench_kernels.py).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# oneDNN prepares a kernel for each shape, which takes as long as a product of some hundred rows. So it is used for
# row counts that recur, as in whole batches, and not for the tokens that still loop under an exit criterion.
MULTIPLE = 64
MIN_MULTIPLICATIONS = 2**20  # below, the call itself takes longer than the product
HAS_ONEDNN = torch.backends.mkldnn.is_available()  # not in every build of PyTorch


class Linear(nn.Linear):
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

    def prepare(self, packed_for: int | None) -> None:
        """Compute `forward` and `added` of few rows as `few_rows` from now on."""
        self.forward, self.added = few_rows(self.weight, packed_for)  # type: ignore[method-assign, assignment]


@contextmanager
def lowered_weights(modules: Iterable[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """A context in which every `Linear` in `modules` multiplies by a copy of its weight in `dtype`, made once.

    It has to span the backward pass. Each product gives its gradient in the dtype of the weight, so the gradients of a
    layer that is looped are summed in that dtype. Autocast would make one copy, whose gradients are summed in `dtype`,
    and under torch.compile one for each product.
    """
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, Linear)]
    weights = [layer.weight.detach() for layer in layers]
    copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    if layers:
        torch._foreach_copy_(copies, weights)
    for layer, copy in zip(layers, copies, strict=True):
        layer.lowered = copy
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
    weight: Tensor, packed_for: int | None = None
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """x (..., I) -> x @ weight.T (..., O), and (residual (..., O), x) -> residual + x @ weight.T, without gradient.

    With `packed_for` they are computed by oneDNN, fastest for so many rows, with a copy of the weight (O, I); otherwise
    each is one call of MKL for x (N, I), without the choice of a kernel.
    """
    if packed_for is None:
        columns = weight.detach().t()
        return (
            lambda x: torch.mm(x, columns) if x.dim() == 2 else torch.matmul(x, columns),
            lambda residual, x: (
                torch.addmm(residual, x, columns) if x.dim() == 2 else residual + torch.matmul(x, columns)
            ),
        )
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), packed_for)
    pointwise = torch.ops.mkldnn._linear_pointwise
    return (
        lambda x: pointwise(x, packed, None, "none", [], ""),
        lambda residual, x: pointwise.binary(x, residual, packed, None, "add"),
    )


def can_pack(weight: Tensor) -> bool:
    """Whether `few_rows` can pack such weights."""
    return HAS_ONEDNN and bool(torch.backends.mkldnn.enabled) and weight.is_cpu and weight.dtype is torch.float32


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.nn.functional.linear`, x @ weight.T: (..., I) and (O, I) -> (..., O)."""
    if not _suits_onednn(x, weight):
        return F.linear(x, weight)
    return _Linear.apply(x, weight) if torch.is_grad_enabled() else _onednn_linear(x, weight)


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    if not HAS_ONEDNN or x.device.type != "cpu" or x.dtype is not torch.float32 or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled("cpu"):  # F.linear is what autocast knows
        return False
    rows = x.numel() // x.shape[-1]
    return rows % MULTIPLE == 0 and rows * weight.numel() >= MIN_MULTIPLICATIONS and bool(torch.backends.mkldnn.enabled)


def _onednn_linear(x: Tensor, weight: Tensor) -> Tensor:
    # the operator that torch.compile calls for a linear layer on CPU: input, weight, bias, and no function on top
    return torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), None, "none", [], "")


def _dense(x: Tensor) -> Tensor:
    """`x` without gaps between its rows, for which oneDNN has only a slow kernel; a transposed matrix is fine."""
    return x if x.is_contiguous() or x.mT.is_contiguous() else x.contiguous()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return (
            linear(gradient, weight.T) if of_x else None,
            _weight_gradient(gradient.flatten(0, -2), x.flatten(0, -2)) if of_weight else None,
        )


def _weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """gradient.T @ x: (N, O) and (N, I) -> (O, I)."""
    # oneDNN copies its left operand where that is transposed, so the narrower one comes left
    if x.shape[1] < gradient.shape[1]:
        return linear(x.T, gradient.T).T.contiguous()
    return linear(gradient.T, x.T)
