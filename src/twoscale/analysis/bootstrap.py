"""Percentile intervals from resampled units: whole sequences or whole prompts, never tokens.

The tokens of a sequence and the timings of a prompt depend on one another; the units do not. All measurements
of one unit are drawn together, so the difference of two checkpoints or operating points is a paired one.
"""

from collections.abc import Callable

import numpy as np

from twoscale import rng

REPEATS = 1000
LEVEL = 0.95
_MAX_VALUES = 2**24  # values gathered at once; bounds the memory

# (R, units, ...) -> (R,): one number for each of R samples of the units.
Statistic = Callable[[np.ndarray], np.ndarray]


def replicates(statistic: Statistic, units: np.ndarray, seed: int, repeats: int = REPEATS) -> np.ndarray:
    """`statistic` of `repeats` samples of the units (units, ...), drawn with replacement: (repeats, ...).

    The draws are a function of the seed and the number of units.
    """
    number = len(units)
    draws = rng.stream(seed, "bootstrap").integers(number, size=(repeats, number))
    chunks = np.array_split(draws, np.ceil(repeats * units.size / _MAX_VALUES))
    return np.concatenate([statistic(units[chunk]) for chunk in chunks])


def percentiles(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the values (R,), without interpolation; NaN if one of them is NaN."""
    outside = (1 - level) / 2
    # a decay that never ends has infinite length, and interpolation between infinities is NaN
    low, high = np.quantile(values, [outside, 1 - outside], method="inverted_cdf")
    return float(low), float(high)


def interval(statistic: Statistic, units: np.ndarray, seed: int, repeats: int = REPEATS) -> tuple[float, float]:
    """95 % percentile interval of `statistic` over the units (units, ...)."""
    return percentiles(replicates(statistic, units, seed, repeats))


def median(samples: np.ndarray) -> np.ndarray:
    """Statistic: the median of each sample (R, units) -> (R,)."""
    return np.median(samples, axis=1)


def weighted_mean(samples: np.ndarray) -> np.ndarray:
    """Statistic: the mean of values weighted by their weights, for units of (value, weight): (R, units, 2) -> (R,)."""
    values, weights = samples[..., 0], samples[..., 1]
    return (values * weights).sum(axis=1) / weights.sum(axis=1)
