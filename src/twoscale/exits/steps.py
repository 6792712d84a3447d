"""The layers of one token of a cache, unlooped and looped: eagerly, or as captured CUDA graphs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from twoscale.base import InputError
from twoscale.exits.captured_loops import CapturedLoops, one_check
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.kv_cache import KVCache
from twoscale.exits.prepared import by_columns, for_rows
from twoscale.exits.readout import make_readout
from twoscale.exits.token_exit import Decided
from twoscale.model.interface import LoopedModel, Noise, any_weight, last


@dataclass(frozen=True)
class DecoderOptions:
    """How a decoder runs its loops.

    Attributes:
        sequence: Number of the held-out sequence whose noise is read; 0 for other text.
        kv_slots: Loop steps share this many slots of the cache; None: each has its own.
        warm_start: Start a token that is fed in each group from the state with which the token before left it
            (Geiping et al.). Tokens of a prompt still start as in training.
        replay: Tokens that are fed one by one loop through `CapturedLoops`. None: on CUDA only.
        compile: Loop steps are compiled before `replay` captures them.
        readout: "head" or "remaining_layers", see `twoscale.exits.readout`.
        steps_per_graph: Loop steps of one captured graph, at least 1.
    """

    sequence: int = 0
    kv_slots: int | None = None
    warm_start: bool = False
    replay: bool | None = None
    compile: bool = False
    readout: str = "head"
    steps_per_graph: int = 4

    def __post_init__(self) -> None:
        if self.kv_slots is not None and self.kv_slots < 1:
            raise InputError(f"kv_slots: found {self.kv_slots}, expected at least 1.")
        if self.steps_per_graph < 1:
            raise InputError(f"steps_per_graph: found {self.steps_per_graph}, expected at least 1.")


class TokenLoops(Protocol):
    """Computes the layers of one token.

    Attributes:
        model: The model for everything else that decoding computes of one token.
        masks: Whether attention covers the whole context under a mask, so that the cache has to be finite.
        positions: Position of the token (1,).
    """

    model: LoopedModel
    positions: Tensor

    @property
    def masks(self) -> bool: ...

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

    def check(self, criterion: ExitCriterion, group: int, x: Tensor) -> Callable[[], object]:
        """A call that decides on the state x (1, C) once more and nothing else, run in the same way as `step`."""


class EagerLoops:
    """`TokenLoops` where the host starts each loop step and decides before the next."""

    masks = False

    def __init__(self, model: LoopedModel, cache: KVCache, max_loops: int, readout: str) -> None:
        self.model = for_rows(by_columns(model))
        self._cache, self._max_loops, self._readout = cache, max_loops, readout

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
        for k, x_new in enumerate(self._states(group, entered, x, self._max_loops)):
            should_exit = decisions.update(x_new)
            yield k, decisions.result(x_new), should_exit

    def fixed(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Tensor:
        return last(self._states(group, entered, x, loops))

    def step(self, group: int, entered: Tensor, x: Tensor) -> Callable[[], object]:
        injected = self.model.project_input(group, entered)
        return lambda: self.model.recur(group, 0, x, injected, self._cache.attend(0, self._position))

    def check(self, criterion: ExitCriterion, group: int, x: Tensor) -> Callable[[], object]:
        return one_check(criterion, x, make_readout(self.model, criterion, self._readout, group, self._attend))

    def _states(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Iterator[Tensor]:
        """x^1 … x^loops (1, C); a step is computed when its state is taken."""
        recur, add_noise, attend = self.model.recur, self.model.add_noise, self._cache.attend
        injected = self.model.project_input(group, entered)  # the same at every step
        for k in range(loops):
            x = recur(group, k, add_noise(group, k, x, self._noise), injected, attend(k, self._position))
            yield x


def make_loops(model: LoopedModel, cache: KVCache, max_loops: int, options: DecoderOptions) -> TokenLoops:
    """The loops that compute the layers of one token, as the options and the device allow."""
    replay = any_weight(model).is_cuda if options.replay is None else options.replay
    if replay and not cache.present:
        return CapturedLoops(model, cache, max_loops, options.readout, options.compile, options.steps_per_graph)
    return EagerLoops(model, cache, max_loops, options.readout)
