"""Functions as captured CUDA graphs."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch

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
    """The object that captures functions of the model on its device."""
    return Graphs() if any_weight(model).is_cuda else Calls()
