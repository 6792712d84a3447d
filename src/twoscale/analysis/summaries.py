"""From rows per repeat or sequence to one row per setting, with 95 % bootstrap intervals; NumPy and pandas only."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from twoscale.analysis import bootstrap
from twoscale import tables

SETTING = ["criterion", "threshold"]


def summarise_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Median over repeats per (criterion, threshold) of `latency_ms` and `baseline_ms`, and the interval of the first.

    Columns: criterion, threshold, latency_ms, low, high, baseline_ms; rules in the order of the table. The repeats are
    prompts, so the interval is over prompts; few repeats make it their whole range.
    """
    repeats = latency.groupby(SETTING, sort=False)
    medians = repeats[["latency_ms", "baseline_ms"]].median()
    return medians.join(_intervals(repeats, "latency_ms")).reset_index()


def summarise_quality(quality: pd.DataFrame, budget: int | None = None) -> pd.DataFrame:
    """Cross-entropy per (criterion, threshold), each sequence weighted by its tokens, PPL = exp(CE), and mean loops.

    Columns: criterion, threshold, ce, ppl, low, high, and the mean evaluations over groups as `loops`. low and high
    bound the cross-entropy: that of the full budget, the rule `fixed` at `budget`, plus the interval of the
    difference from it on the same sequences. So they show what the rule changed, not how the sequences differ;
    without that criterion in the table they are NaN.
    """
    evaluations = [f"evaluations_g{group}" for group in tables.groups_of(quality)]
    measured = quality.assign(loops=quality[evaluations].mean(axis="columns"))
    full = measured[(measured["criterion"] == "fixed") & (measured["threshold"] == budget)].set_index("sequence")["ce"]
    measured["change"] = measured["ce"] - measured["sequence"].map(full)
    settings = measured.groupby(SETTING, sort=False)
    means = pd.DataFrame({column: _weighted(settings, column) for column in ("ce", "change", "loops")})
    bounds = _intervals(settings, "change", weights="tokens").add(means["ce"] - means["change"], axis="index")
    summary = means.drop(columns="change").join(bounds).assign(ppl=np.exp(means["ce"]))
    return summary.reset_index()


def summarise_scaling(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "scaling" from the tables "scaling_quality" of all checkpoints, steps and loops rising.

    `excess` is what fewer loops cost against the most of them; its interval, over the same sequences, is far
    narrower than that of the cross-entropy itself.
    """
    rows = pd.concat([tables.read("scaling_quality", path) for path in paths])
    most = rows[rows["loops"] == rows["loops"].max()].set_index(["iteration", "sequence"])["ce"]
    rows = rows.join(most.rename("most"), on=["iteration", "sequence"])
    settings = rows.assign(excess=rows["ce"] - rows["most"]).groupby(["iteration", "loops"])
    parts = {"tokens": settings["tokens"].sum()}
    for column in ("ce", "excess"):
        bounds = _intervals(settings, column, weights="tokens", seed=seed)
        parts |= {column: _weighted(settings, column), f"{column}_low": bounds["low"], f"{column}_high": bounds["high"]}
    parts |= {name.replace("ce", "ppl"): np.exp(parts[name]) for name in ("ce", "ce_low", "ce_high")}
    scaling = pd.DataFrame(parts).reset_index().assign(run=run)
    return scaling[list(tables.columns("scaling"))]


def _weighted(settings: pd.api.typing.DataFrameGroupBy, values: str) -> pd.Series:
    """The mean of the column `values` in each group of rows, each row weighted by its tokens."""
    return pd.Series({key: np.average(rows[values], weights=rows["tokens"]) for key, rows in settings}).rename_axis(
        settings.keys
    )


def _intervals(
    settings: pd.api.typing.DataFrameGroupBy, values: str, weights: str | None = None, seed: int = 0
) -> pd.DataFrame:
    """Columns low and high: the interval of the median, or with weights of the mean, in each group of rows."""
    bounds = {key: _interval(rows, values, weights, seed) for key, rows in settings}
    return pd.DataFrame.from_dict(bounds, orient="index", columns=["low", "high"]).set_axis(
        pd.MultiIndex.from_tuples(bounds, names=settings.keys)
    )


def _interval(rows: pd.DataFrame, values: str, weights: str | None, seed: int) -> tuple[float, float]:
    if len(rows) < 2:  # one unit says nothing of another draw
        return np.nan, np.nan
    if weights is None:
        return bootstrap.interval(bootstrap.median, rows[values].to_numpy(), seed)
    return bootstrap.interval(bootstrap.weighted_mean, rows[[values, weights]].to_numpy(np.float64), seed)
