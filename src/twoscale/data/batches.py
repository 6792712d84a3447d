"""Training batches as a function of (seed, iteration), and held-out sequences.

So there is no state to save or resume. A batch is B sequences of T tokens and their targets. The
target of a token is the next token.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twoscale.base import mismatch
from twoscale.config import ModelConfig
from twoscale.data.shards import TokenMetadata, open_shard, read_metadata
from twoscale.rng import stream


class Batches:
    """Training batches from the ids of a token shard, uint16 or uint32 (tokens,). A memory map
    stays on disk.

    The order "permutation" visits all non-overlapping sequences in each epoch, in a new order; a
    batch may begin in one epoch and end in the next. "offsets" draws the first token of every
    sequence at random, as nanoGPT does.
    """

    def __init__(
        self, shard: np.ndarray, context_length: int, batch_size: int, order: str, seed: int
    ) -> None:
        self.shard = shard
        self.context_length = context_length
        self.batch_size = batch_size
        self.order = order
        self.seed = seed
        self.num_sequences = _num_sequences(shard, context_length)
        if not self.num_sequences:
            expected = f"at least {context_length + 1}, model.context_length and a target"
            raise mismatch("training tokens", len(shard), expected)
        self._permutation = lru_cache(1)(self._draw_permutation)  # many iterations need the same

    def indices(self, iteration: int) -> np.ndarray:
        """First token of each sequence of the batch at `iteration`, counted from 0: int64 (B,)."""
        size = self.batch_size
        if self.order == "offsets":
            last = len(self.shard) - self.context_length  # has no target, and is excluded
            return stream(self.seed, "offsets", iteration).integers(0, last, size=size)
        # the permutations of all epochs in a row
        numbers = iteration * size + np.arange(size)
        epochs, positions = np.divmod(numbers, self.num_sequences)  # (B,) each
        parts = [
            self._permutation(epoch)[positions[epochs == epoch]]
            for epoch in np.unique(epochs).tolist()
        ]
        return np.concatenate(parts) * self.context_length

    def _draw_permutation(self, epoch: int) -> np.ndarray:
        return stream(self.seed, "permutation", epoch).permutation(self.num_sequences)

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch at `iteration`, int64 (B, T) each."""
        return _gather(self.shard, self.indices(iteration), self.context_length)


class Prefetched:
    """The same batches, where a thread reads the next one while the current one is computed.

    pins: put batches into pinned memory, from which copies to CUDA need not be waited for.
    """

    def __init__(self, batches: Batches, pins: bool = False) -> None:
        self.batches = batches
        self.pins = pins
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._next: dict[int, Future] = {}  # iteration -> its batch

    def __getitem__(self, iteration: int) -> tuple[Tensor, ...]:
        """Inputs and targets of the batch at `iteration`, int64 (B, T) each."""
        reading = self._next.get(iteration)
        if reading is None:  # the first call, or a jump
            reading = self._reader.submit(self._read, iteration)
        batch = reading.result()
        # in place of a batch that a jump has left unused
        self._next = {iteration + 1: self._reader.submit(self._read, iteration + 1)}
        return batch

    def _read(self, iteration: int) -> tuple[Tensor, ...]:
        parts = self.batches[iteration]
        return tuple(part.pin_memory() for part in parts) if self.pins else parts


@dataclass(frozen=True)
class HeldOut:
    """N held-out sequences of T tokens.

    `sequences` are their numbers among the non-overlapping sequences of the shard. The noise of a
    sequence is a function of this number, and tables have it as `sequence`. `documents` are the
    numbers in the shard of the documents that their first tokens belong to.
    """

    inputs: Tensor  # ids, int64 (N, T)
    targets: Tensor  # the ids after them, int64 (N, T)
    sequences: tuple[int, ...]
    documents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, rows: slice) -> "HeldOut":
        return HeldOut(
            self.inputs[rows], self.targets[rows], self.sequences[rows], self.documents[rows]
        )

    def batches(self, size: int) -> Iterator["HeldOut"]:
        """All sequences in order, up to `size` at a time."""
        return (self[start : start + size] for start in range(0, len(self), size))

    @property
    def keys(self) -> list[dict[str, int]]:
        """The columns `sequence` and `document` of each sequence in tables."""
        numbers = zip(self.sequences, self.documents, strict=True)
        return [{"sequence": sequence, "document": document} for sequence, document in numbers]

    def rows(self, **columns: Sequence[float]) -> Iterator[dict[str, Any]]:
        """A row of a table per sequence: `keys`, number of tokens, its entry of each column."""
        for i, key in enumerate(self.keys):
            values = {name: column[i] for name, column in columns.items()}
            yield key | {"tokens": self.inputs.shape[1]} | values


def open_held_out(path: Path, metadata: Path, model: ModelConfig, count: int) -> HeldOut:
    """`held_out_sequences` for a model, of the file of held-out ids that the metadata describes."""
    shard = open_shard(path, metadata, model.vocab_size)
    end_of_text = read_metadata(metadata, TokenMetadata).end_of_text
    return held_out_sequences(shard, end_of_text, model.context_length, count)


def held_out_sequences(
    shard: np.ndarray, end_of_text: int, context_length: int, count: int
) -> HeldOut:
    """`count` non-overlapping sequences, ascending, spread over the shard.

    They are the first ones in the order of the reversed bits of their numbers (van der Corput), in
    which every beginning is spread evenly. So the sequences of a smaller count are among the
    sequences of a larger one.
    """
    available = _num_sequences(shard, context_length)
    if available < count:
        found = f"{len(shard)} tokens, or {available} sequences of context_length {context_length}"
        expected = (
            f"{count} sequences; raise data.held_out_tokens or data.held_out_fraction, or evaluate"
            f" fewer sequences"
        )
        raise mismatch("held-out tokens", found, expected)
    bits = max(available - 1, 0).bit_length()
    # reversed bits order the numbers as 0, 1/2, 1/4, 3/4, … of the shard
    spread = sorted(range(available), key=lambda number: f"{number:0{bits}b}"[::-1])
    sequences = sorted(spread[:count])
    starts = np.array(sequences, dtype=np.int64) * context_length
    # a document has as many ends of text before it as its number
    documents = np.searchsorted(np.flatnonzero(shard == end_of_text), starts).tolist()
    return HeldOut(*_gather(shard, starts, context_length), tuple(sequences), tuple(documents))


def _num_sequences(shard: np.ndarray, context_length: int) -> int:
    """Number of non-overlapping sequences whose last token has a target."""
    return max(0, len(shard) - 1) // context_length


def _gather(shard: np.ndarray, starts: np.ndarray, context_length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the sequences that begin at `starts`, int64 (B, T) each."""
    positions = starts[:, None] + np.arange(context_length + 1)  # (B, T + 1)
    tokens = np.asarray(shard[positions], dtype=np.int64)  # a copy
    sequences = torch.from_numpy(tokens)  # (B, T + 1)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
