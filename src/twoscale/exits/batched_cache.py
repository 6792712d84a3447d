"""Keys, values and noise of several sequences that are decoded together, allocated once.

A sequence in flight has a place, 0 … S - 1, whose memory the next one takes over when it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.exits.kv_cache import KVCache, allocate, tensor_on
from twoscale.model.attention import attention, row_attention
from twoscale.model.interface import Attend, AttendAt, Noise
from twoscale.model.noise import EvaluationNoise

Read = Callable[[int, Tensor], Tensor]  # layer, queries (N, H, D) -> results of attention (N, H, D)

# On a CPU copies of longer texts take longer than a call for each row (16 rows of 8 heads of size 32, one thread: 0.09
# and 0.19 ms a layer at 40 positions, 0.26 and 0.28 at 128, 0.52 and 0.45 at 256).
CPU_GATHERED_POSITIONS = 128


@dataclass(frozen=True, slots=True)
class Step:
    """Where one token of a batch reads and writes: the place of its sequence, its loop step k and its position."""

    place: int
    k: int
    position: int


class BatchedKVCache:
    """A `KVCache` with a slot for every loop step at each of S places.

    The tokens of a batch may be at different loop steps: each sees the slot of its own step.

    Attributes:
        gathered_positions: Up to this many positions, the keys and values of all rows are gathered for batched
            products: all on a GPU. Beyond, there is a call of the attention kernel for each row, and nothing is copied.
    """

    def __init__(self, config: ModelConfig, max_loops: int, sequences: int, like: Tensor) -> None:
        self.stored = allocate(config, max_loops, sequences, like)
        self.places = [
            KVCache(config, max_loops, like, {n: stored[:, :, s : s + 1] for n, stored in self.stored.items()})
            for s in range(sequences)
        ]
        self._shape, self._kv_heads = (sequences, config.context_length), config.kv_heads
        self._device, self._dtype = like.device, like.dtype
        # the same memory, layer -> (slots * 2 * S * T, G, D) and (slots * 2 * S, G, T, D)
        self._by_position = {number: stored.transpose(3, 4).flatten(0, 3) for number, stored in self.stored.items()}
        self._by_sequence = {number: stored.flatten(0, 2) for number, stored in self.stored.items()}
        self.gathered_positions = config.context_length if like.is_cuda else CPU_GATHERED_POSITIONS

    def attend(self, steps: Sequence[Step], positions: Tensor) -> Attend:
        """Attention for tokens of N different places at `positions` (N,): q (N, H, D) and k, v (N, G, D)."""
        rows, end = self.rows_of(steps), max(step.position for step in steps) + 1
        if len(steps) > 1 and end <= self.gathered_positions:
            return self.attend_gathered(rows, positions, end)
        return self._attend(rows, positions, self._row_by_row(steps))

    def attend_gathered(self, rows: Tensor, positions: Tensor, end: int | None = None) -> Attend:
        """`attend` for tokens whose keys and values are gathered, all of them below `end`; None: the whole cache.

        rows: `rows_of` the tokens.
        """
        return self._attend(rows, positions, self._gathered(rows, positions, end or self._shape[1]))

    def rows_of(self, steps: Sequence[Step]) -> Tensor:
        """Where the keys of N tokens are in `_by_sequence`, (N,); their values follow S rows behind."""
        rows = [2 * step.k * len(self.places) + step.place for step in steps]
        return tensor_on(rows, self._device)

    def _attend(self, rows: Tensor, positions: Tensor, read: Read) -> Attend:
        sequences, length = self._shape
        keys_at = rows * length + positions
        values_at = keys_at + sequences * length

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._by_position[layer].index_copy_(0, keys_at, k).index_copy_(0, values_at, v)
            return read(layer, q)

        return AttendAt(positions, attend)

    def _row_by_row(self, steps: Sequence[Step]) -> Read:
        rows = [(self.places[step.place].views, step.k, step.position + 1) for step in steps]

        def read(layer: int, q: Tensor) -> Tensor:
            results = []
            for query, (views, k, end) in zip(q[:, :, None].split(1), rows, strict=True):
                keys, values = views[layer][k]
                results.append(attention(query, keys.narrow(2, 0, end), values.narrow(2, 0, end)))
            return torch.cat(results)[:, :, 0]

        return read

    def _gathered(self, rows: Tensor, positions: Tensor, end: int) -> Read:
        both = torch.cat((rows, rows + self._shape[0]))  # keys, then values
        unseen = torch.arange(end, device=positions.device) > positions[:, None]  # (N, end)
        bias = torch.zeros_like(unseen, dtype=self._dtype).masked_fill_(unseen, -torch.inf)
        bias = bias.repeat_interleave(self._kv_heads, 0)[:, None]  # (N * G, 1, end)

        def read(layer: int, q: Tensor) -> Tensor:
            keys, values = self._by_sequence[layer][:, :, :end].index_select(0, both).chunk(2)
            return row_attention(q, keys, values, bias)

        return read


class BatchedNoise:
    """The noise of the sequences at S places, allocated once per group and loop step that has noise.

    The rows of a sequence are those that `EvaluationNoise` gives it alone. They are drawn when first read.
    """

    def __init__(self, config: ModelConfig, seed: int, sequences: int, room: int) -> None:
        self._config, self._seed, self._room = config, seed, room
        self._numbers: list[int | None] = [None] * sequences  # place -> number of its sequence
        self._arrays: dict[tuple[int, int], Tensor] = {}  # (group, k) -> (S, room, C)
        self._drawn: dict[tuple[int, int, int], int] = {}  # (group, k, place) -> number of the sequence in the array

    def set_sequence(self, place: int, number: int) -> None:
        """The noise at a place is now that of held-out sequence `number`."""
        self._numbers[place] = number

    def at(self, places: Sequence[int], positions: Tensor) -> Noise:
        """The noise of N tokens at `positions` (N,) of their places; one place may be given for all of them."""

        def noise(group: int, k: int, like: Tensor) -> Tensor:
            for place in places:
                self._draw(group, k, place, like)
            chosen = tensor_on(places, like.device)
            return self._arrays[group, k][chosen, positions].view_as(like)

        return noise

    def _draw(self, group: int, k: int, place: int, like: Tensor) -> None:
        number = self._numbers[place]
        if self._drawn.get((group, k, place)) == number:
            return
        if (group, k) not in self._arrays:
            self._arrays[group, k] = like.new_zeros(len(self._numbers), self._room, like.shape[-1])
        source = EvaluationNoise.of(self._config, self._seed, [number])
        self._arrays[group, k][place] = source.rows(group, k, like.shape[-1], like)[0, : self._room]
        self._drawn[group, k, place] = number
