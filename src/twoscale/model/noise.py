"""Noise of the loops as a function of its purpose, without a running generator.

Two sources of the same distribution, the truncated normal of Geiping et al. In evaluation, one
stream per (seed, sequence, group) draws the whole (context_length, C) array on the host, so
position p reads row p on every machine, in parallel evaluation and in decoding. In training, one
stream per (seed, iteration, sample, group), so the noise does not depend on how a batch is split
over processes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.config.definitions import NOISE_STD
from twoscale.model.interface import Noise
from twoscale.rng import integer_key, truncated_normal

MOST_KEPT = 2**28  # bytes; at the paper's size 56 sequences


class DrawnNoise(dict[tuple, Tensor]):
    """Arrays of evaluation noise, kept on their device for the next time that they are read.

    Up to `MOST_KEPT` bytes: whatever is read after these are full is drawn each time. Noise is read
    in the same order again and again, so to drop the oldest array for the newest would drop each
    one before its next use.
    """

    size = 0  # bytes

    def keep(self, key: tuple, array: Tensor) -> None:
        """Keep an array if there is room."""
        if self.size + array.nbytes <= MOST_KEPT:
            self[key] = array
            self.size += array.nbytes


@dataclass(frozen=True, eq=False)
class EvaluationNoise:
    """Noise of held-out sequences with these numbers, the `Noise` of one batch.

    Other text uses sequence 0. std: standard deviation before truncation, the model's `state_std`.
    drawn: arrays that are kept to be read again.
    """

    seed: int
    sequences: Sequence[int]
    context_length: int
    std: float = NOISE_STD
    drawn: DrawnNoise | None = None

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        seed: int,
        sequences: Sequence[int],
        drawn: DrawnNoise | None = None,
    ) -> Self:
        return cls(seed, sequences, config.context_length, config.state_std, drawn)

    def __call__(self, group: int, k: int, like: Tensor) -> Tensor:
        """Rows 0 … T - 1 for hidden states (B, T, C)."""
        # a position has the same noise in a text of any length
        return self.rows(group, k, like.shape[-1], like)[:, : like.shape[1]]

    def rows(self, group: int, k: int, channels: int, like: Tensor) -> Tensor:
        """The whole arrays (B, context_length, C) in the dtype and on the device of `like`."""
        shape = (self.context_length, channels)
        kept = DrawnNoise() if self.drawn is None else self.drawn
        arrays = []
        for sequence in self.sequences:
            stream: tuple = (self.seed, "evaluation", sequence, group)
            if k:  # noise of a loop step; the initial state has none in its key
                stream += (k,)
            key = (stream, shape, self.std, like.device, like.dtype)
            array = kept.get(key)
            if array is None:
                drawn = torch.from_numpy(truncated_normal(stream, shape, self.std))
                array = drawn.to(device=like.device, dtype=like.dtype)
                kept.keep(key, array)
            arrays.append(array)
        return torch.stack(arrays)  # (B, context_length, C)


def training_noise(seed: int, iteration: int, first_sample: int, std: float = NOISE_STD) -> Noise:
    """Noise of `iteration` for samples first_sample, first_sample + 1, … of the batch.

    On CUDA the samples are drawn on the device, also by Philox but with another algorithm: as
    everywhere in training, the bits depend on the kind of machine.
    """

    def noise(group: int, k: int, like: Tensor) -> Tensor:
        samples = range(first_sample, first_sample + len(like))
        # samples are counted in the whole batch, so its split into parts changes no noise
        keys = [(seed, "training", iteration, sample, group, k) for sample in samples]
        out = torch.empty_like(like, requires_grad=False)
        if like.is_cuda:
            draw_on_device(out, keys, std)
        else:
            for row, key in zip(out, keys, strict=True):
                row.copy_(torch.from_numpy(truncated_normal(key, tuple(row.shape), std)))
        return out

    return noise


def draw_on_device(out: Tensor, keys: Sequence[tuple], std: float) -> None:
    """Fill row i of `out` with samples of N(0, std^2) truncated at +-3 std by torch's generator
    under keys[i].

    The samples of a row are a function of its key, its shape and the kind of device.
    `torch.nn.init.trunc_normal_` of PyTorch 2.13 draws until no sample is too large, for which the
    host waits for the device.
    """
    # the inverse error function maps (-edge, edge) to three deviations
    edge = math.erf(3 / math.sqrt(2))
    for row, key in zip(out, keys, strict=True):
        generator = torch.Generator(out.device).manual_seed(integer_key(*key))
        row.uniform_(-edge, edge, generator=generator)
    # sqrt(2) erfinv(u) is standard normal for u uniform in (-1, 1); the clamp removes what rounding
    # adds at the bounds
    out.erfinv_().mul_(math.sqrt(2) * std).clamp_(-3 * std, 3 * std)
