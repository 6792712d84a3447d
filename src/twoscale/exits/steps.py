"""How a decoder runs its loop steps: eagerly, as captured CUDA graphs, or compiled."""

from typing import ClassVar, Protocol

from torch import Tensor

from twoscale.exits.cuda_graphs import CapturedSteps
from twoscale.exits.kv_cache import KVCache
from twoscale.exits.prepared import by_columns, for_rows
from twoscale.model.interface import LoopedModel, any_weight


class LoopSteps(Protocol):
    """Loop steps of one token of a cache.

    Attributes:
        runs_ahead: Whether a step may start before the decision on the last one has arrived.
        model: The model for everything else that decoding computes of one token.
        masks: Whether attention covers the whole context under a mask, so that the cache has to be finite.
    """

    model: LoopedModel
    runs_ahead: ClassVar[bool]
    masks: ClassVar[bool]

    def begin(self, position: int, injected: Tensor) -> None:
        """Set what is constant while the token at `position` loops in a group: its input (1, C)."""

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        """Loop step k of a group: state (1, C) -> (1, C)."""


class EagerSteps:
    """Loop steps as calls of `recur`, with attention to the positions so far."""

    runs_ahead = False
    masks = False

    def __init__(self, model: LoopedModel, cache: KVCache) -> None:
        self.model = for_rows(by_columns(model))
        self._recur, self._attend = self.model.recur, cache.attend

    def begin(self, position: int, injected: Tensor) -> None:
        self._position, self._injected = position, injected

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        return self._recur(group, k, state, self._injected, self._attend(k, self._position))


def make_steps(model: LoopedModel, cache: KVCache, max_loops: int, replay: bool, compile: bool) -> LoopSteps:
    """The loop steps of a decoder.

    replay: as captured steps. compile: compiled, on the CPU.
    """
    if replay:
        return CapturedSteps(model, cache, max_loops)
    if compile and any_weight(model).is_cpu:
        # the inductor takes more than a second to import
        from twoscale.exits.compiled_steps import CompiledSteps

        return CompiledSteps(model, cache, max_loops)
    return EagerSteps(model, cache)
