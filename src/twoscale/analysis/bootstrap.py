"""Percentile intervals from resampled units: whole sequences, or whole prompts, never tokens.

The tokens of a sequence and the timings of a prompt depend on one another; the units do not. Everything that
was measured on one unit is drawn with it, so a difference of two checkpoints or settings is a paired one.
"""

from collections.abc import Callable

import numpy as np

from twoscale import rng

REPEATS = 1000
LEVEL = 0.95
_LARGEST = 2**24  # values gathered at once; bounds the memory

# (R, units, ...) -> (R,): one number for each of R samples of the units.
Statistic = Callable[[np.ndarray], np.ndarray]


def replicates(statistic: Statistic, units: np.ndarray, seed: int, repeats: int = REPEATS) -> np.ndarray:
    """`statistic` of `repeats` samples of the units (units, ...), drawn with replacement: (repeats, ...).

    The draws are a function of the seed and the number of units.
    """
    number = len(units)
    draws = rng.stream(seed, "bootstrap").integers(number, size=(repeats, number))
    pieces = np.array_split(draws, np.ceil(repeats * units.size / _LARGEST))
    return np.concatenate([statistic(units[piece]) for piece in pieces])


def percentiles(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the values (R,), both ends being values themselves; NaN if one of them is NaN."""
    outside = (1 - level) / 2
    # no interpolation: the length of something that never ends is infinite, and infinities have no mean
    low, high = np.quantile(values, [outside, 1 - outside], method="inverted_cdf")
    return float(low), float(high)


def interval(statistic: Statistic, units: np.ndarray, seed: int, repeats: int = REPEATS) -> tuple[float, float]:
    """95 % percentile interval of `statistic` over the units (units, ...)."""
    return percentiles(replicates(statistic, units, seed, repeats))


def median(samples: np.ndarray) -> np.ndarray:
    """Statistic: the median of each sample (R, units)."""
    return np.median(samples, axis=1)


def weighted_mean(samples: np.ndarray) -> np.ndarray:
    """Statistic: the mean of values by their weights, units being pairs of both (R, units, 2)."""
    values, weights = samples[..., 0], samples[..., 1]
    return (values * weights).sum(axis=1) / weights.sum(axis=1)
