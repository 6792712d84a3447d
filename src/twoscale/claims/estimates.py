"""Estimates: numbers of a run with 95 % intervals, and how both follow from samples of units."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from twoscale.claims import bootstrap

# assumed of the scatter of successive checkpoints about their line (docs/judging.md)
CORRELATION = 0.6


class InconclusiveError(Exception):
    """A finding has no verdict; the message is the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    remark: str = ""  # for the reader of the number
    freedom: float = 1  # degrees of freedom of the interval
    is_ratio: bool = False  # a positive one; its interval is computed for the logarithm
    # values in samples of the units (R,), logarithms of a ratio; the same samples in every run
    samples: np.ndarray | None = field(default=None, repr=False, compare=False)
    units: int = 0
    effective: float = 0.0  # number of units, of which some weigh more than others

    def checked(self) -> Self:
        """The estimate itself. Raises InconclusiveError if it is undefined."""
        if np.isnan([self.value, self.low, self.high]).any():
            raise InconclusiveError("the quantity or its interval is undefined")
        return self

    def widened(self, findings: int) -> "Estimate":
        """The estimate with its interval widened for so many findings (Bonferroni).

        Each of the `findings` intervals then misses its number with a chance of 5 % / `findings`.
        """
        if not np.isfinite(self.value) or self.value == self.low == self.high:
            return self
        outside = (1 - bootstrap.LEVEL) / 2  # on either side
        alone = bootstrap.t_quantile(1 - outside, self.freedom)
        one_of_many = bootstrap.t_quantile(1 - outside / findings, self.freedom)
        factor = one_of_many / alone
        if self.is_ratio:  # the distance of logarithms grows by the factor
            low = self.value * (self.low / self.value) ** factor
            high = self.value * (self.high / self.value) ** factor
        else:
            low = self.value + factor * (self.low - self.value)
            high = self.value + factor * (self.high - self.value)
        return replace(self, low=low, high=high)

    def exponential(self) -> Self:
        """The ratio of which this is the logarithm."""
        value = float(np.exp(self.value))
        low = float(np.exp(self.low))
        high = float(np.exp(self.high))
        return replace(self, value=value, low=low, high=high, is_ratio=True)


def estimate_of(
    value: float,
    samples: np.ndarray,
    units: np.ndarray,
    effective: float,
    remark: str,
    scatter: float = 0.0,
    freedom: float | None = None,
) -> Estimate:
    """The estimate with the interval that follows from the values in samples of the units (R,).

    `scatter` is a standard error beside that of the units. Raises InconclusiveError where the value
    or its interval is undefined.
    """
    freedom = effective - 1 if freedom is None else freedom
    low, high = bootstrap.interval_about(value, samples, effective, scatter, freedom)
    return Estimate(
        value=float(value),
        low=low,
        high=high,
        remark=remark,
        freedom=freedom,
        samples=samples,
        units=len(units),
        effective=effective,
    ).checked()


# --- statistics of totals (R, …, 2) ---------------------------------------------------------------


def effective_number(units: np.ndarray) -> float:
    """Effective number of documents by their counts, from units (documents, …, 2)."""
    counts = units[..., 1].reshape(len(units), -1)
    return bootstrap.effective_number(counts.sum(axis=1))


def mean(totals: np.ndarray) -> np.ndarray:
    """Sums and counts (R, …, 2) -> means over all tokens (R, …)."""
    with np.errstate(invalid="ignore"):
        return totals[..., 0] / totals[..., 1]


def trend_weights(iterations: Sequence[int]) -> np.ndarray:
    """Weights (n,) of values at `iterations`; their weighted sum is the change along their line.

    The line is the least-squares fit over log iteration.
    """
    position = np.log(iterations)
    offset = position - position.mean()
    slope = offset / (offset @ offset)  # weights of the slope of the fit
    return slope * (position[-1] - position[0])


def trend_error(values: np.ndarray, iterations: Sequence[int]) -> tuple[float, float]:
    """Standard error of the change of values (n,) along their line, and its degrees of freedom.

    The values scatter about the line over log iteration as an autoregression with `CORRELATION`
    from each checkpoint to the next. Scatter that is correlated moves the line more, and residuals
    show less of it. The degrees of freedom are those of Satterthwaite, "An approximate distribution
    of estimates of variance components", Biometrics 2, 1946; for scatter without correlation they
    are n - 2.
    """
    count = len(values)
    number = np.arange(count)
    distance = np.abs(number - number[:, None])  # (n, n), in checkpoints
    correlation = CORRELATION**distance  # R (n, n), of the scatter
    line = np.stack([np.ones(count), np.log(iterations)], axis=1)  # X (n, 2)

    # M = I - X X⁺ makes residuals of values. Those of scatter with the covariance σ² R have the
    # expected sum of squares σ² tr(M R), so the variance σ² is estimated without bias.
    residual = np.eye(count) - line @ np.linalg.pinv(line)  # M (n, n)
    seen = residual @ correlation  # M R, the part of the scatter that residuals show
    residuals = residual @ values
    trace = np.trace(seen)
    variance = residuals @ residuals / trace  # σ²

    # The sum of squares has mean σ² tr(M R) and variance 2 σ⁴ tr(M R M R). Satterthwaite: it is
    # distributed as chi-square with 2 mean² / variance degrees of freedom, scaled.
    freedom = trace**2 / np.trace(seen @ seen)

    weights = trend_weights(iterations)  # w, the change is w · values with the variance σ² wᵀ R w
    error = np.sqrt(variance * (weights @ correlation @ weights))
    return float(error), float(freedom)
