"""The end of a path to a fixed point: its rate, its angles, and the recurrence that it follows.

Near a fixed point an update is the Jacobian times the update before it, so the last updates show the leading
eigenvalues. A leading complex pair λ = |λ| exp(±iθ) leaves an elliptic spiral d_k = |λ|^k (p cos ψ_k, q sin ψ_k) with
ψ_k = ψ_0 + kθ in the plane of its eigenvector. The cosine of successive updates is cos θ on a circle, p = q. On an
ellipse it depends on ψ_k, and its mean over many steps on the ratio of the axes q / p, see `mean_spiral_cosine`.

Updates are (..., C), a window of W of them (W, ..., C). Angles are in radians, 0 … π.
"""

import torch
from torch import Tensor

from twoscale.dynamics import vectors

MARGIN = 64  # an update this many times the rounding floor has an error of about a thousandth
FEWEST = 4  # updates for a rate, and for a recurrence
SINGULAR = 1e-8  # relative determinant below which successive updates are parallel
PHASES = 360  # of a mean over half a turn of an ellipse


class LatePath:
    """Collects the last updates of each token (...) that rounding does not decide, while a loop runs.

    A token's window ends for good with its first update under `MARGIN` rounding floors. Only the window is in memory.

    Attributes:
        updates: The window (W, ..., C); the latest update is last, unused places hold zeros.
        count: Updates before the end of the window, int64 (...); those beyond W have been dropped.
        is_open: Whether the window has not ended, bool (...).
        converged: Whether the latest update is under the rounding floor, bool (...).
        loops: Loop steps until a step norm fell below `tolerance` times the norm of the state, (...); NaN before.
        steps: Loop steps so far.
    """

    def __init__(self, window: int, tolerance: float, x0: Tensor) -> None:
        self.tolerance, self.steps = tolerance, 0
        self.updates = x0.new_zeros(window, *x0.shape)
        self.count = torch.zeros(x0.shape[:-1], dtype=torch.int64, device=x0.device)
        self.is_open = torch.ones_like(self.count, dtype=torch.bool)
        self.converged = ~self.is_open
        self.loops = x0.new_full(self.count.shape, torch.nan)

    def add(self, before: Tensor, after: Tensor) -> None:
        """One more loop step, from `before` to `after` (..., C)."""
        update, state_norm = after - before, vectors.norm(before)
        step_norm, floor = vectors.norm(update), vectors.rounding_floor(state_norm)
        self.steps += 1
        self.is_open = self.is_open & (step_norm > MARGIN * floor)
        moved = torch.cat([self.updates[1:], update[None]])
        self.updates = torch.where(self.is_open[..., None], moved, self.updates)
        self.count += self.is_open
        self.converged = step_norm <= floor
        is_below = self.loops.isnan() & (vectors.over_norm(step_norm, state_norm) < self.tolerance)
        self.loops[is_below] = self.steps

    @property
    def valid(self) -> Tensor:
        """Valid places of the window: bool (W, ...). A short path counts from its middle on, but `FEWEST`."""
        window = len(self.updates)
        place = torch.arange(window, device=self.count.device).view(-1, *[1] * self.count.dim())
        return place >= window - (self.count // 2).clamp(FEWEST, window)

    def summary(self) -> dict[str, Tensor]:
        """`rate`, `cosine` and the results of `fit_recurrence`: (...) each; NaN for fewer than `FEWEST` updates."""
        valid = self.valid
        values = {"rate": rate(self.updates, valid), "cosine": mean_cosine(self.updates, valid)}
        values |= fit_recurrence(self.updates, valid)
        return {name: value.where(self.count >= FEWEST, torch.nan) for name, value in values.items()}


def rate(updates: Tensor, valid: Tensor) -> Tensor:
    """Geometric mean of the ratios of successive step norms: (W, ..., C) and bool (W, ...) -> (...)."""
    norms, count = vectors.norm(updates), valid.sum(0)
    first = norms.gather(0, (len(updates) - count).clamp(max=len(updates) - 1)[None])[0]
    return (norms[-1] / first) ** (1 / (count - 1))


def mean_cosine(updates: Tensor, valid: Tensor) -> Tensor:
    """Mean cosine of the angle between successive updates: (W, ..., C) and bool (W, ...) -> (...)."""
    cosines = vectors.cosine(updates[1:], updates[:-1])
    return cosines.where(valid[:-1], torch.nan).nanmean(0)


def fit_recurrence(updates: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """The recurrence d_{k+1} = a d_k + b d_{k-1} of least squares, with the leading root of z² = a z + b.

    Each equation is divided by ||d_k||, so that late ones count as much as early ones. One leading eigenvalue, real or
    a complex pair, gives it back; two real ones of similar modulus too. Where successive updates are parallel, b is 0.

    Args:
        updates: (W, ..., C).
        valid: Which of them count, bool (W, ...).

    Returns:
        path_modulus and path_angle of the root, path_axis_ratio (`axis_ratio` of the spiral; NaN for a real root), and
        path_residual, the root mean square of the residuals over the one of the left sides: (...) each.
    """
    scale = vectors.norm(updates[1:-1])[..., None]
    uses = valid[:-2, ..., None]  # the updates before decide: later ones are valid too
    later, middle, earlier = (torch.where(uses, part / scale, 0) for part in (updates[2:], updates[1:-1], updates[:-2]))

    def dot(left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum((0, -1))

    mm, me, ee = dot(middle, middle), dot(middle, earlier), dot(earlier, earlier)
    ml, el = dot(middle, later), dot(earlier, later)
    determinant = mm * ee - me.square()
    is_plane = determinant > SINGULAR * mm * ee
    a = torch.where(is_plane, (ee * ml - me * el) / determinant, ml / mm)
    b = torch.where(is_plane, (mm * el - me * ml) / determinant, 0)
    modulus, angle = leading_root(a, b)
    residual = later - a[..., None] * middle - b[..., None] * earlier
    return {
        "path_modulus": modulus,
        "path_angle": angle,
        "path_axis_ratio": spiral_axis_ratio(updates, valid, modulus, angle),
        "path_residual": (dot(residual, residual) / dot(later, later)).sqrt(),
    }


def leading_root(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Modulus and angle of the root of z² = a z + b with the larger modulus, real (...) each."""
    discriminant = a.square() / 4 + b
    real = a / 2 + torch.where(a < 0, -1.0, 1.0) * discriminant.clamp_min(0).sqrt()
    is_complex = discriminant < 0
    modulus = torch.where(is_complex, (-b).clamp_min(0).sqrt(), real.abs())
    turn = (a / (2 * modulus)).clamp(-1, 1).acos()
    return modulus, torch.where(is_complex, turn, torch.where(real < 0, torch.pi, 0.0))


def spiral_axis_ratio(updates: Tensor, valid: Tensor, modulus: Tensor, angle: Tensor) -> Tensor:
    """`axis_ratio` of the spiral Re(w z^k) nearest to the updates, z of this modulus and angle; NaN for a real z."""
    k = torch.arange(len(updates), dtype=updates.dtype, device=updates.device).view(-1, *[1] * modulus.dim())
    c, s = (torch.where(valid, turn(k * angle), 0) for turn in (torch.cos, lambda phase: -torch.sin(phase)))
    scaled = torch.where(valid[..., None], updates / (modulus**k)[..., None], 0)
    along, across = (c[..., None] * scaled).sum(0), (s[..., None] * scaled).sum(0)
    cc, cs, ss = (c * c).sum(0)[..., None], (c * s).sum(0)[..., None], (s * s).sum(0)[..., None]
    determinant = cc * ss - cs.square()
    real, imaginary = (ss * along - cs * across) / determinant, (cc * across - cs * along) / determinant
    is_complex = (angle > 0) & (angle < torch.pi)
    return axis_ratio(real, imaginary).where(is_complex, torch.nan)


def axis_ratio(real: Tensor, imaginary: Tensor) -> Tensor:
    """Short axis over long axis of the ellipse Re(w exp(iψ)), w = real + i imaginary (..., C): (...), 1 for a circle.

    The ratio does not depend on the phase of w: ||w||² and |w · w| are the sum and the difference of the squares of
    the semi-axes.
    """
    total = (real.square() + imaginary.square()).sum(-1)
    across = torch.complex((real.square() - imaginary.square()).sum(-1), 2 * (real * imaginary).sum(-1)).abs()
    return ((total - across).clamp_min(0) / (total + across)).sqrt()


def mean_spiral_cosine(angle: Tensor, ratio: Tensor) -> Tensor:
    """Mean over the phase of the cosine of successive updates on an elliptic spiral: angle θ and axis ratio -> (...).

    It falls from cos θ on a circle to 1 − 2θ/π on a flat ellipse, whose updates have cosines ±1 (for θ > π/2 it rises).
    The mean over the steps tends to it if θ/π is irrational, in practice if the window holds a few turns. A real
    eigenvalue, θ = 0 or π, has the cosine 1 or −1 with any ratio.
    """
    phase = (torch.arange(PHASES, dtype=angle.dtype, device=angle.device) + 0.5) * torch.pi / PHASES
    ratio = ratio.nan_to_num(1.0)[..., None]

    def point(at: Tensor) -> tuple[Tensor, Tensor]:
        return at.cos(), ratio * at.sin()

    (x, y), (x_next, y_next) = point(phase), point(phase + angle[..., None])
    return ((x * x_next + y * y_next) / (torch.hypot(x, y) * torch.hypot(x_next, y_next))).mean(-1)
