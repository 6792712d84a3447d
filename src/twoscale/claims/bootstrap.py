"""Intervals from resampled units: whole documents or whole prompts, never tokens or sequences.

Tokens of a document and timings of a prompt depend on one another; the units do not. All
measurements of one unit are drawn together, so the difference of two checkpoints or operating
points is a paired one.

Percentiles of resamples are too narrow where units are few: a resample of n units varies by (n - 1)
/ n of their variance, and its tails are normal. `interval_about` widens them by sqrt(n / (n - 1))
and by the ratio of the quantiles of Student's t with n - 1 degrees of freedom and of the normal
distribution (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 4). If units
weigh differently, n is their effective number, which is smaller.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from statistics import NormalDist
from typing import TypeVar

import numpy as np
import pandas as pd

from twoscale import rng
from twoscale.exits.references import RANDOM
from twoscale.exits.table import OPERATING_POINT, document_units, operating_points

REPEATS = 1000
LEVEL = 0.95
_MAX_VALUES = 2**24  # values gathered at once; bounds the memory

# One number for each of R samples: of all units (R, units, ...), or of their totals (R, ...).
Statistic = Callable[[np.ndarray], np.ndarray]
Numbers = TypeVar("Numbers", float, pd.Series)


@lru_cache(maxsize=16)
def _draws(number: int, seed: int, repeats: int) -> np.ndarray:
    return rng.stream(seed, "bootstrap").integers(number, size=(repeats, number))


@lru_cache(maxsize=16)
def _multiplicities(number: int, seed: int, repeats: int) -> np.ndarray:
    """How often each sample has each unit: (repeats, number)."""
    draws = _draws(number, seed, repeats)
    return np.stack([np.bincount(sample, minlength=number) for sample in draws]).astype(np.float64)


def replicates(statistic: Statistic, units: np.ndarray, seed: int) -> np.ndarray:
    """`statistic` of `REPEATS` samples of the units (units, ...), with replacement: (R, ...).

    The draws are a function of the seed, the number of units and the number of samples.
    """
    draws = _draws(len(units), seed, REPEATS)
    values = len(draws) * units.size  # gathered from all samples
    chunks = np.array_split(draws, np.ceil(values / _MAX_VALUES))
    return np.concatenate([statistic(units[chunk]) for chunk in chunks])


def totals(units: np.ndarray, seed: int) -> np.ndarray:
    """Sums over the units of the samples of `replicates`: (units, ...) -> (R, ...)."""
    weights = _multiplicities(len(units), seed, REPEATS)
    flat = weights @ units.reshape(len(units), -1)
    return flat.reshape(-1, *units.shape[1:])


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution, to a relative 1e-5; degrees of `freedom` >= 1."""
    angles, cumulative = _t_distribution(freedom)
    # the distribution is symmetric: half of it lies between 0 and the largest angle
    tail = 2 * abs(probability - 0.5) * cumulative[-1]
    angle = np.interp(tail, cumulative, angles)
    return float(np.copysign(np.sqrt(freedom) * np.tan(angle), probability - 0.5))


def t_tail(statistic: float, freedom: float) -> float:
    """Probability of a value above `statistic` >= 0 under Student's t with `freedom` >= 1."""
    angles, cumulative = _t_distribution(freedom)
    angle = np.arctan(statistic / np.sqrt(freedom))
    below = float(np.interp(angle, angles, cumulative))
    return 0.5 - 0.5 * below / cumulative[-1]


@lru_cache(maxsize=64)
def _t_distribution(freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Angles, and the integral of the density from 0 up to them, not normalised.

    The angle of a value t >= 0 is arctan(t / sqrt(freedom)), and the density of angles is
    proportional to cos(angle) ** (freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    return angles, _integral(density)


def _integral(density: np.ndarray) -> np.ndarray:
    """Integral up to each point of a regular grid, by trapezoids, in twice the grid's distance."""
    return np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])


def holm(tails: np.ndarray) -> np.ndarray:
    """Which of the tests with these two-sided p-values (n,) reject (Holm 1979).

    One of them or more rejects wrongly with a chance of 5 % at most.
    """
    order = np.argsort(tails, kind="stable")
    # the smallest p-value is compared with 5 % / n, the next with 5 % / (n - 1), …
    left = np.arange(len(tails), 0, -1)
    is_small = tails[order] <= (1 - LEVEL) / left
    rejected = np.zeros(len(tails), dtype=bool)
    rejected[order] = np.logical_and.accumulate(is_small)  # up to the first that is not
    return rejected


@lru_cache(maxsize=16)
def deviation_factors(number: int) -> tuple[float, float]:
    """95 % interval of a standard deviation, in units of that of `number` >= 2 normal values.

    The ratio of the two is sqrt(freedom) over a value of the chi distribution.
    """
    freedom = number - 1
    root = np.sqrt(freedom)  # where the chi distribution is centred, with a deviation below 1
    chi = np.linspace(0, root + 8, 100_001)
    density = chi ** (freedom - 1) * np.exp(-(chi**2) / 2)
    cumulative = _integral(density)
    tails = [(1 + LEVEL) / 2, (1 - LEVEL) / 2]
    largest, smallest = np.interp(tails, cumulative / cumulative[-1], chi)
    return float(root / largest), float(root / smallest)


def effective_number(weights: np.ndarray) -> float:
    """Number of equal units whose mean is as noisy as that of units with these weights (units,).

    It is (Σw)² / Σw² (Kish, "Survey Sampling", 1965), and here 2 at least. Degrees of freedom of
    units that weigh differently: Carter, Schnepel and Steigerwald, "Asymptotic Behavior of a t-Test
    Robust to Cluster Heterogeneity", Review of Economics and Statistics 99, 2017.
    """
    return max(2.0, float(weights.sum() ** 2 / (weights @ weights)))


def interval_about(
    value: float,
    samples: np.ndarray,
    units: float,
    scatter: float = 0.0,
    freedom: float | None = None,
) -> tuple[float, float]:
    """95 % interval of a statistic with this value and replicates (R,), see the module's text.

    `units` is their effective number, `scatter` a standard error from another source than the
    choice of units, and `freedom` the degrees of freedom of the t quantile, by default `units` - 1.
    The ends are NaN if a replicate is not finite.
    """
    upper = (1 + LEVEL) / 2
    normal = NormalDist().inv_cdf(upper)
    low, high = np.quantile(samples, [1 - upper, upper])

    # the variance of resamples is (n - 1) / n of that of samples, and their tails are normal
    student = t_quantile(upper, freedom or units - 1)
    widening = np.sqrt(units / (units - 1)) * student / normal

    # distances from the mean of the replicates and not from the value: resampling adds another bias
    centre = samples.mean()
    noise = normal * scatter  # independent of the choice of units, so squares add
    below = widening * np.hypot(centre - low, noise)
    above = widening * np.hypot(high - centre, noise)
    return float(value - below), float(value + above)


def interval(statistic: Statistic, units: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % interval of a statistic over units (units, ...); NaN for a single unit."""
    if len(units) < 2:
        return np.nan, np.nan
    value = float(statistic(units[None])[0])
    return interval_about(value, replicates(statistic, units, seed), len(units))


def t_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of independent values (n,), by Student's t; NaN for one value."""
    if len(values) < 2:
        return np.nan, np.nan
    mean = float(np.mean(values))
    deviation = float(np.std(values, ddof=1))
    student = t_quantile((1 + LEVEL) / 2, len(values) - 1)
    half = student * deviation / np.sqrt(len(values))
    return mean - half, mean + half


def joined(
    value: Numbers, first: tuple[Numbers, Numbers], second: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers]:
    """Interval of a value with two independent sources of error, from its interval under each.

    Distances are added as the root of their sum of squares (Zou and Donner, Statistics in Medicine
    27, 2008).
    """
    below = np.hypot(value - first[0], value - second[0])
    above = np.hypot(first[1] - value, second[1] - value)
    return value - below, value + above


# --- means over the tokens of documents -----------------------------------------------------------


def document_sums(rows: pd.DataFrame, columns: Sequence[str], **by: list) -> np.ndarray:
    """Sums over the tokens of each document: (documents, values of `by` …, columns + 1).

    The last entry counts the tokens. `by` names keys with their values in order; `rows` have every
    combination in every document.
    """
    # columns are means over the tokens of a row
    sums = rows[[*columns]].mul(rows["tokens"], axis="index")
    sums = sums.assign(tokens=rows["tokens"])
    # categories give the groups the order of `by`
    keys = [pd.Categorical(rows[name], values) for name, values in by.items()]
    by_document = sums.groupby([rows["document"], *keys], observed=True)
    # the document is the first key, so documents are the first axis
    total = by_document.sum(skipna=False).to_numpy(np.float64)
    shape = [len(values) for values in by.values()]
    return total.reshape(-1, *shape, len(columns) + 1)


def estimates(
    statistic: Statistic, units: np.ndarray, tokens: np.ndarray, seed: int
) -> list[tuple[float, float, float]]:
    """P statistics of the sums over documents, each with the ends of its 95 % interval.

    The ends are NaN for a single document. `statistic` maps sums of R samples (R, ...) to (R, P).
    `units` (documents, ...) are the sums of each document, `tokens` (documents,) its tokens.
    """
    # all documents as the one sample
    values = statistic(units.sum(axis=0)[None])[0]  # (P,)
    if len(units) < 2:
        return [(value, np.nan, np.nan) for value in values]
    samples = statistic(totals(units, seed))  # (R, P)
    effective = effective_number(tokens)  # documents of equal length
    found = []
    for value, of_value in zip(values, samples.T, strict=True):
        bounds = interval_about(float(value), np.ascontiguousarray(of_value), effective)
        found.append((value, *bounds))
    return found


def per_token(sums: np.ndarray) -> np.ndarray:
    """Statistic: means over tokens, whose number is the last entry: (R, P + 1) -> (R, P)."""
    return sums[..., :-1] / sums[..., -1:]


def means(rows: pd.DataFrame, keys: list[str], columns: Sequence[str], seed: int) -> pd.DataFrame:
    """Means of columns over tokens at each point of `keys`, with 95 % intervals over documents.

    `rows` has one row per point and sequence, with its `document` and its number of `tokens`. The
    ends of an interval have _low and _high in their names. A mean with a null is null.
    """
    found = {}
    for point, of_point in rows.groupby(keys, sort=False):
        units = document_sums(of_point, columns)
        found[point] = np.ravel(estimates(per_token, units, units[:, -1], seed))
    names = [f"{name}{end}" for name in columns for end in ("", "_low", "_high")]
    points = pd.MultiIndex.from_tuples(found, names=keys)
    return pd.DataFrame(list(found.values()), index=points, columns=names)


def around(table: pd.DataFrame, name: str, change: str) -> dict[str, pd.Series]:
    """Ends of an interval about the mean of `name`, as far from it as those of a paired change.

    `table` is one of `means` with both columns. The change varies less than the value itself.
    """
    moved = table[name] - table[change]
    return {f"{name}{end}": table[f"{change}{end}"] + moved for end in ("_low", "_high")}


# --- summaries of exits: one row per operating point ----------------------------------------------


def summarise_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Time per token at each operating point, in the order of the table "exit_latency".

    Columns criterion, threshold, latency_ms, baseline_ms, low, high. Times are medians over
    repeats; the interval is that of the first over prompts.
    """
    by_point = latency.groupby(OPERATING_POINT, sort=False)
    median = partial(np.median, axis=1)
    ends = [interval(median, rows["latency_ms"].to_numpy(), seed=0) for _, rows in by_point]
    medians = by_point[["latency_ms", "baseline_ms"]].median().reset_index()
    medians[["low", "high"]] = ends
    return medians


def summarise_quality(exits: pd.DataFrame, max_loops: int | None = None) -> pd.DataFrame:
    """Cross-entropy per operating point, each sequence weighted by its tokens, and mean loops.

    The bounds `low` and `high` of the cross-entropy are its value at full depth, the criterion
    `fixed` at `max_loops`, plus the interval of the difference from it on the same documents. So
    they show the change by the criterion, not the variation of the text. Without `fixed` in the
    table they are NaN.

    Columns criterion, threshold, ce, loops (mean evaluations over groups), low, high, ppl =
    exp(ce), in the order of the table of exits.
    """
    points = operating_points(exits)
    units = document_units(exits, points)  # (D, P, 3): nats, evaluations and tokens
    full = document_units(exits, [("fixed", max_loops or np.nan)], ["ce"])
    # the change from full depth on the same tokens: its interval is a paired one
    changes = np.append(units[..., 0] - full[..., 0], full[..., 1], axis=-1)  # (D, P + 1)
    change = np.array(estimates(per_token, changes, full[:, 0, 1], seed=0))  # (P, 3)
    ce, loops = per_token(units.sum(axis=0)).T
    low, high = (change[:, 1:] - change[:, :1]).T + ce
    summary = pd.DataFrame(points, columns=OPERATING_POINT)
    return summary.assign(ce=ce, loops=loops, low=low, high=high, ppl=np.exp(ce))


def random_exits(exits: pd.DataFrame) -> pd.DataFrame:
    """Columns criterion, threshold, ce, evaluations of cost-matched random exits.

    They are means over all draws, tokens and groups.
    """
    points = operating_points(exits, RANDOM)
    means = per_token(document_units(exits, points, reference=RANDOM).sum(axis=0))
    return pd.DataFrame(points, columns=OPERATING_POINT).assign(
        ce=means[:, 0], evaluations=means[:, 1]
    )
