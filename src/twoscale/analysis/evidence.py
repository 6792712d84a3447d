"""The tables of one run as units to resample, and the statistics that the claims ask of them.

Tables come in as means per sequence or numbers per prompt and leave as arrays whose first axis is the unit:
whole sequences for geometry and quality, whole prompts for latency. What is missing, or too close to the
rounding floor, is said so instead of computed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from twoscale.analysis import bootstrap

TENTH = 0.1  # steps have decayed when their mean norm is this share of the first
SETTLED = np.arange(10, 30)  # loop steps at which angles count as settled
MOST_UNDER_FLOOR = 0.1  # share of values
SAME_THRESHOLD = 0.01  # relative: 3.16e-5 stands for the half decade


class InconclusiveError(Exception):
    """A finding has no verdict; the message is the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    remark: str = ""

    def checked(self) -> "Estimate":
        if np.isnan([self.value, self.low, self.high]).any():
            raise InconclusiveError("the quantity or its interval is undefined")
        return self


# --- what a run has measured -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """The tables of one run, as units to resample.

    `loops` is "loop_sequences", `drift` "drift_sequences", `quality` "exit_quality", `latency` "exit_latency",
    `checks` "check_cost"; `budget` is the most loop steps a token may take under an exit criterion.
    """

    loops: pd.DataFrame
    drift: pd.DataFrame
    quality: pd.DataFrame
    latency: pd.DataFrame
    checks: pd.DataFrame
    budget: int
    seed: int = 0

    @property
    def groups(self) -> list[str]:
        return list(self.loops["group"].unique())

    @property
    def steps(self) -> list[int]:
        """Training steps of all checkpoints, the untrained model's 0 among them."""
        return sorted({*self.loops["iteration"], *self.drift["iteration"]})

    @property
    def trained(self) -> list[int]:
        return [step for step in self.steps if step > 0]

    def last(self) -> int:
        if not self.trained:
            raise InconclusiveError("rows missing: no trained checkpoint")
        return self.trained[-1]

    def first_and_last(self) -> tuple[int, int]:
        if len(self.trained) < 2:
            raise InconclusiveError(f"fewer than two trained checkpoints (found {len(self.trained)})")
        return self.trained[0], self.trained[-1]

    def curves(self, measure: str, group: str, steps: Sequence[int], until: int = 0) -> np.ndarray:
        """Units (sequences, steps, K, 2): sum and count of a loop measure at k = 0 … K - 1.

        Asks for rows up to the loop step `until` at least.
        """
        rows = self.loops[(self.loops["group"] == group) & (self.loops["measure"] == measure)]
        last = int(rows["k"].max()) - 1 if len(rows) else -1  # no step leads out of the last state
        if last < until:
            raise InconclusiveError(f"rows missing: loop steps up to k = {until}, found k ≤ {last}")
        return _sums(rows, "sequence", step=steps, k=range(last + 1))

    def ratios(self, boundary: str, reading: str, steps: Sequence[int]) -> np.ndarray:
        """Units (sequences, steps, 2): sum and count of the drift-to-loop ratio."""
        rows = self.drift[
            (self.drift["boundary"] == boundary) & (self.drift["reference_state"] == reading) & (self.drift["measure"] == "dlr")
        ]
        units = _sums(rows, "sequence", step=steps)
        self._check_floor(rows[rows["iteration"].isin(steps)])
        return units

    def check_angles(self, group: str, steps: Sequence[int], loop_steps: Iterable[int]) -> None:
        """Refuse loop steps of which too many are so short that rounding decides their direction."""
        rows = self.loops
        chosen = (rows["group"] == group) & (rows["measure"] == "cosine")
        self._check_floor(rows[chosen & rows["iteration"].isin(steps) & rows["k"].isin(list(loop_steps))])

    @staticmethod
    def _check_floor(rows: pd.DataFrame) -> None:
        nulls = rows["nulls"].sum()
        share = nulls / max(1, nulls + rows["count"].sum())
        if share > MOST_UNDER_FLOOR:
            raise InconclusiveError(f"{share:.0%} of the values are under the rounding floor")

    def entropies(self, settings: Sequence[tuple[str, float]]) -> np.ndarray:
        """Units (sequences, settings, 2): nats and tokens under each (criterion, threshold)."""
        rows = self.quality.assign(nats=self.quality["ce"] * self.quality["tokens"])
        return _table(rows, settings, "sequence", ["nats", "tokens"])

    def latencies(self, settings: Sequence[tuple[str, float]]) -> np.ndarray:
        """Units (prompts, settings): milliseconds per token under each (criterion, threshold)."""
        return _table(self.latency, settings, "repeat", ["latency_ms"])[..., 0]

    def check_times(self) -> np.ndarray:
        """Units (repeats, 2): milliseconds of a KL check and of a loop step, each summed over groups."""
        times = self.checks.groupby("repeat")[["check_ms", "loop_step_ms"]].sum().to_numpy()
        _check_units("repeat", len(times))
        return times

    def estimate(self, statistic: bootstrap.Statistic, units: np.ndarray, remark: str = "") -> Estimate:
        """`statistic` of all units, with its interval."""
        value = float(statistic(units[None])[0])
        return Estimate(value, *bootstrap.interval(statistic, units, self.seed), remark).checked()


def _sums(rows: pd.DataFrame, unit: str, **axes: Iterable[int]) -> np.ndarray:
    """Sum and count of a per-sequence mean: (units, one axis each, 2)."""
    units = sorted(rows[unit].unique())
    _check_units(unit, len(units))
    index = pd.MultiIndex.from_product([units, *axes.values()], names=[unit, *axes])
    found = rows.set_index(index.names)[["mean", "count"]].reindex(index)
    if found["count"].isna().any():
        missing = ", ".join(f"{name} {value}" for name, value in zip(index.names, _first_missing(found), strict=True))
        raise InconclusiveError(f"rows missing: {missing}")
    sums = np.stack([found["mean"].fillna(0) * found["count"], found["count"]], axis=-1)
    return sums.reshape(*(len(level) for level in index.levels), 2)


def _first_missing(found: pd.DataFrame) -> tuple:
    return found.index[found["count"].isna()][0]


def _table(rows: pd.DataFrame, settings: Sequence[tuple[str, float]], unit: str, values: list[str]) -> np.ndarray:
    """(units, settings, values) of one exit table, its columns `values` picked by (criterion, threshold)."""
    units = sorted(rows[unit].unique())
    _check_units(unit, len(units))
    columns = []
    for criterion, threshold in settings:
        same = (rows["criterion"] == criterion) & np.isclose(rows["threshold"], threshold, rtol=SAME_THRESHOLD, atol=0)
        column = rows[same].set_index(unit)[values].reindex(units)
        if column.isna().any(axis=None):
            raise InconclusiveError(f"rows missing: {criterion} at {threshold:.3g}")
        columns.append(column.to_numpy())
    return np.stack(columns, axis=1)


def _check_units(unit: str, number: int) -> None:
    if number < 2:
        raise InconclusiveError(f"rows missing: an interval needs at least 2 values of {unit}, found {number}")


# --- statistics of samples (R, units, …) -----------------------------------------------------------------------


def mean(sample: np.ndarray) -> np.ndarray:
    """Sums and counts (R, units, …, 2) -> means over all tokens (R, …)."""
    totals = sample.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return totals[..., 0] / totals[..., 1]


def decay_step(norms: np.ndarray) -> np.ndarray:
    """First k ≥ 2 with at most a tenth of the mean step norm at k = 1: (R, K) -> (R,), infinite if there is none."""
    reached = norms[:, 2:] <= TENTH * norms[:, 1:2]
    steps = np.where(reached.any(axis=1), 2.0 + reached.argmax(axis=1), np.inf)
    return np.where(np.isnan(norms).any(axis=1), np.nan, steps)


def decay_time(norms: np.ndarray) -> np.ndarray:
    """`decay_step` between whole steps, the logarithm of the norm taken as linear there: (R, K) -> (R,)."""
    steps = decay_step(norms)
    found = np.isfinite(steps)
    after = np.where(found, steps, 2).astype(int)
    rows = np.arange(len(norms))
    with np.errstate(divide="ignore"):
        before, behind = (np.log(norms[rows, k] / norms[:, 1]) for k in (after - 1, after))
        between = (before - np.log(TENTH)) / (before - behind)
    return np.where(found, after - 1 + between, steps)


def settled_mean(sample: np.ndarray) -> np.ndarray:
    """Mean over SETTLED of the mean cosine: (R, units, …, K, 2) -> (R, …)."""
    return mean(sample)[..., SETTLED].mean(axis=-1)


def settled_deviation(sample: np.ndarray) -> np.ndarray:
    """Standard deviation over SETTLED of the mean cosine: (R, units, …, K, 2) -> (R, …)."""
    return mean(sample)[..., SETTLED].std(axis=-1)


def ratios_of_medians(sample: np.ndarray) -> np.ndarray:
    """Median over prompts of the first of the last axis over that of the second: (R, units, …, 2) -> (R, …)."""
    medians = np.median(sample, axis=1)
    return medians[..., 0] / medians[..., 1]
