"""Functions as captured CUDA graphs, and the loop steps of a batch as such graphs."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from twoscale.exits.batched_cache import BatchedKVCache, Step
from twoscale.model.interface import LoopedModel, any_weight


class Replay(Protocol):
    """A captured function without arguments."""

    def __call__(self) -> Any:
        """Run it again, and return its result, which is in the same memory every time."""

    def wait(self) -> None:
        """Wait until the last run has ended."""


class Graphs:
    """Captures functions as CUDA graphs, which the host starts with one call.

    A graph has fixed addresses: a function reads its inputs from tensors that exist before, and its results are in the
    same memory at every replay. All graphs share their memory. The tensors that are alive during a capture are safe
    from the captured graph, so a result is read before a graph runs that was captured earlier, or it is copied.
    """

    def __init__(self) -> None:
        self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], object], may_wait: bool = True) -> None:
        """Run a function before its capture, because libraries initialise and compile at their first call.

        Raises:
            RuntimeError: if it waits for the device, which no capture may contain; not if it `may_wait`.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream), nullcontext() if may_wait else _refused_waits():
                function()
        finally:
            torch.cuda.current_stream().wait_stream(self._stream)

    def capture(self, function: Callable[[], Any]) -> Replay:
        """The graph of a function that has run before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            try:
                result = function()
            except BaseException:
                with suppress(RuntimeError):  # the end of a capture that has failed raises too
                    graph.capture_end()
                raise
            graph.capture_end()
        return _Captured(graph, result)


@contextmanager
def _refused_waits() -> Iterator[None]:
    """A context in which an operation raises a RuntimeError where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _Captured:
    def __init__(self, graph: "torch.cuda.CUDAGraph", result: Any) -> None:
        self._graph, self._result, self._ended = graph, result, torch.cuda.Event()

    def __call__(self) -> Any:
        self._graph.replay()
        self._ended.record()
        return self._result

    def wait(self) -> None:
        self._ended.synchronize()


class Calls:
    """In place of `Graphs` without CUDA: a replay calls the function."""

    def warm_up(self, function: Callable[[], object], may_wait: bool = True) -> None:
        """Nothing to do."""

    def capture(self, function: Callable[[], Any]) -> Replay:
        return _Call(function)


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()

    def wait(self) -> None:
        """Nothing to wait for."""


def graphs_of(model: LoopedModel) -> Graphs | Calls:
    """What captures functions of the model on its device."""
    return Graphs() if any_weight(model).is_cuda else Calls()


class CapturedBatchSteps:
    """Loop steps of up to S tokens of different sequences, (N, C) -> (N, C), each at its own k and position.

    There is a graph for each group and each of the sizes 1, 2, 4, … S. A batch is filled up to the next size with
    copies of its last row, which write what that row writes. Attention covers the whole cache, which therefore has to
    be finite. The loop steps of the model have to be the same function at every k.
    """

    def __init__(self, model: LoopedModel, cache: BatchedKVCache) -> None:
        like = any_weight(model)
        self.model, self.cache = model, cache
        sequences = len(cache.places)
        self._sizes = [*(2**i for i in range((sequences - 1).bit_length())), sequences]
        states = (like.new_zeros(sequences, model.config.hidden_size) for _ in range(2))
        numbers = (torch.zeros(sequences, dtype=torch.int64, device=like.device) for _ in range(2))
        self._inputs = (*states, *numbers)  # states, inputs, rows of the cache and positions, read by all graphs
        graphs, self._steps = graphs_of(model), {}
        for key in ((group, size) for group in range(len(model.config.groups)) for size in self._sizes):
            compute = partial(self._compute, *key)
            graphs.warm_up(compute)
            self._steps[key] = graphs.capture(compute)

    def __call__(self, group: int, state: Tensor, injected: Tensor, steps: Sequence[Step], positions: Tensor) -> Tensor:
        """One loop step of N tokens at `steps`: states, inputs (N, C) and positions (N,) -> (N, C)."""
        size = next(size for size in self._sizes if size >= len(steps))
        for held, given in zip(self._inputs, (state, injected, self.cache.rows_of(steps), positions), strict=True):
            held[: len(steps)] = given
            held[len(steps) : size] = given[-1]
        return self._steps[group, size]()[: len(steps)].clone()

    def _compute(self, group: int, size: int) -> Tensor:
        state, injected, rows, positions = (held[:size] for held in self._inputs)
        return self.model.recur(group, 0, state, injected, self.cache.attend_gathered(rows, positions))
