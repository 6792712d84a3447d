"""Adaptive decoding: one sequence through a KV cache, each token looping until its exit criterion fires.

The semantics are as in `twoscale.exits.parallel`: decoding token by token and reading a text in parallel
are the same function.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.kv_cache import CachedKV, KVCache, distinct_slots, tensor_on
from twoscale.exits.parallel import GroupExit, LoopCounts, ParallelEngine, stack_counts
from twoscale.exits.prepared import for_batches
from twoscale.exits.readout import is_sequential
from twoscale.exits.steps import DecoderOptions, make_loops
from twoscale.exits.token_exit import TokenExit, first_exit
from twoscale.model.interface import LoopedModel, Noise, any_weight, run_stages
from twoscale.model.kernels import MULTIPLE
from twoscale.model.noise import EvaluationNoise

DEFAULTS = DecoderOptions()


class Decoder:
    """Decodes one sequence under an exit criterion.

    Tokens are fed one by one (`feed`) or several at once (`feed_parallel`), with the same result; `rewind`
    removes the last ones.
    """

    def __init__(
        self,
        model: LoopedModel,
        criterion: ExitCriterion,
        max_loops: int,
        seed: int,
        options: DecoderOptions = DEFAULTS,
    ) -> None:
        self.model, self.criterion, self.max_loops, self.options = model, criterion, max_loops, options
        self._rows_model = for_batches(model)  # for a few tokens at once, such as drafts
        config, like = model.config, any_weight(model)
        self.cache = KVCache(config, distinct_slots(options.kv_slots, max_loops), like, policy=model.kv_policy)
        self.noise = EvaluationNoise.of(config, seed, [options.sequence])
        self._noise_arrays: dict[tuple[int, int], Tensor] = {}  # (group, k) -> (T, C)
        # group -> exit states (T, C) of the tokens so far: the next token's initial state if that is warm
        self._exit_states = [like.new_zeros(config.context_length, config.hidden_size) for _ in config.groups]
        self._positions = torch.arange(config.context_length, device=like.device)
        self.position = 0
        with torch.inference_mode():
            self._loops = make_loops(model, self.cache, max_loops, options)
            self._loops.prepare(criterion)

    @property
    def shares_slots(self) -> bool:
        return self.cache.slots < self.max_loops

    @property
    def is_sequential(self) -> bool:
        """Whether positions have to be computed one after another."""
        return self.shares_slots or is_sequential(self.criterion, self.options.readout)

    @torch.inference_mode()
    def reset(self, criterion: ExitCriterion | None = None, sequence: int | None = None) -> None:
        """Start a new text, with another criterion and another sequence's noise if they are given.

        The cache is overwritten as the text grows.
        """
        self.position = 0
        if criterion is not None:
            self.criterion = criterion
            self._loops.prepare(criterion)
        if self._loops.masks:
            self.cache.clear()
        if sequence is not None and sequence not in self.noise.sequences:  # arrays of the same one stay
            self.noise = EvaluationNoise.of(self.model.config, self.noise.seed, [sequence])
            self._noise_arrays.clear()

    def rewind(self, position: int) -> None:
        """Remove the tokens from `position` on. Their rows in the cache are overwritten before they are read."""
        if not 0 <= position <= self.position:
            raise ValueError(f"{position} is not a position between 0 and {self.position}")
        self.position = position

    @torch.inference_mode()
    def feed(self, token: int, evaluations: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
        """Logits (V,) after one more token, and the evaluations of each group.

        With `evaluations`, at least 1 each, the criterion is bypassed and each group runs that many loop
        steps: the baseline of the latency benchmark, the loops without the cost of deciding.
        """
        logits, exits = self._feed_one(token, self.options.warm_start, evaluations)
        return logits, [one.evaluations for one in exits]

    @torch.inference_mode()
    def feed_parallel(self, tokens: Sequence[int]) -> tuple[Tensor, LoopCounts]:
        """Logits (N, V) after each of N more tokens, computed in parallel, and their counts (G, 1, N)."""
        if self.shares_slots:
            raise InputError(
                f"kv_slots: found {self.cache.slots} slots for {self.max_loops} loops, expected one slot per loop "
                "step for positions computed in parallel; feed the tokens one by one."
            )
        model = self._rows_model if len(tokens) < MULTIPLE else self.model
        engine = ParallelEngine(model, self.criterion, self.max_loops, self.options.readout)
        self._check_room(len(tokens))
        batch, rows = self._as_tensor(tokens), slice(self.position, self.position + len(tokens))
        hidden, exits = read_parallel(engine, self.cache, batch, self._positions[rows], rows.stop, self._noise_rows)
        for states, one in zip(self._exit_states, exits, strict=True):
            states[rows] = one.states[0]
        self.position = rows.stop
        return self.model.readout(hidden), stack_counts(exits, batch)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> tuple[Tensor, LoopCounts]:
        """Read a prompt of N tokens: logits (N, V) after each and their counts (G, 1, N).

        In parallel where every loop step has its own slot and the criterion allows it, otherwise position by
        position.
        """
        if not self.is_sequential:
            return self.feed_parallel(tokens)
        logits, exits = zip(*(self._feed_one(token, warm=False) for token in tokens), strict=True)
        counts = [[(one.loop_steps, one.evaluations) for one in groups] for groups in exits]
        shape = (len(tokens), len(self.model.config.groups), 2)
        per_token = torch.tensor(counts, dtype=torch.int64).reshape(shape)
        return torch.stack(logits), LoopCounts(*per_token.permute(2, 1, 0)[:, :, None])

    def _feed_one(
        self, token: int, warm: bool, evaluations: Sequence[int] | None = None
    ) -> tuple[Tensor, list[TokenExit]]:
        """Logits (V,) after one more token, and its exit from each group."""
        self._check_room(1)
        # the model of `loops` computes the same as `self.model`, on the CPU with less host work for one row
        loops, model, exits = self._loops, self._loops.model, []
        loops.start(self.position, self._noise_rows)

        def group(index: int, entered: Tensor) -> Tensor:
            if warm and self.position:
                x = self._exit_states[index][self.position - 1, None]
            else:
                x = model.init_state(index, entered, self._noise_rows)
            exits.append(self._loop(index, entered, x, evaluations[index] if evaluations else None))
            # at the loop steps that this token did not take, later tokens find its last evaluation, or nothing
            self.cache.fill(model.config.groups[index], self.position, exits[-1].evaluations)
            if self.options.warm_start:  # a copy, because captured loops give the next state in the same memory
                self._exit_states[index][self.position] = exits[-1].state[0]
            return model.finish(index, exits[-1].state)

        hidden = model.embed(self._as_tensor([token]), loops.positions)[0]  # (1, C)
        hidden = run_stages(model, hidden, loops.layer, group)
        self.position += 1
        return model.readout(hidden)[0], exits

    def _loop(self, group: int, entered: Tensor, x: Tensor, evaluations: int | None) -> TokenExit:
        """Loop the token from the state x (1, C) until its criterion fires or `max_loops` is reached.

        With `evaluations` it takes that many loop steps instead.
        """
        if evaluations is not None:  # nothing is decided
            return TokenExit(self._loops.fixed(group, entered, x, evaluations), evaluations, evaluations)
        # k, x^{k+1} and the criterion's decision on it, for k = 0, 1, …; eager loops compute a step when it is taken
        # from here, captured ones are ahead of it, and `cache.fill` overwrites what these wrote
        decided = self._loops.decided(self.criterion, group, entered, x)
        # the first step at which the decisions in a row are as many as the criterion's patience
        return first_exit(decided, self.criterion.of_group(group), x, self.max_loops)

    def _noise_rows(self, group: int, k: int, like: Tensor) -> Tensor:
        """The rows of the positions that are being fed, shaped like `like` (…, N, C); arrays are drawn once."""
        if (group, k) not in self._noise_arrays:
            self._noise_arrays[group, k] = self.noise.rows(group, k, like.shape[-1], like)[0]
        return self._noise_arrays[group, k][self.position : self.position + like.shape[-2]].view_as(like)

    def _check_room(self, count: int) -> None:
        room = self.model.config.context_length
        if self.position + count > room:
            raise InputError(
                f"text: found {self.position + count} tokens, expected at most model.context_length = {room}."
            )

    def _as_tensor(self, tokens: Sequence[int]) -> Tensor:
        """(1, N)."""
        return tensor_on(tokens, self._positions.device)[None]


def read_parallel(
    engine: ParallelEngine, cache: KVCache, tokens: Tensor, positions: Tensor, end: int, noise: Noise
) -> tuple[Tensor, list[GroupExit]]:
    """Read tokens (1, N) at the `positions` (N,) below `end` in parallel, after those that are in the cache.

    Returns their hidden states (N, C), which the readout takes, and their exit from each group. The cache needs a
    slot for every loop step. `noise` is for these positions.
    """
    model, exits = engine.model, []

    def layer(number: int, hidden: Tensor) -> Tensor:
        return model.unlooped_layer(number, hidden, cache.attend_parallel(0, positions, end))

    def group(index: int, hidden: Tensor) -> Tensor:
        store = CachedKV(cache, model.config.groups[index], end - len(positions), len(positions))
        exits.append(engine.loop(index, hidden[None], noise, store))
        return model.finish(index, exits[-1].states[0])

    return run_stages(model, model.embed(tokens, positions)[0], layer, group), exits


@torch.inference_mode()
def evaluate_by_position(
    decoder: Decoder, tokens: Tensor, criterion: ExitCriterion, sequences: Sequence[int]
) -> tuple[Tensor, LoopCounts]:
    """`parallel.evaluate` through the cache of `decoder`, one after another of the `sequences` (B,).

    Slower, but also works with shared slots and with criteria that read out through the remaining layers.
    """
    logits, counts = [], []
    for row, sequence in zip(tokens, sequences, strict=True):
        decoder.reset(criterion, sequence)
        row_logits, row_counts = decoder.prefill(row.tolist())
        logits.append(row_logits)
        counts.append(row_counts)
    parts = (torch.cat([getattr(count, name) for count in counts], dim=1) for name in vars(counts[0]))
    return torch.stack(logits), LoopCounts(*parts)


@torch.inference_mode()
def evaluate_planned(decoder: Decoder, tokens: Tensor, plan: Tensor, sequences: Sequence[int]) -> Tensor:
    """Logits (B, T, V) of `tokens` (B, T) with the evaluations of `plan` (G, B, T), through the cache."""
    logits = []
    for row, evaluations, sequence in zip(tokens.tolist(), plan.permute(1, 2, 0).tolist(), sequences, strict=True):
        decoder.reset(sequence=sequence)
        logits.append(torch.stack([decoder.feed(*token)[0] for token in zip(row, evaluations, strict=True)]))
    return torch.stack(logits)
