"""The layers of one token of a cache, unlooped and looped: eagerly, compiled on the CPU, or as captured CUDA graphs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Protocol

from torch import Tensor

from twoscale.exits.captured_loops import CapturedLoops
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.kv_cache import KVCache
from twoscale.exits.prepared import by_columns, for_rows
from twoscale.exits.readout import make_readout
from twoscale.exits.token_exit import Decided
from twoscale.model.interface import LoopedModel, Noise, any_weight


class TokenLoops(Protocol):
    """What computes the layers of one token.

    Attributes:
        model: The model for everything else that decoding computes of one token.
        masks: Whether attention covers the whole context under a mask, so that the cache has to be finite.
        positions: Position of the token (1,).
    """

    model: LoopedModel
    masks: ClassVar[bool]
    positions: Tensor

    def prepare(self, criterion: ExitCriterion) -> None:
        """Do what takes long before tokens loop under a criterion; the cache is overwritten."""

    def start(self, position: int, noise: Noise) -> None:
        """Begin with the token at `position`, whose rows of the noise `noise` gives."""

    def layer(self, number: int, hidden: Tensor) -> Tensor:
        """Layer `number`, outside all groups: (1, C) -> (1, C)."""

    def decided(self, criterion: ExitCriterion, group: int, entered: Tensor, x: Tensor) -> Iterator[Decided]:
        """The loop steps of the token that enters a group (1, C) with the state x (1, C), and their decisions."""

    def fixed(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Tensor:
        """The state (1, C) after so many loop steps, at least one, without a criterion."""

    def step(self, group: int, entered: Tensor, x: Tensor) -> Callable[[], object]:
        """A call that computes one loop step and nothing else."""


class LoopSteps(Protocol):
    """Loop steps of one token of a cache; `model` and `masks` as in `TokenLoops`."""

    model: LoopedModel
    masks: ClassVar[bool]

    def begin(self, position: int, injected: Tensor) -> None:
        """Set what is constant while the token at `position` loops in a group: its input (1, C)."""

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        """Loop step k of a group: state (1, C) -> (1, C)."""


class EagerSteps:
    """Loop steps as calls of `recur`, with attention to the positions so far."""

    masks = False

    def __init__(self, model: LoopedModel, cache: KVCache) -> None:
        self.model = for_rows(by_columns(model))
        self._recur, self._attend = self.model.recur, cache.attend

    def begin(self, position: int, injected: Tensor) -> None:
        self._position, self._injected = position, injected

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        return self._recur(group, k, state, self._injected, self._attend(k, self._position))


class StepwiseLoops:
    """`TokenLoops` where the host starts each loop step and decides before the next."""

    def __init__(self, steps: LoopSteps, cache: KVCache, max_loops: int, readout: str) -> None:
        self._steps, self._cache, self._max_loops, self._readout = steps, cache, max_loops, readout
        self.model, self.masks = steps.model, steps.masks

    def prepare(self, criterion: ExitCriterion) -> None:
        """Nothing to do."""

    def start(self, position: int, noise: Noise) -> None:
        self._position, self._noise = position, noise
        self._attend = self._cache.attend(0, position)
        self.positions = self._attend.positions

    def layer(self, number: int, hidden: Tensor) -> Tensor:
        return self.model.unlooped_layer(number, hidden, self._attend)

    def decided(self, criterion: ExitCriterion, group: int, entered: Tensor, x: Tensor) -> Iterator[Decided]:
        criterion = criterion.of_group(group)
        decisions = Decisions(criterion, x, make_readout(self.model, criterion, self._readout, group, self._attend))
        for k, x_new in self._states(group, entered, x, self._max_loops):
            should_exit = decisions.update(x_new)
            yield k, decisions.result(x_new), should_exit

    def fixed(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Tensor:
        for _, state in self._states(group, entered, x, loops):  # noqa: B007
            pass
        return state

    def step(self, group: int, entered: Tensor, x: Tensor) -> Callable[[], object]:
        self._steps.begin(self._position, self.model.project_input(group, entered))
        return partial(self._steps, group, 0, x)

    def _states(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Iterator[tuple[int, Tensor]]:
        """k and x^{k+1} (1, C) for k = 0 … loops - 1."""
        steps, add_noise, noise = self._steps, self.model.add_noise, self._noise
        steps.begin(self._position, self.model.project_input(group, entered))
        for k in range(loops):
            x = steps(group, k, add_noise(group, k, x, noise))
            yield k, x


def make_loops(
    model: LoopedModel,
    cache: KVCache,
    max_loops: int,
    readout: str = "head",
    replay: bool = False,
    compile: bool = False,
    steps_per_graph: int = 4,
) -> TokenLoops:
    """What computes the layers of one token; the options are those of `DecoderOptions`."""
    if replay and not cache.present:
        return CapturedLoops(model, cache, max_loops, readout, compile, steps_per_graph)
    if compile and any_weight(model).is_cpu:
        # the inductor takes more than a second to import
        from twoscale.exits.compiled_steps import CompiledSteps

        return StepwiseLoops(CompiledSteps(model, cache, max_loops), cache, max_loops, readout)
    return StepwiseLoops(EagerSteps(model, cache), cache, max_loops, readout)
