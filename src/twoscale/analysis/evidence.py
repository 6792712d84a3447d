"""The tables of one run as arrays of units to resample, and the statistics that the claims are judged on.

The first axis of each array is the unit: whole sequences for geometry and quality, whole prompts for latency.
Missing values, or too many values under the rounding floor, raise `InconclusiveError`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from twoscale.analysis import bootstrap

TENTH = 0.1  # steps have decayed if their mean norm is this share of that at k = 1
SETTLED = np.arange(10, 30)  # loop steps at which angles count as settled
MOST_UNDER_FLOOR = 0.1  # share of values
SAME_THRESHOLD = 0.01  # relative: 3.16e-5 is the half decade 10 ** -4.5


# An exit criterion and a threshold.
OperatingPoint = tuple[str, float]


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
        """The estimate itself; raise InconclusiveError if it is undefined."""
        if np.isnan([self.value, self.low, self.high]).any():
            raise InconclusiveError("the quantity or its interval is undefined")
        return self


# --- the tables of a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """The tables of one run, as units to resample.

    Attributes:
        loops: Table "loop_sequences".
        drift: Table "drift_sequences".
        quality: Table "exit_quality".
        latency: Table "exit_latency".
        checks: Table "check_cost".
        max_loops: Most loop steps that a token may take under an exit criterion.
        seed: Seed of the bootstraps.
    """

    loops: pd.DataFrame
    drift: pd.DataFrame
    quality: pd.DataFrame
    latency: pd.DataFrame
    checks: pd.DataFrame
    max_loops: int
    seed: int = 0

    @property
    def groups(self) -> list[str]:
        return list(self.loops["group"].unique())

    @property
    def iterations(self) -> list[int]:
        """Iterations of all checkpoints, including 0 of the untrained model."""
        return sorted({*self.loops["iteration"], *self.drift["iteration"]})

    @property
    def trained(self) -> list[int]:
        """Iterations of all checkpoints except the untrained model."""
        return [iteration for iteration in self.iterations if iteration > 0]

    def last(self) -> int:
        """Iteration of the last trained checkpoint."""
        if not self.trained:
            raise InconclusiveError("rows missing: no trained checkpoint")
        return self.trained[-1]

    def first_and_last(self) -> tuple[int, int]:
        """Iterations of the first and the last trained checkpoint."""
        if len(self.trained) < 2:
            raise InconclusiveError(f"fewer than two trained checkpoints (found {len(self.trained)})")
        return self.trained[0], self.trained[-1]

    def curves(self, measure: str, group: str, iterations: Sequence[int], until: int = 0) -> np.ndarray:
        """Units (sequences, iterations, K, 2): sum and count of a measure per loop step at k = 0 … K - 1.

        Raises InconclusiveError if rows are missing, or loop steps up to k = `until`.
        """
        rows = self.loops[(self.loops["group"] == group) & (self.loops["measure"] == measure)]
        last = int(rows["k"].max()) - 1 if len(rows) else -1  # the last state has no loop step
        if last < until:
            raise InconclusiveError(f"rows missing: loop steps up to k = {until}, found k ≤ {last}")
        return _sums(rows, "sequence", iteration=iterations, k=range(last + 1))

    def ratios(self, boundary: str, reference_state: str, iterations: Sequence[int]) -> np.ndarray:
        """Units (sequences, iterations, 2): sum and count of the drift-to-loop ratio."""
        drift = self.drift
        same_point = (drift["boundary"] == boundary) & (drift["reference_state"] == reference_state)
        rows = drift[same_point & (drift["measure"] == "dlr")]
        units = _sums(rows, "sequence", iteration=iterations)
        self._check_floor(rows[rows["iteration"].isin(iterations)])
        return units

    def check_angles(self, group: str, iterations: Sequence[int], loop_steps: Iterable[int]) -> None:
        """Raise InconclusiveError if too many of these loop steps are so short that rounding decides their angle."""
        rows = self.loops
        cosines = (rows["group"] == group) & (rows["measure"] == "cosine")
        self._check_floor(rows[cosines & rows["iteration"].isin(iterations) & rows["k"].isin(list(loop_steps))])

    @staticmethod
    def _check_floor(rows: pd.DataFrame) -> None:
        nulls = rows["nulls"].sum()
        share = nulls / max(1, nulls + rows["count"].sum())
        if share > MOST_UNDER_FLOOR:
            raise InconclusiveError(f"{share:.0%} of the values are under the rounding floor")

    def entropies(self, points: Sequence[OperatingPoint]) -> np.ndarray:
        """Units (sequences, points, 2): nats and tokens at each operating point."""
        rows = self.quality.assign(nats=self.quality["ce"] * self.quality["tokens"])
        return _by_point(rows, points, "sequence", ["nats", "tokens"])

    def latencies(self, points: Sequence[OperatingPoint]) -> np.ndarray:
        """Units (prompts, points): milliseconds per token at each operating point."""
        return _by_point(self.latency, points, "repeat", ["latency_ms"])[..., 0]

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
    """Sum and count of a mean per unit: (units, one axis for each of `axes`, 2)."""
    units = sorted(rows[unit].unique())
    _check_units(unit, len(units))
    index = pd.MultiIndex.from_product([units, *axes.values()], names=[unit, *axes])
    cells = rows.set_index(index.names)[["mean", "count"]].reindex(index)
    absent = cells["count"].isna()
    if absent.any():
        first = zip(index.names, cells.index[absent][0], strict=True)
        raise InconclusiveError("rows missing: " + ", ".join(f"{name} {value}" for name, value in first))
    sums = np.stack([cells["mean"].fillna(0) * cells["count"], cells["count"]], axis=-1)
    return sums.reshape(*(len(level) for level in index.levels), 2)


def _by_point(rows: pd.DataFrame, points: Sequence[OperatingPoint], unit: str, values: list[str]) -> np.ndarray:
    """Columns `values` of an exit table at each operating point: (units, points, values)."""
    units = sorted(rows[unit].unique())
    _check_units(unit, len(units))
    columns = []
    for criterion, threshold in points:
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
    """First k ≥ 2 with at most a tenth of the mean step norm at k = 1: (R, K) -> (R,); infinite if there is none."""
    reached = norms[:, 2:] <= TENTH * norms[:, 1:2]
    steps = np.where(reached.any(axis=1), 2.0 + reached.argmax(axis=1), np.inf)
    return np.where(np.isnan(norms).any(axis=1), np.nan, steps)


def decay_time(norms: np.ndarray) -> np.ndarray:
    """`decay_step`, interpolated between whole steps linearly in the log norm: (R, K) -> (R,)."""
    steps = decay_step(norms)
    reached = np.isfinite(steps)
    after = np.where(reached, steps, 2).astype(int)  # 2 is a placeholder where no step is reached
    rows = np.arange(len(norms))
    with np.errstate(divide="ignore"):
        # relative log norms at the last step above a tenth and at the first one that is not
        log_before, log_after = (np.log(norms[rows, k] / norms[:, 1]) for k in (after - 1, after))
        fraction = (log_before - np.log(TENTH)) / (log_before - log_after)
    return np.where(reached, after - 1 + fraction, steps)


def settled_mean(sample: np.ndarray) -> np.ndarray:
    """Mean over SETTLED of the mean cosine: (R, units, …, K, 2) -> (R, …)."""
    return mean(sample)[..., SETTLED].mean(axis=-1)


def settled_deviation(sample: np.ndarray) -> np.ndarray:
    """Standard deviation over SETTLED of the mean cosine: (R, units, …, K, 2) -> (R, …)."""
    return mean(sample)[..., SETTLED].std(axis=-1)


def ratios_of_medians(sample: np.ndarray) -> np.ndarray:
    """Median over prompts of the first entry of the last axis over that of the second: (R, units, …, 2) -> (R, …)."""
    medians = np.median(sample, axis=1)
    return medians[..., 0] / medians[..., 1]
