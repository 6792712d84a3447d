"""Training batches as a function of (seed, iteration), so there is no state to save or resume;
held-out sequences.

A batch is B sequences of T tokens and their targets. The target of a token is the next token.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twoscale.base import InputError
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
        self.shard, self.context_length, self.batch_size = shard, context_length, batch_size
        self.order, self.seed = order, seed
        self.num_sequences = _num_sequences(shard, context_length)
        if not self.num_sequences:
            expected = f"at least {context_length + 1}, model.context_length and a target"
            raise InputError(f"training tokens: found {len(shard)}, expected {expected}.")
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def indices(self, iteration: int) -> np.ndarray:
        """First token of each sequence of the batch at `iteration`, counted from 0: int64 (B,)."""
        if self.order == "offsets":
            last = (
                len(self.shard) - self.context_length
            )  # the last start has no target, and `integers` excludes it
            return stream(self.seed, "offsets", iteration).integers(0, last, size=self.batch_size)
        parts, first, count = (
            [],
            iteration * self.batch_size,
            self.batch_size,
        )  # of all epochs' permutations in a row
        while count:
            epoch, position = divmod(first, self.num_sequences)
            if epoch != self._epoch:  # cached, because many iterations need the same
                self._permutation = stream(self.seed, "permutation", epoch).permutation(
                    self.num_sequences
                )
                self._epoch = epoch
            parts.append(self._permutation[position : position + count])
            first, count = first + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts) * self.context_length

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch at `iteration`, int64 (B, T) each."""
        return _gather(self.shard, self.indices(iteration), self.context_length)


class Prefetched:
    """The same batches, where a thread reads the next batch during the computation of the current
    one.

    pins: put batches into pinned memory, from which copies to CUDA need not be waited for.
    """

    def __init__(self, batches: Batches, pins: bool = False) -> None:
        self.batches, self.pins = batches, pins
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._next: tuple[int, Future] | None = None

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch at `iteration`, int64 (B, T) each; starts to read the
        next batch.
        """
        if self._next is None or self._next[0] != iteration:  # the first call, or a jump
            self._next = (iteration, self._read(iteration))
        batch = self._next[1].result()
        self._next = (iteration + 1, self._read(iteration + 1))
        return batch

    def _read(self, iteration: int) -> Future:
        def batch() -> tuple[Tensor, ...]:
            parts = self.batches[iteration]
            return tuple(part.pin_memory() for part in parts) if self.pins else parts

        return self._reader.submit(batch)


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
        """A row of a table for each sequence: its `keys`, its number of tokens, and its entry of
        each column.
        """
        for i, key in enumerate(self.keys):
            yield (
                key
                | {"tokens": self.inputs.shape[1]}
                | {name: values[i] for name, values in columns.items()}
            )


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
        raise InputError(
            f"held-out tokens: found {len(shard)} tokens, or {available} sequences of"
            f" model.context_length = "
            f"{context_length}, expected {count} sequences; raise data.held_out_tokens or"
            f" data.held_out_fraction, or "
            "evaluate fewer sequences."
        )
    bits = max(available - 1, 0).bit_length()
    sequences = sorted(
        sorted(range(available), key=lambda number: f"{number:0{bits}b}"[::-1])[:count]
    )
    starts = np.array(sequences, dtype=np.int64) * context_length
    documents = np.searchsorted(
        np.flatnonzero(shard == end_of_text), starts
    )  # ends of text before each start
    return HeldOut(
        *_gather(shard, starts, context_length), tuple(sequences), tuple(documents.tolist())
    )


def _num_sequences(shard: np.ndarray, context_length: int) -> int:
    """Number of non-overlapping sequences whose last token has a target."""
    return max(0, len(shard) - 1) // context_length


def _gather(shard: np.ndarray, starts: np.ndarray, context_length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the sequences that begin at `starts`, int64 (B, T) each."""
    tokens = np.asarray(
        shard[starts[:, None] + np.arange(context_length + 1)], dtype=np.int64
    )  # (B, T + 1)
    sequences = torch.from_numpy(tokens)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
