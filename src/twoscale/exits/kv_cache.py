"""Keys and values of decoding, a slot per (loop step, layer), of one text or of several that are read together."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.exits.parallel import GroupExit, ParallelEngine, RowLayout
from twoscale.model.interface import Attend, AttendAt, Noise, run_stages
from twoscale.model.kernels import attention, row_attention

# layer -> slot -> keys and values (B, G, T, D)
Views = Mapping[int, Sequence[tuple[Tensor, Tensor]]]


def distinct_slots(kv_slots: int | None, max_loops: int) -> int:
    """Slots of the cache that `max_loops` loop steps use under the key `kv_slots` (None: one each)."""
    return min(kv_slots or max_loops, max_loops)


class KVCache:
    """Keys and values of B = `texts` texts of `room` positions (None: the whole context), in the dtype of `like`.

    Loop step k reads and writes slot k modulo `slots`; an unlooped layer has one slot. With fewer slots than
    `max_loops` (Geiping's cache sharing) later tokens see, in place of step k, the last of a token's steps
    that used the same slot.

    Attributes:
        stored: Layer -> keys and values (slots, 2, B, G, T, D); all heads of a position are contiguous in memory.
    """

    def __init__(self, config: ModelConfig, slots: int, like: Tensor, texts: int = 1, room: int | None = None) -> None:
        self.slots = slots
        length = config.context_length if room is None else room
        looped = {number for group in config.groups for number in group}
        self.stored = {}
        for n in range(1, config.num_layers + 1):
            shape = (texts, length, config.kv_heads_of(n), config.head_dim)
            self.stored[n] = like.new_zeros(slots if n in looped else 1, 2, *shape).transpose(3, 4)
        # Making a view costs as much as attention for one token does, so all of them are made here.
        self.views: Views = {number: [tuple(slot) for slot in stored] for number, stored in self.stored.items()}
        self._positions = torch.arange(length, device=like.device).split(1)
        self._heads = config.num_heads

    def clear(self) -> None:
        for stored in self.stored.values():
            stored.zero_()

    def copy_from(self, other: "KVCache") -> None:
        """Take over a cache of the same texts with less room."""
        for number, stored in other.stored.items():
            self.stored[number][..., : stored.shape[-2], :] = stored

    def attend(self, k: int, position: int, token: Tensor) -> Attend:
        """Attention at loop step k for the `token` (1,) at `position` of one text: q (1, H, D) and k, v (1, G, D)."""
        return TokenAttention(self._positions[position], token, self.views, k % self.slots, position, self._heads)

    def attend_rows(self, k: int, layout: RowLayout) -> Attend:
        """Attention at loop step k for the rows of a layout, which bring new keys and values."""
        slot, text, at, end = k % self.slots, layout.text, layout.at, layout.mask.shape[-1]
        bias = layout.bias(self.stored[1])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.views[layer][slot]
            if len(keys) == 1:  # one text, faster than by two indices
                keys[0].index_copy_(1, at, k.transpose(0, 1))
                values[0].index_copy_(1, at, v.transpose(0, 1))
            else:
                keys[text, :, at], values[text, :, at] = k, v
            return layout.attention(q, keys[:, :, :end], values[:, :, :end], bias)

        return AttendAt(at, attend, layout.tokens)

    def fill(self, layers: Sequence[int], text: int | Tensor, at: int | Tensor, evaluations: int) -> None:
        """Copy the last evaluation of tokens, at positions `at` of texts `text`, to the slots that they did not reach.

        Later tokens then find it at every loop step beyond the exit.
        """
        if evaluations >= self.slots:
            return
        for number in layers:
            stored = self.stored[number]
            last = stored[evaluations - 1, :, text, :, at]  # (2, G, D), or (M, 2, G, D) for M tokens
            stored[evaluations:, :, text, :, at] = last if isinstance(at, int) else last[:, None]


class CachedKV:
    """`KVStore` of the layers of a group for `tokens` at `positions` (B, N), all below `end`, of a cache."""

    def __init__(self, cache: KVCache, layers: Sequence[int], positions: Tensor, end: int, tokens: Tensor) -> None:
        self._cache, self._layers, self._positions, self._end, self._tokens = cache, layers, positions, end, tokens
        self._active: Tensor | None = None  # the rows that looped last

    def attend(self, k: int, active: Tensor) -> Attend:
        if active is not self._active:
            self._active, self._layout = active, RowLayout(active, self._positions, self._end, self._tokens)
        return self._cache.attend_rows(k, self._layout)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        at = self._positions.flatten()[rows]
        self._cache.fill(self._layers, rows // self._positions.shape[1], at, evaluations)


def read_parallel(
    engine: ParallelEngine, cache: KVCache, tokens: Tensor, positions: Tensor, end: int, noise: Noise
) -> tuple[Tensor, list[GroupExit]]:
    """Read tokens (B, N) at the `positions` (B, N) below `end` in parallel, after those that are in the cache.

    Returns their hidden states (B * N, C), which the readout takes, and their exit from each group. The cache needs a
    slot for every loop step. `noise` is for these positions.
    """
    model, exits = engine.model, []
    rows = torch.arange(tokens.numel(), device=tokens.device)
    attend = cache.attend_rows(0, RowLayout(rows, positions, end, tokens))

    def layer(number: int, hidden: Tensor) -> Tensor:
        return model.unlooped_layer(number, hidden, attend)

    def group(index: int, hidden: Tensor) -> Tensor:
        store = CachedKV(cache, model.config.groups[index], positions, end, tokens)
        exits.append(engine.loop(index, hidden.unflatten(0, tokens.shape), noise, store))
        return model.finish(index, exits[-1].states.flatten(0, 1))

    return run_stages(model, model.embed(tokens.flatten(), attend.positions), layer, group), exits


class TokenAttention:
    """`Attend` of the one token at `position` of a cache, at a loop step that uses `slot`; see `KVCache.attend`."""

    __slots__ = ("_end", "_heads", "_position", "_slot", "_views", "positions", "tokens")

    def __init__(self, positions: Tensor, tokens: Tensor, views: Views, slot: int, position: int, heads: int) -> None:
        self.positions, self.tokens, self._views, self._slot, self._heads = positions, tokens, views, slot, heads
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


def attend_token(stored: Mapping[int, Tensor], position: Tensor, bias: Tensor, token: Tensor) -> Attend:
    """Attention for the `token` (1,) at `position` (1,): q (1, H, D), k, v (1, G, D). Both are known from tensors only.

    stored: keys and values of each layer, (2, 1, G, T, D). bias: (1, 1, 1, T), -inf at the positions after the token.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = stored[layer]
        both[:, :, :, position] = torch.stack((k, v)).unsqueeze(3)  # (2, 1, G, 1, D)
        keys, values = both.unbind()
        if q.shape != k.shape:
            return row_attention(q, keys, values, bias[0])
        return attention(q.unsqueeze(2), keys, values, bias).squeeze(2)

    return AttendAt(position, attend, token)
