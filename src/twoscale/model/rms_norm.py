"""RMSNorm, with few kernels for the one row of decoding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ZERO = torch.zeros(())


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x²) + eps) * weight over the last axis: (..., C) -> (..., C)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def forward_row(self, x: Tensor) -> Tensor:
        """`forward` for one row (..., C) on the CPU, float32 or float64, without gradient.

        Two kernels, a norm and a scaled product, in place of the composite of `torch.rms_norm`
        (tests/benchmarks/bench_decode.py).
        """
        mean_square = torch.linalg.vector_norm(x).item() ** 2 / x.numel()
        return torch.addcmul(_ZERO, x, self.weight, value=(mean_square + self.eps) ** -0.5)
