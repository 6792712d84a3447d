"""A recorder for any PyTorch model that calls a module once a loop step: the tables of extraction from forward hooks.

    with Recorder(model, {"core": "transformer.core"}, "results/mine", iteration=0):
        for tokens in texts:
            model(tokens)

Every call of the model is one batch of further sequences; every call of a looped module within it is a loop step. Rows
are measured and written when the model returns, so memory is that of one forward pass: the states are on the host, in
the dtype of the model. `python scripts/measure_recorded.py results/mine` then draws the figures.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from twoscale.config import PathTypesConfig
from twoscale.dynamics.states import exact
from twoscale.errors import InputError
from twoscale.model.loss import cross_entropies
from twoscale.recorder.recorded import RecordedBatch, StateTables

Module = str | nn.Module  # a dotted path in the model, or the module itself


@dataclass(frozen=True)
class Output:
    """A tensor that a module returns.

    Attributes:
        module: Dotted path in the model, or the module.
        pick: Which one: an index or key of what it returns, or a function of it. By default the first floating-point
            tensor.
    """

    module: Module
    pick: int | str | Callable[[Any], Tensor] | None = None

    def hook(self, module: nn.Module, receive: Callable[[Tensor], None]) -> Any:
        """Give the tensor of every call to `receive`; returns the handle of the hook."""
        return module.register_forward_hook(lambda _, args, output: receive(self.find(output)))

    def find(self, output: Any) -> Tensor:
        if callable(self.pick):
            return self.pick(output)
        if self.pick is None:
            return first_tensor(output, f"what {_name(self.module)} returns")
        try:
            if isinstance(output, Tensor):  # an index would be one of the batch
                raise TypeError
            return output[self.pick]
        except (LookupError, TypeError) as error:
            raise InputError(
                f"output {self.pick!r} of {_name(self.module)}: found none in {type(output).__name__}, expected an "
                "index or a key of what it returns."
            ) from error


@dataclass(frozen=True)
class Input:
    """A tensor that a module is called with.

    Attributes:
        module: Dotted path in the model, or the module.
        pick: Which one: the position or name of an argument, or a function of all arguments. By default the first
            floating-point tensor.
    """

    module: Module
    pick: int | str | Callable[..., Tensor] | None = None

    def hook(self, module: nn.Module, receive: Callable[[Tensor], None]) -> Any:
        """Give the tensor of every call to `receive`; returns the handle of the hook."""
        return module.register_forward_pre_hook(
            lambda called, args, kwargs: receive(self.find(called, args, kwargs)), with_kwargs=True
        )

    def find(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Tensor:
        if callable(self.pick):
            return self.pick(*args, **kwargs)
        if self.pick is None:
            return first_tensor((args, kwargs), f"what {_name(self.module)} is called with")
        try:
            if isinstance(self.pick, int):
                return args[self.pick]
            arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
            return {**arguments, **kwargs}[self.pick]
        except (LookupError, TypeError) as error:
            raise InputError(
                f"argument {self.pick!r} of {_name(self.module)}: found {len(args)} positional arguments and the names "
                f"{sorted(kwargs)}, expected one of these."
            ) from error


@dataclass(frozen=True)
class Loop:
    """A looped group: where its states are found.

    Attributes:
        step: What is x^{k+1}: the output of the module that is called once a loop step.
        initial: What is x^0: the first value in a forward pass. By default the first floating-point tensor with which
            the module is called, which is the state only if nothing is added to it before the call.
    """

    step: Module | Output
    initial: Input | Output | None = None

    @property
    def output(self) -> Output:
        return self.step if isinstance(self.step, Output) else Output(self.step)

    @property
    def start(self) -> Input | Output:
        return self.initial or Input(self.output.module)


@dataclass
class _Pass:
    """What was seen in one forward pass: x^0 and x^1 … x^K of each group, in the order in which they came."""

    tokens: Tensor | None
    mask: Tensor | None
    initial: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # group of every loop step

    def batch(self, groups: list[str]) -> RecordedBatch:
        """The states of all groups, which are complete now."""
        states = {label: [self.initial[label], *self.states[label]] for label in groups}
        shape = states[groups[0]][0].shape[:-1]
        for label, of_group in states.items():
            _check_shapes(label, of_group, shape)
        for name in ("tokens", "mask"):
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise InputError(
                    f"{name} of the model's call: found the shape {tuple(value.shape)}, expected {tuple(shape)}, "
                    "that of the states without channels."
                )
        return RecordedBatch(states, self._follows(groups), self.tokens, self.mask)

    def _follows(self, groups: list[str]) -> frozenset[str]:
        """Groups whose first loop step comes after the last one of the group before them."""
        first = {label: self.order.index(label) for label in groups}
        last = {label: len(self.order) - self.order[::-1].index(label) for label in groups}
        return frozenset(right for left, right in pairwise(groups) if first[right] >= last[left])


@dataclass
class Recorder:
    """Records the loops of a model while it runs under `with`, and writes the tables of a run.

    The states are what modules return, (B, T, C) or, without an axis of tokens, (B, C). Every sequence counts as a
    document of its own in intervals. See `StateTables` for the files and `RecordedBatch` for when drift is measured.

    Attributes:
        model: The module whose call is one forward pass.
        loops: Group -> the module that is called once a loop step, or a `Loop`; in the order of the model.
        folder: Folder of the run, such as results/mine.
        iteration: Training iteration of the weights; figures call 0 untrained.
        tokens: Argument of the model with token ids (B, T), as `Input.pick`, for the words of Fig. 1. By default the
            first integer tensor of the call, if it has the shape of the states without channels.
        mask: Argument of the model that is nonzero for tokens to measure, (B, T), such as "attention_mask".
        word: Token id -> text.
        decode: A state (B, T, C) of the last group -> logits (B, T, V), as the model continues after its loop. With it
            the cross-entropy after each loop step is measured.
        criteria: Criteria of the path types.

    Raises InputError, also while the model runs, if a module or tensor is not found or has another shape.
    """

    model: nn.Module
    loops: Mapping[str, Module | Output | Loop]
    folder: str | Path
    iteration: int
    tokens: int | str | Callable[..., Tensor] | None = None
    mask: int | str | Callable[..., Tensor] | None = None
    word: Callable[[int], str] = str
    decode: Callable[[Tensor], Tensor] | None = None
    criteria: PathTypesConfig = field(default_factory=PathTypesConfig)

    def __post_init__(self) -> None:
        if not self.loops:
            raise InputError("recorder: found no looped group, expected at least one module.")
        self._loops = {label: loop if isinstance(loop, Loop) else Loop(loop) for label, loop in self.loops.items()}
        self._pass: _Pass | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for label, loop in self._loops.items():
                # x^0 first: a module's input comes before its output
                for source, receive in ((loop.start, self._receive_initial), (loop.output, self._receive_step)):
                    handle = source.hook(find_module(self.model, source.module), partial(receive, label))
                    stack.callback(handle.remove)
            stack.callback(self.model.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
            stack.callback(self.model.register_forward_hook(self._end).remove)
            writer = StateTables(Path(self.folder), self.iteration, self.word, self.criteria)
            self._tables = stack.enter_context(writer)
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pass = None
        self._hooks.__exit__(*error)

    # --- hooks -------------------------------------------------------------------------------------------------

    def _begin(self, model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        tokens = self._argument(self.tokens, model, args, kwargs)
        if self.tokens is None:
            integers = (tensor for tensor in tensors((args, kwargs)) if tensor.dtype in (torch.int64, torch.int32))
            tokens = next((tensor for tensor in integers if tensor.dim() == 2), None)
        mask = self._argument(self.mask, model, args, kwargs)
        self._pass = _Pass(_host(tokens), None if mask is None else _host(mask).bool())

    @staticmethod
    def _argument(pick: Any, model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Tensor | None:
        return None if pick is None else Input(model, pick).find(model, args, kwargs)

    def _receive_initial(self, label: str, state: Tensor) -> None:
        if self._pass is not None and label not in self._pass.initial:
            self._pass.initial[label] = _state(label, state)

    def _receive_step(self, label: str, state: Tensor) -> None:
        if self._pass is None:
            raise InputError(
                f"group {label}: found a loop step outside a call of {_name(self.model)}, expected it inside; give the "
                "recorder the module whose call is one forward pass."
            )
        self._pass.states.setdefault(label, []).append(_state(label, state))
        self._pass.order.append(label)

    def _end(self, model: nn.Module, args: tuple, output: Any) -> None:
        recorded = self._pass
        for label, loop in self._loops.items():
            if label not in recorded.states or label not in recorded.initial:
                missing = loop.output if label not in recorded.states else loop.start
                raise InputError(
                    f"group {label}: found no call of {_name(missing.module)} in a forward pass, expected at least one."
                )
        if self.tokens is None and recorded.tokens is not None:
            first = recorded.initial[next(iter(self._loops))]
            recorded.tokens = recorded.tokens if recorded.tokens.shape == first.shape[:-1] else None
        batch = recorded.batch(list(self._loops))
        # the pass stays open for `decode`, which may call the modules again
        self._tables.append(replace(batch, losses=self._losses(batch)) if self.decode else batch)
        self._pass = None

    @torch.no_grad()
    def _losses(self, batch: RecordedBatch) -> list[Tensor]:
        """Nats (B, T - 1) of each next token after every loop step of the last group."""
        if batch.tokens is None:
            raise InputError("recorder: found no token ids in the model's call, expected them with `decode`.")
        device = next(self.model.parameters()).device
        losses = []
        for state in list(batch.states.values())[-1][1:]:
            logits = self.decode(state.to(device))[:, :-1]
            losses.append(cross_entropies(exact(logits), batch.tokens[:, 1:].long()).cpu())
        return losses


def find_module(model: nn.Module, module: Module) -> nn.Module:
    """The module at a dotted path in `model`, or the module itself."""
    if isinstance(module, nn.Module):
        return module
    try:
        return model.get_submodule(module)
    except AttributeError as error:
        close = [name for name, _ in model.named_modules() if name.endswith(module.rpartition(".")[-1])][:3]
        names = close or [name for name, _ in model.named_children()]
        raise InputError(
            f"recorder: found no module '{module}' in {_name(model)}, expected a dotted path such as "
            f"{', '.join(names)}."
        ) from error


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


def first_tensor(value: Any, what: str) -> Tensor:
    """The first floating-point tensor in nested tuples, lists and mappings."""
    for tensor in tensors(value):
        if tensor.is_floating_point():
            return tensor
    raise InputError(f"{what}: found no floating-point tensor, expected the state.")


def _state(label: str, state: Any) -> Tensor:
    """A copy of a state (B, T, C) or (B, C) on the host, (B, T, C) with T = 1 for the latter."""
    if not isinstance(state, Tensor) or not state.is_floating_point() or state.dim() not in (2, 3):
        found = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
        raise InputError(
            f"group {label}: found the state {found}, expected a floating-point tensor (B, T, C) or (B, C)."
        )
    copy = _host(state)
    return copy[:, None] if copy.dim() == 2 else copy


def _host(tensor: Tensor | None) -> Tensor | None:
    """A copy on the host that the model cannot change in place."""
    return None if tensor is None else tensor.detach().to("cpu", copy=True)


def _check_shapes(label: str, states: list[Tensor], leading: torch.Size) -> None:
    initial, *steps = (tuple(state.shape) for state in states)
    if initial != steps[0]:
        raise InputError(
            f"group {label}: found x^0 of shape {initial}, expected {steps[0]}, that of the states after it; name what "
            "is x^0 with Loop(step, initial)."
        )
    for k, shape in enumerate(steps, start=1):
        if shape != steps[0] or shape[:-1] != tuple(leading):
            raise InputError(
                f"group {label}: found x^{k} of shape {shape}, expected {(*leading, steps[0][-1])} as in the rest of "
                "the forward pass."
            )


def _name(module: Module) -> str:
    return module if isinstance(module, str) else type(module).__name__
