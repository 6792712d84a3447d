"""Bootstrap intervals: how far a statistic would move with another draw of held-out sequences or repeats.

What is drawn again are whole groups of rows (sequences, prompts), never tokens, whose values hang together.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

# rising values (n,) and the weights of their rows in each of R draws (R, n) -> one number per draw (R,)
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]


def mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return weights @ values / weights.sum(-1)


def median(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The value with half of the weight on either side; the middle of two where they share the border."""
    cumulated = weights.cumsum(-1)
    half = cumulated[:, -1:] / 2
    lower, upper = (cumulated >= half).argmax(-1), (cumulated > half).argmax(-1)
    return (values[lower] + values[upper]) / 2


def interval(
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    seed: int = 0,
    statistic: Statistic = mean,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Percentile interval (low, high) of a statistic of `values` (n,) over draws of groups with replacement.

    weights (n,): of each value, such as its tokens; None: all one. groups (n,): label of the group that each
    value is drawn with; None: each value on its own. A difference of two settings measured on the same
    sequences is an interval of their row-wise differences. Fewer than two groups have none: (nan, nan).
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    codes = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = codes.max(initial=-1) + 1
    if count < 2:
        return np.nan, np.nan
    order = np.argsort(values, kind="stable")
    values, weights, codes = values[order], weights[order], codes[order]
    generator = np.random.Generator(np.random.Philox(seed))
    times_drawn = generator.multinomial(count, np.full(count, 1 / count), size=draws)  # (draws, groups)
    drawn = statistic(values, times_drawn[:, codes] * weights)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
