"""Adaptive decoding of many sequences at once, each token with its own exit.

The tokens in flight, one of each sequence, wait at stations: a looped group each, and the unlooped layers before,
between and behind the groups. One station runs at a time, for all tokens that wait there. At a group that is one loop
step, and the tokens may be at different loop steps (continuous depth batching, arXiv 2608.09444): a token that exits
goes to the next station at once, and tokens that arrive join those that still loop. Every sequence gets what
`twoscale.exits.decoder` gives it alone, because the semantics are causal and a token sees its own sequence only.

On the CPU loop steps are computed eagerly: compiled ones (`exits.compile`) are made for one row.

No token waits for ever: every sequence passes all stations once per token, so while tokens wait at one station, those
of the other sequences run out of work before it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from twoscale.data.batches import HeldOut
from twoscale.errors import InputError
from twoscale.exits.batched_cache import BatchedKVCache, BatchedNoise
from twoscale.exits.captured_loops import same_at_every_step
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.cuda_graphs import CapturedBatchSteps
from twoscale.exits.decoder import read_parallel
from twoscale.exits.generation import NewToken, check_prompt
from twoscale.exits.kv_cache import tensor_on
from twoscale.exits.looping import Looping, Request, Row
from twoscale.exits.parallel import ParallelEngine, stack_counts
from twoscale.exits.prepared import for_batches
from twoscale.exits.readout import make_readout
from twoscale.model.interface import LoopedModel, any_weight

# A station runs again while it has at least this share of the tokens of the fullest one. Then the tokens stay together,
# which keeps the batches large, and the last ones wait for those that arrive next rather than loop alone.
STAY_SHARE = 0.1


class Decoded(NamedTuple):
    """A token that follows the prompt of request `number`, and whether it is the last one."""

    number: int
    token: NewToken
    is_last: bool


@dataclass(frozen=True)
class BatchOptions:
    """How sequences are decoded together.

    Attributes:
        warm_start: As in `DecoderOptions`.
        readout: "head" or "remaining_layers", see `twoscale.exits.readout`.
        wait_for_slowest: In a group all tokens are computed until the last of them has exited, as in Huginn's
            generation: what batches cost without refilling. The results are the same.
        room: Positions that keys and values are allocated for, those of a text with its prompt; None: the whole
            context of the model.
        replay: Loop steps through `CapturedBatchSteps`, if the model has the same at every k. None: on CUDA only.
    """

    warm_start: bool = False
    readout: str = "head"
    wait_for_slowest: bool = False
    room: int | None = None
    replay: bool | None = None


@dataclass
class _Station:
    """A looped group, or unlooped layers in a row, with the tokens that have arrived there."""

    group: int | None = None
    layers: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)  # of the rows, in parts (N, C)

    def arrive(self, rows: Sequence[Row], hidden: Tensor) -> None:
        self.rows += rows
        self.hidden.append(hidden)

    def take(self) -> tuple[list[Row], Tensor]:
        """The rows that have arrived and their hidden states (N, C)."""
        rows, hidden = self.rows, torch.cat(self.hidden)
        self.rows, self.hidden = [], []
        return rows, hidden


StationStep = tuple[int, int]  # number of a station, and k where the loop steps of the model differ, else 0


class BatchedDecoder:
    """Decodes up to `sequences` texts at once under an exit criterion. Keys and values are allocated once."""

    def __init__(
        self,
        model: LoopedModel,
        criterion: ExitCriterion,
        max_loops: int,
        seed: int,
        sequences: int,
        options: BatchOptions = BatchOptions(),
    ) -> None:
        if sequences < 1:
            raise InputError(f"sequences: found {sequences}, expected at least 1.")
        self.criterion, self.max_loops, self.options = criterion, max_loops, options
        self.model, self._prompt_model = for_batches(model, sequences), model
        like = any_weight(model)
        self.room = min(options.room or model.config.context_length, model.config.context_length)
        allocated = model.config.model_copy(update={"context_length": self.room})
        self.cache = BatchedKVCache(allocated, max_loops, sequences, like)
        self._noise = BatchedNoise(model.config, seed, sequences, self.room)
        self._engine = ParallelEngine(model, criterion, max_loops, options.readout)
        self._exit_states = like.new_zeros(len(model.config.groups), sequences, model.config.hidden_size)
        self._positions = torch.arange(self.room, device=like.device)
        with torch.inference_mode():
            self._mixes_steps = not model.config.loop_noise and same_at_every_step(model, max_loops)
            replays = self._mixes_steps and (like.is_cuda if options.replay is None else options.replay)
            self._captured = CapturedBatchSteps(self.model, self.cache) if replays else None

    def reset(self, criterion: ExitCriterion, wait_for_slowest: bool = False) -> None:
        """Decode the next requests under another criterion, with or without waiting for the slowest."""
        self.criterion, self.options = criterion, replace(self.options, wait_for_slowest=wait_for_slowest)
        self._engine = ParallelEngine(self._prompt_model, criterion, self.max_loops, self.options.readout)

    @torch.inference_mode()
    def decode(self, requests: Iterable[Request]) -> Iterator[Decoded]:
        """The tokens that follow each prompt, in the order in which they are chosen.

        Requests are numbered from 0 in their order. The next one is taken when a place is free.
        """
        self._free = list(range(len(self.cache.places)))
        self._stations = _stations(self.model)
        self._looping: dict[StationStep, Looping] = {}
        arriving = enumerate(requests)
        current: StationStep | None = None
        yield from self._admit(arriving)
        while counts := self._counts():
            current = next_station(counts, current)
            yield from self._run(current)
            yield from self._admit(arriving)

    # --- stations ---------------------------------------------------------------------------------------------------

    def _counts(self) -> dict[StationStep, int]:
        """The tokens that wait at each station where there are any."""
        counts = {(number, 0): len(station.rows) for number, station in enumerate(self._stations) if station.rows}
        for step, looping in self._looping.items():
            counts[step] = counts.get(step, 0) + len(looping.rows)
        return counts

    def _run(self, step: StationStep) -> Iterator[Decoded]:
        """Run a station once: the tokens that are chosen there, if it is the last one."""
        number, k = step
        station = self._stations[number]
        if station.group is not None:
            self._enter_group(number)
            self._loop_step(number, k)
            return
        rows, hidden = station.take()
        attend = self.cache.attend([row.step() for row in rows], self._positions_of(rows))
        for layer in station.layers:
            hidden = self.model.unlooped_layer(layer, hidden, attend)
        if station is self._stations[-1]:
            yield from self._choose(rows, self.model.readout(hidden))
        else:
            self._stations[number + 1].arrive(rows, hidden)

    def _enter_group(self, number: int) -> None:
        """The tokens that have arrived at a group begin to loop."""
        station = self._stations[number]
        if not station.rows:
            return
        rows, entered = station.take()
        criterion = self.criterion.of_group(station.group)
        for row in rows:
            row.enter_group(criterion)
        if self.options.warm_start:
            x = self._exit_states[station.group, self._places_of(rows)]
        else:
            noise = self._noise.at([row.place for row in rows], self._positions_of(rows))
            x = self.model.init_state(station.group, entered, noise)
        readout = make_readout(self.model, criterion, self.options.readout, station.group)
        injected = self.model.project_input(station.group, entered)
        self._join((number, 0), Looping(rows, x, injected, [Decisions(criterion, x, readout)]))

    def _loop_step(self, number: int, k: int) -> None:
        """One loop step of the tokens that loop at (number, k); those that exit go to the next station."""
        group = self._stations[number].group
        looping, criterion = self._looping.pop((number, k)), self.criterion.of_group(group)
        steps, positions = [row.step() for row in looping.rows], self._positions_of(looping.rows)
        state = self.model.add_noise(
            group, k, looping.x, self._noise.at([row.place for row in looping.rows], positions)
        )
        if self._captured is None:
            x_new = self.model.recur(group, k, state, looping.injected, self.cache.attend(steps, positions))
        else:
            x_new = self._captured(group, state, looping.injected, steps, positions)
        should_exit = looping.update(x_new)
        for number_of_row, (row, flag) in enumerate(zip(looping.rows, should_exit, strict=True)):
            row.decide(flag, number_of_row, looping.x, x_new, criterion, self.max_loops)
        looping.x = x_new
        leaving = [row for row in looping.rows if row.exit is not None]
        if leaving and (len(leaving) == len(looping.rows) or not self.options.wait_for_slowest):
            self._leave(number, leaving)
            looping.keep([row.exit is None for row in looping.rows])
        if looping.rows:
            self._join((number, 0 if self._mixes_steps else k + 1), looping)

    def _join(self, step: StationStep, looping: Looping) -> None:
        if step in self._looping:
            self._looping[step].join(looping)
        else:
            self._looping[step] = looping

    def _leave(self, number: int, rows: Sequence[Row]) -> None:
        """These tokens have exited from the group of a station."""
        group = self._stations[number].group
        states = torch.cat([row.exit.state for row in rows])  # (N, C)
        for row in rows:
            self.cache.places[row.place].fill(self.model.config.groups[group], row.position, row.exit.evaluations)
            row.evaluations.append(row.exit.evaluations)
            row.k = 0  # unlooped layers have one slot
        if self.options.warm_start:
            self._exit_states[group, self._places_of(rows)] = states
        self._stations[number + 1].arrive(rows, self.model.finish(group, states))

    # --- tokens -----------------------------------------------------------------------------------------------------

    def _admit(self, arriving: Iterator[tuple[int, Request]]) -> Iterator[Decoded]:
        """Give free places to the next requests: read their prompts and choose their first tokens."""
        while self._free and (following := next(arriving, None)) is not None:
            number, request = following
            logits, evaluations = self._read_prompt(number, request)
            remaining = min(request.max_new_tokens, self.room - len(request.prompt))
            row = Row(self._free.pop(0), number, request, remaining, len(request.prompt) - 1, evaluations=evaluations)
            yield from self._choose([row], logits)

    def _read_prompt(self, number: int, request: Request) -> tuple[Tensor, list[int]]:
        """Logits (1, V) after a prompt, and the evaluations of its last token."""
        check_prompt(self.room, request.prompt, f"prompt {number}")
        if request.max_new_tokens < 1:
            raise InputError(f"prompt {number}: found max_new_tokens = {request.max_new_tokens}, expected at least 1.")
        place, length = self._free[0], len(request.prompt)
        self._noise.set_sequence(place, request.sequence)
        tokens, positions = tensor_on(request.prompt, self._positions.device)[None], self._positions[:length]
        cache, noise = self.cache.places[place], self._noise.at([place], positions)
        hidden, exits = read_parallel(self._engine, cache, tokens, positions, length, noise)
        for group, one in enumerate(exits):
            self._exit_states[group, place] = one.states[0, -1]
        return self.model.readout(hidden[0, -1:]), stack_counts(exits, tokens).evaluations[:, 0, -1].tolist()

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> Iterator[Decoded]:
        """The tokens behind these rows, from their logits (N, V); they enter the model unless their text ends."""
        decoded, going = [], []
        for row, row_logits in zip(rows, logits, strict=True):
            row.position, row.remaining = row.position + 1, row.remaining - 1
            token = row.request.choose(row_logits, row.position)
            is_last = not row.remaining or token == row.request.end_of_text
            decoded.append(Decoded(row.number, NewToken(token, tuple(row.evaluations)), is_last))
            row.evaluations = []
            if is_last:
                self._free.append(row.place)
            else:
                going.append((row, token))
        if going:
            staying, tokens = zip(*going, strict=True)
            positions = self._positions_of(staying)
            ids = tensor_on(tokens, positions.device)
            self._stations[0].arrive(staying, self.model.embed(ids, positions))
        yield from decoded

    def _places_of(self, rows: Sequence[Row]) -> Tensor:
        return tensor_on([row.place for row in rows], self._positions.device)

    def _positions_of(self, rows: Sequence[Row]) -> Tensor:
        return tensor_on([row.position for row in rows], self._positions.device)


def next_station(counts: Mapping[StationStep, int], current: StationStep | None) -> StationStep:
    """The station to run, given how many tokens wait at each: the current one while it has enough, else the fullest."""
    fullest = max(counts, key=lambda step: (counts[step], step))
    stays = current in counts and counts[current] >= STAY_SHARE * counts[fullest]
    return current if stays else fullest


def _stations(model: LoopedModel) -> list[_Station]:
    """The stations in the order of the model. The last one reads out, with or without layers of its own."""
    stations = [_Station()]
    for stage in model.stages:
        if stage.is_group:
            stations += [_Station(group=stage.group), _Station()]
        else:
            stations[-1].layers.append(stage.layer)
    return [s for s in stations[:-1] if s.group is not None or s.layers] + stations[-1:]


def given_texts(text: HeldOut, prompt: int, tokens: int) -> list[Request]:
    """A request for each held-out sequence: its first tokens, and as many behind them as are decoded."""
    return [
        Request(ids[:prompt], tokens, lambda logits, position, ids=ids: ids[position], sequence=sequence)
        for ids, sequence in zip(text.inputs[:, : prompt + tokens].tolist(), text.sequences, strict=True)
    ]
