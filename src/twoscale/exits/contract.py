"""The contract of an exit criterion, which both engines check.

`twoscale.exits.criteria` says what `start` and `update` have to return. An error is one sentence that names the
criterion, what it returned and what was expected; an exception from a user's file becomes one with its line.
"""

from typing import Any

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.exits.criteria import ExitCriterion, State, keep_rows, raise_failure
from twoscale.model.interface import Readout


class Decisions:
    """The decisions of a criterion on the N tokens that loop in a group, from their initial states x0 (N, C) on.

    The decisions of `update` are checked at every loop step. The state is checked where an engine
    relies on it: after `start`, after the first `update`, and before rows are dropped. In decoding this adds
    less than a hundredth to a loop step (tests/benchmarks/bench_decode.py).
    """

    def __init__(self, criterion: ExitCriterion, x0: Tensor, readout: Readout) -> None:
        self._criterion, self._readout = criterion, readout
        self._shape, self._device = x0.shape[:1], x0.device
        self._keys: tuple[str, ...] | None = None  # of the state, after the first update
        # of a weighted criterion: weighted sum of the states so far (N, C), what is left of a weight of 1 (N, 1), and
        # the mean if that were the weight of the last state (N, C)
        self._weighted: State = {}
        if criterion.keeps == "weighted":
            self._weighted = {"sum": torch.zeros_like(x0), "left": torch.ones_like(x0[:, :1]), "mean": x0}
        try:
            self.state: State = criterion.start(x0)
        except Exception as error:  # the user's code may raise anything
            raise_failure(type(criterion), "start", error)
        self._check_state("start")

    def update(self, x_new: Tensor) -> Tensor:
        """Which tokens exit, bool (N,), after one more loop step to the states x_new (N, C)."""
        try:
            result: Any = self._criterion.update(self.state, x_new, self._readout)
        except Exception as error:
            raise_failure(type(self._criterion), "update", error)
        try:
            should_exit, self.state, weight = result if self._weighted else (*result, None)
        except (TypeError, ValueError):
            expected = "a triple (should_exit, state, weight)" if self._weighted else "a pair (should_exit, state)"
            raise self._error("update", described(result), expected) from None
        self._check_values("should_exit", should_exit, torch.bool)
        if self._weighted:
            self._check_values("weight", weight, x_new.dtype)
            self._add(weight, x_new)
        if self._keys is None:
            self._check_state("update")
            self._keys = tuple(self.state)
        return should_exit

    def result(self, x_new: Tensor) -> Tensor:
        """The states with which tokens leave after `update(x_new)`: x_new (N, C), or the weighted mean so far."""
        return self._weighted.get("mean", x_new)

    def _add(self, weight: Tensor, x_new: Tensor) -> None:
        """Count the states x_new (N, C) with this weight (N,), which is limited to what is left of 1."""
        total, left = self._weighted["sum"], self._weighted["left"]
        weight = weight[:, None].clamp(min=0).minimum(left)
        self._weighted = {"sum": total + weight * x_new, "left": left - weight, "mean": total + left * x_new}

    def _check_values(self, name: str, values: Any, dtype: torch.dtype) -> None:
        valid = getattr(values, "shape", None) == self._shape and values.dtype is dtype
        if not valid or (self._keys is None and values.device != self._device):
            kind = str(dtype).removeprefix("torch.")
            expected = f"a {kind} tensor of shape {tuple(self._shape)} on {self._device}, one value per token"
            raise self._error("update", f"as {name} {described(values)}", expected)

    def keep(self, rows: Tensor) -> None:
        """Drop all tokens but `rows`, int64."""
        self._check_state("update")
        assert self._keys is not None
        if self.state.keys() != {*self._keys}:
            found, expected = (", ".join(map(str, keys)) for keys in (self.state, self._keys))
            raise self._error("update", f"a state with the keys {found}", f"{expected} as in the first update")
        self.state, self._weighted = keep_rows(self.state, rows), keep_rows(self._weighted, rows)
        self._shape = rows.shape

    def _check_state(self, method: str) -> None:
        """Refuse a state that is not a dict of tensors with the tokens as first axis."""
        expected = f"a tensor whose first axis has one entry per token, {self._shape[0]} here, on {self._device}"
        if not isinstance(self.state, dict):
            raise self._error(method, f"as state {described(self.state)}", f"a dict, each value {expected}")
        for key, value in self.state.items():
            valid = isinstance(value, Tensor) and value.shape[:1] == self._shape and value.device == self._device
            if not valid:
                raise self._error(method, f"as state[{key!r}] {described(value)}", expected)

    def _error(self, method: str, found: str, expected: str) -> InputError:
        criterion = type(self._criterion)
        where = "exit criterion" if criterion.file is None else f"exit criterion file {criterion.file}:"
        return InputError(f"{where} {criterion.__name__}.{method} returned {found}, expected {expected}.")


def described(value: object) -> str:
    """A value that a criterion returned, in a few words."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)} on {value.device}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
