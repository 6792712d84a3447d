"""Adaptive exits of many positions at once, and the cache of decoding.

Each token loops until its exit criterion fires. The semantics are causal. Token i loops in a group
until its criterion fires or `max_loops` is reached; its state is then frozen. The keys and values
that later tokens see at loop step k are the token's own of step k. If it exited before, they are
from its last evaluation; the step that triggered the exit counts as evaluated. The next group sees
only the state the token left with. So evaluating a text in parallel and decoding it token by token
(`twoscale.exits.decoder`) are the same function.

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
from twoscale.config.criteria import Patience
from twoscale.exits.contract import Decisions, is_sequential, make_readout
from twoscale.exits.criteria import ExitCriterion
from twoscale.model.interface import (
    Attend,
    AttendAt,
    LoopedModel,
    Noise,
    any_weight,
    run_stages,
)
from twoscale.model.kernels import attention, causal_attention, row_attention


@dataclass
class LoopCounts:
    """The loop steps and evaluations of each token, per group: integer tensors (G, B, T)."""

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
        self.text = rows // length
        self.at = positions.flatten()[rows]
        self.tokens = tokens.flatten()[rows]
        # rows of each text (B,); no `bincount`, which waits for the device
        counts = rows.new_zeros(batch).index_add_(0, self.text, torch.ones_like(rows))
        before = counts.cumsum(0) - counts  # rows in the texts before (B,)
        numbers = torch.arange(len(rows), device=rows.device)
        self._rank = numbers - before[self.text]  # of a row among those of its text (M,)
        most = int(counts.max())  # waits for the device
        # the padding of a text points to row 0; `attention` gathers no result of it
        self._source = rows.new_zeros(batch, most)  # (B, A) -> row
        self._source[self.text, self._rank] = numbers
        last_seen = rows.new_zeros(batch, most)  # (B, A)
        last_seen[self.text, self._rank] = self.at
        self.mask = torch.arange(end, device=rows.device) <= last_seen[:, None, :, None]

    def attention(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q (M, H, D) and keys, values (B, G, end, D) -> (M, H, D)."""
        queries = q[self._source].transpose(1, 2)  # (B, H, A, D)
        out = attention(queries, keys, values, self.mask).transpose(1, 2)  # (B, A, H, D)
        return out[self.text, self._rank]


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
        self.model = model
        self.criterion = criterion
        self.max_loops = max_loops
        self.readout = readout

    def loop(
        self, group: int, entered: Tensor, noise: Noise, texts: "TextKV"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loop the tokens (B, T, C) that enter a group; only those that still loop are computed.

        Returns their last states (B * T, C), and loop steps and evaluations (B, T).
        """
        model = self.model
        criterion = self.criterion.of_group(group)
        keeps_previous = criterion.keeps == "previous"
        # the N tokens that still loop, indices into B * T, and what their next step needs
        rows = torch.arange(entered.shape[0] * entered.shape[1], device=entered.device)
        x = model.init_state(group, entered, noise).flatten(0, 1)  # x^0 (N, C)
        injected = model.project_input(group, entered.flatten(0, 1))  # (N, C)
        decisions = Decisions(criterion, x, make_readout(model, criterion, self.readout, group))
        patience = Patience(criterion.patience)
        # of all B * T tokens, as if none left early
        states = torch.empty_like(x)
        loop_steps = torch.full_like(rows, self.max_loops)
        evaluations = loop_steps.clone()

        def noise_of_rows(group: int, k: int, like: Tensor) -> Tensor:
            return noise(group, k, entered).flatten(0, 1)[rows]  # (N, C)

        for k in range(self.max_loops):
            state = model.add_noise(group, k, x, noise_of_rows)
            x_new = model.recur(group, k, state, injected, texts.attend(k, rows))  # x^{k+1} (N, C)
            leaves = patience.ends(decisions.update(x_new))
            exits = leaves.nonzero().squeeze(1)
            if len(exits):
                left = rows[exits]
                kept = x if keeps_previous else decisions.result(x_new)
                states[left] = kept[exits]
                # the step that triggers an exit is a cost, whether its state is kept or not
                evaluations.index_fill_(0, left, k + 1)
                loop_steps.index_fill_(0, left, k if keeps_previous else k + 1)
                texts.freeze(model.config.groups[group], left, k + 1)
                stays = (~leaves).nonzero().squeeze(1)
                rows, injected, x_new = rows[stays], injected[stays], x_new[stays]
                decisions.keep(stays)
                patience.keep(stays)
            x = x_new
            if not len(rows):
                break
        states[rows] = decisions.result(x)  # tokens without an exit
        shape = entered.shape[:2]
        return states, loop_steps.view(shape), evaluations.view(shape)


@torch.inference_mode()
def evaluate(
    model: LoopedModel,
    tokens: Tensor,
    criterion: ExitCriterion,
    max_loops: int,
    noise: Noise,
    readout: str = "head",
) -> tuple[Tensor, LoopCounts]:
    """Teacher-forced logits (B, T, V) of `tokens` (B, T), and the counts of each token."""
    engine = ParallelEngine(model, criterion, max_loops, readout)
    # one slot, which at step k holds the last evaluation of each token up to there
    cache = KVCache(model.config, 1, any_weight(model), *tokens.shape)
    texts = TextKV(cache, tokens, None, tokens.shape[1])
    hidden, counts, _ = read_parallel(engine, texts, noise)
    return model.readout(hidden), counts


# --- the cache of decoding: a slot per (loop step, layer), of one text or of several


def distinct_slots(kv_slots: int | None, max_loops: int) -> int:
    """Slots of the cache that loop steps use under the key `kv_slots` (None: one each)."""
    return min(kv_slots or max_loops, max_loops)


class KVCache:
    """Keys and values of B = `texts` texts of `room` positions (None: the whole context).

    Their dtype is that of `like`. Loop step k reads and writes slot k modulo `slots`; an unlooped
    layer has one slot. With fewer slots than `max_loops` (Geiping's cache sharing) later tokens
    see, in place of step k, the last of a token's steps that used the same slot.

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
            shape = texts, length, config.kv_heads_of(n), config.head_dim
            # allocated as (slots, 2, B, T, G, D), seen with T and G exchanged
            self.stored[n] = like.new_zeros(slots if n in looped else 1, 2, *shape).transpose(3, 4)
        self._positions = torch.arange(length, device=like.device)

    def clear(self) -> None:
        for stored in self.stored.values():
            stored.zero_()

    def copy_from(self, other: "KVCache") -> None:
        """Take over a cache of the same texts with less room."""
        for number, stored in other.stored.items():
            self.stored[number][..., : stored.shape[-2], :] = stored  # the first positions

    def attend(self, k: int, position: int, token: Tensor) -> Attend:
        """Attention at loop step k for the `token` (1,) at `position` of one text.

        q (1, H, D) and k, v (1, G, D) -> (1, H, D).
        """
        slot = k % self.slots
        end = position + 1

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.stored[layer][slot]  # (1, G, T, D) each
            keys[:, :, position] = k
            values[:, :, position] = v
            # four axes and no mask: otherwise torch does not take its fused kernel
            return F.scaled_dot_product_attention(
                q.unsqueeze(2),
                keys[:, :, :end],
                values[:, :, :end],
                enable_gqa=q.shape[1] != k.shape[1],
            ).squeeze(2)

        return AttendAt(self._positions[position:end], attend, token)

    def attend_whole(self, k: int, positions: Tensor, tokens: Tensor) -> Attend:
        """Attention at loop step k for all tokens of whole texts, at the `positions` 0 … (B, T).

        q (B * T, H, D) and k, v (B * T, G, D) -> (B * T, H, D).
        """
        slot = k % self.slots

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (rows.unflatten(0, tokens.shape) for rows in (q, k, v))  # (B, T, heads, D)
            keys, values = self.stored[layer][slot]
            keys.copy_(k.transpose(1, 2))
            values.copy_(v.transpose(1, 2))
            return causal_attention(q, k, v).flatten(0, 1)

        return AttendAt(positions.flatten(), attend, tokens.flatten())

    def attend_rows(self, k: int, layout: RowLayout) -> Attend:
        """Attention at loop step k for the rows of a layout, which bring new keys and values."""
        slot = k % self.slots
        end = layout.mask.shape[-1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.stored[layer][slot]  # (B, G, T, D) each
            keys[layout.text, :, layout.at] = k  # (M, G, D)
            values[layout.text, :, layout.at] = v
            return layout.attention(q, keys[:, :, :end], values[:, :, :end])

        return AttendAt(layout.at, attend, layout.tokens)

    def fill(
        self, layers: Sequence[int], text: int | Tensor, at: int | Tensor, evaluations: int
    ) -> None:
        """Copy the last evaluation of tokens to the slots that they did not reach.

        Later tokens then find it at every loop step beyond the exit. The tokens are at positions
        `at` of texts `text`, both (M,) or both numbers.
        """
        if evaluations >= self.slots:  # the token has written every slot
            return
        for number in layers:
            stored = self.stored[number]
            # (2, G, D) of one token, or (M, 2, G, D)
            last = stored[evaluations - 1, :, text, :, at]
            stored[evaluations:, :, text, :, at] = last if isinstance(at, int) else last[:, None]


class TextKV:
    """Keys and values in a cache of tokens (B, N) that are read at once.

    Args:
        cache: The cache.
        tokens: Token ids (B, N).
        positions: Position of each token in its text (B, N); None for whole texts, 0 … N - 1.
        end: Keys are those of the positions below it.
    """

    def __init__(self, cache: KVCache, tokens: Tensor, positions: Tensor | None, end: int) -> None:
        self.tokens = tokens
        self._cache = cache
        self._is_whole = positions is None
        if positions is None:
            positions = torch.arange(end, device=tokens.device).expand_as(tokens)
        self._positions = positions
        self._end = end
        self._active: Tensor | None = None  # the rows that were computed last

    def attend(self, k: int, active: Tensor) -> Attend:
        """Attention at loop step k for the rows `active`, rising indices into B * N.

        The rows bring new keys and values; the others keep those of their last evaluation.
        """
        if self._is_whole and len(active) == self.tokens.numel():
            return self._cache.attend_whole(k, self._positions, self.tokens)
        # the engine passes the same tensor until a token exits
        if active is not self._active:
            self._active = active
            self._layout = RowLayout(active, self._positions, self._end, self.tokens)
        return self._cache.attend_rows(k, self._layout)

    def freeze(self, layers: Sequence[int], rows: Tensor, evaluations: int) -> None:
        """These rows passed a group's layers for the last time, at this number of evaluations."""
        at = self._positions.flatten()[rows]  # (M,)
        self._cache.fill(layers, rows // self._positions.shape[1], at, evaluations)


def read_parallel(
    engine: ParallelEngine, texts: TextKV, noise: Noise
) -> tuple[Tensor, LoopCounts, list[Tensor]]:
    """Read tokens (B, N) at once, after those in the cache.

    Returns their hidden states (B, N, C), which the readout takes, their counts, and the states
    (B, N, C) with which they leave each group.
    The cache needs a slot for every loop step, or one for whole texts. `noise` is for the positions
    of the tokens.
    """
    model, tokens = engine.model, texts.tokens
    shape = len(model.config.groups), *tokens.shape
    counts = LoopCounts(*torch.zeros(2, *shape, dtype=torch.int64, device=tokens.device))
    left: list[Tensor] = []

    def group(index: int, hidden: Tensor) -> Tensor:
        entered = hidden.unflatten(0, tokens.shape)
        states, counts.loop_steps[index], counts.evaluations[index] = engine.loop(
            index, entered, noise, texts
        )
        left.append(states.view_as(entered))
        return model.finish(index, states)

    # unlooped layers compute all tokens
    attend = texts.attend(0, torch.arange(tokens.numel(), device=tokens.device))
    hidden = model.embed(tokens.flatten(), attend.positions)  # (B * N, C)
    hidden = run_stages(model, hidden, partial(model.unlooped_layer, attend=attend), group)
    return hidden.unflatten(0, tokens.shape), counts, left


def attend_token(
    stored: Mapping[int, Tensor], position: Tensor, bias: Tensor, token: Tensor
) -> Attend:
    """Attention for the `token` (1,) at `position` (1,), both known from tensors only.

    q (1, H, D), k, v (1, G, D) -> (1, H, D). stored: keys and values of each layer, (2, 1, G, T,
    D). bias: (1, 1, 1, T), -inf at the positions after the token.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = stored[layer]
        both[:, :, :, position] = torch.stack((k, v)).unsqueeze(3)  # (2, 1, G, 1, D)
        keys, values = both.unbind()
        # fewer heads of keys than of queries
        if q.shape != k.shape:
            return row_attention(q, keys, values, bias[0])  # (1, 1, T)
        return attention(q.unsqueeze(2), keys, values, bias).squeeze(2)

    return AttendAt(position, attend, token)
