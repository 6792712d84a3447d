"""Noise of the loops: a function of what it is for, never of a running generator.

Two sources of the same distribution, the truncated normal of Geiping et al.: in evaluation one stream per
(seed, sequence, group) draws the whole (block, C) array on the host, so position p reads row p on every
machine, whether a text is evaluated in parallel or decoded token by token; in training one stream per
(seed, iteration, sample, group), so it does not depend on how a batch is spread over processes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from twoscale import rng
from twoscale.model.transformer import NOISE_STD, Noise


class EvaluationNoise:
    """Noise of held-out sequences; an instance is a `model.Noise` for the batch that it was made for.

    sequences: numbers of the B sequences in the held-out text; decoding outside of it is sequence 0.
    """

    def __init__(self, seed: int, sequences: Sequence[int], block: int) -> None:
        self.seed, self.sequences, self.block = seed, sequences, block

    def __call__(self, group: int, k: int, like: Tensor) -> Tensor:
        """Rows 0 … T - 1 for hidden states (B, T, C)."""
        return self.rows(group, k, like.shape[-1], like)[:, : like.shape[1]]

    def rows(self, group: int, k: int, width: int, like: Tensor) -> Tensor:
        """The whole arrays (B, block, C) in the dtype and on the device of `like`."""
        drawn = [self._stream(sequence, group, k, width) for sequence in self.sequences]
        return torch.stack(drawn).to(device=like.device, dtype=like.dtype)

    def _stream(self, sequence: int, group: int, k: int, width: int) -> Tensor:
        key = (self.seed, "evaluation", sequence, group) + ((k,) if k else ())
        return torch.from_numpy(rng.truncated_normal(key, (self.block, width), NOISE_STD))


def training_noise(seed: int, step: int, first_sample: int) -> Noise:
    """Noise of iteration `step` for samples first_sample, first_sample + 1, … of the batch.

    On CUDA the samples are drawn on the device (Philox as well, by another algorithm): the bits are those
    of one kind of machine, as everywhere in training.
    """

    def noise(group: int, k: int, like: Tensor) -> Tensor:
        out = torch.empty_like(like, requires_grad=False)
        for row in range(like.shape[0]):
            key = (seed, "training", step, first_sample + row, group, k)
            if like.is_cuda:
                generator = torch.Generator(like.device).manual_seed(rng.integer_key(*key))
                bound = 3 * NOISE_STD
                torch.nn.init.trunc_normal_(out[row], 0.0, NOISE_STD, -bound, bound, generator=generator)
            else:
                drawn = rng.truncated_normal(key, tuple(like.shape[1:]), NOISE_STD)
                out[row] = torch.from_numpy(drawn)
        return out

    return noise
