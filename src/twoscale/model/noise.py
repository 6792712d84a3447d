"""Noise of the loops as a function of its purpose, without a running generator.

Two sources of the same distribution, the truncated normal of Geiping et al. In evaluation, one stream per
(seed, sequence, group) draws the whole (context_length, C) array on the host, so position p reads row p on
every machine, in parallel evaluation and in decoding. In training, one stream per (seed, iteration, sample,
group), so the noise does not depend on how a batch is split over processes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from twoscale import rng
from twoscale.model.interface import Noise

NOISE_STD = math.sqrt(2 / 5)  # of the initial state before truncation at three deviations (Geiping)


class EvaluationNoise:
    """Noise of held-out sequences; an instance is the `Noise` of one batch.

    sequences: numbers of the B sequences in the held-out text; decoding of other text uses sequence 0.
    """

    def __init__(self, seed: int, sequences: Sequence[int], context_length: int) -> None:
        self.seed, self.sequences, self.context_length = seed, sequences, context_length

    def __call__(self, group: int, k: int, like: Tensor) -> Tensor:
        """Rows 0 … T - 1 for hidden states (B, T, C)."""
        return self.rows(group, k, like.shape[-1], like)[:, : like.shape[1]]

    def rows(self, group: int, k: int, channels: int, like: Tensor) -> Tensor:
        """The whole arrays (B, context_length, C) in the dtype and on the device of `like`."""
        drawn = [self._stream(sequence, group, k, channels) for sequence in self.sequences]
        return torch.stack(drawn).to(device=like.device, dtype=like.dtype)

    def _stream(self, sequence: int, group: int, k: int, channels: int) -> Tensor:
        key = (self.seed, "evaluation", sequence, group) + ((k,) if k else ())
        return torch.from_numpy(rng.truncated_normal(key, (self.context_length, channels), NOISE_STD))


def training_noise(seed: int, iteration: int, first_sample: int) -> Noise:
    """Noise of `iteration` for samples first_sample, first_sample + 1, … of the batch.

    On CUDA the samples are drawn on the device, also by Philox but with another algorithm: as everywhere in
    training, the bits are those of one kind of machine.
    """

    def noise(group: int, k: int, like: Tensor) -> Tensor:
        out = torch.empty_like(like, requires_grad=False)
        for row in range(like.shape[0]):
            key = (seed, "training", iteration, first_sample + row, group, k)
            if like.is_cuda:
                generator = torch.Generator(like.device).manual_seed(rng.integer_key(*key))
                bound = 3 * NOISE_STD
                torch.nn.init.trunc_normal_(out[row], 0.0, NOISE_STD, -bound, bound, generator=generator)
            else:
                drawn = rng.truncated_normal(key, tuple(like.shape[1:]), NOISE_STD)
                out[row] = torch.from_numpy(drawn)
        return out

    return noise
