"""Keys, values and noise of several sequences that are decoded together, allocated once.

A sequence in flight has a place, 0 … S - 1, whose memory the next one takes over when it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.exits.kv_cache import KVCache, allocate
from twoscale.model.attention import attention
from twoscale.model.interface import Attend, AttendAt, Noise
from twoscale.model.noise import EvaluationNoise

AttendRows = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q (N, H, D), k and v (N, G, D) -> (N, H, D)


@dataclass(frozen=True, slots=True)
class Step:
    """Where one token of a batch reads and writes: the place of its sequence, its loop step k and its position."""

    place: int
    k: int
    position: int


class BatchedKVCache:
    """A `KVCache` with a slot for every loop step at each of S places.

    The tokens of a batch may be at different loop steps: each sees the slot of its own step.
    """

    def __init__(self, config: ModelConfig, max_loops: int, sequences: int, like: Tensor) -> None:
        self.stored = allocate(config, max_loops, sequences, like)
        self.places = [
            KVCache(config, max_loops, like, {n: stored[:, :, s : s + 1] for n, stored in self.stored.items()})
            for s in range(sequences)
        ]
        # One call of the kernel per row costs the CPU less than gathering the keys of all rows does, and a GPU more.
        self._gathers = like.is_cuda

    def attend(self, steps: Sequence[Step], positions: Tensor) -> Attend:
        """Attention for tokens of N different places at `positions` (N,): q (N, H, D) and k, v (N, G, D)."""
        function = self._attend_gathered(steps, positions) if self._gathers else self._attend_rows(steps)
        return AttendAt(positions, function)

    def _attend_rows(self, steps: Sequence[Step]) -> AttendRows:
        rows = [self.places[step.place].attend(step.k, step.position) for step in steps]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = zip(rows, q.split(1), k.split(1), v.split(1), strict=True)
            return torch.cat([row(layer, *part) for row, *part in parts])

        return attend

    def _attend_gathered(self, steps: Sequence[Step], positions: Tensor) -> AttendRows:
        place, k = torch.tensor([(step.place, step.k) for step in steps], device=positions.device).unbind(1)
        end = max(step.position for step in steps) + 1
        mask = (torch.arange(end, device=positions.device) <= positions[:, None])[:, None, None]  # (N, 1, 1, end)

        def attend(layer: int, q: Tensor, new_keys: Tensor, new_values: Tensor) -> Tensor:
            stored = self.stored[layer]  # (slots, 2, S, G, T, D)
            stored[k, 0, place, :, positions], stored[k, 1, place, :, positions] = new_keys, new_values
            keys, values = (stored[:, half, :, :, :end][k, place] for half in (0, 1))  # (N, G, end, D)
            return attention(q[:, :, None], keys, values, mask)[:, :, 0]

        return attend


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
            chosen = torch.tensor(places, device=like.device)
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
