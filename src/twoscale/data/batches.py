"""Training batches as a function of (seed, iteration), so there is no state to save or resume.

A batch is B sequences of T tokens and their targets. The target of a token is the next token.
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
    """Training batches from the ids of a token shard. A shard that is a memory map stays on disk.

    Args:
        shard: Training ids, uint16 (tokens,).
        context_length: Tokens per sequence, T.
        batch_size: Sequences per batch, B.
        order: "permutation" visits all non-overlapping sequences in each epoch, in a new order; a batch may begin in
            one epoch and end in the next. "offsets" draws the first token of every sequence at random, as nanoGPT does.
        seed: Seed of the order.

    Raises:
        InputError: if the order is unknown, or the shard has less than one sequence and a target.
    """

    def __init__(self, shard: np.ndarray, context_length: int, batch_size: int, order: str, seed: int) -> None:
        if order not in ORDERS:
            raise InputError(f"config key train.order: found {order!r}, expected one of {', '.join(ORDERS)}.")
        self.shard, self.context_length, self.batch_size = shard, context_length, batch_size
        self.order, self.seed = order, seed
        self.num_sequences = _num_sequences(shard, context_length)
        if not self.num_sequences:
            raise InputError(
                f"training tokens: found {len(shard)}, expected at least {context_length + 1}, one sequence of "
                "model.context_length tokens and a target."
            )
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def indices(self, iteration: int) -> np.ndarray:
        """First token of each sequence of the batch at `iteration`, counted from 0: int64 (B,)."""
        if self.order == "offsets":
            last = len(self.shard) - self.context_length  # the last start has no target, and `integers` excludes it
            return stream(self.seed, "offsets", iteration).integers(0, last, size=self.batch_size)
        sequences = np.concatenate(list(self._sequences(iteration * self.batch_size, self.batch_size)))
        return sequences * self.context_length

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch at `iteration`, int64 (B, T) each."""
        return _gather(self.shard, self.indices(iteration), self.context_length)

    def _sequences(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Entries `first` to `first + count - 1` of all epochs' permutations in a row, one array per epoch."""
        while count:
            epoch, position = divmod(first, self.num_sequences)
            sequences = self._epoch_order(epoch)[position : position + count]
            yield sequences
            first, count = first + len(sequences), count - len(sequences)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """The sequences in the order of `epoch`, int64 (sequences,); cached, because many iterations need the same."""
        if epoch != self._epoch:
            self._permutation = stream(self.seed, "permutation", epoch).permutation(self.num_sequences)
            self._epoch = epoch
        return self._permutation


class Prefetched:
    """The same batches, where a thread reads the next batch during the computation of the current one."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._next: tuple[int, Future] | None = None

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch at `iteration`, int64 (B, T) each; starts to read the next batch."""
        if self._next is None or self._next[0] != iteration:  # the first call, or a jump
            self._next = (iteration, self._read(iteration))
        batch = self._next[1].result()
        self._next = (iteration + 1, self._read(iteration + 1))
        return batch

    def _read(self, iteration: int) -> Future:
        return self._reader.submit(self.batches.__getitem__, iteration)


def held_out_sequences(shard: np.ndarray, context_length: int, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the first `count` non-overlapping sequences, int64 (count, T) each.

    Raises:
        InputError: if the shard, uint16 (tokens,), has fewer sequences.
    """
    available = _num_sequences(shard, context_length)
    if available < count:
        raise InputError(
            f"held-out tokens: found {len(shard)}, {available} sequences of model.context_length = {context_length}, "
            f"expected {count} sequences; raise data.held_out_tokens or data.held_out_fraction, or evaluate fewer."
        )
    return _gather(shard, np.arange(count) * context_length, context_length)


def _num_sequences(shard: np.ndarray, context_length: int) -> int:
    """Number of non-overlapping sequences whose last token has a target."""
    return max(0, len(shard) - 1) // context_length


def _gather(shard: np.ndarray, starts: np.ndarray, context_length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the sequences that begin at `starts`, int64 (B, T) each."""
    tokens = np.asarray(shard[starts[:, None] + np.arange(context_length + 1)], dtype=np.int64)  # (B, T + 1)
    sequences = torch.from_numpy(tokens)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
