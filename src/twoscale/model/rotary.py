"""Rotary position embeddings (Su et al., arXiv 2104.09864): queries and keys are rotated by their positions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from twoscale.base import InputError
from twoscale.config import ModelConfig, RotaryScaling

MOST_POSITIONS = 2**20
MOST_ANGLES = 2**26  # of a table: so many positions of 64 pairs


class RotaryEmbedding(nn.Module):
    """Rotates pairs of the first R channels of a head by the position times the frequency base^(-2d/R) of pair d.

    By default R is D, all channels of the head.

    The tables hold sine and cosine of every position below the context length. They are computed in float64 and rounded
    once, to the dtype of the module, also when that changes.

    Raises:
        InputError: if a table would have more than MOST_POSITIONS rows or MOST_ANGLES numbers. The shape of no weight
            says the context length, so the context length of an untrusted file is bounded here.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        _check_size(config)
        self.config, self.rotated = config, config.rotated_channels
        self.pairs, self.join = PAIRS[config.rotary_pairs]
        self.make_tables(torch.empty(()))

    def make_tables(self, like: Tensor) -> None:
        """Compute the tables in the dtype and on the device of `like`."""
        # without values on "meta", where a model is only compared with the tensors of a file
        frequencies = rotary_frequencies(self.config).to("meta" if like.is_meta else "cpu")
        positions = torch.arange(self.config.context_length, dtype=torch.float64, device=frequencies.device)
        angles = torch.outer(positions, frequencies)[:, None]  # (T, 1, R/2), the same for all heads
        for name, function in (("cos", torch.cos), ("sin", torch.sin)):
            table = function(angles).to(device=like.device, dtype=like.dtype)
            self.register_buffer(name, table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        # what `nn.Module` calls to change dtype and device
        before = self.cos
        super()._apply(fn, recurse)
        if self.cos is not before:
            self.make_tables(self.cos)
        return self

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (..., H, D) at `positions`, which are broadcastable to the leading axes, -> (..., H, D)."""
        cos, sin = self.cos[positions], self.sin[positions]  # (..., 1, R/2)
        if self.rotated < x.shape[-1]:
            x, kept = x[..., : self.rotated], x[..., self.rotated :]
            return torch.cat((self._rotate(x, cos, sin).to(kept.dtype), kept), dim=-1)
        return self._rotate(x, cos, sin)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = self.pairs(x)
        return self.join(first * cos - second * sin, second * cos + first * sin)


def _check_size(config: ModelConfig) -> None:
    most = min(MOST_POSITIONS, MOST_ANGLES // (config.rotated_channels // 2))
    if config.context_length > most:
        raise InputError(
            f"config key model.context_length: found {config.context_length}, expected at most {most} for rotary "
            f"embeddings of {config.rotated_channels} channels per head."
        )


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair of channels, float64 (R/2,) on the CPU."""
    rotated = config.rotated_channels
    exponents = torch.arange(0, rotated, 2, dtype=torch.float64, device="cpu") / rotated
    frequencies = config.rotary_base**-exponents
    return frequencies if config.rotary_scaling is None else _stretched(frequencies, config.rotary_scaling)


def _stretched(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Llama 3.1's scaling: slow frequencies are divided by the factor, fast ones kept, those between interpolated."""
    rotations = scaling.original_context_length * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    share = ((rotations - low) / (high - low)).clamp(0, 1)  # 0 for slow, 1 for fast
    return (1 - share) * frequencies / scaling.factor + share * frequencies


def _split_interleaved(x: Tensor) -> tuple[Tensor, ...]:
    return x.unflatten(-1, (-1, 2)).unbind(-1)


def _join_interleaved(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), dim=-1).flatten(-2)


def _split_halves(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, dim=-1)


def _join_halves(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), dim=-1)


# rotary_pairs -> how the channels (..., D) are split into pairs, twice (..., D/2), and joined again
PAIRS = {
    "interleaved": (_split_interleaved, _join_interleaved),
    "halves": (_split_halves, _join_halves),
}
