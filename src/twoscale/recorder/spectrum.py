"""The spectrum of a recorded loop: leading eigenvalues of the Jacobian of its last loop step, in
float64.

    record_spectrum(model.double(), {"core": "transformer.core"}, "results/mine", 5000, lambda:
    model(tokens))

The Jacobian is d x^K / d x^{K-1}, both over all tokens of a sequence, with everything else in the
forward pass held. Its products with vectors are exact: the model itself runs with x^{K-1} and a
tangent in the place of what the looped module returned (`torch.func.jvp`), and the tangent of its
next output is the product. So whatever the model does between two calls of the module, such as an
adapter that adds the input again, is part of the step. Leading eigenvalues follow by Arnoldi's
method.

If x^{K-1} after the first call of the module leads to the same x^K, the loop step does not depend
on k, and a product costs two loop steps; otherwise the pass runs up to the last one each time.

A loop whose norm grows has no fixed point. Its second reading, "direction", is the map of x / ||x||
of each token.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from twoscale import tables
from twoscale.base import InputError, first_line
from twoscale.dynamics.arnoldi import LoopStepMap, Product, arnoldi, check_precision, start_vectors
from twoscale.dynamics.states import check_finite, loop_places
from twoscale.dynamics.vectors import norm
from twoscale.recorder.recorded import check_absent, table_path
from twoscale.recorder.recorder import Loop, Module, Output, find_module, tensors

READINGS = ("state", "direction")
EFFORT = 80, 4, 1e-6  # of Arnoldi's method: vectors of one cycle, most cycles, relative residual
SAME = 1e-9  # relative difference of two states that are equal up to rounding
MOST_DIFFERENCE = 0.01  # relative, of an exact product and a central difference
STEP = torch.finfo(torch.float64).eps ** (
    1 / 3
)  # of a central difference, over the norm of the state


class _Reached(BaseException):
    """Ends a forward pass at the loop step that was asked for. No `Exception`, so a model does not
    catch it.
    """


def record_spectrum(
    model: nn.Module,
    loops: Mapping[str, Module | Output | Loop],
    folder: str | Path,
    iteration: int,
    call: Callable[[], Any],
    *,
    replace: bool = False,
) -> pd.DataFrame:
    """Write the table "recorded_spectrum" of a recorded run, and return it.

    Args:
        model: The module whose call is one forward pass, in float64.
        loops: As for `Recorder`; the states are outputs of modules, picked by nothing, an index or
            a key.
        folder: Folder of the run.
        iteration: Training iteration of the weights.
        call: One forward pass on B sequences. It is repeated for each product, so B should be
            small.
        replace: Whether an earlier spectrum of the iteration is replaced.

    Raises InputError if the model is not in float64 or has no forward derivatives, or a loop is not
    found.
    """
    path = table_path(folder, "recorded_spectrum", iteration)
    check_absent(path, iteration, replace)
    check_precision(next(model.parameters()))
    rows: list[dict[str, Any]] = []
    for label, loop in loops.items():
        output = (loop if isinstance(loop, Loop) else Loop(loop)).output
        rows += (
            {"iteration": iteration, "group": label} | row
            for row in measure_spectrum(model, label, output, call)
        )
    frame = pd.DataFrame(rows, columns=list(tables.columns("recorded_spectrum")))
    tables.write("recorded_spectrum", frame, path)
    return frame


def measure_spectrum(
    model: nn.Module, label: str, output: Output, call: Callable[[], Any]
) -> Iterator[dict[str, Any]]:
    """Rows of the table "recorded_spectrum" without iteration and group: one per reading and
    sequence.
    """
    with _plain_operations():
        step = RecordedStep.of(model, label, output, call)
        jacobian = LoopStepMap(step, step.state)
        for reading in READINGS:
            product, difference = (
                _read(step, reading, form) for form in (jacobian.product, step.difference)
            )
            try:
                value, vector, residual = arnoldi(
                    product, start_vectors(step.state.flatten(1)), *EFFORT
                )
            except (RuntimeError, NotImplementedError) as error:
                raise InputError(
                    f"group {label}: found no forward derivative of a loop step"
                    f" ({first_line(error)}), expected a "
                    "model whose operations have one."
                ) from error
            unit = vector.real / vector.real.norm(dim=-1, keepdim=True)
            exact, differences = product(unit), difference(unit)
            gaps = (exact - differences).norm(dim=-1) / torch.maximum(
                exact.norm(dim=-1), differences.norm(dim=-1)
            )
            if (gaps > MOST_DIFFERENCE).any():
                raise InputError(
                    f"group {label}: found Jacobian products that differ from finite differences"
                    f" by "
                    f"{gaps.max().item():.2g} of their length; a call of detach() inside the"
                    f" model hides a derivative."
                )
            parts = (part.tolist() for part in (value.abs(), value.angle().abs(), residual, gaps))
            for sequence, (radius, angle, size, gap) in enumerate(zip(*parts, strict=True)):
                row = {
                    "reading": reading,
                    "k": step.k,
                    "sequence": sequence,
                    "radius": radius,
                    "angle": angle,
                }
                yield row | {"error": size, "difference": gap}


@dataclass(frozen=True)
class RecordedStep:
    """The map from x^k to x^{k+1} of one group, by running the model."""

    label: str
    module: nn.Module
    output: Output
    call: Callable[[], Any]
    # call of the module, from 0, whose state is replaced by the argument; the next one gives the
    # value
    place: int
    k: int
    state: Tensor  # x^k (B, …, C)
    after: Tensor  # x^{k+1}

    @classmethod
    def of(
        cls, model: nn.Module, label: str, output: Output, call: Callable[[], Any]
    ) -> "RecordedStep":
        """The map at the last loop step of a forward pass, at the earliest call of the module that
        gives the same.
        """
        if callable(output.pick):
            raise InputError(
                f"group {label}: found a function that picks the state, expected an index or a key."
            )
        states: list[Tensor] = []
        module, count = find_module(model, output.module, f"group {label}"), 0

        def receive(_: Any, args: Any, found: Any) -> None:
            nonlocal states, count
            states, count = [*states[-1:], output.find(found).detach()], count + 1

        with module.register_forward_hook(receive):
            call()
        if count < 2:
            raise InputError(
                f"group {label}: found {count} loop steps in a forward pass, expected at least 2."
            )
        state, after = states
        norms = torch.stack([norm(state), norm(after)])  # (2, B, …)
        length = norms[0].numel() // len(state)
        keys = {
            "sequence": np.arange(len(state)).repeat(length),
            "position": np.tile(np.arange(length), len(state)),
        }
        check_finite(norms, keys, loop_places(label, count + 1)[-2:], "a state of norm")
        early = cls(label, module, output, call, 0, count - 1, state, after)
        gap = (early(early.state) - early.after).norm() / early.after.norm()
        return early if gap <= SAME else replace(early, place=count - 2)

    def __call__(self, state: Tensor) -> Tensor:
        calls = 0
        reached: Any = None

        def put(_: Any, args: Any, found: Any) -> Any:
            nonlocal calls, reached
            calls += 1
            if calls == self.place + 1:
                return with_state(found, self.output.pick, state)
            if calls == self.place + 2:
                reached = self.output.find(found)
                raise _Reached
            return None

        with self.module.register_forward_hook(put), suppress(_Reached):
            self.call()
        if reached is not None:
            return reached
        raise InputError(
            f"group {self.label}: the number of loop steps changed in a repeated pass."
        )

    def difference(self, vectors: Tensor) -> Tensor:
        """J v by central differences, (B, T C) -> (B, T C)."""
        size = (STEP * self.state.flatten(1).norm(dim=-1)).view(-1, *[1] * (self.state.dim() - 1))
        change = size * vectors.view_as(self.state)
        return ((self(self.state + change) - self(self.state - change)) / (2 * size)).flatten(1)


def _read(step: RecordedStep, reading: str, product: Product) -> Product:
    """The products of a reading from those of the Jacobian: for directions, of the map on x / ||x||
    of each token.
    """
    if reading == "state":
        return product

    def of_directions(vectors: Tensor) -> Tensor:
        tangent = (
            _onto_tangent(vectors.view_as(step.state), step.state) * norm(step.state)[..., None]
        )
        result = product(tangent.flatten(1)).view_as(step.after)
        return (_onto_tangent(result, step.after) / norm(step.after)[..., None]).flatten(1)

    return of_directions


def _onto_tangent(vectors: Tensor, state: Tensor) -> Tensor:
    """The part of the vectors of each token that is orthogonal to its state, (B, …, C) each."""
    unit = state / norm(state)[..., None]
    return vectors - (vectors * unit).sum(-1, keepdim=True) * unit


def with_state(found: Any, pick: Any, state: Tensor) -> Any:
    """The output of a module, with another state in the place that `Output.pick` names."""

    def has_state(value: Any) -> bool:
        return any(tensor.is_floating_point() for tensor in tensors(value))

    if isinstance(found, Tensor):
        return state
    if isinstance(found, Mapping):
        key = (
            pick
            if pick is not None
            else next(key for key, value in found.items() if has_state(value))
        )
        changed = {**found, key: with_state(found[key], None, state)}
        return type(found)(**changed) if type(found) is not dict else changed
    index = (
        pick if pick is not None else next(i for i, value in enumerate(found) if has_state(value))
    )
    return type(found)(with_state(v, None, state) if i == index else v for i, v in enumerate(found))


@contextmanager
def _plain_operations() -> Iterator[None]:
    """No fused kernels of attention and of encoder layers, which have no forward derivatives; no
    gradients.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
