"""Recipes for the spectral radius: a product of the Jacobian with a vector, and a method for the largest eigenvalue."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.studies.spectrum.jacobians.maps import Map
from twoscale.studies.spectrum.diagonal_block import arnoldi

TF32 = "TF32, emulated"
PRECISIONS = {
    TF32: torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
EPSILONS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
STEPS = (10, 30, 100)  # of the power iteration
SMALL = 6000  # entries of a state up to which Arnoldi's method is run in float32, too, where it takes all its cycles
DIFFERENCE, EXACT = "forward difference", "exact"
POWER, ARNOLDI = "power iteration", "Arnoldi"
Product = Callable[[Tensor], Tensor]  # vector of the state's shape -> the Jacobian's product with it
aten = torch.ops.aten


def to_tf32(tensor: Tensor) -> Tensor:
    """A float32 tensor with 10 bits of mantissa, rounded to nearest, ties away from zero."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class TF32Products(TorchDispatchMode):
    """Rounds the operands of products of float32 matrices to TF32; sums are in float32."""

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in (aten.mm.default, aten.bmm.default):
            args = tuple(map(to_tf32, args))
        elif function in (aten.addmm.default, aten.baddbmm.default):
            args = (args[0], *map(to_tf32, args[1:]))
        return function(*args, **(kwargs or {}))


def forward_difference(of: Map, precision: str, epsilon: float) -> Product:
    """(f(x + ε v) − f(x)) / ε, with state, weights and vectors in the precision."""
    step, state = _in_precision(of, precision)
    rounded = TF32Products if precision == TF32 else nullcontext
    with rounded():
        base = step(state)

    def product(vector: Tensor) -> Tensor:
        with rounded():
            return (step(state + epsilon * vector) - base) / epsilon

    return product


def exact_product(of: Map, precision: str) -> Product:
    """J v by forward differentiation in the precision."""
    step, state = _in_precision(of, precision)
    return lambda vector: torch.func.jvp(step, (state,), (vector,))[1]


def _in_precision(of: Map, precision: str) -> tuple[torch.nn.Module, Tensor]:
    dtype = PRECISIONS[precision]
    return deepcopy(of.step).to(dtype), of.state.to(dtype)


def power_iteration(product: Product, of: Map, precision: str) -> list[float]:
    """The norm of the product with the unit vector of each of the last of STEPS iterations; NaN after one of zero."""
    vector = _start(of).to(PRECISIONS[precision])
    norms = []
    for _ in range(max(STEPS)):
        vector = product(vector)
        norm = vector.norm()
        norms.append(norm.item())
        vector = vector / norm
    return norms


def arnoldi_radius(product: Product, of: Map, precision: str) -> tuple[float, float]:
    """Modulus of the leading eigenvalue, and the norm of the residual of its eigenvector.

    Products are in the precision, everything else in float64.
    """
    dtype, shape = PRECISIONS[precision], of.state.shape

    def rows(vectors: Tensor) -> Tensor:
        return product(vectors.to(dtype).view(shape)).view(1, -1).double()

    value, _, residual = arnoldi(rows, _start(of).reshape(1, -1))
    return value.abs().item(), residual.item()


def _start(of: Map) -> Tensor:
    """A random unit vector of the state's shape, float64."""
    vector = torch.randn(of.state.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return vector / vector.norm()


@contextmanager
def plain_products(precision: str) -> Iterator[None]:
    """Attention and layers by plain products of matrices, which can be rounded and have forward derivatives.

    Fused linear layers of oneDNN in float32 would count as constants in `torch.func.jvp`, without an error.
    """
    onednn = torch.backends.mkldnn.flags(enabled=precision == "bfloat16")  # slow without, and not rounded further
    with sdpa_kernel(SDPBackend.MATH), onednn:
        yield


@torch.no_grad()
def measure(of: Map) -> Iterator[dict[str, Any]]:
    """Rows of the table: every recipe on one map."""
    key = {"map": of.name, "loops": of.loops, "norm": of.state.norm().item(), "size": of.state.numel()}
    for precision in PRECISIONS:
        with plain_products(precision):
            yield from (key | row for row in (*_differences(of, precision), *_exact(of, precision)))
    if of.radius is not None:
        yield key | {"product": "", "precision": "", "method": "closed form", "radius": of.radius}


def _differences(of: Map, precision: str) -> Iterator[dict[str, Any]]:
    for epsilon in EPSILONS:
        norms = power_iteration(forward_difference(of, precision, epsilon), of, precision)
        recipe = {"product": DIFFERENCE, "precision": precision, "epsilon": epsilon}
        yield from (recipe | row for row in _power_rows(norms))


def _exact(of: Map, precision: str) -> Iterator[dict[str, Any]]:
    if precision not in ("float32", "float64"):
        return
    product, recipe = exact_product(of, precision), {"product": EXACT, "precision": precision}
    yield from (recipe | row for row in _power_rows(power_iteration(product, of, precision)))
    if precision == "float64" or of.state.numel() <= SMALL:
        radius, residual = arnoldi_radius(product, of, precision)
        yield recipe | {"method": ARNOLDI, "radius": radius, "residual": residual}


def _power_rows(norms: list[float]) -> Iterator[dict[str, Any]]:
    for steps in STEPS:
        yield {"method": POWER, "steps": steps, "radius": norms[steps - 1]}
