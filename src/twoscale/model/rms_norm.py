"""RMSNorm, with few kernels for the one row of decoding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROW_DTYPES = (torch.float32, torch.float64)  # a norm in a shorter dtype would also be summed in it
_ZERO = torch.zeros(())


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x²) + eps) * weight over the last axis: (..., C) -> (..., C).

    One row on the CPU without gradient takes two kernels, a norm and a scaled product, in place of the composite of
    `torch.rms_norm` (tests/benchmarks/bench_decode.py).
    """

    def forward(self, x: Tensor) -> Tensor:
        weight, size = self.weight, self.normalized_shape[0]
        if x.numel() != size or torch.is_grad_enabled() or not _is_eager_row(x):
            return F.rms_norm(x, self.normalized_shape, weight, self.eps)
        mean_square = torch.linalg.vector_norm(x).item() ** 2 / size
        return torch.addcmul(_ZERO, x, weight, value=(mean_square + self.eps) ** -0.5)


def _is_eager_row(x: Tensor) -> bool:
    return x.is_cpu and x.dtype in _ROW_DTYPES and not torch.compiler.is_compiling()
