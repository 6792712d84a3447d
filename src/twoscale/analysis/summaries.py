"""From rows per repeat or sequence to one row per operating point, with 95 % bootstrap intervals.

An operating point is an exit criterion with a threshold. Repeats are prompts, and resampled as such. Sequences are
resampled by document, because those that begin in one are not independent. NumPy and pandas only.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from twoscale.analysis import bootstrap

OPERATING_POINT = ["criterion", "threshold"]


def summarise_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Median over repeats of `latency_ms` and `baseline_ms` per operating point, and the interval of the first.

    The interval is over prompts.

    Args:
        latency: Table "exit_latency".

    Returns:
        Columns criterion, threshold, latency_ms, baseline_ms, low, high; rows in the order of the table.
    """
    by_point = latency.groupby(OPERATING_POINT, sort=False)
    medians = by_point[["latency_ms", "baseline_ms"]].median()
    intervals = _intervals(by_point, lambda rows: _interval(bootstrap.median, rows["latency_ms"].to_numpy()))
    return medians.join(intervals).reset_index()


def summarise_quality(quality: pd.DataFrame, exit_loops: pd.DataFrame, max_loops: int | None = None) -> pd.DataFrame:
    """Cross-entropy per operating point, each sequence weighted by its tokens, and mean loops.

    The bounds `low` and `high` of the cross-entropy are its value at full depth, the criterion `fixed` at
    `max_loops`, plus the interval of the difference from it on the same documents. So they show the change by
    the criterion, not the variation of the text. Without `fixed` in the table they are NaN.

    Args:
        quality: Table "exit_quality".
        exit_loops: Table "exit_loops".
        max_loops: Most loop steps that a token may take.

    Returns:
        Columns criterion, threshold, ce, loops (mean evaluations over groups), low, high, ppl = exp(ce); rows in
        the order of the table.
    """
    keys = [*OPERATING_POINT, "sequence"]
    measured = quality.join(mean_evaluations(exit_loops, keys), on=keys)
    full = measured[(measured["criterion"] == "fixed") & (measured["threshold"] == max_loops)]
    measured["change"] = measured["ce"] - measured["sequence"].map(full.set_index("sequence")["ce"])
    loops = weighted(measured.groupby(OPERATING_POINT, sort=False), "loops")
    bounds = pd.DataFrame(with_bounds(measured, OPERATING_POINT, "ce", "change"))
    summary = bounds.rename(columns={"ce_low": "low", "ce_high": "high"}).assign(loops=loops, ppl=np.exp(bounds["ce"]))
    return summary.reset_index()[[*OPERATING_POINT, "ce", "loops", "low", "high", "ppl"]]


def random_exits(cost_matched: pd.DataFrame) -> pd.DataFrame:
    """Random exits of the table "exit_cost_matched", over all draws and tokens of each operating point.

    Returns:
        Columns criterion, threshold, evaluations (mean over tokens and groups), ce; rows in the order of the table.
    """
    random = cost_matched[cost_matched["reference"] == "random"]
    parts = random[["evaluations", "ce"]].mul(random["tokens"], axis="index").assign(tokens=random["tokens"])
    sums = parts.groupby([random[column] for column in OPERATING_POINT], sort=False).sum()
    return sums[["evaluations", "ce"]].div(sums["tokens"], axis="index").reset_index()


def mean_evaluations(exit_loops: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Mean over groups of `evaluations`, as the series "loops" with the index `keys`."""
    by_group = exit_loops.pivot(index=keys, columns="group", values="evaluations")
    # sums of floats depend on their order: the order of the groups in the model, not of their labels
    return by_group[exit_loops["group"].unique()].mean(axis="columns").rename("loops")


def with_bounds(rows: pd.DataFrame, keys: list[str], name: str, varied: str, seed: int = 0) -> dict[str, pd.Series]:
    """The mean over tokens of a column per point of `keys`, and bounds over documents with _low and _high.

    The bounds are computed for the mean of the column `varied`, and moved to the mean of the other one.
    """
    by_point = rows.groupby(keys, sort=False)
    mean = weighted(by_point, name)
    bounds = mean_intervals(by_point, varied, seed).add(mean - weighted(by_point, varied), axis="index")
    return {name: mean, f"{name}_low": bounds["low"], f"{name}_high": bounds["high"]}


def weighted(by_point: pd.api.typing.DataFrameGroupBy, values: str) -> pd.Series:
    """The mean of the column `values` at each point, each row weighted by its tokens."""
    means = {point: np.average(rows[values], weights=rows["tokens"]) for point, rows in by_point}
    return pd.Series(means).rename_axis(by_point.keys)


def mean_intervals(by_point: pd.api.typing.DataFrameGroupBy, values: str, seed: int = 0) -> pd.DataFrame:
    """Columns low and high: the interval over documents of the mean over tokens of the column `values`."""

    def bounds(rows: pd.DataFrame) -> tuple[float, float]:
        sums = rows.assign(sum=rows[values] * rows["tokens"]).groupby("document")[["sum", "tokens"]].sum()
        return _interval(bootstrap.ratio_of_sums, sums.to_numpy(np.float64), seed, sums["tokens"].to_numpy())

    return _intervals(by_point, bounds)


def _intervals(
    by_point: pd.api.typing.DataFrameGroupBy, bounds: Callable[[pd.DataFrame], tuple[float, float]]
) -> pd.DataFrame:
    """`bounds` of the rows at each point, as columns low and high."""
    rows = {point: bounds(rows) for point, rows in by_point}
    points = pd.MultiIndex.from_tuples(rows, names=by_point.keys)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["low", "high"]).set_axis(points)


def _interval(
    statistic: bootstrap.Statistic, units: np.ndarray, seed: int = 0, weights: np.ndarray | None = None
) -> tuple[float, float]:
    if len(units) < 2:  # one unit: no interval
        return np.nan, np.nan
    return bootstrap.interval(statistic, units, seed, weights)
