"""Adaptive exits of a whole text in parallel: each token loops until its exit criterion fires.

The semantics are causal. Token i loops in a group until its criterion fires or `max_loops` is reached; its state is
then frozen. The keys and values that later tokens see at loop step k are the token's own of step k. If it exited
before, they are from its last evaluation; the step that triggered the exit counts as evaluated. The next group sees
only the state the token left with. So evaluating a text in parallel and decoding it token by token
(`twoscale.exits.decoder`) are the same function.

Two counts are kept per token and group: `loop_steps`, the number of steps that the returned state has taken
(k of Algorithm 1), and `evaluations`, the number of calls of f, which is the cost. They differ by one where a criterion
discards the step that triggered the exit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.exits.contract import Decisions, is_sequential, make_readout
from twoscale.exits.criteria import ExitCriterion
from twoscale.model.interface import Attend, AttendAt, CausalAttention, LoopedModel, Noise, run_stages
from twoscale.model.kernels import attention, causal_attention


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


class KVStore(Protocol):
    """Keys and values that the tokens of a group, rows 0 … N - 1, see while they loop together."""

    def attend(self, k: int, active: Tensor) -> Attend:
        """Attention at loop step k for the rows `active`, rising, which bring new keys and values."""

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        """These rows were computed for the last time, at their evaluation number `evaluations`."""


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
        mask: Which positions the queries see, bool (B, 1, A, end). Padding sees position 0; its result is never read.
    """

    def __init__(self, rows: Tensor, positions: Tensor, end: int, tokens: Tensor) -> None:
        batch, length = positions.shape
        self.text, self.at, self.tokens = rows // length, positions.flatten()[rows], tokens.flatten()[rows]
        # no `bincount`, which waits for the device
        counts = rows.new_zeros(batch).index_add_(0, self.text, torch.ones_like(rows))
        # rank of a row among those of its text: cumsum - counts is the number of rows in the texts before
        self._rank = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[self.text]
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
    """Keys and values of one group while whole texts (B, T) loop: per layer the latest of every token.

    At step k the row of a token that still loops has just been replaced by its own of step k, and the row of a token
    that has exited holds its last evaluation.
    """

    def __init__(self, tokens: Tensor) -> None:
        (self.batch, self.length), self.tokens = tokens.shape, tokens
        self.keys: dict[int, Tensor] = {}  # layer -> (B * T, G, D)
        self.values: dict[int, Tensor] = {}

    def attend(self, k: int, active: Tensor) -> Attend:
        if len(active) == self.batch * self.length:
            return AttendAt(active % self.length, self._attend_all, self.tokens.flatten())
        positions = torch.arange(self.length, device=active.device).expand(self.batch, -1)
        layout = RowLayout(active, positions, self.length, self.tokens)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer].index_copy_(0, active, k)
            self.values[layer].index_copy_(0, active, v)
            stored = self.keys[layer], self.values[layer]
            keys, values = (z.unflatten(0, (self.batch, self.length)).transpose(1, 2) for z in stored)
            return layout.attention(q, keys, values, layout.mask)

        return AttendAt(layout.at, attend, layout.tokens)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        """The rows keep their last keys and values."""

    def _attend_all(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention while every token loops: q (B * T, H, D) and k, v (B * T, G, D)."""
        self.keys[layer], self.values[layer] = k.contiguous(), v.contiguous()
        return causal_attention(*(rows.unflatten(0, (self.batch, self.length)) for rows in (q, k, v))).flatten(0, 1)


class ParallelEngine:
    """Runs groups for many positions at once, each token until its criterion fires."""

    def __init__(self, model: LoopedModel, criterion: ExitCriterion, max_loops: int, readout: str = "head") -> None:
        if is_sequential(criterion, readout):
            raise InputError(
                "exits.readout: found remaining_layers, expected head for positions computed in parallel; with the "
                "remaining layers, a prediction needs the exit states of earlier tokens."
            )
        self.model, self.criterion, self.max_loops, self.readout = model, criterion, max_loops, readout

    def loop(self, group: int, entered: Tensor, noise: Noise, store: KVStore) -> GroupExit:
        """Loop the tokens (B, T, C) that enter a group. Only tokens that still loop are computed."""
        model, criterion = self.model, self.criterion.of_group(group)
        # the tokens that still loop, as indices into B * T (N,), and row by row what their next step needs
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
                rows, injected, x_new, streak = (values[stays] for values in (rows, injected, x_new, streak))
                decisions.keep(stays)
            x = x_new
            if not len(rows):
                break
        states[rows] = decisions.result(x)
        shape = entered.shape[:2]
        return GroupExit(*(values.unflatten(0, shape) for values in (states, loop_steps, evaluations)))


@torch.inference_mode()
def evaluate(
    model: LoopedModel, tokens: Tensor, criterion: ExitCriterion, max_loops: int, noise: Noise, readout: str = "head"
) -> tuple[Tensor, LoopCounts]:
    """Teacher-forced logits (B, T, V) of `tokens` (B, T) under a criterion, and the counts of each token."""
    engine = ParallelEngine(model, criterion, max_loops, readout)
    attend = CausalAttention.of(tokens)
    exits: list[GroupExit] = []

    def layer(number: int, hidden: Tensor) -> Tensor:
        return model.unlooped_layer(number, hidden, attend)

    def group(index: int, hidden: Tensor) -> Tensor:
        exits.append(engine.loop(index, hidden, noise, ParallelKV(tokens)))
        return model.finish(index, exits[-1].states)

    hidden = run_stages(model, model.embed(tokens, attend.positions), layer, group)
    return model.readout(hidden), stack_counts(exits, tokens)


def stack_counts(exits: Sequence[GroupExit], tokens: Tensor) -> LoopCounts:
    """The counts of all groups, (G, B, T) each; `tokens` (B, T) gives the shape where there is no group."""
    if not exits:
        none = tokens.new_zeros(0, *tokens.shape)
        return LoopCounts(none, none)
    return LoopCounts(torch.stack([e.loop_steps for e in exits]), torch.stack([e.evaluations for e in exits]))
