"""The adaptive engine: every token loops until its own rule lets it go, in parallel and in decoding.

One meaning (the causal semantics): token i loops in a group until its rule fires or the budget ends, then
its state is frozen. The keys and values that later tokens see at loop step k are the token's own of step k,
or those of its last evaluation if it left before; the step that triggered counts as evaluated. The next
group sees only the state the token left with. So nothing a token does depends on later tokens, and
evaluating a text in parallel and decoding it token by token are the same function.

Two counts are kept per token and group: `steps`, how many steps the returned state has taken (k of
Algorithm 1), and `evaluations`, how often f was computed; they differ by one where a rule throws the step
that triggered away. Cost is evaluations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.exits import Rule, keep_rows
from twoscale.model import Attend, LoopedTransformer, Noise, causal_attention
from twoscale.noise import EvaluationNoise


@dataclass
class Counts:
    """What each token spent, per group: integer tensors (G, B, T)."""

    steps: Tensor
    evaluations: Tensor


class ParallelMemory:
    """Keys and values of one group while a whole text loops: per layer the latest of every token.

    That is all the semantics need in parallel: at step k the row of a token that still loops has just been
    replaced by its own of step k, and the row of one that left stays at its last evaluation.
    """

    def __init__(self, batch: int, length: int) -> None:
        self.batch, self.length = batch, length
        self.keys: dict[int, Tensor] = {}  # layer -> (B * T, H, D)
        self.values: dict[int, Tensor] = {}

    def attend_all(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention while every token loops: q, k, v (B * T, H, D)."""
        self.keys[layer], self.values[layer] = k.contiguous(), v.contiguous()
        rows = (z.unflatten(0, (self.batch, self.length)) for z in (q, k, v))
        return causal_attention(layer, *rows).flatten(0, 1)

    def attend_some(self, active: Tensor) -> Attend:
        """Attention for the tokens `active` (N,), rising indices into B * T.

        The queries are laid out as (B, A) with A the most active tokens of a sequence; the projections
        around it run on N rows, so only attention pays for the padding.
        """
        sequence, position = active // self.length, active % self.length
        counts = torch.bincount(sequence, minlength=self.batch)
        slot = torch.arange(len(active), device=active.device) - (counts.cumsum(0) - counts)[sequence]
        most = int(counts.max())
        source = active.new_zeros(self.batch, most)
        source[sequence, slot] = torch.arange(len(active), device=active.device)
        # rows that only pad attend to position 0; their result is never read
        allowed_up_to = active.new_zeros(self.batch, most)
        allowed_up_to[sequence, slot] = position
        mask = torch.arange(self.length, device=active.device) <= allowed_up_to[:, None, :, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer].index_copy_(0, active, k)
            self.values[layer].index_copy_(0, active, v)
            stored = (z.unflatten(0, (self.batch, self.length)) for z in (self.keys[layer], self.values[layer]))
            queries, keys, values = (z.transpose(1, 2) for z in (q[source], *stored))
            out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            return out.transpose(1, 2)[sequence, slot]

        return attend


def loop_in_parallel(
    model: LoopedTransformer, group: int, entered: Tensor, rule: Rule, budget: int, noise: Noise
) -> tuple[Tensor, Tensor, Tensor]:
    """Loop the tokens (B, T, C) that enter a group, each until its rule fires.

    Returns the states they leave with (B, T, C), and steps and evaluations, each (B, T). Only tokens that
    still loop are computed.
    """
    batch, length, _ = entered.shape
    memory = ParallelMemory(batch, length)
    active = torch.arange(batch * length, device=entered.device)
    injected = model.inject(group, entered).flatten(0, 1)
    x = model.enter(group, entered, noise).flatten(0, 1)
    returned = torch.empty_like(x)
    steps = torch.full_like(active, budget)
    evaluations = torch.full_like(active, budget)
    state = rule.start(x)

    def active_noise(group: int, k: int, like: Tensor) -> Tensor:
        return noise(group, k, entered).flatten(0, 1)[active]

    for k in range(budget):
        everyone = len(active) == batch * length
        attend = memory.attend_all if everyone else memory.attend_some(active)
        x_new = model.step(group, model.disturb(group, k, x, active_noise), injected, attend)
        leaves, state = rule.update(state, x_new)
        if leaves.any():
            leaving, stays = active[leaves], ~leaves
            returned[leaving] = (x if rule.returns == "previous" else x_new)[leaves]
            evaluations[leaving] = k + 1
            steps[leaving] = k if rule.returns == "previous" else k + 1
            active, injected, x_new = active[stays], injected[stays], x_new[stays]
            state = keep_rows(state, stays)
        x = x_new
        if not len(active):
            break
    returned[active] = x
    shape = (batch, length)
    return returned.unflatten(0, shape), *(z.unflatten(0, shape) for z in (steps, evaluations))


@torch.no_grad()
def evaluate(model: LoopedTransformer, tokens: Tensor, rule: Rule, budget: int, noise: Noise) -> tuple[Tensor, Counts]:
    """Teacher-forced logits (B, T, V) of `tokens` (B, T) under a rule, and what each token spent."""
    hidden = model.embed(tokens)
    spent = []
    for stage, index in model.stages:
        if stage == "layer":
            hidden = model.single_layer(index, hidden)
            continue
        left, *counts = loop_in_parallel(model, index, hidden, rule, budget, noise)
        hidden = model.leave(index, left)
        spent.append(counts)
    return model.decode(hidden), stack_counts(spent, tokens)


def stack_counts(spent: Sequence[Sequence[Tensor]], tokens: Tensor) -> Counts:
    if not spent:
        none = tokens.new_zeros(0, *tokens.shape)
        return Counts(none, none)
    return Counts(*(torch.stack(parts) for parts in zip(*spent, strict=True)))


class Decoder:
    """Decodes one sequence token by token under a rule, with keys and values kept per (loop step, layer).

    The cache is allocated once. At loop step k a token reads and writes slot k; when it leaves, the slots
    that it never reached are filled with its last keys and values.
    """

    def __init__(self, model: LoopedTransformer, rule: Rule, budget: int, seed: int, sequence: int = 0) -> None:
        """sequence: number of the held-out sequence whose noise is read; 0 outside of that text."""
        self.model, self.rule, self.budget = model, rule, budget
        like = model.token_embedding.weight
        shape = (model.settings.heads, model.settings.block, model.settings.head_width)
        looped = {number for numbers in model.settings.groups for number in numbers}
        # layer -> keys and values (2, slots, H, block, D)
        self.cache = {
            number: like.new_zeros(2, budget if number in looped else 1, *shape)
            for number in range(1, model.settings.layers + 1)
        }
        self.noise = EvaluationNoise(seed, [sequence], model.settings.block)
        self._drawn: dict[tuple[int, int], Tensor] = {}  # (group, k) -> (block, C)
        self.position = 0

    def reset(self, rule: Rule | None = None) -> None:
        """Start a new text, under another rule if one is given; the cache is overwritten as it goes."""
        self.position = 0
        self.rule = rule or self.rule

    @torch.no_grad()
    def feed(self, token: int, evaluations: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
        """Logits (V,) after one more token, and the evaluations that each group took.

        With `evaluations` no rule is asked: each group runs as often as told. That is the floor of the
        benchmark, the loops without the price of deciding.
        """
        taken = []
        hidden = self.model.embed(self._as_tensor(token), self.position)[0]
        for stage, index in self.model.stages:
            if stage == "layer":
                hidden = self.model.single_layer(index, hidden, self._attend(0))
                continue
            if evaluations is None:
                hidden, count = self._loop(index, hidden)
            else:
                count = evaluations[index]
                hidden = self._replay(index, hidden, count)
            self._fill(index, count)
            hidden = self.model.leave(index, hidden)
            taken.append(count)
        self.position += 1
        return self.model.decode(hidden)[0], taken

    def _loop(self, group: int, entered: Tensor) -> tuple[Tensor, int]:
        """State (1, C) that the token leaves the group with, and its evaluations."""
        injected = self.model.inject(group, entered)
        x = self.model.enter(group, entered, self._noise_row)
        state = self.rule.start(x)
        for k in range(self.budget):
            disturbed = self.model.disturb(group, k, x, self._noise_row)
            x_new = self.model.step(group, disturbed, injected, self._attend(k))
            leaves, state = self.rule.update(state, x_new)
            if leaves:
                return (x if self.rule.returns == "previous" else x_new), k + 1
            x = x_new
        return x, self.budget

    def _replay(self, group: int, entered: Tensor, count: int) -> Tensor:
        injected = self.model.inject(group, entered)
        x = self.model.enter(group, entered, self._noise_row)
        for k in range(count):
            x = self.model.step(group, self.model.disturb(group, k, x, self._noise_row), injected, self._attend(k))
        return x

    def _attend(self, slot: int) -> Attend:
        position = self.position

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[layer][:, slot]  # (H, block, D) each
            keys[:, position], values[:, position] = k[0], v[0]
            seen = slice(0, position + 1)
            out = F.scaled_dot_product_attention(q.transpose(0, 1), keys[:, seen], values[:, seen])
            return out.transpose(0, 1)

        return attend

    def _fill(self, group: int, count: int) -> None:
        """Give later tokens the last evaluation of this one at the steps that it did not reach."""
        for number in self.model.settings.groups[group]:
            rows = self.cache[number][:, :, :, self.position]  # (2, slots, H, D)
            rows[:, count:] = rows[:, count - 1 : count]

    def _noise_row(self, group: int, k: int, like: Tensor) -> Tensor:
        """The row (1, C) of this position; each array is drawn once."""
        if (group, k) not in self._drawn:
            self._drawn[group, k] = self.noise.rows(group, k, like.shape[-1], like)[0]
        return self._drawn[group, k][self.position, None]

    def _as_tensor(self, token: int) -> Tensor:
        return torch.tensor([[token]], device=self.model.token_embedding.weight.device)
