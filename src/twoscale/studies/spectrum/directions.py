"""The map on directions of a loop without a fixed point, and its eigenvalues where the direction has a limit.

If the state of a drifting loop grows, x^k = n u with a direction u that has a limit, its Jacobian does not say how u
gets there. With pre-norm and a residual connection, F(n u) = n u + G(u): the Jacobian is I + G'(u) / n and tends to the
identity. The direction follows the map u -> F(n u) / ||F(n u)|| at the norm of the state. Linearised in the plane
tangent to the sphere, it is n / ||F|| P' J P, with J the diagonal block of the token, P the projection onto the tangent
plane at u, and P' at the direction of F; they agree where the direction has reached its limit.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from twoscale.claims.regime import SUMMABLE, slopes
from twoscale.dynamics import vectors
from twoscale.dynamics.measures import direction
from twoscale.studies.spectrum.diagonal_block import DiagonalBlocks


class LateDirections:
    """The second half of a path of directions.

    Args:
        steps: Loop steps of the path.

    Attributes:
        half: Loop step in the middle.
        middle: The state before it (B, T, C); `None` until then.
        norms: Norms of the steps of the direction from there on, (B, T) each.
    """

    def __init__(self, steps: int) -> None:
        self.half = steps // 2
        self.middle: Tensor | None = None
        self.norms: list[Tensor] = []

    def add(self, k: int, before: Tensor, after: Tensor) -> None:
        """Loop step k, from `before` to `after` (B, T, C)."""
        if k == self.half:
            self.middle = before
        if k >= self.half:
            self.norms.append(vectors.norm(direction(after) - direction(before)))

    @cached_property
    def exponent(self) -> Tensor:
        """Exponent r of the power k^r by which the steps of each direction fall, (B, T); NaN where all are rounding."""
        norms = torch.stack(self.norms, dim=-1)
        above = norms.where(norms > self._floor, torch.nan)
        k = self.half + 0.5 + np.arange(len(self.norms))
        found = slopes(above.flatten(0, -2).cpu().numpy(), k)
        return torch.from_numpy(found).to(norms).view(norms.shape[:-1])

    @cached_property
    def frozen(self) -> Tensor:
        """Whether the directions of each token and of all earlier tokens have a limit, bool (B, T): their steps have a
        finite sum, or are rounding."""
        has_limit = (self.exponent < SUMMABLE) | (self.norms[-1] <= self._floor)
        return has_limit.cumprod(-1).bool()

    def rate(self, window: int) -> Tensor:
        """Geometric mean of the ratio of successive steps over the last `window`, (B, T); NaN if one is rounding."""
        window = min(window, len(self.norms))
        first, last = self.norms[-window], self.norms[-1]
        rate = (last / first) ** (1 / (window - 1))
        return rate.where(last > self._floor, torch.nan)

    @property
    def _floor(self) -> float:
        return float(vectors.rounding_floor(torch.ones((), dtype=self.norms[-1].dtype)))


class DirectionBlocks(DiagonalBlocks):
    """As `DiagonalBlocks`, of the map on directions, with the directions and norms of all earlier tokens held."""

    @cached_property
    def _after(self) -> Tensor:
        with torch.no_grad():
            return self.step(self.k, self.states)

    def product(self, tangents: Tensor) -> Tensor:
        return self._shorten(_onto_tangent(super().product(_onto_tangent(tangents, self.states)), self._after))

    def transposed_product(self, tangents: Tensor) -> Tensor:
        return self._shorten(
            _onto_tangent(super().transposed_product(_onto_tangent(tangents, self._after)), self.states)
        )

    def _shorten(self, products: Tensor) -> Tensor:
        """Times n / ||F||: (N, C) -> (N, C)."""
        return products * (vectors.norm(self.states) / vectors.norm(self._after))[:, None]


def _onto_tangent(vector: Tensor, state: Tensor) -> Tensor:
    """A vector without its part along a state: (N, C) twice -> (N, C)."""
    unit = direction(state)
    return vector - unit * (unit * vector).sum(-1, keepdim=True)
