"""Noise of the loops as a function of its purpose, without a running generator.

Two sources of the same distribution, the truncated normal of Geiping et al. In evaluation, one stream per
(seed, sequence, group) draws the whole (context_length, C) array on the host, so position p reads row p on
every machine, in parallel evaluation and in decoding. In training, one stream per (seed, iteration, sample,
group), so the noise does not depend on how a batch is split over processes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.config.definitions import NOISE_STD
from twoscale.model.interface import Noise
from twoscale.rng import integer_key, truncated_normal


class EvaluationNoise:
    """Noise of held-out sequences; an instance is the `Noise` of one batch.

    sequences: numbers of the B sequences in the held-out text; decoding of other text uses sequence 0.
    std: standard deviation before truncation, the model's `state_std`.
    """

    def __init__(self, seed: int, sequences: Sequence[int], context_length: int, std: float = NOISE_STD) -> None:
        self.seed, self.sequences, self.context_length, self.std = seed, sequences, context_length, std

    @classmethod
    def of(cls, config: ModelConfig, seed: int, sequences: Sequence[int]) -> "EvaluationNoise":
        """The noise of a model with this config."""
        return cls(seed, sequences, config.context_length, config.state_std)

    def __call__(self, group: int, k: int, like: Tensor) -> Tensor:
        """Rows 0 … T - 1 for hidden states (B, T, C)."""
        return self.rows(group, k, like.shape[-1], like)[:, : like.shape[1]]

    def rows(self, group: int, k: int, channels: int, like: Tensor) -> Tensor:
        """The whole arrays (B, context_length, C) in the dtype and on the device of `like`."""
        drawn = [self._stream(sequence, group, k, channels) for sequence in self.sequences]
        return torch.stack(drawn).to(device=like.device, dtype=like.dtype)

    def _stream(self, sequence: int, group: int, k: int, channels: int) -> Tensor:
        key = (self.seed, "evaluation", sequence, group) + ((k,) if k else ())
        return torch.from_numpy(truncated_normal(key, (self.context_length, channels), self.std))


def training_noise(seed: int, iteration: int, first_sample: int, std: float = NOISE_STD) -> Noise:
    """Noise of `iteration` for samples first_sample, first_sample + 1, … of the batch.

    On CUDA the samples are drawn on the device, also by Philox but with another algorithm: as everywhere in
    training, the bits are those of one kind of machine.
    """

    def noise(group: int, k: int, like: Tensor) -> Tensor:
        out, draw = torch.empty_like(like, requires_grad=False), draw_on_device if like.is_cuda else draw_on_host
        for row in range(like.shape[0]):
            draw(out[row], (seed, "training", iteration, first_sample + row, group, k), std)
        return out

    return noise


def draw_on_host(out: Tensor, key: tuple, std: float) -> None:
    """Fill `out` with samples of N(0, std^2) truncated at +-3 std, the same on every machine."""
    out.copy_(torch.from_numpy(truncated_normal(key, tuple(out.shape), std)))


def draw_on_device(out: Tensor, key: tuple, std: float) -> None:
    """Fill `out` with samples of N(0, std^2) truncated at +-3 std, by torch's generator of its device.

    The samples are a function of `key`, the shape and the kind of device.
    """
    generator = torch.Generator(out.device).manual_seed(integer_key(*key))
    torch.nn.init.trunc_normal_(out, 0.0, std, -3 * std, 3 * std, generator=generator)
