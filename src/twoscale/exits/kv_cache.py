"""Keys and values of decoding, allocated once: of one sequence, or of several that are decoded together."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.model.attention import attention, row_attention
from twoscale.model.interface import Attend, AttendAt, KVPolicy


def distinct_slots(kv_slots: int | None, max_loops: int) -> int:
    """Slots of the cache that `max_loops` loop steps use under the key `kv_slots` (None: one each)."""
    return min(kv_slots or max_loops, max_loops)


# layer -> slot -> keys and values (1, G, T, D)
Views = Mapping[int, Sequence[tuple[Tensor, Tensor]]]


# layer -> (slots, 2, S, G, T, D): keys and values of S sequences; all heads of a position are contiguous in memory
Stored = dict[int, Tensor]


def allocate(config: ModelConfig, slots: int, sequences: int, like: Tensor) -> Stored:
    """Zeros for the keys and values of S = `sequences`: looped layers have `slots` slots, unlooped ones have one."""
    looped = {number for group in config.groups for number in group}
    slots_of = {n: slots if n in looped else 1 for n in range(1, config.num_layers + 1)}
    shapes = {n: (sequences, config.context_length, config.kv_heads_of(n), config.head_dim) for n in slots_of}
    return {n: like.new_zeros(slots_of[n], 2, *shape).transpose(3, 4) for n, shape in shapes.items()}


def tensor_on(values: Sequence[int], device: torch.device) -> Tensor:
    """Integers as a tensor on a device, without a wait for it."""
    host = torch.tensor(values, dtype=torch.int64)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


class KVCache:
    """Keys and values of one sequence, a slot per (loop step, layer), allocated once.

    Loop step k reads and writes slot k modulo `slots`; an unlooped layer has one slot. With fewer slots than
    `max_loops` (Geiping's cache sharing) later tokens see, in place of step k, the last of a token's steps
    that used the same slot. `stored` is the memory of one sequence, by default newly allocated.

    Attributes:
        present: Under the policy "absent", looped layer -> which positions have keys and values in a slot, (slots, T).
    """

    def __init__(
        self, config: ModelConfig, slots: int, like: Tensor, stored: Stored | None = None, policy: KVPolicy = "last"
    ) -> None:
        self.slots = slots
        looped = [number for group in config.groups for number in group] if policy == "absent" else []
        self.present = {n: like.new_ones(slots, config.context_length, dtype=torch.bool) for n in looped}
        self.stored = allocate(config, slots, 1, like) if stored is None else stored
        # Making a view costs as much as attention for one token does, so all of them are made here:
        # layer -> slot -> keys and values (1, G, T, D); position -> itself as a tensor (1,).
        self.views: Views = {number: [tuple(slot) for slot in stored] for number, stored in self.stored.items()}
        self._positions = torch.arange(config.context_length, device=like.device).split(1)
        self._heads = config.num_heads

    def clear(self) -> None:
        for stored in self.stored.values():
            stored.zero_()

    def attend(self, k: int, position: int) -> Attend:
        """Attention at loop step k for the one token at `position`: q (1, H, D) and k, v (1, G, D)."""
        if self.present:
            return self.attend_parallel(k, self._positions[position], position + 1)
        return TokenAttention(self._positions[position], self.views, k % self.slots, position, self._heads)

    def attend_parallel(self, k: int, positions: Tensor, end: int, bias: Tensor | None = None) -> Attend:
        """Attention at loop step k for the tokens at `positions` (N,), all below `end`: q (N, H, D), k, v (N, G, D).

        bias: `causal_bias` of these positions, if it is known.
        """
        bias = causal_bias(positions, end, self.stored) if bias is None else bias
        return attend_at(self.views, k % self.slots, positions, bias, self.present)

    def fill(self, layers: Sequence[int], positions: int | Tensor, evaluations: int) -> None:
        """Copy the last evaluation of these positions to the slots that they did not reach, or mark these as absent.

        Later tokens then find it at every loop step beyond the exit.
        """
        if evaluations >= self.slots:
            return
        for number in layers:
            if number in self.present:
                self.present[number][evaluations:, positions] = False
                continue
            stored = self.stored[number]
            stored[evaluations:, :, :, :, positions] = stored[evaluations - 1, :, :, :, positions]


class CachedKV:
    """`KVStore` of the positions start … start + length - 1 of a cache with a slot for every loop step."""

    def __init__(self, cache: KVCache, layers: Sequence[int], start: int, length: int) -> None:
        self.cache, self.layers, self.start, self.end = cache, layers, start, start + length

        self._active: Tensor | None = None  # the rows that looped last

    def attend(self, k: int, active: Tensor) -> Attend:
        if active is not self._active:
            self._active, self._positions = active, self.start + active
            self._bias = causal_bias(self._positions, self.end, self.cache.stored)
        return self.cache.attend_parallel(k, self._positions, self.end, self._bias)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        self.cache.fill(self.layers, self.start + rows, evaluations)


class RowsKV:
    """`KVStore` of one token of each of N texts, in memory of S texts from `allocate`.

    places: the texts in the memory (N,). positions: positions of the tokens (N,), all below `end`. present: as in
    `KVCache`, (slots, S, T) of each layer.

    Attributes:
        layers: Layers of the group that loops.
    """

    def __init__(
        self, stored: Stored, present: Mapping[int, Tensor], places: Tensor, positions: Tensor, end: int
    ) -> None:
        self._stored, self._present, self._places, self._positions, self._end = stored, present, places, positions, end
        self.layers: Sequence[int] = ()
        self._bias = causal_bias(positions, end, stored)[:, None, None]  # (N, 1, 1, end)

    def attend(self, k: int, active: Tensor) -> Attend:
        """q (A, H, D) and k, v (A, G, D) of the rows `active` (A,)."""
        places, positions, bias = self._places[active], self._positions[active], self._bias[active]  # (A, 1, 1, end)
        biases: dict[int, Tensor] = {}  # G -> (A, G, 1, end)

        def attend(layer: int, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._stored[layer][k]  # (S, G, T, D) each
            keys[places, :, positions], values[places, :, positions] = key, value
            heads = keys.shape[1]
            if heads not in biases:
                biases[heads] = bias.expand(-1, heads, -1, -1).contiguous()
            of_layer = biases[heads]
            if layer in self._present:
                self._present[layer][k, places, positions] = True
                absent = ~self._present[layer][k, places, : self._end]  # (A, end)
                of_layer = of_layer.masked_fill(absent[:, None, None], -torch.inf)
            # a copy of the rows that still loop; texts of other lengths end earlier, which the bias says
            seen = (both[:, :, : self._end].index_select(0, places) for both in (keys, values))
            return row_attention(q, *seen, of_layer.flatten(0, 1))

        return AttendAt(positions, attend)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        """As `KVCache.fill`: later tokens find the last evaluation at every loop step beyond the exit."""
        places, positions = self._places[rows], self._positions[rows]
        for layer in self.layers:
            if layer in self._present:
                self._present[layer][evaluations:, places, positions] = False
                continue
            stored = self._stored[layer]
            last = stored[evaluations - 1][:, places, :, positions]  # (A, 2, G, D)
            stored[evaluations:, :, places, :, positions] = last[:, None]  # (A, slots - evaluations, 2, G, D)


class TokenAttention:
    """`Attend` of the one token at `position` of a cache, at a loop step that uses `slot`; see `KVCache.attend`."""

    __slots__ = ("_end", "_heads", "_position", "_slot", "_views", "positions")

    def __init__(self, positions: Tensor, views: Views, slot: int, position: int, heads: int) -> None:
        self.positions, self._views, self._slot, self._heads = positions, views, slot, heads
        self._position, self._end = position, position + 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (1, H, D) and k, v (1, G, D) -> (1, H, D)."""
        keys, values = self._views[layer][self._slot]  # (1, G, T, D) each
        keys.select(2, self._position).copy_(k)
        values.select(2, self._position).copy_(v)
        # four axes and no mask: otherwise torch does not take its fused kernel
        seen = keys.narrow(2, 0, self._end), values.narrow(2, 0, self._end)
        is_grouped = keys.shape[1] != self._heads
        return F.scaled_dot_product_attention(q.unsqueeze(2), *seen, enable_gqa=is_grouped).squeeze(2)


def attend_token(stored: Mapping[int, Tensor], position: Tensor, bias: Tensor) -> Attend:
    """Attention for the token at `position` (1,): q (1, H, D), k, v (1, G, D). Nothing but tensors tells the position.

    stored: keys and values of each layer, (2, 1, G, T, D). bias: (1, 1, 1, T), -inf at the positions after the token.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = stored[layer]
        both[:, :, :, position] = torch.stack((k, v)).unsqueeze(3)  # (2, 1, G, 1, D)
        keys, values = both.unbind()
        if q.shape != k.shape:
            return row_attention(q, keys, values, bias[0])
        return attention(q.unsqueeze(2), keys, values, bias).squeeze(2)

    return AttendAt(position, attend)


def causal_bias(positions: Tensor, end: int, stored: Stored) -> Tensor:
    """0 where the tokens at `positions` (N,) see a position below `end`, -inf elsewhere: (N, end)."""
    unseen = torch.arange(end, device=positions.device) > positions[:, None]
    return next(iter(stored.values())).new_zeros(unseen.shape).masked_fill_(unseen, -torch.inf)


def attend_at(
    views: Views, slot: int, positions: Tensor, bias: Tensor, present: Mapping[int, Tensor] = MappingProxyType({})
) -> Attend:
    """Attention for the tokens at `positions` (N,) to what `slot` holds: q (N, H, D), k, v (N, G, D).

    bias: `causal_bias` of the positions (N, end). present: as in `KVCache`; the tokens' own keys and values become
    present.
    """
    end = bias.shape[1]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = views[layer][slot]
        keys[0].index_copy_(1, positions, k.transpose(0, 1))
        values[0].index_copy_(1, positions, v.transpose(0, 1))
        of_layer, queries = bias, q.transpose(0, 1)[None]
        if layer in present:
            present[layer][slot, positions] = True
            of_layer = bias.masked_fill(~present[layer][slot, :end], -torch.inf)
        return attention(queries, keys[:, :, :end], values[:, :, :end], of_layer)[0].transpose(0, 1)

    return AttendAt(positions, attend)
