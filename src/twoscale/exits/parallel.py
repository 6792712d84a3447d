"""Adaptive exits of many positions at once, each token looping until its exit criterion fires; the
cache of decoding.

The semantics are causal. Token i loops in a group until its criterion fires or `max_loops` is
reached; its state is then frozen. The keys and values that later tokens see at loop step k are the
token's own of step k. If it exited before, they are from its last evaluation; the step that
triggered the exit counts as evaluated. The next group sees only the state the token left with. So
evaluating a text in parallel and decoding it token by token (`twoscale.exits.decoder`) are the same
function.

Two counts are kept per token and group: `loop_steps`, the number of steps that the returned state
has taken (k of Algorithm 1), and `evaluations`, the number of calls of f, which is the cost. They
differ by one where a criterion discards the step that triggered the exit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.base import InputError
from twoscale.config import ModelConfig
from twoscale.exits.contract import Decisions, is_sequential, make_readout
from twoscale.exits.criteria import ExitCriterion
from twoscale.model.interface import (
    Attend,
    AttendAt,
    CausalAttention,
    LoopedModel,
    Noise,
    run_stages,
)
from twoscale.model.kernels import attention, causal_attention, row_attention

# layer -> slot -> keys and values (B, G, T, D)
Views = Mapping[int, Sequence[tuple[Tensor, Tensor]]]


@dataclass
class LoopCounts:
    """The loop steps and evaluations of each token, per group: integer tensors (G, B, T)."""

    loop_steps: Tensor
    evaluations: Tensor


@dataclass
class GroupExit:
    """The result of one group: states (B, T, C), loop steps and evaluations (B, T)."""

    states: Tensor
    loop_steps: Tensor
    evaluations: Tensor


class RowLayout:
    """Rows of tokens (B, N) laid out as queries (B, A), with A the most rows of one text.

    The projections around attention run on the rows alone, so only attention pays for the padding.

    Args:
        rows: The M tokens that are computed, rising indices into B * N.
        positions: Position of each token in its text (B, N).
        end: Keys are those of the positions below it.
        tokens: Token ids (B, N).

    Attributes:
        text, at, tokens: Text, position and token id of each row (M,).
        mask: Which positions the queries see, bool (B, 1, A, end). Padding sees position 0; its
            result is never read.
    """

    def __init__(self, rows: Tensor, positions: Tensor, end: int, tokens: Tensor) -> None:
        batch, length = positions.shape
        self.text, self.at, self.tokens = (
            rows // length,
            positions.flatten()[rows],
            tokens.flatten()[rows],
        )
        # no `bincount`, which waits for the device
        counts = rows.new_zeros(batch).index_add_(0, self.text, torch.ones_like(rows))
        # rank of a row among those of its text: cumsum - counts is the number of rows in the texts
        # before
        self._rank = (
            torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[self.text]
        )
        most = int(counts.max())
        self._source = rows.new_zeros(batch, most)  # (B, A) -> row
        self._source[self.text, self._rank] = torch.arange(len(rows), device=rows.device)
        allowed_up_to = rows.new_zeros(batch, most)
        allowed_up_to[self.text, self._rank] = self.at
        self.mask = torch.arange(end, device=rows.device) <= allowed_up_to[:, None, :, None]
        self._bias: Tensor | None = None

    def bias(self, like: Tensor) -> Tensor:
        """`mask` as 0 and -inf in the dtype of the keys; attention would make it for each layer."""
        if self._bias is None:
            self._bias = like.new_zeros(self.mask.shape).masked_fill_(~self.mask, -torch.inf)
        return self._bias

    def attention(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """q (M, H, D) and keys, values (B, G, end, D) -> (M, H, D)."""
        if len(mask) == 1:  # one text has no padding
            return attention(q.transpose(0, 1)[None], keys, values, mask)[0].transpose(0, 1)
        out = attention(q[self._source].transpose(1, 2), keys, values, mask)
        return out.transpose(1, 2)[self.text, self._rank]


class ParallelKV:
    """Keys and values of one group while whole texts (B, T) loop: per layer the latest of every
    token.

    At step k the row of a token that still loops has just been replaced by its own of step k, and
    the row of a token that has exited holds its last evaluation. `CachedKV` has the same methods.
    """

    def __init__(self, tokens: Tensor) -> None:
        (self.batch, self.length), self.tokens = tokens.shape, tokens
        self.keys: dict[int, Tensor] = {}  # layer -> (B * T, G, D)
        self.values: dict[int, Tensor] = {}

    def attend(self, k: int, active: Tensor) -> Attend:
        """Attention at loop step k for the rows `active`, rising indices into B * T, with new keys
        and values.
        """
        if len(active) == self.batch * self.length:
            return AttendAt(active % self.length, self._attend_all, self.tokens.flatten())
        positions = torch.arange(self.length, device=active.device).expand(self.batch, -1)
        layout = RowLayout(active, positions, self.length, self.tokens)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer].index_copy_(0, active, k)
            self.values[layer].index_copy_(0, active, v)
            stored = self.keys[layer], self.values[layer]
            keys, values = (
                z.unflatten(0, (self.batch, self.length)).transpose(1, 2) for z in stored
            )
            return layout.attention(q, keys, values, layout.mask)

        return AttendAt(layout.at, attend, layout.tokens)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        """These rows were computed for the last time, at evaluation number `evaluations`; they stay
        as they are.
        """

    def _attend_all(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention while every token loops: q (B * T, H, D) and k, v (B * T, G, D)."""
        self.keys[layer], self.values[layer] = k.contiguous(), v.contiguous()
        return causal_attention(
            *(rows.unflatten(0, (self.batch, self.length)) for rows in (q, k, v))
        ).flatten(0, 1)


class ParallelEngine:
    """Runs groups for many positions at once, each token until its criterion fires."""

    def __init__(
        self, model: LoopedModel, criterion: ExitCriterion, max_loops: int, readout: str = "head"
    ) -> None:
        if is_sequential(criterion, readout):
            raise InputError(
                "exits.readout: found remaining_layers, expected head for positions computed in"
                " parallel; with the "
                "remaining layers, a prediction needs the exit states of earlier tokens."
            )
        self.model, self.criterion, self.max_loops, self.readout = (
            model,
            criterion,
            max_loops,
            readout,
        )

    def loop(
        self, group: int, entered: Tensor, noise: Noise, store: "ParallelKV | CachedKV"
    ) -> GroupExit:
        """Loop the tokens (B, T, C) that enter a group. Only tokens that still loop are
        computed.
        """
        model, criterion = self.model, self.criterion.of_group(group)
        # the tokens that still loop, as indices into B * T (N,), and row by row what their next
        # step needs
        rows = torch.arange(entered.shape[0] * entered.shape[1], device=entered.device)
        x = model.init_state(group, entered, noise).flatten(0, 1)  # (N, C)
        injected = model.project_input(group, entered.flatten(0, 1))  # (N, C)
        decisions = Decisions(criterion, x, make_readout(model, criterion, self.readout, group))
        streak = torch.zeros_like(rows)  # loop steps in a row at which the criterion said exit
        states, loop_steps = torch.empty_like(x), torch.full_like(rows, self.max_loops)
        evaluations, keeps_previous = loop_steps.clone(), criterion.keeps == "previous"

        def noise_of_rows(group: int, k: int, like: Tensor) -> Tensor:
            return noise(group, k, entered).flatten(0, 1)[rows]

        for k in range(self.max_loops):
            state = model.add_noise(group, k, x, noise_of_rows)
            x_new = model.recur(group, k, state, injected, store.attend(k, rows))
            streak = (streak + 1) * decisions.update(x_new)
            fires = streak == criterion.patience
            exits = fires.nonzero().squeeze(1)
            if len(exits):
                left = rows[exits]
                states[left] = (x if keeps_previous else decisions.result(x_new))[exits]
                evaluations.index_fill_(0, left, k + 1)
                loop_steps.index_fill_(0, left, k if keeps_previous else k + 1)
                store.freeze(left, k + 1)
                stays = (~fires).nonzero().squeeze(1)
                rows, injected, x_new, streak = (
                    values[stays] for values in (rows, injected, x_new, streak)
                )
                decisions.keep(stays)
            x = x_new
            if not len(rows):
                break
        states[rows] = decisions.result(x)
        shape = entered.shape[:2]
        return GroupExit(
            *(values.unflatten(0, shape) for values in (states, loop_steps, evaluations))
        )


@torch.inference_mode()
def evaluate(
    model: LoopedModel,
    tokens: Tensor,
    criterion: ExitCriterion,
    max_loops: int,
    noise: Noise,
    readout: str = "head",
) -> tuple[Tensor, LoopCounts]:
    """Teacher-forced logits (B, T, V) of `tokens` (B, T) under a criterion, and the counts of each
    token.
    """
    engine = ParallelEngine(model, criterion, max_loops, readout)
    attend = CausalAttention.of(tokens)
    exits: list[GroupExit] = []

    def group(index: int, hidden: Tensor) -> Tensor:
        exits.append(engine.loop(index, hidden, noise, ParallelKV(tokens)))
        return model.finish(index, exits[-1].states)

    layer, hidden = (
        partial(model.unlooped_layer, attend=attend),
        model.embed(tokens, attend.positions),
    )
    hidden = run_stages(model, hidden, layer, group)
    return model.readout(hidden), stack_counts(exits, tokens)


def stack_counts(exits: Sequence[GroupExit], tokens: Tensor) -> LoopCounts:
    """The counts of all groups, (G, B, T) each; `tokens` (B, T) gives the shape where there is no
    group.
    """
    if not exits:
        none = tokens.new_zeros(0, *tokens.shape)
        return LoopCounts(none, none)
    return LoopCounts(
        torch.stack([e.loop_steps for e in exits]), torch.stack([e.evaluations for e in exits])
    )


# --- the cache of decoding: a slot per (loop step, layer), of one text or of several


def distinct_slots(kv_slots: int | None, max_loops: int) -> int:
    """Slots of the cache that `max_loops` loop steps use under the key `kv_slots` (None: one
    each).
    """
    return min(kv_slots or max_loops, max_loops)


class KVCache:
    """Keys and values of B = `texts` texts of `room` positions (None: the whole context), in the
    dtype of `like`.

    Loop step k reads and writes slot k modulo `slots`; an unlooped layer has one slot. With fewer
    slots than `max_loops` (Geiping's cache sharing) later tokens see, in place of step k, the last
    of a token's steps that used the same slot.

    Attributes:
        stored: Layer -> keys and values (slots, 2, B, G, T, D); all heads of a position are
            contiguous in memory.
    """

    def __init__(
        self, config: ModelConfig, slots: int, like: Tensor, texts: int = 1, room: int | None = None
    ) -> None:
        self.slots = slots
        length = config.context_length if room is None else room
        looped = {number for group in config.groups for number in group}
        self.stored = {}
        for n in range(1, config.num_layers + 1):
            shape = (texts, length, config.kv_heads_of(n), config.head_dim)
            self.stored[n] = like.new_zeros(slots if n in looped else 1, 2, *shape).transpose(3, 4)
        # Making a view costs as much as attention for one token does, so all of them are made here.
        self.views: Views = {
            number: [tuple(slot) for slot in stored] for number, stored in self.stored.items()
        }
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
        """Attention at loop step k for the `token` (1,) at `position` of one text: q (1, H, D) and
        k, v (1, G, D).
        """
        return TokenAttention(
            self._positions[position], token, self.views, k % self.slots, position, self._heads
        )

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

    def fill(
        self, layers: Sequence[int], text: int | Tensor, at: int | Tensor, evaluations: int
    ) -> None:
        """Copy the last evaluation of tokens, at positions `at` of texts `text`, to the slots that
        they did not reach.

        Later tokens then find it at every loop step beyond the exit.
        """
        if evaluations >= self.slots:
            return
        for number in layers:
            stored = self.stored[number]
            last = stored[
                evaluations - 1, :, text, :, at
            ]  # (2, G, D), or (M, 2, G, D) for M tokens
            stored[evaluations:, :, text, :, at] = last if isinstance(at, int) else last[:, None]


class CachedKV:
    """As `ParallelKV`, of the layers of a group for `tokens` at `positions` (B, N), all below
    `end`, of a cache.
    """

    def __init__(
        self, cache: KVCache, layers: Sequence[int], positions: Tensor, end: int, tokens: Tensor
    ) -> None:
        self._cache, self._layers, self._positions, self._end, self._tokens = (
            cache,
            layers,
            positions,
            end,
            tokens,
        )
        self._active: Tensor | None = None  # the rows that looped last

    def attend(self, k: int, active: Tensor) -> Attend:
        if active is not self._active:
            self._active, self._layout = (
                active,
                RowLayout(active, self._positions, self._end, self._tokens),
            )
        return self._cache.attend_rows(k, self._layout)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        at = self._positions.flatten()[rows]
        self._cache.fill(self._layers, rows // self._positions.shape[1], at, evaluations)


def read_parallel(
    engine: ParallelEngine,
    cache: KVCache,
    tokens: Tensor,
    positions: Tensor,
    end: int,
    noise: Noise,
) -> tuple[Tensor, list[GroupExit]]:
    """Read tokens (B, N) at the `positions` (B, N) below `end` in parallel, after those that are in
    the cache.

    Returns their hidden states (B * N, C), which the readout takes, and their exit from each group.
    The cache needs a slot for every loop step. `noise` is for these positions.
    """
    model, exits = engine.model, []
    rows = torch.arange(tokens.numel(), device=tokens.device)
    attend = cache.attend_rows(0, RowLayout(rows, positions, end, tokens))

    def group(index: int, hidden: Tensor) -> Tensor:
        store = CachedKV(cache, model.config.groups[index], positions, end, tokens)
        exits.append(engine.loop(index, hidden.unflatten(0, tokens.shape), noise, store))
        return model.finish(index, exits[-1].states.flatten(0, 1))

    layer, hidden = (
        partial(model.unlooped_layer, attend=attend),
        model.embed(tokens.flatten(), attend.positions),
    )
    return run_stages(model, hidden, layer, group), exits


class TokenAttention:
    """`Attend` of the one token at `position` of a cache, at a loop step that uses `slot`; see
    `KVCache.attend`.
    """

    __slots__ = ("_end", "_heads", "_position", "_slot", "_views", "positions", "tokens")

    def __init__(
        self, positions: Tensor, tokens: Tensor, views: Views, slot: int, position: int, heads: int
    ) -> None:
        self.positions, self.tokens, self._views, self._slot, self._heads = (
            positions,
            tokens,
            views,
            slot,
            heads,
        )
        self._position, self._end = position, position + 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (1, H, D) and k, v (1, G, D) -> (1, H, D)."""
        keys, values = self._views[layer][self._slot]  # (1, G, T, D) each
        keys.select(2, self._position).copy_(k)
        values.select(2, self._position).copy_(v)
        # four axes and no mask: otherwise torch does not take its fused kernel
        seen = keys.narrow(2, 0, self._end), values.narrow(2, 0, self._end)
        is_grouped = keys.shape[1] != self._heads
        return F.scaled_dot_product_attention(q.unsqueeze(2), *seen, enable_gqa=is_grouped).squeeze(
            2
        )


def attend_token(
    stored: Mapping[int, Tensor], position: Tensor, bias: Tensor, token: Tensor
) -> Attend:
    """Attention for the `token` (1,) at `position` (1,): q (1, H, D), k, v (1, G, D). Both are
    known from tensors only.

    stored: keys and values of each layer, (2, 1, G, T, D). bias: (1, 1, 1, T), -inf at the
    positions after the token.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = stored[layer]
        both[:, :, :, position] = torch.stack((k, v)).unsqueeze(3)  # (2, 1, G, 1, D)
        keys, values = both.unbind()
        if q.shape != k.shape:
            return row_attention(q, keys, values, bias[0])
        return attention(q.unsqueeze(2), keys, values, bias).squeeze(2)

    return AttendAt(position, attend, token)
