"""The interface that every looped language model offers, and the functions it takes.

Engines, extraction, generation, benchmarks and figures know a model only through `LoopedModel`. A
new architecture implements it in one file and registers itself (`twoscale.model.registry`).

Axes: B sequences, T positions, N rows (tokens in any order), C hidden size, H query heads, G heads
of keys and values, D head dimension, V vocabulary. Layers are numbered from 1 as in the paper,
groups from 0 in the order of their layers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from twoscale.config import ModelConfig
from twoscale.model.kernels import causal_attention

# (group, k, like) -> noise of the shape of `like`: k = 0 is the initial state, k >= 1 precedes loop
# step k.
Noise = Callable[[int, int, Tensor], Tensor]

T = TypeVar("T")

# A state (..., C) -> logits (..., V).
Readout = Callable[[Tensor], Tensor]


class Attend(Protocol):
    """Attention of one pass: the engine that runs the model decides what each token sees."""

    @property
    def positions(self) -> Tensor:
        """Position of each row in its sequence, int64, broadcastable to the leading axes of q."""

    @property
    def tokens(self) -> Tensor | None:
        """Token id of each row, int64, broadcastable as `positions`, for value embeddings."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of layer number `layer`: q (..., H, D) and k, v (..., G, D) -> (..., H, D).

        G divides H: head g of keys and values serves the query heads g H/G … (g + 1) H/G - 1.
        """


@dataclass(frozen=True)
class CausalAttention:
    """Attention of whole sequences: every position attends to itself and to those before it."""

    positions: Tensor  # (T,)
    tokens: Tensor | None = None  # (B, T)

    @classmethod
    def of(cls, tokens: Tensor) -> "CausalAttention":
        """For token ids (B, T) at the positions 0 … T - 1."""
        return cls(torch.arange(tokens.shape[-1], device=tokens.device), tokens)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (B, T, H, D) and k, v (B, T, G, D) -> (B, T, H, D)."""
        return causal_attention(q, k, v)


@dataclass(frozen=True, slots=True, eq=False)
class AttendAt:
    """An `Attend` made of positions and a function (layer, q, k, v)."""

    positions: Tensor
    function: Callable[[int, Tensor, Tensor, Tensor], Tensor]
    tokens: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(layer, q, k, v)


@dataclass(frozen=True)
class Stage:
    """One stage of the pass through a model: an unlooped layer or a looped group."""

    layer: int | None = None  # its number
    group: int | None = None  # its index

    @property
    def is_group(self) -> bool:
        return self.group is not None

    @property
    def index(self) -> int:
        """`layer` or `group`, the one that is set."""
        number = self.layer if self.group is None else self.group
        assert number is not None
        return number


@dataclass(frozen=True)
class StageTrace:
    """The hidden states of one stage, each (B, T, C)."""

    stage: Stage | None  # None: the embedding
    entered: Tensor  # what enters the stage; for the embedding, its result
    states: list[Tensor]  # x^0 … x^K of a looped group, otherwise the one result of the stage
    output: Tensor  # input of the next stage: x^K, or its norm under the variant exit_norm


class LoopedModel(Protocol):
    """A decoder whose groups of layers are looped in latent space.

    One pass is `embed`, then every stage in order, then `readout`. A group runs `init_state` and
    `project_input` once and then, for each loop step, `add_noise` and `recur`; `finish` turns its
    last state into what the next stage sees. `recur` is the only recurrence, so an engine with
    other rules for when a token stops calls the same methods with another `attend`.
    """

    config: ModelConfig
    stages: tuple[Stage, ...]

    # The modules that `train.compile` compiles and `train.shard` divides one by one: looped groups,
    # which have a method `project_input`, and unlooped layers.
    @property
    def blocks(self) -> Iterable[nn.Module]: ...

    # methods of `torch.nn.Module`, which a model is
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def to(self, *args: Any, **kwargs: Any) -> Self: ...
    def to_empty(self, *, device: Any) -> Self: ...
    def double(self) -> Self: ...
    def eval(self) -> Self: ...
    def requires_grad_(self, requires_grad: bool = True) -> Self: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids (..., T) at `positions` (T,) -> hidden states (..., T, C)."""

    def unlooped_layer(self, number: int, hidden: Tensor, attend: Attend) -> Tensor:
        """Layer `number`, outside all groups: (..., C) -> (..., C)."""

    def init_state(self, group: int, entered: Tensor, noise: Noise) -> Tensor:
        """The initial state x^0 of a group for the hidden states (..., C) that enter it."""

    def project_input(self, group: int, entered: Tensor) -> Tensor:
        """The part of all loop steps that depends only on what enters the group, (..., C)."""

    def project_state(self, group: int, state: Tensor, injected: Tensor) -> Tensor:
        """Input (..., C) of the group's first layer, from the state and the projected input."""

    def add_noise(self, group: int, k: int, state: Tensor, noise: Noise) -> Tensor:
        """x^k as loop step k sees it: with fresh noise under `loop_noise`, else unchanged."""

    def recur(self, group: int, k: int, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        """The recurrence x^{k+1} = f_g(x^k, e): (..., C) -> (..., C)."""

    def finish(self, group: int, state: Tensor) -> Tensor:
        """Input of the stage after a group, from the group's last state: (..., C) -> (..., C)."""

    def readout(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., C) -> logits (..., V) of the next token."""

    def hidden_states(
        self,
        tokens: Tensor,
        loops: Sequence[int],
        noise: Noise,
        backprop_depth: int | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """Hidden states for `readout` and `loss`, in training: `tokens` (B, T) -> (B, T, C).

        loops: the loop steps of each group. backprop_depth: no gradient flows through a loop before
        its last n steps. recompute: keep one state per loop step for the backward pass and compute
        the rest again.
        """

    def loss(self, hidden: Tensor, targets: Tensor, shares: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats of `readout(hidden)` (..., C) against the token ids `targets`
        (...).

        shares: factor of each token's cross-entropy (...), which has a gradient too.
        """

    def trace(self, tokens: Tensor, loops: Sequence[int], noise: Noise) -> Iterator[StageTrace]:
        """The hidden states of `tokens` (B, T) stage by stage, beginning with the embedding.

        `loops` are the loop steps of each group. The states of one stage are alive at a time,
        unless the caller keeps them.
        """


class Gated(LoopedModel, Protocol):
    """A looped model with an exit gate; `train.exit_gate` calls the last two methods."""

    gate: nn.Module | None  # None: this model has none

    def exit_gate(self, state: Tensor) -> Tensor:
        """States (..., C) -> probability of exit (...)."""

    def exit_gate_logit(self, state: Tensor) -> Tensor:
        """Logit of `exit_gate`: states (..., C) -> (...)."""

    def exit_states(
        self,
        tokens: Tensor,
        loops: int,
        noise: Noise,
        backprop_depth: int | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """States of the only group, and for each what `readout` takes if all tokens leave with it.

        `tokens` (B, T) -> x^1 … x^loops (loops, B, T, C), and as much again. backprop_depth,
        recompute: as for `hidden_states`.
        """


def last(values: Iterable[T]) -> T:
    """The last of the values; two at a time are in memory."""
    return deque(values, maxlen=1).pop()


def loop_states(
    model: LoopedModel,
    group: int,
    entered: Tensor,
    loops: int,
    attend: Callable[[int], Attend],
    noise: Noise,
    backprop_depth: int | None = None,
    recompute: bool = False,
    x0: Tensor | None = None,
) -> Iterator[Tensor]:
    """x^0 … x^loops of a group that (..., C) enters; each is computed when it is taken.

    attend: k -> attention at loop step k. backprop_depth, recompute: as for
    `LoopedModel.hidden_states`. x0: the initial state, if not that of the model.
    """
    injected = model.project_input(group, entered)  # e, the same at every loop step

    def step(k: int, x: Tensor) -> Tensor:
        arguments = (group, k, model.add_noise(group, k, x, noise), injected, attend(k))
        if recompute and torch.is_grad_enabled():
            # `recur` draws no random numbers, so the second pass needs no state of the generator
            return checkpoint(
                model.recur, *arguments, use_reentrant=False, preserve_rng_state=False
            )
        return model.recur(*arguments)

    state = model.init_state(group, entered, noise) if x0 is None else x0
    yield state
    first_with_gradient = 0 if backprop_depth is None else max(0, loops - backprop_depth)
    for k in range(loops):
        if k < first_with_gradient:
            # detached, so that no gradient flows into what comes before the loop
            with torch.no_grad():
                state = step(k, state.detach())
        else:
            state = step(k, state)
        yield state  # x^{k+1}


def run_stages(
    model: LoopedModel,
    hidden: Tensor,
    layer: Callable[[int, Tensor], Tensor],
    group: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """Pass `hidden` through all stages: `layer(number, hidden)`, `group(index, hidden)` run one."""
    for stage in model.stages:
        run = group if stage.is_group else layer
        hidden = run(stage.index, hidden)
    return hidden


def any_weight(model: LoopedModel) -> Tensor:
    """A parameter, for the dtype and the device of the model."""
    return next(model.parameters())
