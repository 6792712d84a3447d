"""Maps of known spectral radius, at a state that is long against a unit step, as those of trained loops are."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SIZE = 256
NORM = 700.0  # of the state; that of the solver of shortest paths after its 16th loop step is 656


@dataclass(frozen=True)
class Map:
    """A map and the state at which its Jacobian is taken.

    Attributes:
        name: Shown in the tables.
        step: State -> next state of the same shape, in float64.
        state: In float64, of any shape.
        radius: Spectral radius of the Jacobian; None where only a computation knows it.
        loops: Loop steps that lead to the state; 0 for a map that is not a loop.
    """

    name: str
    step: nn.Module
    state: Tensor
    radius: float | None = None
    loops: int = 0


class Linear(nn.Module):
    """x (1, C) -> x A^T."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("transposed", matrix.T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.transposed


class Residual(nn.Module):
    """x (1, C) -> x - tanh(x Q) D Q^T for orthogonal Q and diagonal D.

    Its Jacobian is Q (1 - D (1 - tanh^2(Q^T x))) Q^T.
    """

    def __init__(self, basis: Tensor, strength: Tensor) -> None:
        super().__init__()
        self.register_buffer("basis", basis)
        self.register_buffer("back", (basis * strength).T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return x - (x @ self.basis).tanh() @ self.back


def known_maps() -> list[Map]:
    """The maps of known spectrum, functions of a fixed seed; SIZE channels, states of norm NORM."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(_normal(generator, SIZE, SIZE)).Q
    state = _normal(generator, 1, SIZE)
    state *= NORM / state.norm()
    falling = torch.linspace(0.6, 0, SIZE, dtype=torch.float64)
    # name: (leading block, radius)
    blocks = {
        "linear, radius 0.9": (_jordan(0.9, 1), 0.9),
        "linear, radius 1.0": (_jordan(1.0, 1), 1.0),
        "linear, radius 1.1": (_jordan(1.1, 1), 1.1),
        "rotation": (_spiral(1.0, angle=0.5, axes=4.0), 1.0),
        "non-normal": (_jordan(0.9, 3), 0.9),
    }
    maps = []
    for name, (block, radius) in blocks.items():
        inner = falling.diag()
        inner[: len(block), : len(block)] = block
        maps.append(Map(name, Linear(basis @ inner @ basis.T), state, radius))
    strength = torch.linspace(0.1, 0.9, SIZE, dtype=torch.float64)
    slopes = 1 - strength * (1 - (state @ basis).tanh() ** 2)  # (1, C), the eigenvalues
    return [*maps, Map("residual tanh", Residual(basis, strength), state, slopes.abs().max().item())]


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _spiral(radius: float, angle: float, axes: float) -> Tensor:
    """A turn by `angle` radians along an ellipse with this ratio of its axes: (2, 2), a complex pair."""
    cosine, sine = radius * math.cos(angle), radius * math.sin(angle)
    return torch.tensor([[cosine, -sine * axes], [sine / axes, cosine]], dtype=torch.float64)


def _jordan(value: float, size: int) -> Tensor:
    """A Jordan block (size, size)."""
    return value * torch.eye(size, dtype=torch.float64) + torch.ones(size - 1, dtype=torch.float64).diag(1)
