"""Adaptive decoding: one sequence through a KV cache, each token looping until its exit criterion fires.

The semantics are those of `twoscale.exits.parallel`: decoding token by token and reading a text in parallel
are the same function.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from twoscale.errors import InputError
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.cuda_graphs import AsyncFlags
from twoscale.exits.kv_cache import CachedKV, KVCache, distinct_slots
from twoscale.exits.parallel import GroupExit, LoopCounts, ParallelEngine, stack_counts
from twoscale.exits.readout import is_sequential, make_readout
from twoscale.exits.steps import make_steps
from twoscale.model.interface import LoopedModel, Noise, any_weight, run_stages
from twoscale.model.noise import EvaluationNoise


@dataclass(frozen=True)
class DecoderOptions:
    """How a decoder runs its loops.

    Attributes:
        sequence: Number of the held-out sequence whose noise is read; 0 for other text.
        kv_slots: Loop steps share this many slots of the cache; None: each has its own.
        warm_start: Start a token that is fed in each group from the state with which the token before left it
            (Geiping et al.). Tokens of a prompt still start as in training.
        replay: Tokens that are fed one by one loop through `CapturedSteps`; unless slots are shared, the next
            step begins before the decision on the last one has arrived. None: on CUDA only.
        compile: Tokens that are fed one by one on the CPU loop through `CompiledSteps`.
        readout: "head" or "remaining_layers", see `twoscale.exits.readout`.
    """

    sequence: int = 0
    kv_slots: int | None = None
    warm_start: bool = False
    replay: bool | None = None
    compile: bool = False
    readout: str = "head"

    def __post_init__(self) -> None:
        if self.kv_slots is not None and self.kv_slots < 1:
            raise InputError(f"kv_slots: found {self.kv_slots}, expected at least 1.")


@dataclass
class TokenExit:
    """The result of one group for one token: its state (1, C), loop steps and evaluations."""

    state: Tensor
    loop_steps: int
    evaluations: int


def exit_after(k: int, x: Tensor, x_new: Tensor, keeps_previous: bool) -> TokenExit:
    """The exit at loop step k, which led from x to x_new (1, C)."""
    return TokenExit(x, k, k + 1) if keeps_previous else TokenExit(x_new, k + 1, k + 1)


class PatienceCounter:
    """Counts for one token the loop steps in a row at which its criterion said exit."""

    def __init__(self, patience: int) -> None:
        self.patience, self.count = patience, 0

    def exits(self, should_exit: bool) -> bool:
        """Whether the token exits after one more loop step."""
        self.count = self.count + 1 if should_exit else 0
        return self.count == self.patience


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
        options: DecoderOptions = DecoderOptions(),
    ) -> None:
        self.model, self.criterion, self.max_loops, self.options = model, criterion, max_loops, options
        config, like = model.config, any_weight(model)
        self.cache = KVCache(config, distinct_slots(options.kv_slots, max_loops), like)
        self.noise = EvaluationNoise.of(config, seed, [options.sequence])
        self._noise_arrays: dict[tuple[int, int], Tensor] = {}  # (group, k) -> (T, C)
        # group -> exit states (T, C) of the tokens so far: the next token's initial state if that is warm
        self._exit_states = [like.new_zeros(config.context_length, config.hidden_size) for _ in config.groups]
        self._positions = torch.arange(config.context_length, device=like.device)
        self.position = 0
        with torch.inference_mode():
            replay = like.is_cuda if options.replay is None else options.replay
            self._steps = make_steps(model, self.cache, max_loops, replay, options.compile)
        self._row_model = self._steps.model
        self._flags = AsyncFlags() if like.is_cuda else None

    @property
    def shares_slots(self) -> bool:
        return self.cache.slots < self.max_loops

    @property
    def is_sequential(self) -> bool:
        """Whether positions have to be computed one after another."""
        return self.shares_slots or is_sequential(self.criterion, self.options.readout)

    def reset(self, criterion: ExitCriterion | None = None, sequence: int | None = None) -> None:
        """Start a new text, with another criterion and another sequence's noise if they are given.

        The cache is overwritten as the text grows.
        """
        self.position = 0
        if self._steps.masks:
            self.cache.clear()
        self.criterion = criterion or self.criterion
        if sequence is not None:
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
                f"kv_slots: found {self.cache.slots} slots for {self.max_loops} loops, expected a slot for each loop "
                "step where positions are computed in parallel; feed them one by one."
            )
        engine = ParallelEngine(self.model, self.criterion, self.max_loops, self.options.readout)
        self._check_room(len(tokens))
        batch, rows = self._as_tensor(tokens), slice(self.position, self.position + len(tokens))
        hidden, exits = read_parallel(engine, self.cache, batch, self._positions[rows], rows.stop, self._noise_rows)
        for states, one in zip(self._exit_states, exits, strict=True):
            states[rows] = one.states[0]
        self.position = rows.stop
        return self.model.readout(hidden)[0], stack_counts(exits, batch)

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
        attend = self.cache.attend(0, self.position)
        exits: list[TokenExit] = []

        def layer(number: int, hidden: Tensor) -> Tensor:
            return self._row_model.unlooped_layer(number, hidden, attend)

        def group(index: int, hidden: Tensor) -> Tensor:
            if evaluations is None:
                exits.append(self._loop(index, hidden, warm))
            else:
                exits.append(self._loop_fixed(index, hidden, warm, evaluations[index]))
            self.cache.fill(self.model.config.groups[index], self.position, exits[-1].evaluations)
            if self.options.warm_start:
                self._exit_states[index][self.position] = exits[-1].state[0]
            return self._row_model.finish(index, exits[-1].state)

        hidden = self._row_model.embed(self._as_tensor([token]), attend.positions)[0]  # (1, C)
        hidden = run_stages(self.model, hidden, layer, group)
        self.position += 1
        return self._row_model.readout(hidden)[0], exits

    def _loop(self, group: int, entered: Tensor, warm: bool) -> TokenExit:
        """Loop the token in a group until its criterion fires or `max_loops` is reached.

        With steps that run ahead, the step after a decision starts before the decision has arrived (`pending`); if
        the token exits, that step was one too many and `fill` overwrites its keys and values.
        """
        criterion = self.criterion.of_group(group)
        readout = make_readout(
            self._row_model, criterion, self.options.readout, group, self.cache.attend(0, self.position)
        )
        x = self._init_state(group, entered, warm)
        decisions, patience = Decisions(criterion, x, readout), PatienceCounter(criterion.patience)
        keeps_previous, runs_ahead = criterion.keeps == "previous", self._runs_ahead
        pending: tuple[Callable[[], bool], TokenExit] | None = None
        for k, x_new in self._states(group, entered, x, self.max_loops):
            if pending is not None and patience.exits(pending[0]()):
                return pending[1]
            should_exit = decisions.update(x_new)
            if runs_ahead:
                pending = self._read_async(should_exit), exit_after(k, x, x_new, keeps_previous)
            elif patience.exits(should_exit):
                return exit_after(k, x, x_new, keeps_previous)
            x = x_new
        if pending is not None and patience.exits(pending[0]()):
            return pending[1]
        return TokenExit(x, self.max_loops, self.max_loops)

    def _read_async(self, should_exit: Tensor) -> Callable[[], bool]:
        return partial(bool, should_exit) if self._flags is None else self._flags.send(should_exit)

    @property
    def _runs_ahead(self) -> bool:
        """Whether a step may be computed that turns out to be one too many.

        Not where slots are shared: there the slot of such a step holds the keys and values of an earlier one.
        """
        return self._steps.runs_ahead and not self.shares_slots

    def _loop_fixed(self, group: int, entered: Tensor, warm: bool, loops: int) -> TokenExit:
        """Bypass the criterion: run the given number of loop steps."""
        for _, x in self._states(group, entered, self._init_state(group, entered, warm), loops):  # noqa: B007
            pass
        return TokenExit(x, loops, loops)

    def _states(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Iterator[tuple[int, Tensor]]:
        """k and x^{k+1} (1, C) for k = 0 … loops - 1."""
        steps, add_noise, noise = self._steps, self._row_model.add_noise, self._noise_rows
        steps.begin(self.position, self._row_model.project_input(group, entered))
        for k in range(loops):
            x = steps(group, k, add_noise(group, k, x, noise))
            yield k, x

    def _init_state(self, group: int, entered: Tensor, warm: bool) -> Tensor:
        if warm and self.position:
            return self._exit_states[group][self.position - 1, None]
        return self._row_model.init_state(group, entered, self._noise_rows)

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
        return torch.tensor([tokens], device=self._positions.device)


def read_parallel(
    engine: ParallelEngine, cache: KVCache, tokens: Tensor, positions: Tensor, end: int, noise: Noise
) -> tuple[Tensor, list[GroupExit]]:
    """Read tokens (1, N) at the `positions` (N,) below `end` in parallel, after those that are in the cache.

    Returns their hidden states (1, N, C), which the readout takes, and their exit from each group. The cache needs a
    slot for every loop step. `noise` is that of these positions.
    """
    model, exits = engine.model, []

    def layer(number: int, hidden: Tensor) -> Tensor:
        return model.unlooped_layer(number, hidden[0], cache.attend_parallel(0, positions, end))[None]

    def group(index: int, hidden: Tensor) -> Tensor:
        store = CachedKV(cache, model.config.groups[index], end - len(positions), len(positions))
        exits.append(engine.loop(index, hidden, noise, store))
        return model.finish(index, exits[-1].states)

    return run_stages(model, model.embed(tokens, positions), layer, group), exits


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
    """Logits (B, T, V) of `tokens` (B, T) whose evaluations are those of `plan` (G, B, T), through the cache."""
    logits = []
    for row, evaluations, sequence in zip(tokens.tolist(), plan.permute(1, 2, 0).tolist(), sequences, strict=True):
        decoder.reset(sequence=sequence)
        logits.append(torch.stack([decoder.feed(*token)[0] for token in zip(row, evaluations, strict=True)]))
    return torch.stack(logits)
