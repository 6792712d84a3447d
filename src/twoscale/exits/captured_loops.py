"""Loops of one token as captured CUDA graphs of several loop steps and their decisions."""

import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from twoscale.base import first_line
from twoscale.exits.contract import Decided, Decisions, make_readout
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.parallel import KVCache, attend_token
from twoscale.model.interface import Attend, LoopedModel, Noise, Readout, any_weight

MOST_CRITERIA = 128  # whose graphs are kept
COMPILATIONS = 64  # of the same function, for groups, models and loop steps that differ


@dataclass(frozen=True)
class Replay:
    """A captured function.

    `call` runs it again, with its result in the same memory; `wait` until the run has ended.
    """

    call: Callable[[], Any]
    wait: Callable[[], object] = lambda: None


class Graphs:
    """Captures functions as CUDA graphs, which the host starts with one call.

    Without CUDA a replay calls the function. All graphs share their memory. The tensors that are
    alive during a capture are safe from the captured graph, so a result is read before a graph runs
    that was captured earlier, or it is copied.
    """

    def __init__(self, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self._renew()

    def _renew(self) -> None:
        """Take a stream and memory that no capture has used."""
        self._stream: Any = torch.cuda.Stream() if self._on_cuda else None
        self._pool: Any = torch.cuda.graph_pool_handle() if self._on_cuda else None

    def warm_up(self, function: Callable[[], object], may_wait: bool = True) -> None:
        """Run a function before its capture, because libraries initialise and compile at their
        first call.

        Raises RuntimeError if it waits for the device, which no capture may contain, unless it
        `may_wait`.
        """
        if self._stream is None:
            return
        # the function sees what has been queued so far, and what is queued later waits for it
        self._stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_sync_debug_mode("default" if may_wait else "error")
        try:
            with torch.cuda.stream(self._stream):
                function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.current_stream().wait_stream(self._stream)

    def capture(self, function: Callable[[], Any]) -> Replay:
        """The graph of a function.

        Raises RuntimeError where CUDA refuses the capture; others are possible after it. CUDA
        refuses a capture during which memory of an earlier one is freed, as garbage collection may
        do at any time. Only calls of this thread count: another one may pin memory for the next
        batch of training.
        """
        if self._stream is None:
            return Replay(function)
        graph = torch.cuda.CUDAGraph()
        ended = torch.cuda.Event()
        gc.disable()
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = function()
                finally:
                    graph.capture_end()
        except BaseException:
            # where `capture_end` raises, it has not told the allocator, which would take further
            # memory from the pool
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
            self._renew()
            raise
        finally:
            gc.enable()

        def replay() -> Any:
            graph.replay()
            ended.record()
            return result

        return Replay(replay, ended.synchronize)


class CapturedLoops:
    """The loops of a token by graphs of `steps_per_graph` loop steps, which decide about exits on
    the device.

    The host starts a graph before it has read the decisions of the last one. A token that exits may
    so have taken up to 2 * steps_per_graph - 1 steps too many; `KVCache.fill` overwrites what they
    wrote. Where loop steps share slots of the cache, a graph has one step and the host waits for
    its decision. Graphs read tensors with fixed addresses. Attention covers the whole context, so
    the cache has to be finite.
    """

    masks = True

    def __init__(
        self,
        model: LoopedModel,
        cache: KVCache,
        max_loops: int,
        readout: str,
        compile: bool,
        steps_per_graph: int,
    ) -> None:
        self.model = model
        self._cache = cache
        self._max_loops = max_loops
        self._readout = readout
        shares_slots = cache.slots < max_loops
        self._size = 1 if shares_slots else steps_per_graph
        self._ahead = 0 if shares_slots else 1  # graphs that run before decisions are read
        config = model.config
        like = any_weight(model)
        groups = range(len(config.groups))
        # what graphs read: place of the token, what enters a layer, a loop and its steps
        self.positions = torch.zeros(1, dtype=torch.int64, device=like.device)
        self._token = torch.zeros_like(self.positions)
        length = config.context_length
        self._bias = like.new_zeros(1, 1, 1, length)
        # the bias at position p is what this has from T - 1 - p on
        self._biases = torch.cat((like.new_zeros(length), like.new_full((length - 1,), -torch.inf)))
        self._hidden = like.new_zeros(1, config.hidden_size)
        self.x0 = torch.zeros_like(self._hidden)
        self._injected = torch.zeros_like(self._hidden)  # e, (1, C)
        self._noise = like.new_zeros(max_loops, 1, config.hidden_size)  # row k: of loop step k
        # what they write for the host: the decisions after each loop step
        self.flags = torch.zeros(max_loops, dtype=torch.bool, pin_memory=like.is_cuda)
        self._graphs = Graphs(like.is_cuda)
        self._recur = [make_recur(model, group) for group in groups]
        if compile:
            self._compile()
        attend = self._attend_unlooped()
        self._layers = {
            stage.index: self._capture(
                partial(model.unlooped_layer, stage.index, self._hidden, attend)
            )
            for stage in model.stages
            if not stage.is_group
        }
        # group -> number of loop steps -> the graph that takes the last of them
        counts = range(1, max_loops + 1)
        self._fixed = [self._captured_steps(group, None, counts) for group in groups]
        # the criterion that was used least recently loses its graphs
        self._program = lru_cache(MOST_CRITERIA * len(groups))(self._captured_program)

    def start(self, position: int, token: Tensor, noise: Noise) -> None:
        self._noise_of = noise
        self.positions.fill_(position)
        if self.model.config.value_embeddings:  # nothing else reads the token
            self._token.copy_(token)
        length = self._bias.shape[-1]
        self._bias.copy_(self._biases[length - 1 - position :][:length])  # one kernel

    def layer(self, number: int, hidden: Tensor) -> Tensor:
        # to the address that the graph reads
        self._hidden.copy_(hidden)
        return self._layers[number].call()

    def decided(
        self, criterion: ExitCriterion, group: int, entered: Tensor, x: Tensor
    ) -> Iterator[Decided]:
        self._enter(group, entered, x)
        running: deque[tuple[int, Replay, list[Tensor]]] = deque()
        # in the order of the loop steps; each graph starts from the states of the one before
        for stop, replay in self._program(criterion, group).items():
            running.append((stop, replay, replay.call()))
            if len(running) > self._ahead:
                yield from self._read(*running.popleft())
        for started in running:
            yield from self._read(*started)

    def fixed(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Tensor:
        self._enter(group, entered, x)
        for stop in self._stops(loops):
            states = self._fixed[group][stop].call()
        return states[-1]

    def prepare(self, criterion: ExitCriterion) -> None:
        """Capture what tokens need under a criterion, if that has not happened; the cache at their
        position changes.
        """
        for group in range(len(self.model.config.groups)):
            self._program(criterion, group)

    def _enter(self, group: int, entered: Tensor, x: Tensor) -> None:
        self._injected.copy_(self.model.project_input(group, entered))
        self.x0.copy_(x)
        if self.model.config.loop_noise and self._max_loops > 1:
            rows = [self._noise_of(group, k, self.x0) for k in range(1, self._max_loops)]
            # no noise precedes loop step 0
            torch.stack(rows, out=self._noise[1:])

    def _read(self, stop: int, replay: Replay, states: Sequence[Tensor]) -> Iterator[Decided]:
        replay.wait()
        steps = range(stop - len(states), stop)
        return zip(steps, states, self.flags[steps.start : stop].tolist(), strict=True)

    def _stops(self, loops: int) -> list[int]:
        """The loop steps taken after each graph of a token that takes so many."""
        return [*range(self._size, loops, self._size), loops]

    def _captured_program(self, criterion: ExitCriterion, group: int) -> dict[int, Replay]:
        return self._captured_steps(group, criterion.of_group(group), self._stops(self._max_loops))

    def _captured_steps(
        self, group: int, criterion: ExitCriterion | None, stops: Sequence[int]
    ) -> dict[int, Replay]:
        """Loop steps taken -> the graph that takes the last ones up to there."""
        loop = Loop(self, group, criterion)
        size = self._size
        whole = self._stops(self._max_loops)
        # a graph begins where the last whole graph before it ends
        parts = {stop: partial(loop, (stop - 1) // size * size, stop) for stop in (*whole, *stops)}

        def warm_up() -> None:
            for stop in whole:
                parts[stop]()

        functions = [parts[stop] for stop in stops]
        # a criterion that waits for the device is refused in the warm-up, before a capture
        replays = self._capture_all(functions, warm_up, may_wait=criterion is None)
        return dict(zip(stops, replays, strict=True))

    def _capture(self, function: Callable[[], Any]) -> Replay:
        (replay,) = self._capture_all([function], function)
        return replay

    def _capture_all(
        self,
        functions: Sequence[Callable[[], Any]],
        warm_up: Callable[[], object],
        may_wait: bool = True,
    ) -> list[Replay]:
        """The graphs of functions that continue each other, captured again if CUDA refuses one."""
        self._graphs.warm_up(warm_up, may_wait)
        try:
            return [self._graphs.capture(function) for function in functions]
        except RuntimeError as error:
            warnings.warn(
                f"exits.cuda_graphs: a capture is repeated ({first_line(error)}).", stacklevel=2
            )
        self._graphs.warm_up(warm_up, may_wait)  # on the new stream
        return [self._graphs.capture(function) for function in functions]

    def _compile(self) -> None:
        """Compile loop steps; where that is impossible they stay as they are."""
        eager = self._recur
        self._recur = [torch.compile(each, fullgraph=True, dynamic=False) for each in eager]
        dynamo = torch._dynamo.config
        dynamo.recompile_limit = max(COMPILATIONS, dynamo.recompile_limit)
        try:
            for group in range(len(eager)):
                self._graphs.warm_up(partial(self.recur, group, 0, self.x0))
        except Exception as error:  # no Triton, no compiler, or code that torch does not compile
            self._recur = eager
            warnings.warn(
                "exits.compile: loop steps are captured without compilation"
                f" ({first_line(error)}).",
                stacklevel=2,
            )

    def recur(self, group: int, k: int, x: Tensor) -> Tensor:
        """The state (1, C) after loop step k, from tensors with fixed addresses."""
        state = self.model.add_noise(group, k, x, lambda group, k, like: self._noise[k])
        slot = k % self._cache.slots
        layers = self.model.config.groups[group]
        # views, so a graph writes to the cache itself
        stored = [self._cache.stored[layer][slot] for layer in layers]
        place = self.positions, self._bias, self._token
        return self._recur[group](k, state, self._injected, stored, *place)

    def readout(self, criterion: ExitCriterion, group: int) -> Readout:
        return make_readout(self.model, criterion, self._readout, group, self._attend_unlooped())

    def _attend_unlooped(self) -> Attend:
        stored = {n: stored[0] for n, stored in self._cache.stored.items()}
        return attend_token(stored, self.positions, self._bias, self._token)


class Loop:
    """The loop of a token in a group, of which graphs are captured part by part."""

    def __init__(self, loops: CapturedLoops, group: int, criterion: ExitCriterion | None) -> None:
        self._loops = loops
        self._group = group
        self._criterion = criterion

    def __call__(self, start: int, stop: int) -> list[Tensor]:
        """Loop steps start … stop - 1, which follow those before: the states to exit with.

        The decisions go to the flags of the host.
        """
        loops = self._loops
        criterion = self._criterion
        if start == 0:
            self._states = [loops.x0]  # x^0, x^1, … (1, C)
            if criterion is not None:
                readout = loops.readout(criterion, self._group)
                self._decisions = Decisions(criterion, loops.x0, readout)
        # a part runs more than once, to warm up and to be captured; its earlier states are dropped
        del self._states[start + 1 :]
        flags, results = [], []
        for k in range(start, stop):
            x_new = loops.recur(self._group, k, self._states[k])
            self._states.append(x_new)
            if criterion is not None:
                flags.append(self._decisions.update(x_new))
                results.append(self._decisions.result(x_new))
        if criterion is None:
            return self._states[start + 1 :]
        # a part of the graph, so each replay copies its decisions to the host
        loops.flags[start:stop].copy_(torch.cat(flags), non_blocking=True)
        return results


def make_recur(model: LoopedModel, group: int) -> Callable[..., Tensor]:
    """A loop step as a function of k and tensors, for the compiler.

    State and input (1, C), keys and values by layer, position, bias and token.
    """
    layers = model.config.groups[group]

    def recur(k: int, state: Tensor, injected: Tensor, stored: Any, *place: Tensor) -> Tensor:
        attend = attend_token(dict(zip(layers, stored, strict=True)), *place)
        return model.recur(group, k, state, injected, attend)

    return recur
