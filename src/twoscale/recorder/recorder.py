"""A recorder for any PyTorch model that calls a module once a loop step: the tables of extraction
from forward hooks.

    with Recorder(model, {"core": "transformer.core"}, "results/mine", iteration=0):
        for tokens in texts:
            model(tokens)

Every call of the model is one batch of further sequences; every call of a looped module within it
is a loop step. Rows are measured and written when the model returns, so memory is for one forward
pass: the states are on the host, in the dtype of the model. `python scripts/measure_recorded.py
results/mine` then draws the figures.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from twoscale.base import InputError, did_you_mean
from twoscale.config import PathTypesConfig
from twoscale.config.definitions import check_threshold
from twoscale.dynamics.states import exact
from twoscale.exits.contract import FrozenExits
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.model.loss import cross_entropies, entropies
from twoscale.recorder.recorded import RecordedBatch, StateTables, means

Module = str | nn.Module  # a dotted path in the model, or the module itself
Thresholds = Mapping[str | type[ExitCriterion], Sequence[float]]


@dataclass(frozen=True)
class Output:
    """A tensor that a module returns; `pick` is an index or key of what it returns, or a function
    of it.

    By default the first floating-point tensor.
    """

    module: Module
    pick: int | str | Callable[[Any], Tensor] | None = None

    def hook(self, module: nn.Module, receive: Callable[[Tensor], None]) -> Any:
        return module.register_forward_hook(lambda _, args, output: receive(self.find(output)))

    def find(self, output: Any) -> Tensor:
        if callable(self.pick):
            return self.pick(output)
        if self.pick is None:
            return first_tensor(output, self.module)
        try:
            return output[self.pick]
        except (KeyError, IndexError, TypeError) as error:
            found = f"no {self.pick!r} in the {type(output).__name__} that the module returns"
            raise InputError(
                f"{_name(self.module)}: found {found}, expected an index or key of the state."
            ) from error


@dataclass(frozen=True)
class Input:
    """A tensor that a module is called with; `pick` is the position or name of an argument, or a
    function of all.

    By default the first floating-point tensor.
    """

    module: Module
    pick: int | str | Callable[..., Tensor] | None = None

    def hook(self, module: nn.Module, receive: Callable[[Tensor], None]) -> Any:
        return module.register_forward_pre_hook(
            lambda called, args, kwargs: receive(self.find(called, args, kwargs)), with_kwargs=True
        )

    def find(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Tensor:
        if callable(self.pick):
            return self.pick(*args, **kwargs)
        if self.pick is None:
            return first_tensor((args, kwargs), self.module)
        given: dict[Any, Tensor] = dict(enumerate(args))
        if not isinstance(self.pick, int):
            given = {**inspect.signature(module.forward).bind(*args, **kwargs).arguments, **kwargs}
        if self.pick not in given:
            known = ", ".join(map(str, given))
            found = f"no argument {self.pick!r} in a call"
            guess = did_you_mean(self.pick, map(str, given))
            raise InputError(
                f"{_name(self.module)}: found {found}, expected one of {known}{guess}."
            )
        return given[self.pick]


@dataclass(frozen=True)
class Loop:
    """A looped group, by the sources of x^{k+1}, the output of the module that is called once a
    loop step, and of x^0.

    x^0 is the first value in a forward pass. By default it is the first floating-point tensor with
    which the module is called, which is the state only if nothing is added to it before the call.
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
    """Record of one forward pass: x^0 and x^1 … x^K of each group, in the order in which they
    came.
    """

    tokens: Tensor | None
    mask: Tensor | None
    targets: Tensor | None
    initial: dict[str, Tensor] = field(default_factory=dict)
    steps: list[tuple[str, Tensor]] = field(
        default_factory=list
    )  # group and state of every loop step
    is_complete: bool = False  # further calls of the modules are those of `decode`

    def batch(self, groups: list[str]) -> RecordedBatch:
        """The states of all groups, which are complete now."""
        order = [label for label, _ in self.steps]
        states = {
            label: [self.initial[label], *(x for name, x in self.steps if name == label)]
            for label in groups
        }
        leading = states[groups[0]][1].shape[:-1]
        for label, of_group in states.items():
            expected = (*leading, of_group[1].shape[-1])
            for k, state in enumerate(of_group):
                if state.shape != expected:
                    raise InputError(
                        f"group {label}: found x^{k} of shape {tuple(state.shape)}, expected"
                        f" {expected} as in the rest "
                        "of the forward pass; Loop(step, initial) specifies another x^0."
                    )
        for name, value in (
            ("tokens", self.tokens),
            ("mask", self.mask),
            ("targets", self.targets),
        ):
            if value is not None and value.shape != leading:
                raise InputError(
                    f"{name} of the model's call: found the shape {tuple(value.shape)}, expected"
                    f" {tuple(leading)}, "
                    "the shape of the states without channels."
                )
        # groups whose first loop step comes after the last one of the group before them
        ends = {label: len(order) - order[::-1].index(label) for label in groups}
        follows = frozenset(
            right for left, right in pairwise(groups) if order.index(right) >= ends[left]
        )
        return RecordedBatch(states, follows, self.tokens, self.mask, self.targets)


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
            1. By default the first integer tensor of the call, if it has the shape of the states
            without channels.
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
            not finite, or a pass has another number of loop steps than the first one.

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
            if value is not None and not (isinstance(value, Integral) and int(value) >= least):
                raise InputError(
                    f"recorder: found {name} = {value!r}, expected a whole number, at least"
                    f" {least}."
                )
        self._criteria = make_criteria(self.exits)
        self._loops = {
            label: loop if isinstance(loop, Loop) else Loop(loop)
            for label, loop in self.loops.items()
        }
        self._sources: list[tuple[str, nn.Module, Input | Output, Callable]] = []
        for label, loop in self._loops.items():
            # x^0 first: a module's input comes before its output
            for source, receive in (
                (loop.start, self._receive_initial),
                (loop.output, self._receive_step),
            ):
                module = find_module(self.model, source.module, f"group {label}")
                self._sources.append((label, module, source, receive))
        self._pass: _Pass | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for label, module, source, receive in self._sources:
                stack.enter_context(source.hook(module, partial(receive, label)))
            stack.enter_context(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
            stack.enter_context(self.model.register_forward_hook(self._end))
            weights = list(self.model.parameters())
            facts = {
                "model": f"{type(self.model).__name__},"
                f" {sum(weight.numel() for weight in weights):,} parameters",
                "modules": {
                    label: _name(loop.output.module) for label, loop in self._loops.items()
                },
                "precision": ", ".join(
                    sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
                ),
            }
            options = self.word, self.criteria, self.trained_loops, facts, self.replace
            self._tables = stack.enter_context(StateTables(self.folder, self.iteration, *options))
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pass = None
        self._hooks.__exit__(*error)

    # --- hooks ------------------------------------------------------------------------------------

    def _begin(self, model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        integers = (
            tensor
            for tensor in tensors((args, kwargs))
            if tensor.dtype in (torch.int64, torch.int32)
        )
        tokens = next((tensor for tensor in integers if tensor.dim() == 2), None)
        if self.tokens is not None:
            tokens = Input(model, self.tokens).find(model, args, kwargs)
        mask, targets = (
            None if place is None else _host(Input(model, place).find(model, args, kwargs))
            for place in (self.mask, self.targets)
        )
        self._pass = _Pass(
            None if tokens is None else _host(tokens),
            None if mask is None else mask.bool(),
            targets,
        )

    def _receive_initial(self, label: str, state: Tensor) -> None:
        if self._pass is not None and label not in self._pass.initial:
            self._pass.initial[label] = _state(label, state)

    def _receive_step(self, label: str, state: Tensor) -> None:
        if self._pass is None:
            raise InputError(
                f"group {label}: found a loop step outside a call of {_name(self.model)}; give the "
                "recorder the module whose call is one forward pass."
            )
        if self._pass.is_complete:
            return
        self._pass.steps.append((label, _state(label, state)))
        number = sum(group == label for group, _ in self._pass.steps)
        self._tables.check_further_step(label, number)

    def _end(self, model: nn.Module, args: tuple, output: Any) -> None:
        recorded = self._pass
        assert recorded is not None
        for label, loop in self._loops.items():
            for source, found in (
                (loop.output, dict(recorded.steps)),
                (loop.start, recorded.initial),
            ):
                if label not in found:
                    raise InputError(
                        f"group {label}: found no call of {_name(source.module)} in a forward"
                        f" pass, expected at least "
                        "one; a ModuleList itself is never called: name its last layer."
                    )
        if self.tokens is None and recorded.tokens is not None:
            first = recorded.initial[next(iter(self._loops))]
            recorded.tokens = recorded.tokens if recorded.tokens.shape == first.shape[:-1] else None
        batch = recorded.batch(list(self._loops))
        # the pass stays open for `decode`, which may call the modules again
        recorded.is_complete = True
        self._tables.append(self._decoded(batch) if self.decode else batch)
        self._pass = None

    @torch.no_grad()
    def _decoded(self, batch: RecordedBatch) -> RecordedBatch:
        """The batch with what is predicted after every loop step of the last group, and with
        exits.
        """
        if batch.tokens is None and batch.targets is None:
            raise InputError(
                "recorder: found a call without token ids, expected them or `targets` beside"
                " `decode`."
            )
        states, targets = list(batch.states.values())[-1], batch.targets
        assert self.decode is not None
        read = Reader(self.decode, batch.tokens, targets, next(self.model.parameters()).device)
        start = states[0].flatten(0, 1)
        exits = {
            point: FrozenExits(criterion, start, read.rows)
            for point, criterion in self._criteria.items()
        }
        first = (
            [read(states[0])["ce"]] if exits else []
        )  # of criteria that keep the state before the last step
        decoded = []
        for state in states[1:]:
            decoded.append(read(state))
            for of_point in exits.values():
                of_point.update(state.flatten(0, 1))
        losses = torch.stack([*first, *(found["ce"] for found in decoded)])
        rows = partial(exit_rows, exits, losses, batch.predicted) if exits else None
        return replace(batch, decoded=decoded, exits=rows)


class Reader:
    """Predictions of targets (B, T), else of the next of the tokens (B, T), computed on the device
    of the model.
    """

    def __init__(
        self,
        decode: Callable[..., Tensor],
        tokens: Tensor | None,
        targets: Tensor | None,
        device: torch.device,
    ) -> None:
        self._decode, self._device = decode, device
        asked = tokens[:, 1:] if targets is None and tokens is not None else targets
        assert asked is not None
        self._targets = asked.long()
        parameters = inspect.signature(
            decode.forward if isinstance(decode, nn.Module) else decode
        ).parameters.values()
        positional = [
            each
            for each in parameters
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        required = [each for each in positional if each.default is each.empty]
        self._arguments = (
            [tokens.long().to(device)] if len(required) > 1 and tokens is not None else []
        )
        # logits of the first and of the last state, which exit criteria read too, by the memory of
        # the state
        self._kept: dict[int, Tensor] = {}

    def logits(self, state: Tensor) -> Tensor:
        """Logits (B, T, V) in float32 at least, for states (B, T, C). Raises InputError for another
        shape.
        """
        logits = self._decode(state.to(self._device), *self._arguments)
        if logits.dim() != 3 or logits.shape[:2] != state.shape[:2]:
            wanted = (*state.shape[:2], "V")
            raise InputError(
                f"decode: found {tuple(logits.shape)}, expected logits {wanted} for V token ids."
            )
        return exact(logits)

    def __call__(self, state: Tensor) -> dict[str, Tensor]:
        """Cross-entropy, entropy and prediction of each target, (B, T) or (B, T - 1), for states
        (B, T, C).
        """
        logits = self.logits(state)
        self._kept = dict([*self._kept.items()][:1]) | {
            state.data_ptr(): logits.flatten(0, 1).cpu()
        }
        ahead, vocab = logits[:, : self._targets.shape[1]], logits.shape[-1]
        if (unknown := self._targets[self._targets >= vocab]).numel():
            wrong = f"the id {int(unknown[0])} to predict from logits of {vocab} ids"
            raise InputError(
                f"decode: found {wrong}, expected `targets` of a model that does not continue its"
                f" input."
            )
        losses = cross_entropies(
            ahead, self._targets.masked_fill(self._targets < 0, -100)
        )  # those are left out
        found = {"ce": losses, "entropy": entropies(ahead)}
        return {
            name: values.cpu() for name, values in (found | {"predicted": ahead.argmax(-1)}).items()
        }

    def rows(self, state: Tensor) -> Tensor:
        """Logits (B T, V) of states (B T, C), as an exit criterion reads them."""
        kept = self._kept.get(state.data_ptr())
        if kept is not None and len(kept) == len(state):
            return kept
        return self.logits(state.unflatten(0, (len(self._targets), -1))).flatten(0, 1).cpu()


# --- exits on frozen paths ------------------------------------------------------------------------

# All tokens run all loop steps, and a token that leaves after k of them has the loss after k loop
# steps of all tokens. No cache is shared, and nothing is timed.


def make_criteria(thresholds: Thresholds) -> dict[tuple[str, float], ExitCriterion]:
    """(name, threshold) -> criterion, of names of built-in criteria and of classes. Raises
    InputError.
    """
    found = {}
    for key, values in thresholds.items():
        if not (isinstance(key, str) or (isinstance(key, type) and issubclass(key, ExitCriterion))):
            raise InputError(
                f"exits: found the key {key!r}, expected the name or class of an exit criterion."
            )
        name = key if isinstance(key, str) else key.__name__
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"exits.{name}: found {values!r}, expected a list of thresholds.")
        for value in values:
            threshold = value.item() if hasattr(value, "item") else value  # of NumPy and torch
            check_threshold(name, threshold, None, f"exits.{name}", "")
            made = make_criterion(key, threshold) if isinstance(key, str) else key(threshold)
            if made.needs_gate or made.keeps == "weighted":
                what = "a criterion with a gate or a weighted state"
                raise InputError(
                    f"exits.{name}: found {what}, expected one that reads states or predictions."
                )
            found[name, threshold] = made
    return found


def exit_rows(
    exits: Mapping[tuple[str, float], FrozenExits],
    losses: Tensor,
    predicted: Tensor,
    keys: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Rows of the table "recorded_exits": one per criterion, threshold and sequence, and `fixed` at
    each loop count.

    `exits` are those of B T tokens, after the last loop step; `losses` the nats (K + 1, B, T - 1)
    of each target after k loop steps, of which `predicted` (B, T - 1) count; `keys` the key columns
    of each sequence.
    """
    taken = [
        (("fixed", float(k)), (torch.full(predicted.shape, k),) * 2) for k in range(1, len(losses))
    ]
    taken += [(point, (found.loop_steps, found.evaluations)) for point, found in exits.items()]
    for (name, threshold), both in taken:
        both_of_all = (counts.cpu().view(len(predicted), -1) for counts in both)
        loop_steps, evaluations = (counts[:, : predicted.shape[1]] for counts in both_of_all)
        values = {"ce": losses.gather(0, loop_steps[None])[0], "evaluations": evaluations}
        for row in means(values, predicted, keys):
            yield row | {"criterion": name, "threshold": float(threshold)}


def find_module(model: nn.Module, module: Module, where: str) -> nn.Module:
    """The module, or the one with this path in the model. Raises InputError, `where` it was
    named.
    """
    if isinstance(module, nn.Module):
        return module
    known = dict(model.named_modules())
    if module not in known:
        near = (
            get_close_matches(str(module), filter(None, known), n=3)
            or list(filter(None, known))[:3]
        )
        found = f"no module {module!r} in {_name(model)}"
        raise InputError(
            f"{where}: found {found}, expected one of its modules, such as {', '.join(near)}."
        )
    return known[module]


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


def first_tensor(value: Any, module: Module) -> Tensor:
    found = next((tensor for tensor in tensors(value) if tensor.is_floating_point()), None)
    if found is None:
        raise InputError(f"{_name(module)}: found no floating-point tensor, expected the state.")
    return found


def _state(label: str, state: Any) -> Tensor:
    """A copy of a state (B, T, C) or (B, C) on the host, (B, T, C) with T = 1 for the latter."""
    if not isinstance(state, Tensor) or not state.is_floating_point() or state.dim() not in (2, 3):
        found = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
        expected = "a floating-point tensor (B, T, C) or (B, C)"
        raise InputError(f"group {label}: found the state {found}, expected {expected}.")
    copy = _host(state)
    return copy[:, None] if copy.dim() == 2 else copy


def _host(tensor: Tensor) -> Tensor:
    """A copy on the host that the model cannot change in place."""
    return tensor.detach().to("cpu", copy=True)


def _name(module: Module) -> str:
    return module if isinstance(module, str) else type(module).__name__
