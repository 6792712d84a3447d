"""The contract of engines and exit criteria: readouts, decisions, patience, a user's file.

`twoscale.exits.criteria` says what `start` and `update` have to return. An error is one sentence
that names the criterion, what it returned and what was expected; an exception from a user's file
becomes one with its line.

A readout (`exits.readout`) turns states into predictions for criteria. `head` decodes a state
directly (§4). `remaining_layers` decodes a state of the last group as the model would continue with
it, through the layers after the group (Geiping et al., `predict_from_latents`). Earlier tokens are
then seen with the states they left the group with, so positions are read one after another. States
of earlier groups go to the head directly.
"""

import importlib.util
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from twoscale.base import InputError, first_line, mismatch
from twoscale.config.criteria import Patience
from twoscale.exits.criteria import CRITERIA, ExitCriterion, State, place_in, raise_failure
from twoscale.model.interface import Attend, Gated, LoopedModel, Readout, Stage

# --- readouts -------------------------------------------------------------------------------------


def is_sequential(criterion: ExitCriterion, readout: str) -> bool:
    """Whether a text can be read under the criterion only position by position."""
    return readout == "remaining_layers" and criterion.needs_readout


def make_readout(
    model: LoopedModel,
    criterion: ExitCriterion,
    readout: str,
    group: int,
    attend: Attend | None = None,
) -> Readout:
    """The function that a criterion gets in `group`: states (N, C) -> logits (N, V).

    Or the model's exit gate, states (N, C) -> probabilities (N,). `attend` is the attention of
    unlooped layers at the position of the token; only `remaining_layers` uses it.
    """
    if criterion.needs_gate:
        if getattr(model, "gate", None) is None:
            raise InputError(
                "exit criterion: needs an exit gate, expected a model with model.exit_gate: true."
            )
        return cast(Gated, model).exit_gate
    if readout == "head":
        return model.readout
    # `is_sequential` relies on the attribute: in parallel, earlier tokens have no exit states yet
    if not criterion.needs_readout:
        return _undeclared
    if group != len(model.config.groups) - 1:
        return model.readout

    def through_remaining_layers(x: Tensor) -> Tensor:
        """Logits (1, V) of the state x (1, C) of the one token that loops in the last group."""
        assert attend is not None
        hidden = model.finish(group, x)
        for stage in stages_after(model, group):
            hidden = model.unlooped_layer(stage.index, hidden, attend)
        return model.readout(hidden)

    return through_remaining_layers


def stages_after(model: LoopedModel, group: int) -> Sequence[Stage]:
    """The stages of the model that follow a group."""
    return model.stages[[stage.group for stage in model.stages].index(group) + 1 :]


def _undeclared(x: Tensor) -> Tensor:
    raise InputError("exit criterion: calls readout, expected needs_readout = True in its class.")


# --- decisions ------------------------------------------------------------------------------------


class Decisions:
    """The decisions of a criterion on N tokens that loop in a group, from their x^0 (N, C) on."""

    def __init__(self, criterion: ExitCriterion, x0: Tensor, readout: Readout) -> None:
        self._criterion = criterion
        self._readout = readout
        self._shape = x0.shape[:1]
        self._weighted: State = {}  # of a criterion that keeps a weighted mean
        if criterion.keeps == "weighted":
            self._weighted = {
                "sum": torch.zeros_like(x0),  # sum of weight * state so far (N, C)
                "left": torch.ones_like(x0[:, :1]),  # of a weight of 1 (N, 1)
                "mean": x0,  # if the last state had all that is left (N, C)
            }
        try:
            self.state: State = criterion.start(x0)
        except Exception as error:  # the user's code may raise anything
            raise_failure(type(criterion), "start", error)

    def update(self, x_new: Tensor) -> Tensor:
        """What the criterion says about the states x_new (N, C) after a loop step, bool (N,)."""
        try:
            result: Any = self._criterion.update(self.state, x_new, self._readout)
        except Exception as error:
            raise_failure(type(self._criterion), "update", error)
        weight: Any = None
        try:
            if self._weighted:
                should_exit, self.state, weight = result
            else:
                should_exit, self.state = result
        except (TypeError, ValueError):
            expected = "a pair (should_exit, state)"
            if self._weighted:
                expected = "a triple (should_exit, state, weight)"
            raise self._error(_described(result), expected) from None
        self._check("should_exit", should_exit, torch.bool)
        if self._weighted:
            self._check("weight", weight, x_new.dtype)
            total, left = self._weighted["sum"], self._weighted["left"]
            weight = weight[:, None].clamp(min=0).minimum(left)  # the weights sum to 1 at most
            self._weighted = {
                "sum": total + weight * x_new,
                "left": left - weight,
                "mean": total + left * x_new,
            }
        return should_exit

    def result(self, x_new: Tensor) -> Tensor:
        """The states (N, C) with which tokens leave after `update(x_new)`: x_new, or a mean."""
        return self._weighted.get("mean", x_new)

    def keep(self, rows: Tensor) -> None:
        """Drop all tokens but `rows`."""
        try:
            # all per-token state is here, so these rows are all that the criterion needs
            self.state = {name: values[rows] for name, values in self.state.items()}
        except (AttributeError, IndexError, TypeError) as error:
            expected = "a dict of tensors whose first axis has one entry per token"
            raise self._error(
                "a state without rows", f"{expected}, {self._shape[0]} here"
            ) from error
        self._weighted = {name: values[rows] for name, values in self._weighted.items()}
        self._shape = rows.shape

    def _check(self, name: str, values: Any, dtype: torch.dtype) -> None:
        if getattr(values, "shape", None) != self._shape or values.dtype is not dtype:
            expected = f"a {_name(dtype)} tensor of shape {tuple(self._shape)}, one value per token"
            raise self._error(f"as {name} {_described(values)}", expected)

    def _error(self, found: str, expected: str) -> InputError:
        criterion = type(self._criterion)
        file = "" if criterion.file is None else f" file {criterion.file}:"
        return InputError(
            f"exit criterion{file} {criterion.__name__}.update returned {found}, expected"
            f" {expected}."
        )


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {_name(value.dtype)} tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Decided = tuple[int, Tensor, Tensor | bool]  # k, x^{k+1} or the mean so far (1, C), should_exit


@dataclass
class TokenExit:
    """The result of one group for one token."""

    state: Tensor  # (1, C); after captured steps in memory that the next replay may overwrite
    loop_steps: int
    evaluations: int


def first_exit(
    steps: Iterable[Decided], criterion: ExitCriterion, x: Tensor, max_loops: int
) -> TokenExit:
    """The exit of a token with the initial state x (1, C): the criterion's, or after all steps."""
    patience = Patience(criterion.patience)
    for k, x_new, should_exit in steps:
        if patience.ends(bool(should_exit)):
            # Algorithm 1 breaks before it takes x_new: k + 1 evaluations, of which k are kept
            if criterion.keeps == "previous":
                return TokenExit(x, loop_steps=k, evaluations=k + 1)
            return TokenExit(x_new, loop_steps=k + 1, evaluations=k + 1)
        x = x_new
    return TokenExit(x, max_loops, max_loops)


def prescribed_exit(steps: Iterable[Decided], evaluations: int) -> TokenExit:
    """The exit of a token after so many steps, at least 1; decisions are read and not followed."""
    for decided in islice(steps, evaluations):
        _, state, should_exit = decided
        bool(should_exit)  # waits for the decision, as an engine does that follows it
    return TokenExit(state, evaluations, evaluations)


# --- exits on frozen trajectories -----------------------------------------------------------------


class FrozenExits(NamedTuple):
    """When N tokens leave a loop whose states x^0 … x^K are known, each (N,).

    Attributes:
        loop_steps: Index of the state that each token keeps, int64.
        evaluations: The loop step after which it leaves, 1 … K, and K for a token that never does,
            int64. It is the cost, one more than `loop_steps` where the criterion discards this
            step (`keeps = "previous"`).
        left: Whether the criterion fires at all, bool.
    """

    loop_steps: Tensor
    evaluations: Tensor
    left: Tensor


class ExitCounter:
    """Exits of N tokens that all take all loop steps; their states arrive one after another."""

    def __init__(self, criterion: ExitCriterion, x0: Tensor, readout: Readout) -> None:
        self._keeps_previous = criterion.keeps == "previous"
        self._decisions = Decisions(criterion, x0, readout)
        self._patience = Patience(criterion.patience)
        self._evaluations = torch.zeros(len(x0), dtype=torch.int64, device=x0.device)
        self._left = self._evaluations > 0

    def update(self, x_new: Tensor) -> None:
        """Take the states (N, C) after one more loop step."""
        leaves = self._patience.ends(self._decisions.update(x_new))
        # before `left` changes, because the step at which a token leaves is evaluated
        self._evaluations += ~self._left
        self._left |= leaves

    def exits(self) -> FrozenExits:
        """The exits so far."""
        # a token that never leaves keeps its last state under every criterion
        discarded = self._left & self._keeps_previous
        return FrozenExits(self._evaluations - discarded.long(), self._evaluations, self._left)


def frozen_exits(
    states: Tensor | Sequence[Tensor], criterion: ExitCriterion, readout: Readout
) -> FrozenExits:
    """When a criterion lets tokens leave a loop whose states are known.

    Args:
        states: x^0 … x^K of N tokens, (K + 1, N, C), or one tensor (N, C) for each.
        criterion: What `make_criterion` returned, or an instance of your class.
        readout: Function of states (N, C) that a criterion with `needs_readout` calls for logits
            (N, V), and one with `needs_gate` for probabilities of exit (N,).

    Raises:
        InputError: for states of another shape, and a criterion that breaks its contract.

    Example:
        >>> exits = frozen_exits(states, make_criterion("step_norm", 0.1), model.readout)
        >>> exits.evaluations[exits.left].double().mean()
    """
    if len(states) < 2 or {state.dim() for state in states} != {2}:
        found = f"{len(states)} states, the first of shape {tuple(states[0].shape)}"
        raise mismatch("frozen_exits", found, "x^0, x^1, … of shape (N, C) each")
    counter = ExitCounter(criterion, states[0], readout)
    for x_new in states[1:]:
        counter.update(x_new)
        # later states change nothing
        if counter.exits().left.all():
            break
    return counter.exits()


# --- a user's file --------------------------------------------------------------------------------

KEEPS = ("previous", "new", "weighted")
METHODS = {
    "__init__": "(self, threshold)",
    "start": "(self, x0)",
    "update": "(self, state, x_new, readout)",
}
_USERS_MODULE = "users_exit_criterion"


def configured_criteria(entries: Mapping[str, Any]) -> dict[str, type[ExitCriterion]]:
    """The built-in criteria, and the user's: entries of `exits.criteria` with a file and a
    class.
    """
    of_user = {
        name: load_criterion(entry.file, entry.class_name)
        for name, entry in entries.items()
        if entry.file
    }
    return CRITERIA | of_user


def load_criterion(file: str, name: str) -> type[ExitCriterion]:
    """The class `name` of a Python file; an InputError if it is not an exit criterion."""
    if not Path(file).is_file():
        raise InputError(
            f"exit criterion file {file}: no such file, expected Python code with the class."
        )
    # the loader is named, because without it the file would need the ending .py
    spec = importlib.util.spec_from_file_location(
        _USERS_MODULE, file, loader=SourceFileLoader(_USERS_MODULE, file)
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise InputError(
            f"{place_in(file, error)}: cannot be imported ({type(error).__name__}:"
            f" {first_line(error)})."
        ) from error
    criterion = getattr(module, name, None)
    if not (isinstance(criterion, type) and issubclass(criterion, ExitCriterion)):
        raise InputError(
            f"exit criterion file {file}: found no subclass of ExitCriterion named '{name}'."
        )
    if (wrong := _fault(criterion)) is not None:
        raise InputError(f"exit criterion file {file}: class '{name}' {wrong}.")
    if criterion.__module__ == _USERS_MODULE:  # not a built-in that the file imports
        criterion.file = file
    return criterion


def _fault(criterion: type[ExitCriterion]) -> str | None:
    """What is wrong with a class, as the end of a sentence; None if nothing is."""
    for method, arguments in METHODS.items():
        found = getattr(criterion, method)
        if method != "__init__" and found is getattr(ExitCriterion, method):
            return f"lacks the method {method}, expected {method}{arguments}"
        signature = inspect.signature(found)
        try:
            # as many arguments as the engine passes
            signature.bind(*arguments.split(","))
        except TypeError:
            return f"has {method}{signature}, expected {method}{arguments}"
    if criterion.keeps not in KEEPS:
        return f"has keeps = {criterion.keeps!r}, expected one of {', '.join(KEEPS)}"
    if not isinstance(criterion.patience, int) or criterion.patience < 1:
        return (
            f"has patience = {criterion.patience!r}, expected a whole number of loop steps, at"
            f" least 1"
        )
    return None
