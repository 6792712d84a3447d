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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale import config
from twoscale.errors import InputError
from twoscale.exits.criteria import Decode, PatienceCounter, ExitCriterion, keep_rows
from twoscale.model.transformer import Attend, LoopedTransformer, Noise, causal_attention
from twoscale.model.noise import EvaluationNoise


@dataclass
class LoopCounts:
    """What each token spent, per group: integer tensors (G, B, T)."""

    steps: Tensor
    evaluations: Tensor


class RemainingLayers:
    """Decodes a state of the last group as the model would go on with it, through the layers behind the group.

    So the parent's code looks at predictions (Geiping et al., `predict_from_latents`). What earlier tokens left
    behind in those layers comes from the states that they left the group with, so positions are read one after
    another. States of earlier groups, behind which tokens loop again, go to the head directly.
    """

    def __init__(self, model: LoopedTransformer) -> None:
        self.model = model
        self._last = len(model.groups) - 1
        behind = model.stages.index(("loop", self._last)) + 1 if model.groups else 0
        self._layers = [number for _stage, number in model.stages[behind:]]
        self._group = 0
        self._attend: Attend | None = None

    def enter(self, group: int, attend: Attend) -> None:
        """From now on states are those of `group`; `attend` is the attention of single-pass layers at their place."""
        self._group, self._attend = group, attend

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (1, V) of the state x (1, C) of the one token that loops."""
        if self._attend is None:
            raise InputError("exit criterion: found one that decodes states, expected needs_readout = True in its class.")
        if self._group != self._last:
            return self.model.readout(x)
        hidden = self.model.finish(self._group, x)
        for number in self._layers:
            hidden = self.model.unlooped_layer(number, hidden, self._attend)
        return self.model.readout(hidden)


def state_decoder(model: LoopedTransformer, name: str) -> Decode:
    """What a rule sees predictions through: the `head` on the state itself (§4), or the `remaining_layers` first."""
    return RemainingLayers(model) if name == "remaining_layers" else model.readout


def is_sequential(criterion: ExitCriterion) -> bool:
    """Whether a text can be read under the rule only position by position."""
    return criterion.needs_readout and isinstance(criterion.decode, RemainingLayers)


def require_parallel(criterion: ExitCriterion) -> None:
    if is_sequential(criterion):
        raise InputError(
            "exits.readout: found remaining_layers, expected head where positions are computed together; with the "
            "remaining layers a prediction needs the states that earlier tokens left with."
        )


class KVStore(Protocol):
    """Keys and values that the tokens of a group, rows 0 … N - 1, see while they loop together."""

    def attend(self, k: int, active: Tensor) -> Attend:
        """Attention at loop step k for the rows `active`, rising, which bring new keys and values."""

    def leave(self, rows: Tensor, evaluations: int) -> None:
        """These rows were computed for the last time, at their evaluation number `evaluations`."""


class ParallelKV:
    """Keys and values of one group while a whole text loops: per layer the latest of every token.

    That is all the semantics need in parallel: at step k the row of a token that still loops has just been
    replaced by its own of step k, and the row of one that left stays at its last evaluation.
    """

    def __init__(self, batch: int, length: int) -> None:
        self.batch, self.length = batch, length
        self.keys: dict[int, Tensor] = {}  # layer -> (B * T, H, D)
        self.values: dict[int, Tensor] = {}

    def attend(self, k: int, active: Tensor) -> Attend:
        everyone = len(active) == self.batch * self.length
        return self._attend_all if everyone else self._attend_some(active)

    def leave(self, rows: Tensor, evaluations: int) -> None:
        """Nothing to do: their rows stay as they are."""

    def _attend_all(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention while every token loops: q, k, v (B * T, H, D)."""
        self.keys[layer], self.values[layer] = k.contiguous(), v.contiguous()
        rows = (z.unflatten(0, (self.batch, self.length)) for z in (q, k, v))
        return causal_attention(layer, *rows).flatten(0, 1)

    def _attend_some(self, active: Tensor) -> Attend:
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
    model: LoopedTransformer, group: int, entered: Tensor, criterion: ExitCriterion, budget: int, noise: Noise, memory: KVStore
) -> tuple[Tensor, Tensor, Tensor]:
    """Loop the tokens (B, T, C) that enter a group, each until its rule fires.

    Returns the states they leave with (B, T, C), and steps and evaluations, each (B, T). Only tokens that
    still loop are computed.
    """
    batch, length, _ = entered.shape
    active = torch.arange(batch * length, device=entered.device)
    injected = model.project_input(group, entered).flatten(0, 1)
    x = model.init_state(group, entered, noise).flatten(0, 1)
    returned = torch.empty_like(x)
    steps = torch.full_like(active, budget)
    evaluations = torch.full_like(active, budget)
    in_a_row = torch.zeros_like(active)
    state = criterion.start(x)

    def active_noise(group: int, k: int, like: Tensor) -> Tensor:
        return noise(group, k, entered).flatten(0, 1)[active]

    for k in range(budget):
        disturbed = model.add_noise(group, k, x, active_noise)
        x_new = model.recur(group, disturbed, injected, memory.attend(k, active))
        met, state = criterion.update(state, x_new)
        in_a_row = (in_a_row + 1) * met
        leaves = in_a_row == criterion.patience
        if leaves.any():
            leaving, stays = active[leaves], ~leaves
            returned[leaving] = (x if criterion.keeps == "previous" else x_new)[leaves]
            evaluations[leaving] = k + 1
            steps[leaving] = k if criterion.keeps == "previous" else k + 1
            memory.leave(leaving, k + 1)
            active, injected, x_new = active[stays], injected[stays], x_new[stays]
            state, in_a_row = keep_rows(state, stays), in_a_row[stays]
        x = x_new
        if not len(active):
            break
    returned[active] = x
    shape = (batch, length)
    return returned.unflatten(0, shape), *(z.unflatten(0, shape) for z in (steps, evaluations))


@torch.inference_mode()
def evaluate(model: LoopedTransformer, tokens: Tensor, criterion: ExitCriterion, budget: int, noise: Noise) -> tuple[Tensor, LoopCounts]:
    """Teacher-forced logits (B, T, V) of `tokens` (B, T) under a criterion, and what each token spent."""
    require_parallel(criterion)
    hidden = model.embed(tokens)
    spent = []
    for stage, index in model.stages:
        if stage == "layer":
            hidden = model.unlooped_layer(index, hidden)
            continue
        memory = ParallelKV(*tokens.shape)
        left, *counts = loop_in_parallel(model, index, hidden, criterion, budget, noise, memory)
        hidden = model.finish(index, left)
        spent.append(counts)
    return model.readout(hidden), stack_counts(spent, tokens)


def stack_counts(spent: Sequence[Sequence[Tensor]], tokens: Tensor) -> LoopCounts:
    if not spent:
        none = tokens.new_zeros(0, *tokens.shape)
        return LoopCounts(none, none)
    return LoopCounts(*(torch.stack(parts) for parts in zip(*spent, strict=True)))


def distinct_slots(kv_slots: int | None, budget: int) -> int:
    """Slots of the cache that `budget` loop steps use where `kv_slots` are asked for (None: one each)."""
    return min(kv_slots or budget, budget)


class KVCache:
    """Keys and values of one sequence, a slot per (loop step, layer), allocated once.

    Step k reads and writes slot k modulo `slots`; a layer outside the groups has the slot 0 alone. With
    fewer slots than the budget (Geiping's cache sharing) later tokens see, in place of step k, the last of
    a token's steps that fell on the same slot.
    """

    def __init__(self, model: config.ModelConfig, slots: int, like: Tensor) -> None:
        self.slots = slots
        looped = {number for group in model.groups for number in group}
        shape = (1, model.num_heads, model.context_length, model.head_dim)
        self.stored = {  # layer -> (slots, 2, 1, H, block, D): keys and values
            number: like.new_zeros(slots if number in looped else 1, 2, *shape) for number in range(1, model.num_layers + 1)
        }
        # layer -> slot -> keys and values (1, H, block, D): making these views costs as much as attention does
        self._views = {number: [tuple(slot) for slot in stored] for number, stored in self.stored.items()}

    def clear(self) -> None:
        for stored in self.stored.values():
            stored.zero_()

    def attend(self, k: int, position: int) -> Attend:
        """Attention at loop step k for the one token at `position`: q, k, v (1, H, D)."""
        slot, end = k % self.slots, position + 1

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._views[layer][slot]
            keys.select(2, position).copy_(k)
            values.select(2, position).copy_(v)
            # four axes, and no mask: otherwise torch leaves its fused kernel
            out = F.scaled_dot_product_attention(q.unsqueeze(2), keys[:, :, :end], values[:, :, :end])
            return out.squeeze(2)

        return attend

    def attend_parallel(self, k: int, positions: Tensor, end: int) -> Attend:
        """Attention at loop step k for the tokens at `positions` (N,), all below `end`: q, k, v (N, H, D)."""
        slot = k % self.slots
        mask = torch.arange(end, device=positions.device) <= positions[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._views[layer][slot]
            keys[0].index_copy_(1, positions, k.transpose(0, 1))
            values[0].index_copy_(1, positions, v.transpose(0, 1))
            queries = q.transpose(0, 1)[None]
            out = F.scaled_dot_product_attention(queries, keys[:, :, :end], values[:, :, :end], attn_mask=mask)
            return out[0].transpose(0, 1)

        return attend

    def fill(self, layers: Sequence[int], positions: int | Tensor, evaluations: int) -> None:
        """Give later tokens the last evaluation of these at the slots that they never reached."""
        if evaluations >= self.slots:
            return
        for number in layers:
            stored = self.stored[number]
            stored[evaluations:, :, :, :, positions] = stored[evaluations - 1, :, :, :, positions]


class CachedKV:
    """What loops together are positions start … start + length - 1 of a cache that keeps every step."""

    def __init__(self, cache: KVCache, layers: Sequence[int], start: int, length: int) -> None:
        self.cache, self.layers, self.start, self.end = cache, layers, start, start + length

    def attend(self, k: int, active: Tensor) -> Attend:
        return self.cache.attend_parallel(k, self.start + active, self.end)

    def leave(self, rows: Tensor, evaluations: int) -> None:
        self.cache.fill(self.layers, self.start + rows, evaluations)


class CapturedSteps:
    """Loop steps of the one token at `position` of a cache, (1, C) -> (1, C).

    On CUDA a step is the replay of a graph that was captured when this object was made, one a group and loop
    step: a single call for the host in place of the twenty kernels of a layer. A graph has fixed addresses and
    shapes, so state, input and position are copied to where it reads them, and attention covers the whole block
    under a mask, so what stands in the cache behind the position has to be finite. What computes a step is the
    same function, captured or not.
    """

    def __init__(self, model: LoopedTransformer, cache: KVCache, budget: int) -> None:
        like = model.token_embedding.weight
        self.model, self.cache = model, cache
        self.position = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.state, self.injected = (like.new_zeros(1, model.config.hidden_size) for _ in range(2))
        every = [(group, k) for group in range(len(model.groups)) for k in range(budget)]
        if like.is_cuda:
            self._steps = self._captured(every)
        else:
            self._steps = {which: partial(self._compute, *which) for which in every}

    def begin(self, position: int, injected: Tensor) -> None:
        """What stays the same while a token loops in a group."""
        self.position.fill_(position)
        self.injected.copy_(injected)

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        self.state.copy_(state)
        return self._steps[group, k]()

    def _compute(self, group: int, k: int) -> Tensor:
        attend = self.cache.attend_parallel(k, self.position, self.model.config.context_length)
        return self.model.recur(group, self.state, self.injected, attend)

    def _captured(self, every: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Callable[[], Tensor]]:
        side, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # shared by all graphs
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up at a first call, which no graph may hold
            for group in range(len(self.model.groups)):
                self._compute(group, 0)
        torch.cuda.current_stream().wait_stream(side)
        return {which: self._capture(*which, side, pool) for which in every}

    def _capture(self, group: int, k: int, side: "torch.cuda.Stream", pool: tuple[int, int]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            made = self._compute(group, k)

        def replay() -> Tensor:
            graph.replay()
            return made.clone()  # the graphs share their memory: the next replay of any may overwrite it

        return replay


class AsyncFlags:
    """Booleans on their way from the device to the host, at most two at a time."""

    def __init__(self) -> None:
        self._buffers = [(torch.empty(1, dtype=torch.bool, pin_memory=True), torch.cuda.Event()) for _ in range(2)]

    def send(self, flag: Tensor) -> Callable[[], bool]:
        """Start to fetch the one boolean of a tensor (1,); calling what is returned waits for it."""
        host, arrived = self._buffers[0]
        self._buffers.reverse()
        host.copy_(flag, non_blocking=True)
        arrived.record()

        def read() -> bool:
            arrived.synchronize()
            return bool(host)

        return read


class Decoder:
    """Decodes one sequence under a rule on top of a cache that is allocated once.

    Tokens come one by one (`feed`) or several at once (`feed_parallel`), with the same result; `rewind`
    takes the last ones back.
    """

    def __init__(
        self,
        model: LoopedTransformer,
        criterion: ExitCriterion,
        budget: int,
        seed: int,
        sequence: int = 0,
        kv_slots: int | None = None,
        warm_start: bool = False,
        replay: bool | None = None,
    ) -> None:
        """sequence: number of the held-out sequence whose noise is read; 0 outside of that text.

        kv_slots: loop steps share this many slots of the cache (None: each has its own). warm_start: a
        token that is fed starts each group from the state with which the token before left it (Geiping et
        al.); those of a prompt still start as in training. replay (None: on CUDA only): tokens that are fed one
        by one loop through `CapturedSteps`, and unless slots are shared the next step begins before the decision
        on the last one has arrived.
        """
        if kv_slots is not None and kv_slots < 1:
            raise InputError(f"kv_slots: found {kv_slots}, expected at least 1.")
        self.model, self.criterion, self.budget = model, criterion, budget
        self.warm_start = warm_start
        like = model.token_embedding.weight
        self.cache = KVCache(model.config, distinct_slots(kv_slots, budget), like)
        self.noise = EvaluationNoise(seed, [sequence], model.config.context_length)
        self._drawn: dict[tuple[int, int], Tensor] = {}  # (group, k) -> (block, C)
        # group -> the states (block, C) that tokens left it with: the next one's start if that is warm
        self._left = [like.new_zeros(model.config.context_length, model.config.hidden_size) for _ in model.groups]
        self.position = 0
        with torch.inference_mode():
            replays = like.is_cuda if replay is None else replay
            self._captured_steps = CapturedSteps(model, self.cache, budget) if replays else None
        self._flags = AsyncFlags() if like.is_cuda else None

    @property
    def shares_slots(self) -> bool:
        return self.cache.slots < self.budget

    def reset(self, criterion: ExitCriterion | None = None, sequence: int | None = None) -> None:
        """Start a new text, under another rule and with another sequence's noise if they are given.

        The cache is overwritten as it goes.
        """
        self.position = 0
        if self._captured_steps is not None:
            self.cache.clear()
        self.criterion = rule or self.criterion
        if sequence is not None:
            self.noise = EvaluationNoise(self.noise.seed, [sequence], self.noise.block)
            self._drawn.clear()

    def rewind(self, position: int) -> None:
        """Forget the tokens from `position` on: no later token sees what the cache still holds of them."""
        if not 0 <= position <= self.position:
            raise ValueError(f"{position} is not a position between 0 and {self.position}")
        self.position = position

    @torch.inference_mode()
    def feed(self, token: int, evaluations: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
        """Logits (V,) after one more token, and the evaluations that each group took.

        With `evaluations`, at least 1 each, no rule is asked: each group runs as often as told. That is the
        floor of the benchmark, the loops without the price of deciding.
        """
        logits, counts = self._feed_one(token, self.warm_start, evaluations)
        return logits, [taken for _, taken in counts]

    @torch.inference_mode()
    def feed_parallel(self, tokens: Sequence[int]) -> tuple[Tensor, LoopCounts]:
        """Logits (N, V) after each of N more tokens, computed in parallel, and what they spent (G, 1, N)."""
        if self.shares_slots:
            raise InputError(
                f"kv_slots: found {self.cache.slots} slots for a budget of {self.budget} loops, expected a slot for "
                "each loop where positions are computed together; feed them one by one."
            )
        require_parallel(self.criterion)
        self._check_room(len(tokens))
        batch = self._as_tensor(tokens)
        everyone = torch.arange(len(tokens), device=batch.device)
        hidden = self.model.embed(batch, self.position)  # (1, N, C)
        spent = []
        for stage, index in self.model.stages:
            memory = self._memory(stage, index, len(tokens))
            if stage == "layer":
                hidden = self.model.unlooped_layer(index, hidden[0], memory.attend(0, everyone))[None]
                continue
            left, *counts = loop_in_parallel(
                self.model, index, hidden, self.criterion, self.budget, self._noise_rows, memory
            )
            self._left[index][self.position : self.position + len(tokens)] = left[0]
            hidden = self.model.finish(index, left)
            spent.append(counts)
        self.position += len(tokens)
        return self.model.readout(hidden)[0], stack_counts(spent, batch)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> tuple[Tensor, LoopCounts]:
        """Read a prompt of N tokens: logits (N, V) after each and what they spent (G, 1, N).

        In parallel where every loop step has a slot of its own and the rule allows it, else position by position.
        """
        if not (self.shares_slots or is_sequential(self.criterion)):
            return self.feed_parallel(tokens)
        logits, counts = zip(*(self._feed_one(token, warm=False) for token in tokens), strict=True)
        spent = torch.tensor(counts, dtype=torch.int64).reshape(len(tokens), len(self.model.groups), 2)
        return torch.stack(logits), LoopCounts(*spent.permute(2, 1, 0)[:, :, None])

    def _feed_one(
        self, token: int, warm: bool, evaluations: Sequence[int] | None = None
    ) -> tuple[Tensor, list[tuple[int, int]]]:
        """Logits (V,) after one more token, and per group its steps and evaluations."""
        self._check_room(1)
        counts = []
        hidden = self.model.embed(self._as_tensor([token]), self.position)[0]
        for stage, index in self.model.stages:
            if stage == "layer":
                hidden = self.model.unlooped_layer(index, hidden, self.cache.attend(0, self.position))
                continue
            if evaluations is None:
                left, *count = self._loop(index, hidden, warm)
            else:
                left, *count = self._loop_fixed(index, hidden, warm, evaluations[index])
            self.cache.fill(self.model.config.groups[index], self.position, count[1])
            if self.warm_start:
                self._left[index][self.position] = left[0]
            hidden = self.model.finish(index, left)
            counts.append(tuple(count))
        self.position += 1
        return self.model.readout(hidden)[0], counts

    def _loop(self, group: int, entered: Tensor, warm: bool) -> tuple[Tensor, int, int]:
        """State (1, C) that the token leaves the group with, its steps and its evaluations."""
        criterion = self.criterion
        if is_sequential(criterion):
            criterion.decode.enter(group, self.cache.attend(0, self.position))
        x = self._start(group, entered, warm)
        state, in_a_row = criterion.start(x), PatienceCounter(criterion.patience)
        ahead = self._runs_ahead
        undecided = None  # whether the last step met the threshold, on its way, and what the token leaves with if so
        for k, x_new in self._states(group, entered, x, self.budget):
            if undecided is not None and in_a_row.reached(undecided[0]()):
                return undecided[1]  # the step just taken was one too many
            met, state = criterion.update(state, x_new)
            left = (x, k, k + 1) if criterion.keeps == "previous" else (x_new, k + 1, k + 1)
            if ahead:
                undecided = self._fetched(met), left
            elif in_a_row.reached(met):
                return left
            x = x_new
        if undecided is not None and in_a_row.reached(undecided[0]()):
            return undecided[1]
        return x, self.budget, self.budget

    def _fetched(self, met: Tensor) -> Callable[[], bool]:
        return partial(bool, met) if self._flags is None else self._flags.send(met)

    @property
    def _runs_ahead(self) -> bool:
        """Whether a step may be taken that turns out to be one too many: `fill` overwrites what it left behind.

        It would not where the slot that such a step writes held an earlier one's keys and values.
        """
        return self._captured_steps is not None and not self.shares_slots

    def _loop_fixed(self, group: int, entered: Tensor, warm: bool, count: int) -> tuple[Tensor, int, int]:
        """The same after `count` evaluations, with no rule asked."""
        for _, x in self._states(group, entered, self._start(group, entered, warm), count):  # noqa: B007
            pass
        return x, count, count

    def _states(self, group: int, entered: Tensor, x: Tensor, most: int) -> Iterator[tuple[int, Tensor]]:
        """k and x^{k+1} (1, C) for k = 0 … most - 1."""
        injected, replayed = self.model.project_input(group, entered), self._captured_steps
        if replayed is not None:
            replayed.begin(self.position, injected)
        for k in range(most):
            disturbed = self.model.add_noise(group, k, x, self._noise_rows)
            if replayed is not None:
                x = replayed(group, k, disturbed)
            else:
                x = self.model.recur(group, disturbed, injected, self.cache.attend(k, self.position))
            yield k, x

    def _start(self, group: int, entered: Tensor, warm: bool) -> Tensor:
        if warm and self.position:
            return self._left[group][self.position - 1, None]
        return self.model.init_state(group, entered, self._noise_rows)

    def _memory(self, stage: str, index: int, length: int) -> CachedKV:
        layers = self.model.config.groups[index] if stage == "loop" else ()
        return CachedKV(self.cache, layers, self.position, length)

    def _noise_rows(self, group: int, k: int, like: Tensor) -> Tensor:
        """Rows of the positions that are being fed, shaped like `like` (…, N, C); each array is drawn once."""
        if (group, k) not in self._drawn:
            self._drawn[group, k] = self.noise.rows(group, k, like.shape[-1], like)[0]
        return self._drawn[group, k][self.position : self.position + like.shape[-2]].view_as(like)

    def _check_room(self, count: int) -> None:
        block = self.model.config.context_length
        if self.position + count > block:
            raise InputError(
                f"text: found {self.position + count} tokens, expected at most model.context_length = {block}, the positions "
                "that the model knows."
            )

    def _as_tensor(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.model.token_embedding.weight.device)


@torch.inference_mode()
def evaluate_by_position(
    decoder: Decoder, tokens: Tensor, criterion: ExitCriterion, sequences: Sequence[int]
) -> tuple[Tensor, LoopCounts]:
    """`evaluate`, one of the `sequences` (B) after the other through the cache of `decoder`.

    It takes longer, and it can be had where loop steps share slots or rules look through the remaining layers.
    """
    read = []
    for row, sequence in zip(tokens, sequences, strict=True):
        decoder.reset(criterion, sequence)
        read.append(decoder.prefill(row.tolist()))
    logits, counts = zip(*read, strict=True)
    parts = [torch.cat([getattr(count, kind) for count in counts], dim=1) for kind in ("steps", "evaluations")]
    return torch.stack(logits), LoopCounts(*parts)
