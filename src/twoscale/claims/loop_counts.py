"""Quality and geometry by loop count: means, the best loops, the plateau and the gain of looping.

The workflow and the recorder both summarise with it. Intervals are bootstraps over documents. Best
loops and plateau are found again in each resample, so their intervals contain the choice of the
best loop count.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap, regime
from twoscale.jobs.table_job import TableJob, job_files

NO_GROUP = ""  # in the column `group`: a quantity of the prediction
_SAME_TEXT = ["sequence", "document", "tokens"]  # columns that two runs on one text share
_LEAST, _FIRST, _LAST = range(3)  # places in what `_plateau` returns


@job_files(reads="quality", writes="scaling")
def aggregate_scaling(job: TableJob) -> None:
    """Means of the quality at fixed loop counts, at all checkpoints."""
    job.write("scaling", summarise_scaling(job.files["quality"], job.config.run, job.config.seed))


def summarise_scaling(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "scaling" from the tables "scaling_quality" of all checkpoints.

    Iterations and loops rise.
    """
    rows = pd.concat([tables.read("scaling_quality", path) for path in paths])
    sequence, point = ["iteration", "sequence"], ["iteration", "loops"]
    at_most = rows[rows["loops"] == rows["loops"].max()]
    full = at_most.set_index(sequence)["ce"].rename("full")
    rows = rows.join(full, on=sequence)
    rows["excess"] = rows["ce"] - rows["full"]
    rows = rows.sort_values(point, kind="stable")
    scaling = bootstrap.means(rows, point, ("ce", "excess"), seed)
    for end in ("", "_low", "_high"):
        scaling[f"ppl{end}"] = np.exp(scaling[f"ce{end}"])
    scaling = scaling.assign(tokens=rows.groupby(point)["tokens"].sum(), run=run)
    return scaling.reset_index()[list(tables.columns("scaling"))]


# --- depth card -----------------------------------------------------------------------------------


def summarise_card(
    quality: pd.DataFrame, states: pd.DataFrame, trained: int, seed: int
) -> pd.DataFrame:
    """The table "depth_card" without its column `run`.

    `quality` and `states` are the tables "depth_quality" and "depth_states" of one checkpoint.
    """
    sums, _ = _by_document(quality)
    counts = np.sort(quality["loops"].unique())
    best_loops = counts[sums.sum(0).argmin()]  # the smallest of equal ones
    best = quality[quality["loops"] == best_loops].set_index("sequence")["ce"]
    excess = quality["ce"] - quality["sequence"].map(best)
    quality = quality.assign(excess=excess, group=NO_GROUP)
    names = ("ce", "excess", "entropy", "flips", "agreement")
    parts = [_means(quality, name, seed) for name in names]
    at_counts = states[states["k"].isin(counts)]
    at_counts = at_counts.rename(columns={"k": "loops", "count": "tokens"})
    for name in states["measure"].unique():
        of_measure = at_counts[at_counts["measure"] == name]
        parts.append(_means(of_measure.rename(columns={"mean": name}), name, seed))
    means = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return means.assign(multiple=means["loops"] / trained, iteration=quality["iteration"].iloc[0])


def _means(rows: pd.DataFrame, name: str, seed: int) -> pd.DataFrame:
    """Mean of a column over tokens at each (loops, group), with its interval; null is left out."""
    point = ["loops", "group"]
    rows = rows.dropna(subset=name)
    if rows.empty:
        return pd.DataFrame()
    found = bootstrap.means(rows, point, [name], seed).reset_index()
    found = found.rename(columns={name: "value", f"{name}_low": "low", f"{name}_high": "high"})
    tokens = rows.groupby(point)["tokens"].sum()
    return found.assign(quantity=name).join(tokens, on=point)


def findings(
    quality: pd.DataFrame,
    states: pd.DataFrame,
    trained: int,
    tolerance: float,
    unlooped: pd.DataFrame | None,
    seed: int,
) -> pd.DataFrame:
    """The table "depth_findings" without its column `run`.

    Args:
        quality: The table "depth_quality" of one checkpoint.
        states: The table "depth_states", or rows of "loop_sequences", of the same checkpoint.
        trained: Trained loop count, which is among those of `quality`.
        tolerance: Height of the plateau in nats per token.
        unlooped: Rows of "depth_quality" of a model without loops, if there is one.
        seed: Seed of the bootstraps.

    Raises:
        InputError: `unlooped` was measured on other sequences.
    """
    rows = [*_depths(quality, trained, tolerance, seed), _gain(quality, trained, unlooped, seed)]
    return pd.DataFrame([*rows, *regimes(states)]).assign(iteration=quality["iteration"].iloc[0])


def _finding(
    quantity: str,
    statement: str,
    value: float = np.nan,
    low: float = np.nan,
    high: float = np.nan,
) -> dict[str, Any]:
    """One row of the table "depth_findings" without run and iteration."""
    numbers = {"value": value, "low": low, "high": high}
    return {"group": NO_GROUP, "quantity": quantity, "statement": statement} | numbers


def _depths(
    quality: pd.DataFrame, trained: int, tolerance: float, seed: int
) -> Iterator[dict[str, Any]]:
    """Best loops, plateau, and what the trained loops lose to the best ones."""
    counts = np.sort(quality["loops"].unique())  # (L,)
    sums, tokens = _by_document(quality)  # (D, L) and (D,)
    losses = sums.sum(0) / tokens.sum()  # nats per token
    plateau = counts[_plateau(losses, tolerance)]
    low = high = np.full(len(plateau), np.nan)
    if len(tokens) > 1:
        totals = bootstrap.totals(np.column_stack([sums, tokens]), seed)  # (R, L + 1)
        samples = totals[:, :-1] / totals[:, -1:]  # losses of each resample
        places = np.array([_plateau(sample, tolerance) for sample in samples])  # (R, 3)
        ends = (1 - bootstrap.LEVEL) / 2, (1 + bootstrap.LEVEL) / 2
        low, high = counts[np.quantile(places, ends, axis=0, method="nearest").astype(int)]
    yield _finding("trained_loops", "loops of training, or as published", trained)
    for i, name, statement in (
        (_LEAST, "best_loops", "lowest loss"),
        (_FIRST, "plateau_first", f"first loop count in a row within {tolerance:g} nats of it"),
        (_LAST, "plateau_last", "last one"),
    ):
        yield _finding(name, statement, plateau[i], low[i], high[i])
    excess = sums[:, list(counts).index(trained)] - sums[:, losses.argmin()]
    statement = "loss at the trained loops minus the lowest one"
    yield _finding("trained_excess", statement, *_ratio(excess, tokens, seed))


def _plateau(losses: np.ndarray, tolerance: float) -> list[int]:
    """Places of the least of losses (L,) and of both ends of the plateau around it."""
    best = first = last = int(losses.argmin())
    within = losses <= losses[best] + tolerance
    while first > 0 and within[first - 1]:
        first -= 1
    while last + 1 < len(losses) and within[last + 1]:
        last += 1
    return [best, first, last]


def _by_document(quality: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Summed losses (D, L) of documents at each loop count, ascending, and their tokens (D,)."""
    rows = quality.assign(sum=quality["ce"] * quality["tokens"])
    sums = rows.pivot_table(index="document", columns="loops", values="sum", aggfunc="sum")
    at_least = rows[rows["loops"] == rows["loops"].min()]
    tokens = at_least.groupby("document")["tokens"].sum()
    return sums.to_numpy(np.float64), tokens.loc[sums.index].to_numpy(np.float64)


def _gain(
    quality: pd.DataFrame, trained: int, unlooped: pd.DataFrame | None, seed: int
) -> dict[str, Any]:
    """What the model without loops loses to the trained loops, on the same text."""
    if unlooped is None:
        missing = "not measured: there is no model without loops to compare with"
        return _finding("loop_gain", missing)
    own = quality[quality["loops"] == trained].sort_values("sequence", ignore_index=True)
    other = unlooped.sort_values("sequence", ignore_index=True)
    if not own[_SAME_TEXT].equals(other[_SAME_TEXT]):
        raise InputError(
            "unlooped model: the table depth_quality has other sequences than the looped model."
        )
    nats = pd.DataFrame({"sum": (other["ce"] - own["ce"]) * own["tokens"], "tokens": own["tokens"]})
    units = nats.groupby(own["document"]).sum().to_numpy(np.float64)  # (D, 2)
    statement = "loss without loops minus that at the trained loops"
    return _finding("loop_gain", statement, *_ratio(units[:, 0], units[:, 1], seed))


def _ratio(sums: np.ndarray, tokens: np.ndarray, seed: int) -> tuple[float, float, float]:
    """The mean over tokens with its interval, from sums and tokens of the documents (D,)."""
    units = np.column_stack([sums, tokens])
    (found,) = bootstrap.estimates(bootstrap.per_token, units, tokens, seed)
    return found


def regimes(states: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The regime of each group, and the numbers that it follows from.

    `states` are the table "depth_states" or "loop_sequences" of one checkpoint; rows are those of
    `findings`.
    """
    for group, own in states.groupby("group", sort=False):
        for row in _regime(own):
            yield row | {"group": group}


def _regime(states: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The regime of one group, without its label."""
    found = regime.of_sequences(states)
    yield _finding("regime", found.sentence)
    for name in ("step_exponent", "norm_exponent", "direction_exponent"):
        yield _finding(name, found.name, *getattr(found, name))
    yield _finding("last_step", found.name, found.last_step)
    yield _finding("unsettled_share", found.name, found.unsettled_share)
