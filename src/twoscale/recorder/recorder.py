"""A recorder for any PyTorch model that calls a module once a loop step, from forward hooks.

    with Recorder(model, {"core": "transformer.core"}, "results/mine", iteration=0):
        for tokens in texts:
            model(tokens)

Every call of the model is one batch of further sequences; every call of a looped module within it
is a loop step. Rows are measured and written when the model returns, so memory is for one forward
pass: the states are on the host, in the dtype of the model. `twoscale draw results/mine` then draws
the figures.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from twoscale.base import InputError, did_you_mean
from twoscale.config import PathTypesConfig
from twoscale.config.criteria import check_threshold
from twoscale.dynamics.states import exact
from twoscale.exits.contract import ExitCounter
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.model.loss import cross_entropies, entropies
from twoscale.recorder.recorded import RecordedBatch, StateTables

Module = str | nn.Module  # a dotted path in the model, or the module itself
# names of arguments with token ids
TOKEN_NAMES = ("input_ids", "tokens", "token_ids", "ids", "idx", "inputs", "x")
Thresholds = Mapping[str | type[ExitCriterion], Sequence[float]]


@dataclass(frozen=True)
class Output:
    """A tensor that a module returns.

    `pick` is an index or key of what it returns, or a function of it; by default the first
    floating-point tensor.
    """

    module: Module
    pick: int | str | Callable[[Any], Tensor] | None = None

    def hook(self, module: nn.Module, receive: Callable[[Tensor], None]) -> Any:
        return module.register_forward_hook(lambda _, args, output: receive(self.find(output)))

    def find(self, output: Any) -> Tensor:
        if callable(self.pick):
            return self.pick(output)
        if self.pick is None:
            return _first_tensor(output, self.module)
        try:
            return output[self.pick]
        except (KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{_name(self.module)}: found no {self.pick!r} in the {type(output).__name__} that"
                " the module returns, expected an index or key of the state."
            ) from error


@dataclass(frozen=True)
class Input:
    """A tensor that a module is called with.

    `pick` is the position or name of an argument, or a function of all; by default the first
    floating-point tensor.
    """

    module: Module
    pick: int | str | Callable[..., Tensor] | None = None

    def hook(self, module: nn.Module, receive: Callable[[Tensor], None]) -> Any:
        def before(called: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
            receive(self.find(called, args, kwargs))

        return module.register_forward_pre_hook(before, with_kwargs=True)

    def find(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Tensor:
        if callable(self.pick):
            return self.pick(*args, **kwargs)
        if self.pick is None:
            return _first_tensor((args, kwargs), self.module)
        named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        # by name, and by position where it was passed so
        given: dict[Any, Tensor] = {**named, **kwargs, **dict(enumerate(args))}
        if self.pick not in given:
            known = list(map(str, given))
            raise InputError(
                f"{_name(self.module)}: found no argument {self.pick!r} in a call, expected one of"
                f" {', '.join(known)}{did_you_mean(self.pick, known)}."
            )
        return given[self.pick]


@dataclass(frozen=True)
class Loop:
    """A looped group, by the sources of its states.

    x^{k+1} is an output of the module that is called once a loop step. x^0 is the first value of
    `initial` in a forward pass. By default it is the first floating-point tensor with which the
    module is called, which is the state only if nothing is added to it before the call.
    """

    step: Module | Output
    initial: Input | Output | None = None

    @property
    def output(self) -> Output:
        return self.step if isinstance(self.step, Output) else Output(self.step)

    @property
    def start(self) -> Input | Output:
        return self.initial or Input(self.output.module)


class _Argument(NamedTuple):
    """A matrix of integers in a call of the model, which may be the token ids."""

    name: str
    value: Tensor
    is_first: bool  # of the positional arguments in the order of the signature


@dataclass
class _Pass:
    """Record of one forward pass, in the order in which the states came."""

    tokens: Tensor | None
    arguments: Sequence[_Argument]  # that may be the tokens, if no option says which one
    mask: Tensor | None
    targets: Tensor | None
    initial: dict[str, Tensor] = field(default_factory=dict)  # group -> x^0
    steps: list[tuple[str, Tensor]] = field(default_factory=list)  # group and state x^1, x^2, …
    is_complete: bool = False  # further calls of the modules are those of `decode`

    def batch(self, groups: list[str]) -> RecordedBatch:
        """The states of all groups, which are complete now."""
        states = {label: [self.initial[label]] for label in groups}
        for label, state in self.steps:
            states[label].append(state)
        # of x^1, which is a state for certain; x^0 may be another tensor
        leading = states[groups[0]][1].shape[:-1]  # (B, T)
        for label, of_group in states.items():
            expected = (*leading, of_group[1].shape[-1])
            for k, state in enumerate(of_group):
                if state.shape != expected:
                    raise InputError(
                        f"group {label}: found x^{k} of shape {tuple(state.shape)}, expected"
                        f" {expected} as in the rest of the forward pass; Loop(step, initial)"
                        " specifies another x^0."
                    )
        if self.tokens is None:
            self.tokens = _token_ids(self.arguments, leading)
        for name in ("tokens", "mask", "targets"):
            value = getattr(self, name)
            if value is not None and value.shape != leading:
                raise InputError(
                    f"{name} of the model's call: found the shape {tuple(value.shape)}, expected"
                    f" {tuple(leading)}, the shape of the states without channels."
                )
        if self.tokens is not None:
            measured = self.tokens if self.mask is None else self.tokens[self.mask]
            negative = measured[measured < 0]
            if negative.numel():
                raise InputError(
                    f"tokens of the model's call: found the id {int(negative[0])}, expected no"
                    " negative one; the option `tokens` names the argument with the token ids."
                )
        # a group follows if its first loop step comes after the last one of the group before it
        order = [label for label, _ in self.steps]  # one for each loop step
        first = {label: order.index(label) for label in groups}
        last = {label: len(order) - 1 - order[::-1].index(label) for label in groups}
        follows = [right for left, right in pairwise(groups) if first[right] > last[left]]
        return RecordedBatch(states, frozenset(follows), self.tokens, self.mask, self.targets)


@dataclass
class Recorder:
    """Records the loops of any PyTorch model while it runs under `with`, and writes the tables of a
    run.

    The states are what modules return, (B, T, C) or, without an axis of tokens, (B, C). Every
    sequence counts as a separate document in intervals. See `StateTables` for the files and
    `RecordedBatch` for when drift is measured.

    Attributes:
        model: The module whose call is one forward pass.
        loops: Group -> the module that is called once a loop step, or a `Loop`; in the order of the
            model.
        folder: Folder of the run, such as results/mine.
        iteration: Training iteration of the weights; figures label 0 as untrained.
        tokens: Argument of the model with token ids (B, T), as `Input.pick`, for the words of Fig.
            1. By default an integer tensor of the states' shape without channels that has a name of
            `TOKEN_NAMES`, or else is the only one and the first argument of the model.
        mask: Argument of the model that is nonzero for tokens to measure, (B, T), such as
            "attention_mask".
        word: Token id -> text.
        decode: A state (B, T, C) of the last group -> logits (B, T, V), as the model computes them
            after the loop. A second parameter without a default gets the token ids (B, T). `decode`
            is called at the end of each pass, with states in the dtype and on the device of the
            model. With it, the predictions after each loop step are measured.
        targets: Argument of the model, or function of its arguments, with the ids (B, T) that the
            states predict at their own positions, negative for none: for a model that continues no
            text. By default the next tokens.
        criteria: Criteria of the path types.
        trained_loops: Loop steps of the last group in training, for the depth card; `None`: as in a
            pass. For loop counts beyond training, let the model run more of them, such as eight
            times as many.
        exits: Exit criterion, a name or a class -> thresholds, to measure on the recorded states of
            the last group; needs `decode`.
        replace: Whether an earlier recording of the iteration is replaced.

    Raises:
        InputError: for an unknown module, criterion or threshold and an earlier recording of the
            iteration; and while the model runs, if a tensor is not found, has the wrong shape or is
            not finite, it is not certain which argument has the token ids, a pass has another
            number of loop steps than the first one, or another thread than that of `with` runs it.

    Example:
        >>> groups = {"core": "model.core"}
        >>> recorder = twoscale.Recorder(model, groups, "results/mine", iteration=1000)
        >>> with torch.no_grad(), recorder:
        ...     for tokens in batches:  # (B, T) each
        ...         model(tokens)
        >>> twoscale.read_table("results/mine", "trajectories")
    """

    model: nn.Module
    loops: Mapping[str, Module | Output | Loop]
    folder: str | Path
    iteration: int
    tokens: int | str | Callable[..., Tensor] | None = None
    mask: int | str | Callable[..., Tensor] | None = None
    word: Callable[[int], str] = str
    decode: Callable[..., Tensor] | None = None
    targets: int | str | Callable[..., Tensor] | None = None
    criteria: PathTypesConfig = field(default_factory=PathTypesConfig)
    trained_loops: int | None = None
    exits: Thresholds = field(default_factory=dict)
    replace: bool = False

    def __post_init__(self) -> None:
        if self.exits and self.decode is None:
            raise InputError("recorder: found exits without decode, expected both.")
        if not self.loops:
            raise InputError("recorder: found no looped group, expected at least one module.")
        for name, least in (("iteration", 0), ("trained_loops", 1)):
            value = getattr(self, name)
            # integers of NumPy are `Integral` too
            if value is not None and not (isinstance(value, Integral) and int(value) >= least):
                raise InputError(
                    f"recorder: found {name} = {value!r}, expected a whole number, at least"
                    f" {least}."
                )
        self._criteria = _make_criteria(self.exits)
        self._loops = {label: as_loop(loop) for label, loop in self.loops.items()}
        self._sources: list[tuple[nn.Module, Input | Output, Callable]] = []
        for label, loop in self._loops.items():
            # x^0 first: a module's input comes before its output
            receivers = (loop.start, self._receive_initial), (loop.output, self._receive_step)
            for source, receive in receivers:
                module = find_module(self.model, source.module, f"group {label}")
                self._sources.append((module, source, partial(receive, label)))
        self._pass: _Pass | None = None

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            for module, source, receive in self._sources:
                stack.enter_context(source.hook(module, receive))
            stack.enter_context(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
            stack.enter_context(self.model.register_forward_hook(self._end))
            recorded = StateTables(
                folder=self.folder,
                iteration=self.iteration,
                word=self.word,
                criteria=self.criteria,
                trained_loops=self.trained_loops,
                facts=self._facts(),
                replace=self.replace,
            )
            self._tables = stack.enter_context(recorded)
            # only now: if the lines above fail, the stack removes the hooks that are there
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pass = None
        self._hooks.__exit__(*error)

    def _facts(self) -> dict[str, Any]:
        """The model and its modules, for the depth card."""
        weights = list(self.model.parameters())
        number = sum(weight.numel() for weight in weights)
        dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights}
        return {
            "model": f"{_name(self.model)}, {number:,} parameters",
            "modules": {label: _name(loop.output.module) for label, loop in self._loops.items()},
            "precision": ", ".join(sorted(dtypes)),
        }

    # --- hooks ------------------------------------------------------------------------------------

    def _begin(self, model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        def argument(pick: Any) -> Tensor | None:
            if pick is None:
                return None
            value = Input(model, pick).find(model, args, kwargs)
            if not isinstance(value, Tensor):
                raise InputError(
                    f"{_name(model)}: found {type(value).__name__} as argument {pick!r}, expected"
                    " a tensor."
                )
            return _host(value)

        self._check_thread()
        mask = argument(self.mask)
        mask = None if mask is None else mask.bool()
        arguments = _integer_matrices(model, args, kwargs) if self.tokens is None else []
        self._pass = _Pass(argument(self.tokens), arguments, mask, argument(self.targets))

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise InputError(
                "recorder: found a call from another thread, expected all calls from the thread"
                " that enters `with`."
            )

    def _receive_initial(self, label: str, state: Tensor) -> None:
        if self._pass is not None and label not in self._pass.initial:
            self._pass.initial[label] = _state(label, state)

    def _receive_step(self, label: str, state: Tensor) -> None:
        if self._pass is None:
            raise InputError(
                f"group {label}: found a loop step outside a call of {_name(self.model)}; give the"
                " recorder the module whose call is one forward pass."
            )
        self._check_thread()
        if not self._pass.is_complete:
            self._pass.steps.append((label, _state(label, state)))

    def _end(self, model: nn.Module, args: tuple, output: Any) -> None:
        recorded = self._pass
        assert recorded is not None
        for label, loop in self._loops.items():
            # only which groups have states matters here
            found = (loop.output, dict(recorded.steps)), (loop.start, recorded.initial)
            for source, states in found:
                if label not in states:
                    raise InputError(
                        f"group {label}: found no call of {_name(source.module)} in a forward"
                        " pass, expected at least one; a ModuleList itself is never called: name"
                        " its last layer."
                    )
        batch = recorded.batch(list(self._loops))
        # the pass stays open for `decode`, which may call the modules again
        recorded.is_complete = True
        self._tables.append(batch if self.decode is None else self._decoded(batch, self.decode))
        self._pass = None

    @torch.no_grad()
    def _decoded(self, batch: RecordedBatch, decode: Callable[..., Tensor]) -> RecordedBatch:
        """The batch with predictions after every loop step of the last group, and with exits."""
        *_, states = batch.states.values()  # of the last group
        read = _Reader(decode, batch, next(self.model.parameters()).device)
        if not self._criteria:
            return replace(batch, decoded=[read(state) for state in states[1:]])
        start = states[0].flatten(0, 1)  # (B T, C)
        exits = {
            point: ExitCounter(criterion, start, read.rows)
            for point, criterion in self._criteria.items()
        }
        decoded = [read(states[0])]  # criteria that keep the state before a step may keep x^0
        for state in states[1:]:
            # before the criteria, which then find these logits and do not decode again
            decoded.append(read(state))
            for of_point in exits.values():
                of_point.update(state.flatten(0, 1))
        losses = torch.stack([found["ce"] for found in decoded])  # (K + 1, B, T or T - 1)
        return replace(batch, decoded=decoded[1:], exits=_exits(exits, losses, batch.kept.shape))


class _Reader:
    """Predictions of the targets of a batch, or of its next tokens, on the device of the model."""

    def __init__(
        self, decode: Callable[..., Tensor], batch: RecordedBatch, device: torch.device
    ) -> None:
        self._decode, self._device = decode, device
        called = decode.forward if isinstance(decode, nn.Module) else decode
        required = [
            each
            for each in inspect.signature(called).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
            and each.default is each.empty
        ]
        self._arguments = []
        targets = batch.targets
        if targets is None or len(required) > 1:
            if batch.tokens is None:
                raise InputError(
                    "recorder: found a call without known token ids, expected an argument"
                    f" {' or '.join(TOKEN_NAMES[:2])}, or the option `tokens` or `targets` beside"
                    " `decode`."
                )
            if len(required) > 1:
                self._arguments = [batch.tokens.long().to(device)]
            if targets is None:
                targets = batch.tokens[:, 1:]
        self._targets = targets.long()  # (B, T) or (B, T - 1)
        # logits of the first and of the last state, which exit criteria read too, by the memory of
        # the state
        self._kept: dict[int, Tensor] = {}

    def logits(self, state: Tensor) -> Tensor:
        """Logits (B, T, V) in float32 at least, for states (B, T, C)."""
        logits = self._decode(state.to(self._device), *self._arguments)
        if logits.dim() != 3 or logits.shape[:2] != state.shape[:2]:
            wanted = (*state.shape[:2], "V")
            raise InputError(
                f"decode: found {tuple(logits.shape)}, expected logits {wanted} for V token ids."
            )
        return exact(logits)

    def __call__(self, state: Tensor) -> dict[str, Tensor]:
        """Cross-entropy, entropy and prediction of each target, for states (B, T, C)."""
        logits = self.logits(state)
        # logits of x^0 stay, because criteria read them at their first update
        first = dict(list(self._kept.items())[:1])
        self._kept = first | {state.data_ptr(): logits.flatten(0, 1).cpu()}
        # of next tokens, the last position has none to predict
        ahead, vocab = logits[:, : self._targets.shape[1]], logits.shape[-1]
        unknown = self._targets[self._targets >= vocab]
        if unknown.numel():
            raise InputError(
                f"decode: found the id {int(unknown[0])} to predict from logits of {vocab} ids,"
                " expected `targets` of a model that does not continue its input."
            )
        targets = self._targets.masked_fill(self._targets < 0, -100)  # ids that have no loss
        found = {
            "ce": cross_entropies(ahead, targets),
            "entropy": entropies(ahead),
            "predicted": ahead.argmax(-1),
        }
        return {name: values.cpu() for name, values in found.items()}

    def rows(self, state: Tensor) -> Tensor:
        """Logits (B T, V) of states (B T, C), as an exit criterion reads them."""
        kept = self._kept.get(state.data_ptr())
        if kept is not None and len(kept) == len(state):
            return kept
        return self.logits(state.unflatten(0, (len(self._targets), -1))).flatten(0, 1).cpu()


# --- exits on frozen paths ------------------------------------------------------------------------

# All tokens run all loop steps, and a token that leaves after k of them has the loss after k loop
# steps of all tokens. No cache is shared, and nothing is timed.


def _make_criteria(thresholds: Thresholds) -> dict[tuple[str, float], ExitCriterion]:
    """(name, threshold) -> criterion, of names of built-in criteria and of classes."""
    found = {}
    for key, values in thresholds.items():
        name = key if isinstance(key, str) else key.__name__
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"exits.{name}: found {values!r}, expected a list of thresholds.")
        for value in values:
            threshold = value.item() if hasattr(value, "item") else value  # of NumPy and torch
            check_threshold(name, threshold, None, f"exits.{name}", "")
            criterion = make_criterion(key, threshold) if isinstance(key, str) else key(threshold)
            if criterion.needs_gate or criterion.keeps == "weighted":
                raise InputError(
                    f"exits.{name}: found a criterion with a gate or a weighted state, expected"
                    " one that reads states or predictions."
                )
            found[name, threshold] = criterion
    return found


def _exits(
    exits: Mapping[tuple[str, float], ExitCounter], losses: Tensor, shape: tuple[int, ...]
) -> dict[tuple[str, float], dict[str, Tensor]]:
    """(criterion, threshold) -> loss and evaluations of each target, and whether it has left.

    `exits` are those of B T tokens of this `shape`, after the last loop step; `losses` the nats
    (K + 1, B, T or T - 1) of each target after k loop steps.
    """
    length = losses.shape[-1]
    values = {}
    for point, counter in exits.items():
        loop_steps, evaluations, left = (
            of_tokens.cpu().view(shape)[:, :length] for of_tokens in counter.exits()
        )
        # the loss after the loop step whose state is kept
        ce = losses.gather(0, loop_steps[None])[0]
        values[point] = {"ce": ce, "evaluations": evaluations, "left": left}
    return values


# --- modules and tensors --------------------------------------------------------------------------


def as_loop(loop: Module | Output | Loop) -> Loop:
    return loop if isinstance(loop, Loop) else Loop(loop)


def find_module(model: nn.Module, module: Module, where: str) -> nn.Module:
    """The module, or the one with this path in the model. Errors begin with `where`."""
    if isinstance(module, nn.Module):
        return module
    known = dict(model.named_modules())
    if module not in known:
        names = [name for name in known if name]
        raise InputError(
            f"{where}: found no module {module!r} in {_name(model)}, expected one of its modules,"
            f" such as {', '.join(names[:3])}{did_you_mean(module, names)}."
        )
    return known[module]


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested tuples, lists and mappings, in order, with the key that is nearest."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from named_tensors(part, str(key))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from named_tensors(part, name)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and mappings, in order."""
    return (tensor for _, tensor in named_tensors(value))


def _integer_matrices(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> list[_Argument]:
    """The arguments of a call, or parts of them, that may be token ids."""
    call = inspect.signature(model.forward).bind(*args, **kwargs)
    # arguments by position, also where they were passed by name
    first: Any = call.args
    while isinstance(first, tuple | list) and first:
        first = first[0]
    return [
        _Argument(name, _host(tensor), tensor is first)
        for name, tensor in named_tensors(call.arguments)
        if tensor.dtype in (torch.int64, torch.int32) and tensor.dim() == 2
    ]


def _token_ids(arguments: Sequence[_Argument], shape: torch.Size) -> Tensor | None:
    """The token ids of this shape (B, T) by their name or else their position, if there are any.

    Raises InputError if several arguments may be the token ids.
    """
    fitting = [argument for argument in arguments if argument.value.shape == shape]
    possible = [argument for argument in fitting if argument.name in TOKEN_NAMES]
    # without a name, further tensors may be masks, positions or labels, and the first one may be
    if not possible and any(argument.is_first for argument in fitting):
        possible = fitting
    if len(possible) > 1:
        names = ", ".join(argument.name for argument in possible)
        raise InputError(
            f"tokens of the model's call: found the integer tensors {names}, expected one; the"
            " option `tokens` names the argument with the token ids."
        )
    return possible[0].value if possible else None


def _first_tensor(value: Any, module: Module) -> Tensor:
    for tensor in tensors(value):
        if tensor.is_floating_point():
            return tensor
    raise InputError(f"{_name(module)}: found no floating-point tensor, expected the state.")


def _state(label: str, state: Any) -> Tensor:
    """A copy of a state (B, T, C) or (B, C) on the host, (B, T, C) with T = 1 for the latter."""
    is_tensor = isinstance(state, Tensor)
    if not is_tensor or not state.is_floating_point() or state.dim() not in (2, 3):
        found = tuple(state.shape) if is_tensor else type(state).__name__
        raise InputError(
            f"group {label}: found the state {found}, expected a floating-point tensor (B, T, C)"
            " or (B, C)."
        )
    copy = _host(state)
    return copy[:, None] if copy.dim() == 2 else copy  # (B, C) -> (B, 1, C)


def _host(tensor: Tensor) -> Tensor:
    """A copy on the host that the model cannot change in place."""
    return tensor.detach().to("cpu", copy=True)


def _name(module: Module) -> str:
    return module if isinstance(module, str) else type(module).__name__
