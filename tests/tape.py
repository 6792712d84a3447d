"""A stand-in for CUDA graphs on the CPU: a function runs once, and a replay repeats its operations
on the same tensors.

As with CUDA graphs no Python of the function runs in a replay, results are in the same memory every
time, and a function that reads a value of a tensor cannot be recorded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = frozenset({"item", "_local_scalar_dense", "nonzero", "equal", "is_nonzero"})


class Reading(RuntimeError):
    """What a read of a value raises."""


class SpoiltCapture(BaseException):
    """What a read of a value raises in a capture: on a GPU it would spoil those that follow, so
    nothing catches it.
    """


class RefuseReads(TorchDispatchMode):
    error: type[BaseException] = Reading

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in READS:
            raise self.error("called a synchronizing operation")
        return func(*args, **(kwargs or {}))


class Tape(RefuseReads):
    """Records operations."""

    error = SpoiltCapture

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list[Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        kwargs = kwargs or {}
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        new = [
            tensor for tensor in _tensors(result) if tensor.untyped_storage()._cdata not in given
        ]
        if new or func._schema.is_mutable:
            self.calls.append((func, args, kwargs, new))
        return result


class Recorded:
    """A `Replay` of a tape."""

    def __init__(self, tape: Tape, result: Any) -> None:
        self._tape, self._result = tape, result
        for *_, new in tape.calls:  # what a capture computes has no values
            for tensor in new:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 0)

    def call(self) -> Any:
        for func, args, kwargs, new in self._tape.calls:
            for held, tensor in zip(new, _new(func(*args, **kwargs), new), strict=True):
                held.copy_(tensor)
        return self._result

    def wait(self) -> None:
        """Nothing to wait for."""


class TapeGraphs:
    """In place of `twoscale.exits.captured_loops.Graphs`."""

    def warm_up(self, function: Callable[[], object], may_wait: bool = True) -> None:
        if may_wait:
            function()
        else:
            with RefuseReads():
                function()

    def capture(self, function: Callable[[], Any]) -> Recorded:
        with Tape() as tape:
            result = function()
        return Recorded(tape, result)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _new(result: Any, expected: list[Tensor]) -> list[Tensor]:
    """The results that are new, in the order of `expected`."""
    return _tensors(result) if expected else []
