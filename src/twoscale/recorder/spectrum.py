"""The spectrum of a recorded loop: leading eigenvalues of the Jacobian of its last loop step.

    groups = {"core": "transformer.core"}
    record_spectrum(model.double(), groups, "results/mine", 5000, lambda: model(tokens))

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

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from twoscale.dynamics.run_tables import table_path
from twoscale.dynamics.states import check_finite, loop_places
from twoscale.dynamics.vectors import norm
from twoscale.recorder.recorded import check_absent
from twoscale.recorder.recorder import Loop, Module, Output, as_loop, find_module, tensors

READINGS = ("state", "direction")
EFFORT = 80, 4, 1e-6  # of Arnoldi's method: vectors of one cycle, most cycles, relative residual
SAME = 1e-9  # relative difference of two states that are equal up to rounding
MOST_DIFFERENCE = 0.01  # relative, of an exact product and a central difference
# of a central difference, over the norm of the state
STEP = torch.finfo(torch.float64).eps ** (1 / 3)


class _Reached(BaseException):
    """Ends a forward pass at a loop step. It is no `Exception`, so a model does not catch it."""


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
        key = {"iteration": iteration, "group": label}
        found = measure_spectrum(model, label, as_loop(loop).output, call)
        rows += [key | row for row in found]
    frame = pd.DataFrame(rows, columns=list(tables.columns("recorded_spectrum")))
    tables.write("recorded_spectrum", frame, path)
    return frame


def measure_spectrum(
    model: nn.Module, label: str, output: Output, call: Callable[[], Any]
) -> Iterator[dict[str, Any]]:
    """Rows of the table "recorded_spectrum": one per reading and sequence."""
    with _plain_operations():
        step = RecordedStep.of(model, label, output, call)
        jacobian = LoopStepMap(step, step.state)
        for reading in READINGS:
            product = _read(step, reading, jacobian.product)
            start = start_vectors(step.state.flatten(1))  # (B, T C)
            try:
                value, vector, residual = arnoldi(product, start, *EFFORT)
            except (RuntimeError, NotImplementedError) as error:
                raise InputError(
                    f"group {label}: found no forward derivative of a loop step"
                    f" ({first_line(error)}), expected a model whose operations have one."
                ) from error
            # the check needs some real vector
            unit = vector.real / vector.real.norm(dim=-1, keepdim=True)
            gaps = _gaps(product(unit), _read(step, reading, step.difference)(unit))
            if (gaps > MOST_DIFFERENCE).any():
                raise InputError(
                    f"group {label}: found Jacobian products that differ from finite differences"
                    f" by {gaps.max().item():.2g} of their length; a call of detach() inside the"
                    " model hides a derivative."
                )
            for sequence in range(len(value)):
                yield {
                    "reading": reading,
                    "k": step.k,
                    "sequence": sequence,
                    "radius": value[sequence].abs().item(),
                    "angle": value[sequence].angle().abs().item(),
                    "error": residual[sequence].item(),
                    "difference": gaps[sequence].item(),
                }


def _gaps(exact: Tensor, other: Tensor) -> Tensor:
    """Relative distances (N,) of vectors (N, C)."""
    longest = torch.maximum(exact.norm(dim=-1), other.norm(dim=-1))
    return (exact - other).norm(dim=-1) / longest


@dataclass(frozen=True)
class RecordedStep:
    """The map from x^k to x^{k+1} of one group, by running the model."""

    label: str
    module: nn.Module
    output: Output
    call: Callable[[], Any]
    place: int  # call of the module, from 0, that returns the argument; the next gives the value
    k: int
    state: Tensor  # x^k (B, …, C)
    after: Tensor  # x^{k+1}

    @classmethod
    def of(
        cls, model: nn.Module, label: str, output: Output, call: Callable[[], Any]
    ) -> "RecordedStep":
        """The map at the last loop step, at the earliest call of the module that gives the same."""
        if callable(output.pick):
            raise InputError(
                f"group {label}: found a function that picks the state, expected an index or a key."
            )
        last: deque[Tensor] = deque(maxlen=2)  # x^{K-1} and x^K
        count = 0

        def receive(found: Tensor) -> None:
            nonlocal count
            count += 1
            last.append(found.detach())

        module = find_module(model, output.module, f"group {label}")
        # one whole pass, which counts the loop steps and keeps the last two states
        with output.hook(module, receive):
            call()
        if count < 2:
            raise InputError(
                f"group {label}: found {count} loop steps in a forward pass, expected at least 2."
            )
        # x^{K-1} and x^K
        state, after = last
        norms = torch.stack([norm(state), norm(after)])  # (2, B, …)
        sequence, position = np.indices(norms[0].flatten(1).shape)
        keys = {"sequence": sequence.flatten(), "position": position.flatten()}
        check_finite(norms, keys, loop_places(label, count + 1)[-2:], "a state of norm")
        # if the first call leads from x^{K-1} to x^K too, a loop step does not depend on k
        early = cls(label, module, output, call, 0, count - 1, state, after)
        gap = (early(early.state) - early.after).norm() / early.after.norm()
        return early if gap <= SAME else replace(early, place=count - 2)

    def __call__(self, state: Tensor) -> Tensor:
        calls = 0
        reached: Any = None

        def put(_: Any, args: Any, found: Any) -> Any:
            nonlocal calls, reached
            calls += 1
            # what this call returns is the argument of the map
            if calls == self.place + 1:
                return with_state(found, self.output.pick, state)
            # and what the next one returns is its value
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
        size = STEP * self.state.flatten(1).norm(dim=-1, keepdim=True)  # (B, 1)
        # (f(x + h v) - f(x - h v)) / 2 h
        change = (size * vectors).view_as(self.state)
        difference = self(self.state + change) - self(self.state - change)
        return difference.flatten(1) / (2 * size)


def _read(step: RecordedStep, reading: str, product: Product) -> Product:
    """The products of a reading from those of the Jacobian.

    The direction's are of the map on x / ||x|| of each token.
    """
    if reading == "state":
        return product

    def of_directions(vectors: Tensor) -> Tensor:
        # a change of x / ||x|| is one of x orthogonal to it, over ||x||
        before = norm(step.state)[..., None]
        after = norm(step.after)[..., None]
        tangent = _onto_tangent(vectors.view_as(step.state), step.state)
        change = tangent * before
        result = product(change.flatten(1)).view_as(step.after)
        tangent = _onto_tangent(result, step.after)
        return (tangent / after).flatten(1)

    return of_directions


def _onto_tangent(vectors: Tensor, state: Tensor) -> Tensor:
    """The part of the vectors of each token that is orthogonal to its state, (B, …, C) each."""
    unit = state / norm(state)[..., None]
    return vectors - (vectors * unit).sum(-1, keepdim=True) * unit


def with_state(found: Any, pick: Any, state: Tensor) -> Any:
    """The output of a module, with another state in the place that `Output.pick` names."""
    if isinstance(found, Tensor):
        return state
    if isinstance(found, Mapping):
        key = _first_with_state(found.items()) if pick is None else pick
        # output classes of transformers are mappings that are made from keywords
        changed = {**found, key: with_state(found[key], None, state)}
        return changed if type(found) is dict else type(found)(**changed)
    index = _first_with_state(enumerate(found)) if pick is None else pick
    parts = list(found)
    parts[index] = with_state(parts[index], None, state)
    return type(found)(parts)


def _first_with_state(items: Iterable[tuple[Any, Any]]) -> Any:
    """The first key or index whose value has a floating-point tensor."""
    for place, value in items:
        if any(tensor.is_floating_point() for tensor in tensors(value)):
            return place
    raise AssertionError


@contextmanager
def _plain_operations() -> Iterator[None]:
    """No gradients, and no fused kernels of attention and encoder layers.

    These have no forward derivatives.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
