"""Loops of one token as captured CUDA graphs, each with several loop steps and the decisions of an exit criterion."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from twoscale.base import first_line
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.cuda_graphs import Replay, graphs_of
from twoscale.exits.kv_cache import KVCache, attend_token
from twoscale.exits.readout import make_readout
from twoscale.exits.token_exit import Decided
from twoscale.model.interface import Attend, AttendAt, LoopedModel, Noise, any_weight

MOST_CRITERIA = 128  # whose graphs are kept
COMPILATIONS = 64  # of the same function, for groups and models that differ

# Loop step k of a group: k, state and input (1, C), position (1,), bias (1, 1, 1, T), and keys and values
# (2, 1, G, T, D) of each layer -> state (1, C)
Recur = Callable[[int, Tensor, Tensor, Tensor, Tensor, Sequence[Tensor]], Tensor]


class CapturedLoops:
    """`TokenLoops` by graphs of `steps_per_graph` loop steps, which decide about exits on the device.

    The host starts a graph before it has read the decisions of the last one. A token that exits may so have taken
    up to 2 * steps_per_graph - 1 steps too many; `KVCache.fill` overwrites what they wrote. Where loop steps share
    slots of the cache nothing may be computed ahead: there a graph has one step and the host waits for its decision.

    A graph reads the token's position, the bias that masks later positions, states and noise from tensors with fixed
    addresses. Attention covers the whole context, so the cache has to be finite. A criterion that cannot be captured,
    because it waits for the device, decides on the host after each graph.
    """

    masks = True

    def __init__(
        self, model: LoopedModel, cache: KVCache, max_loops: int, readout: str, compile: bool, steps_per_graph: int
    ) -> None:
        self.model, self._cache, self._max_loops, self._readout = model, cache, max_loops, readout
        self._size, self._ahead = (1, 0) if cache.slots < max_loops else (steps_per_graph, 1)
        self._make_inputs()
        self._graphs = graphs_of(model)
        groups = range(len(model.config.groups))
        self._recur = [make_recur(model, group) for group in groups]
        self._compiled = False
        if compile and same_at_every_step(model, max_loops):
            self._compile()
        unlooped = (stage.index for stage in model.stages if not stage.is_group)
        self._layers = {number: self._capture(partial(self._layer, number)) for number in unlooped}
        # group -> number of loop steps -> the graph that takes the last of them
        self._fixed = [self._captured_steps(group, None, range(1, max_loops + 1)) for group in groups]
        # id of a criterion, which is kept, and group -> its graphs; None where it decides on the host
        self._programs: dict[tuple[int, int], tuple[ExitCriterion, dict[int, Replay] | None]] = {}

    def _make_inputs(self) -> None:
        config, like, loops = self.model.config, any_weight(self.model), self._max_loops
        length = config.context_length
        self.positions = torch.zeros(1, dtype=torch.int64, device=like.device)
        self._bias = like.new_zeros(1, 1, 1, length)
        # the bias at position p is what this has from T - 1 - p on
        self._biases = torch.cat((like.new_zeros(length), like.new_full((length - 1,), -torch.inf)))
        self._hidden, self.x0, self._injected = (like.new_zeros(1, config.hidden_size) for _ in range(3))
        self._noise = like.new_zeros(loops, 1, config.hidden_size)
        self.flags = torch.zeros(loops, dtype=torch.bool, pin_memory=like.is_cuda)
        self.start(0, lambda group, k, like: torch.zeros_like(like))

    # --- one token -------------------------------------------------------------------------------------------------

    def start(self, position: int, noise: Noise) -> None:
        self._noise_of = noise
        self.positions.fill_(position)
        length = self._bias.shape[-1]
        self._bias.copy_(self._biases[length - 1 - position :][:length])

    def layer(self, number: int, hidden: Tensor) -> Tensor:
        self._hidden.copy_(hidden)
        return self._layers[number]()

    def decided(self, criterion: ExitCriterion, group: int, entered: Tensor, x: Tensor) -> Iterator[Decided]:
        self._enter(group, entered, x)
        program = self._program(criterion, group)
        if program is None:
            yield from self._decided_on_host(criterion.of_group(group), group)
            return
        running: deque[tuple[int, Replay, list[Tensor]]] = deque()
        for stop, replay in program.items():
            running.append((stop, replay, replay()))
            if len(running) > self._ahead:
                yield from self._read(*running.popleft())
        for started in running:
            yield from self._read(*started)

    def fixed(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Tensor:
        self._enter(group, entered, x)
        for stop in self._stops(loops):
            states = self._fixed[group][stop]()
        return states[-1]

    def step(self, group: int, entered: Tensor, x: Tensor) -> Callable[[], object]:
        self._enter(group, entered, x)
        return self._fixed[group][1]

    def check(self, criterion: ExitCriterion, group: int, x: Tensor) -> Callable[[], object]:
        readout = make_readout(self.model, criterion, self._readout, group, self._attend_unlooped())
        return self._capture(one_check(criterion, x, readout))

    def _enter(self, group: int, entered: Tensor, x: Tensor) -> None:
        self._injected.copy_(self.model.project_input(group, entered))
        self.x0.copy_(x)
        if self.model.config.loop_noise and self._max_loops > 1:
            rows = [self._noise_of(group, k, self.x0) for k in range(1, self._max_loops)]
            torch.stack(rows, out=self._noise[1:])

    def _read(self, stop: int, replay: Replay, states: Sequence[Tensor]) -> Iterator[Decided]:
        """The decisions of a graph, once they have arrived."""
        replay.wait()
        steps = range(stop - len(states), stop)
        return zip(steps, states, self.flags[steps.start : stop].tolist(), strict=True)

    def _decided_on_host(self, criterion: ExitCriterion, group: int) -> Iterator[Decided]:
        decisions = self.decisions(criterion, group)
        for stop in self._stops(self._max_loops):
            states = self._fixed[group][stop]()
            for k, x_new in enumerate(states, start=stop - len(states)):
                should_exit = decisions.update(x_new)
                yield k, decisions.result(x_new), should_exit

    def _stops(self, loops: int) -> list[int]:
        """The loop steps taken after each graph of a token that takes so many."""
        return [*range(self._size, loops, self._size), loops]

    # --- graphs ----------------------------------------------------------------------------------------------------

    def prepare(self, criterion: ExitCriterion) -> None:
        """Capture what tokens need under a criterion, if that has not happened; the cache at their position changes."""
        for group in range(len(self.model.config.groups)):
            self._program(criterion, group)

    def _program(self, criterion: ExitCriterion, group: int) -> dict[int, Replay] | None:
        key = id(criterion), group
        if key not in self._programs:
            if len(self._programs) >= MOST_CRITERIA * len(self.model.config.groups):
                self._programs.clear()
            self._programs[key] = criterion, self._try_capture(criterion.of_group(group), group)
        return self._programs[key][1]

    def _try_capture(self, criterion: ExitCriterion, group: int) -> dict[int, Replay] | None:
        try:
            return self._captured_steps(group, criterion, self._stops(self._max_loops))
        except Exception as error:  # the user's code may raise anything; what it raises on the host is reported
            warnings.warn(
                f"exit criterion {type(criterion).__name__}: cannot be captured in a CUDA graph ({first_line(error)}), "
                "so it decides on the host after each graph, which is slower.",
                stacklevel=2,
            )
            return None

    def _captured_steps(self, group: int, criterion: ExitCriterion | None, stops: Sequence[int]) -> dict[int, Replay]:
        """Loop steps taken -> the graph that takes the last ones up to there."""
        loop = Loop(self, group, criterion)
        whole = [partial(loop, *span) for span in self._spans(self._stops(self._max_loops))]
        self._graphs.warm_up(lambda: [part() for part in whole], may_wait=criterion is None)
        return {span[1]: self._graphs.capture(partial(loop, *span)) for span in self._spans(stops)}

    def _spans(self, stops: Sequence[int]) -> list[tuple[int, int]]:
        return [((stop - 1) // self._size * self._size, stop) for stop in stops]

    def _capture(self, function: Callable[[], Any]) -> Replay:
        self._graphs.warm_up(function)
        return self._graphs.capture(function)

    def _compile(self) -> None:
        """Compile loop steps; where that is impossible they stay as they are."""
        eager, self._compiled = self._recur, True
        self._recur = [torch.compile(recur, fullgraph=True, dynamic=False) for recur in eager]
        try:
            with torch._dynamo.config.patch(recompile_limit=COMPILATIONS):
                for group in range(len(eager)):
                    self._graphs.warm_up(partial(self.recur, group, 0, self.x0))
        except Exception as error:  # no Triton, no compiler, or code that torch does not compile
            self._recur, self._compiled = eager, False
            reason = f"exits.compile: loop steps are captured without compilation ({first_line(error)})."
            warnings.warn(reason, stacklevel=2)

    # --- what graphs compute ---------------------------------------------------------------------------------------

    def recur(self, group: int, k: int, x: Tensor) -> Tensor:
        """Loop step k: x^k (1, C) -> x^{k+1} (1, C)."""
        state = self.model.add_noise(group, k, x, lambda group, k, like: self._noise[k])
        return self._recur[group](0 if self._compiled else k, *self.arguments(group, k, state))

    def arguments(self, group: int, k: int, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        """The arguments of `Recur` after k."""
        stored = [self._cache.stored[layer][k % self._cache.slots] for layer in self.model.config.groups[group]]
        return state, self._injected, self.positions, self._bias, stored

    def decisions(self, criterion: ExitCriterion, group: int) -> Decisions:
        readout = make_readout(self.model, criterion, self._readout, group, self._attend_unlooped())
        return Decisions(criterion, self.x0, readout)

    def _layer(self, number: int) -> Tensor:
        return self.model.unlooped_layer(number, self._hidden, self._attend_unlooped())

    def _attend_unlooped(self) -> Attend:
        return attend_token({n: stored[0] for n, stored in self._cache.stored.items()}, self.positions, self._bias)


def one_check(criterion: ExitCriterion, x: Tensor, readout: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    """A call that decides on the state x (1, C); the first decision, which also reads out x^0, is made here."""
    _, state = criterion.update(criterion.start(x), x, readout)
    return partial(criterion.update, state, x, readout)


class Loop:
    """The loop of a token in a group, of which graphs are captured part by part."""

    def __init__(self, loops: CapturedLoops, group: int, criterion: ExitCriterion | None) -> None:
        self._loops, self._group, self._criterion = loops, group, criterion

    def __call__(self, start: int, stop: int) -> list[Tensor]:
        """Loop steps start … stop - 1, which follow those before: the states to exit with; flags go to the host."""
        if start == 0:
            self._states = [self._loops.x0]
            self._decisions = self._criterion and self._loops.decisions(self._criterion, self._group)
        del self._states[start + 1 :]
        exits, results = [], []
        for k in range(start, stop):
            self._states.append(self._loops.recur(self._group, k, self._states[k]))
            if self._decisions:
                exits.append(self._decisions.update(self._states[-1]))
                results.append(self._decisions.result(self._states[-1]))
        if exits:
            self._loops.flags[start:stop].copy_(torch.cat(exits), non_blocking=True)
        return results or self._states[start + 1 :]


def make_recur(model: LoopedModel, group: int) -> Recur:
    """A loop step as a function of tensors."""
    layers = model.config.groups[group]

    def recur(
        k: int, state: Tensor, injected: Tensor, position: Tensor, bias: Tensor, stored: Sequence[Tensor]
    ) -> Tensor:
        attend = attend_token(dict(zip(layers, stored, strict=True)), position, bias)
        return model.recur(group, k, state, injected, attend)

    return recur


def same_at_every_step(model: LoopedModel, max_loops: int) -> bool:
    """Whether `recur` is the same function at every k."""
    like = any_weight(model)
    source = torch.Generator().manual_seed(0)
    state = torch.randn(1, model.config.hidden_size, generator=source).to(like)
    position = torch.zeros(1, dtype=torch.int64, device=like.device)

    def attend_itself(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v.repeat_interleave(q.shape[-2] // v.shape[-2], -2)

    attend = AttendAt(position, attend_itself)
    return all(
        torch.equal(model.recur(group, 0, state, state, attend), model.recur(group, k, state, state, attend))
        for group in range(len(model.config.groups))
        for k in (1, max_loops - 1)
    )
