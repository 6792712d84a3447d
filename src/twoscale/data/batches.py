"""A batch as a function of (seed, step): nothing to save, nothing to resume.

B sequences of T tokens each; the target of a token is the one after it.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from twoscale.errors import InputError
from twoscale.rng import stream

ORDERS = ("permutation", "offsets")


class Batches:
    """Training batches from a token shard; the shard stays on disk where it is a memory map.

    `permutation` goes through all non-overlapping blocks in an order that is new in each epoch; a batch
    may begin in one epoch and end in the next. `offsets` draws every start anew, as nanoGPT does.
    """

    def __init__(self, shard: np.ndarray, block: int, batch: int, order: str, seed: int) -> None:
        if order not in ORDERS:
            raise InputError(f"config key train.order: found {order!r}, expected one of {', '.join(ORDERS)}.")
        self.shard, self.block, self.batch, self.order, self.seed = shard, block, batch, order, seed
        self.blocks = _whole_blocks(shard, block)
        if not self.blocks:
            raise InputError(
                f"training tokens: found {len(shard)}, expected at least {block + 1}, one block of model.context_length "
                "tokens and a target."
            )
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def indices(self, step: int) -> np.ndarray:
        """First token of each sequence of the batch at `step`, counted from 0: int64 (B,)."""
        if self.order == "offsets":
            return stream(self.seed, "offsets", step).integers(0, len(self.shard) - self.block, size=self.batch)
        return np.concatenate(list(self._pieces(step * self.batch, self.batch))) * self.block

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch at `step`, int64 (B, T) each."""
        return _gather(self.shard, self.indices(step), self.block)

    def _pieces(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Blocks number first … first + count - 1 of the endless row of permutations, cut at epochs."""
        while count:
            epoch, position = divmod(first, self.blocks)
            piece = self._permuted(epoch)[position : position + count]
            yield piece
            first, count = first + len(piece), count - len(piece)

    def _permuted(self, epoch: int) -> np.ndarray:
        """The blocks in the order of `epoch`; kept, because many steps ask for the same one."""
        if epoch != self._epoch:
            self._permutation = stream(self.seed, "permutation", epoch).permutation(self.blocks)
            self._epoch = epoch
        return self._permutation


class Prefetched:
    """The same batches, the next one read by a thread while the one in hand is computed."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._next: tuple[int, Future] | None = None

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch at `step`, as `Batches` has it; the one after it is on its way."""
        if self._next is None or self._next[0] != step:
            self._next = (step, self._read(step))
        batch = self._next[1].result()
        self._next = (step + 1, self._read(step + 1))
        return batch

    def _read(self, step: int) -> Future:
        return self._reader.submit(self.batches.__getitem__, step)


def held_out_sequences(shard: np.ndarray, block: int, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the first `count` non-overlapping blocks, int64 (count, block) each."""
    blocks = _whole_blocks(shard, block)
    if blocks < count:
        raise InputError(
            f"held-out tokens: found {len(shard)}, {blocks} sequences of model.context_length = {block}, expected {count} "
            "sequences; raise data.held_out_tokens or data.held_out_fraction, or ask for fewer."
        )
    return _gather(shard, np.arange(count) * block, block)


def _whole_blocks(shard: np.ndarray, block: int) -> int:
    """Non-overlapping blocks that have a target for their last token."""
    return max(0, len(shard) - 1) // block


def _gather(shard: np.ndarray, starts: np.ndarray, block: int) -> tuple[Tensor, Tensor]:
    tokens = np.asarray(shard[starts[:, None] + np.arange(block + 1)], dtype=np.int64)  # (B, T + 1)
    sequences = torch.from_numpy(tokens)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
