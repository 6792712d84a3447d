"""Learn then Test (Angelopoulos et al., arXiv 2110.01052): thresholds whose risk is controlled, from a finite sample.

The risk of a threshold is the expected loss of a unit, between 0 and 1. Its null hypothesis is a risk above a level; a
threshold is accepted if the hypothesis is rejected. The units have to be independent and alike; nothing is assumed
about the distribution of their losses, and the risk need not be monotone in the threshold, as conformal risk control
(arXiv 2208.02814) requires.
"""

from collections.abc import Sequence
from math import ceil, e, exp, log

import numpy as np


def betting(losses: np.ndarray, level: float, delta: float) -> float:
    """p-value of the hypothesis that the expected loss is above `level`, by bets against it.

    One over the largest wealth of a player who stakes a share of it on every unit in turn; if the hypothesis is true,
    no strategy is expected to gain (Waudby-Smith and Ramdas, arXiv 2010.09686). Stakes are from Bates et al. (arXiv
    2101.02703, proposition 5), larger where the losses so far differ little. So losses that vary little need fewer
    units than for `hoeffding_bentkus`, which takes them for coins. Super-uniform under the hypothesis for every number.

    Args:
        losses: Losses of independent units (n,), each between 0 and 1, in an order that does not depend on them.
        level: Between 0 and 1, exclusive.
        delta: The largest p-value that is of use; stakes are made for it.
    """
    number, counts = len(losses), np.arange(2, len(losses) + 2)
    means = (0.5 + np.cumsum(losses)) / counts
    variances = (0.25 + np.cumsum((losses - means) ** 2)) / counts
    before = np.concatenate([[0.25], variances[:-1]])  # a stake must not depend on the unit that it is placed on
    stakes = np.minimum(np.sqrt(2 * log(1 / delta) / (number * before)), 1.0)
    wealth = np.cumprod(1 + stakes * (level - losses))
    return float(min(1.0, 1 / wealth.max())) if wealth.max() > 0 else 1.0


def hoeffding_bentkus(losses: np.ndarray, level: float) -> float:
    """p-value of the hypothesis that the expected loss is above `level`, as in Learn then Test (arXiv 2110.01052).

    The smaller one of Hoeffding's and Bentkus' bounds of the probability of a mean this small. It is super-uniform
    under the hypothesis for every number of units.

    Args:
        losses: Losses of independent units (n,), each between 0 and 1.
        level: Between 0 and 1, exclusive.
    """
    number, mean = len(losses), float(np.mean(losses))
    hoeffding = exp(-number * _divergence(min(mean, level), level))
    bentkus = e * _binomial_at_most(min(ceil(np.sum(losses)), number), number, level)
    return min(hoeffding, bentkus, 1.0)


def _divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence in nats between coins that show heads with probabilities p and q."""
    return (p * log(p / q) if p > 0 else 0.0) + ((1 - p) * log((1 - p) / (1 - q)) if p < 1 else 0.0)


def _binomial_at_most(count: int, number: int, probability: float) -> float:
    """Probability of at most `count` successes among `number` trials."""
    successes = np.arange(count + 1)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, number + 1)))])
    ways = log_factorials[number] - log_factorials[successes] - log_factorials[number - successes]
    return float(np.exp(ways + successes * log(probability) + (number - successes) * log(1 - probability)).sum())


def fixed_sequence(p_values: Sequence[float], delta: float) -> int:
    """Number of hypotheses rejected by a test in a fixed order, which stops at the first one above `delta`.

    With an order that does not depend on the units, a true hypothesis is rejected with probability `delta` at most,
    however many there are (the fixed sequence testing of arXiv 2110.01052; arXiv 2207.07061 applies it to exits).
    """
    return next((number for number, p_value in enumerate(p_values) if p_value > delta), len(p_values))
