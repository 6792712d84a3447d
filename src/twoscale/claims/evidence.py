"""The tables of one run as arrays of units to resample, and what the claims are judged on.

The first axis of each array is the unit: whole documents for geometry, quality and evaluations,
repeats for costs, whole prompts for measured latency. Missing values, or too many values under the
rounding floor, raise `InconclusiveError`.

A claim names its quantities before any of them is measured, so the number of those that count is
known when they are judged. A finding *holds* if its whole 95 % interval is within the bounds. It
*does not hold* if its whole interval is outside, after the interval was widened for the number of
findings: a claim with many findings would otherwise be refuted by chance. Between the two it
*cannot be judged*.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import Statistic
from twoscale.claims.costs import cost_units, total_costs
from twoscale.claims.regime import Regime, of_sequences
from twoscale.claims.words import FAILS, HOLDS, OPEN
from twoscale.exits.references import RANDOM
from twoscale.exits.table import (
    OPERATING_POINT,
    OWN,
    OperatingPoint,
    document_units,
    groups,
    in_group,
    of_run,
    operating_points,
)

MOST_UNDER_FLOOR = 0.1  # share of values
NO_COSTS = "the run has no costs measured in pairs"
UNDER_FLOOR = "under the rounding floor"  # in the reason of a number that is withheld for it
_SAME_THRESHOLD = 0.01  # relative: 3.16e-5 is the half decade 10 ** -4.5
FEWEST_FOR_TREND = 3  # checkpoints: a line through two leaves no scatter
# assumed of the scatter of successive checkpoints about their line (docs/judging.md)
CORRELATION = 0.6


class InconclusiveError(Exception):
    """A finding has no verdict; the message is the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    remark: str = ""  # for the reader of the number
    freedom: float = 1  # degrees of freedom of the interval
    is_ratio: bool = False  # a positive one; its interval is computed for the logarithm
    # values in samples of the units (R,), logarithms of a ratio; the same samples in every run
    samples: np.ndarray | None = field(default=None, repr=False, compare=False)
    units: int = 0
    effective: float = 0.0  # number of units, of which some weigh more than others

    def checked(self) -> Self:
        """The estimate itself. Raises InconclusiveError if it is undefined."""
        if np.isnan([self.value, self.low, self.high]).any():
            raise InconclusiveError("the quantity or its interval is undefined")
        return self

    def widened(self, findings: int) -> "Estimate":
        """The estimate with its interval widened for so many findings (Bonferroni).

        Each of the `findings` intervals then misses its number with a chance of 5 % / `findings`.
        """
        if not np.isfinite(self.value) or self.value == self.low == self.high:
            return self
        outside = (1 - bootstrap.LEVEL) / 2  # on either side
        alone = bootstrap.t_quantile(1 - outside, self.freedom)
        one_of_many = bootstrap.t_quantile(1 - outside / findings, self.freedom)
        factor = one_of_many / alone
        if self.is_ratio:  # the distance of logarithms grows by the factor
            low = self.value * (self.low / self.value) ** factor
            high = self.value * (self.high / self.value) ** factor
        else:
            low = self.value + factor * (self.low - self.value)
            high = self.value + factor * (self.high - self.value)
        return replace(self, low=low, high=high)

    def exponential(self) -> Self:
        """The ratio of which this is the logarithm."""
        value = float(np.exp(self.value))
        low = float(np.exp(self.low))
        high = float(np.exp(self.high))
        return replace(self, value=value, low=low, high=high, is_ratio=True)


# --- the tables of a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class Extent:
    """What a run measures, which is known before it starts: claims need some of it."""

    groups: int
    loop_steps: int  # of the trajectories
    sequences: int  # held-out ones, of the trajectories
    checkpoints: int  # after warm-up
    max_loops: int  # of a token under an exit criterion
    published: bool


@dataclass(frozen=True, eq=False)  # compared by identity
class Evidence:
    """The tables of one run (`tables.CLAIM_TABLES`), as units to resample."""

    loops: pd.DataFrame
    drift: pd.DataFrame
    exits: pd.DataFrame  # `twoscale.exits.table`
    latency: pd.DataFrame
    costs: pd.DataFrame
    max_loops: int  # of a token under an exit criterion
    warmup: int = 0  # iterations
    seed: int = 0  # of the bootstraps
    # such a model has one checkpoint, with iteration 0, and no course of training
    published: bool = False

    @classmethod
    def read(cls, files: Mapping[str, Path], **values: Any) -> "Evidence":
        """The evidence in the files of `tables.CLAIM_TABLES`; `values` are the other attributes.

        Raises InputError for a file that is no such table.
        """
        return cls.of(
            {name: tables.read(tables.CLAIM_TABLES[name], path) for name, path in files.items()},
            **values,
        )

    @classmethod
    def of(cls, frames: Mapping[str, pd.DataFrame], **values: Any) -> "Evidence":
        """The evidence in these tables; what is missing of `tables.CLAIM_TABLES` is empty."""
        found = {}
        for name, table in tables.CLAIM_TABLES.items():
            absent = pd.DataFrame(columns=list(tables.columns(table)))
            found[name] = frames.get(name, absent)
        exits = of_run(*(found.pop(name) for name in ("quality", "exit_loops", "cost_matched")))
        return cls(exits=exits, **found, **values)

    def without(self, document: int) -> "Evidence":
        """The evidence without one of the `exit_documents`."""
        return replace(self, exits=self.exits[self.exits["document"] != document])

    @property
    def groups(self) -> list[str]:
        return list(self.loops["group"].unique())

    @property
    def loop_steps(self) -> int:
        """Loop steps of every group in the trajectories."""
        return int(self.loops["k"].max()) if len(self.loops) else 0

    @property
    def extent(self) -> Extent:
        return Extent(
            groups=len(self.groups),
            loop_steps=self.loop_steps,
            sequences=self.loops["sequence"].nunique(),
            checkpoints=len(self._after_warmup),
            max_loops=self.max_loops,
            published=self.published,
        )

    @property
    def jumps(self) -> list[tuple[str, str]]:
        """Boundaries with a reference state, state by state."""
        boundaries = self.drift["boundary"].unique()
        states = self.drift["reference_state"].unique()
        return [(boundary, state) for state in states for boundary in boundaries]

    @property
    def iterations(self) -> list[int]:
        """Iterations of all checkpoints, including 0 of the untrained or the published model."""
        return sorted({*self.loops["iteration"], *self.drift["iteration"]})

    @property
    def trained(self) -> list[int]:
        """Iterations of all checkpoints except the untrained model."""
        return [iteration for iteration in self.iterations if iteration > 0 or self.published]

    def thresholds(self, criterion: str) -> list[float]:
        """Thresholds of an exit criterion, ascending. Raises InconclusiveError if there is none."""
        thresholds = self._thresholds(criterion, OWN)
        if not thresholds:
            raise InconclusiveError(f"rows missing: {criterion}")
        return thresholds

    def random_thresholds(self, criterion: str) -> list[float]:
        """Thresholds with random exits of the same cost, ascending."""
        return self._thresholds(criterion, RANDOM)

    def _thresholds(self, criterion: str, reference: str) -> list[float]:
        measured = operating_points(self.exits, reference)
        return sorted(threshold for name, threshold in measured if name == criterion)

    def last(self) -> int:
        """Iteration of the last checkpoint."""
        if not self.trained:
            raise InconclusiveError("rows missing: no trained checkpoint")
        return self.trained[-1]

    @property
    def regimes(self) -> dict[str, Regime]:
        """The regime of each group at the last checkpoint."""
        rows = self.loops[self.loops["iteration"] == self.loops["iteration"].max()]
        by_group = rows.groupby("group", sort=False)
        return {group: of_sequences(of_group) for group, of_group in by_group}

    def after_warmup(self, fewest: int) -> list[int]:
        """Iterations of the checkpoints after warm-up. Raises InconclusiveError below `fewest`."""
        iterations = self._after_warmup
        if len(iterations) < fewest:
            raise InconclusiveError(
                f"fewer than {fewest} checkpoints after warm-up (found {len(iterations)})"
            )
        return iterations

    @property
    def _after_warmup(self) -> list[int]:
        return [iteration for iteration in self.trained if iteration > self.warmup]

    # units to resample: each method raises InconclusiveError if rows are missing

    def curves(
        self, measure: str, group: str, iterations: Sequence[int], until: int = 0
    ) -> np.ndarray:
        """Units (documents, iterations, K, 2): sum and count of a measure at k = 0 … K - 1.

        Raises InconclusiveError also if loop steps up to k = `until` are missing.
        """
        rows = self.loops
        rows = rows[(rows["group"] == group) & (rows["measure"] == measure)]
        number = int(rows["k"].max()) if len(rows) else 0  # of loop steps: the last state has none
        if number <= until:
            found = f"found k ≤ {number - 1}"
            raise InconclusiveError(f"rows missing: loop steps up to k = {until}, {found}")
        return _sums(rows, iteration=iterations, k=range(number))

    def ratios(
        self, boundary: str, reference_state: str, iteration: int, measure: str = "dlr"
    ) -> np.ndarray:
        """Units (documents, 2): sum and count of the drift-to-loop ratio, or of another measure."""
        drift = self.drift
        rows = drift[
            (drift["iteration"] == iteration)
            & (drift["boundary"] == boundary)
            & (drift["reference_state"] == reference_state)
            & (drift["measure"] == measure)
        ]
        units = _sums(rows, iteration=[iteration])[:, 0]
        _check_floor(rows)
        return units

    def check_angles(self, group: str, iteration: int, loop_steps: Iterable[int]) -> None:
        """Raise InconclusiveError if rounding decides the angle of too many of these loop steps."""
        rows = self.loops
        _check_floor(
            rows[
                (rows["group"] == group)
                & (rows["measure"] == "cosine")
                & (rows["iteration"] == iteration)
                & rows["k"].isin(list(loop_steps))
            ]
        )

    def entropies(self, points: Sequence[OperatingPoint]) -> np.ndarray:
        """Units (documents, points, 2): nats and tokens at each operating point."""
        return _exit_units(self, tuple(points), ("ce",), OWN)

    def random_entropies(self, points: Sequence[OperatingPoint]) -> np.ndarray:
        """As `entropies`, of random exits that cost as much as each operating point.

        Losses are means over the draws of random exits.
        """
        if not operating_points(self.exits, RANDOM):
            raise InconclusiveError("rows missing: random exits of the same cost")
        return _exit_units(self, tuple(points), ("ce",), RANDOM)

    def cheapest(self) -> tuple[OperatingPoint, float]:
        """The operating point with the fewest evaluations per token and group, and their number."""
        own = self.exits[self.exits["reference"] == OWN]
        evaluations = own.groupby(OPERATING_POINT, sort=False)["evaluations"].mean().dropna()
        if evaluations.empty:
            raise InconclusiveError("rows missing: evaluations under an exit criterion")
        return evaluations.idxmin(), float(evaluations.min())

    def group_evaluations(
        self, points: Sequence[OperatingPoint], column: str = "evaluations"
    ) -> np.ndarray:
        """Units (documents, points, groups, 2): evaluations and tokens.

        With the column `loop_steps` they are those whose state is kept.
        """
        columns = tuple(in_group(column, group) for group in groups(self.exits))
        units = _exit_units(self, tuple(points), columns, OWN)
        spent, tokens = units[..., :-1], units[..., -1:]
        return np.stack([spent, np.broadcast_to(tokens, spent.shape)], axis=-1)

    def evaluations(
        self, points: Sequence[OperatingPoint], column: str = "evaluations"
    ) -> np.ndarray:
        """Units (documents, points, 2): `group_evaluations`, as means over the groups."""
        return self.group_evaluations(points, column).mean(axis=-2)

    def cost_units(self, criterion: str) -> np.ndarray:
        """Units (repeats, 2, 1 + groups) of `twoscale.claims.costs.cost_units`."""
        return _cost_units(self, criterion)

    def sampled_costs(self, criterion: str) -> np.ndarray:
        """Costs with decisions (R + 1, 1 + groups) in samples of the repeats, and last of all."""
        return _sampled_costs(self, criterion)

    def latencies(self, points: Sequence[OperatingPoint]) -> np.ndarray:
        """Units (prompts, points): measured milliseconds per token at each operating point."""
        rows = self.latency
        columns = []
        for criterion, threshold in points:
            is_near = np.isclose(rows["threshold"], threshold, rtol=_SAME_THRESHOLD, atol=0)
            of_point = rows[(rows["criterion"] == criterion) & is_near]
            column = of_point.set_index("repeat")["latency_ms"].reindex(sorted(set(rows["repeat"])))
            if column.empty or column.isna().any():
                raise InconclusiveError(f"rows missing: {criterion} at {threshold:.3g}")
            columns.append(column.to_numpy())
        return _enough("prompts", np.stack(columns, axis=1))

    @property
    def exit_documents(self) -> list[int]:
        """Numbers of the documents of exit criteria, ascending as in units."""
        return sorted(self.exits["document"].unique())

    def load(self) -> str:
        """The repeats of the timing with a load beyond the machine's cores; empty if none."""
        repeats = self.latency.groupby("repeat")[["load_average", "cpus"]].max()
        loaded = repeats[repeats["load_average"] > repeats["cpus"]]
        if loaded.empty:
            return ""
        peak, cores = loaded.max()
        load = f"load average up to {peak:.1f} on {cores:.0f} core{'s' if cores > 1 else ''}"
        return f"{load} during {len(loaded)} of {len(repeats)} repeats"

    # estimates from units

    def estimate(
        self, statistic: Statistic, units: np.ndarray, remark: str = "", unbias: bool = False
    ) -> Estimate:
        """A statistic of the totals of all units, with its interval over documents.

        `statistic` maps totals (R, ..., 2) to (R,), and the units are (documents, ..., 2). With
        `unbias` the bias that resampling adds is subtracted; noise makes such a statistic larger.
        """
        value, samples = self._resampled(statistic, units)
        value = value - unbias * (samples.mean() - value)  # twice the value minus the mean
        return _estimate(value, samples, units, effective_number(units), remark)

    def ratio(self, statistic: Statistic, units: np.ndarray, remark: str = "") -> Estimate:
        """As `estimate`, for a positive ratio; its interval is computed for the logarithm."""
        logarithm = self.estimate(lambda totals: np.log(statistic(totals)), units, remark)
        return logarithm.exponential()

    def trend(self, statistic: Statistic, units: np.ndarray, unbias: bool = False) -> Estimate:
        """Change of a statistic over training, on a line fitted over the checkpoints after warm-up.

        The line is a least-squares fit over log iteration, and the change that from the first to
        the last checkpoint. Its interval has the spread over documents, and the scatter of the
        checkpoints about the line (`_trend_error`). `statistic` maps totals (R, iterations, ..., 2)
        to (R, iterations); the units (documents, iterations, ..., 2) are those of
        `after_warmup(FEWEST_FOR_TREND)`.
        """
        iterations = self.after_warmup(FEWEST_FOR_TREND)
        values, samples = self._resampled(statistic, units)  # (iterations,), (R, iterations)
        weights = _trend_weights(iterations)
        change = values @ weights
        changes = samples @ weights  # (R,)
        change = change - unbias * (changes.mean() - change)
        scatter, freedom = _trend_error(values, iterations)
        effective = effective_number(units)
        return _estimate(
            change,
            changes,
            units,
            effective,
            remark=f"{values[0]:.3g} → {values[-1]:.3g} over {len(iterations)} checkpoints",
            scatter=scatter,
            freedom=min(effective - 1, freedom),
        )

    def ratio_of_medians(self, units: np.ndarray, remark: str = "") -> Estimate:
        """Ratio of the medians over prompts of the two columns: (prompts, 2)."""

        def log_ratio(sample: np.ndarray) -> np.ndarray:  # (R, prompts, 2) -> (R,)
            medians = np.median(sample, axis=1)
            logs = np.log(medians)
            return logs[..., 0] - logs[..., 1]

        (value,) = log_ratio(units[None])
        samples = bootstrap.replicates(log_ratio, units, self.seed)
        return _estimate(value, samples, units, len(units), remark).exponential()

    def _resampled(self, statistic: Statistic, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A statistic of the totals of all units (...), and of those of each sample (R, ...)."""
        everything = units.sum(axis=0)
        samples = bootstrap.totals(units, self.seed)
        return statistic(everything[None])[0], statistic(samples)


def _estimate(
    value: float,
    samples: np.ndarray,
    units: np.ndarray,
    effective: float,
    remark: str,
    scatter: float = 0.0,
    freedom: float | None = None,
) -> Estimate:
    freedom = effective - 1 if freedom is None else freedom
    low, high = bootstrap.interval_about(value, samples, effective, scatter, freedom)
    return Estimate(
        value=float(value),
        low=low,
        high=high,
        remark=remark,
        freedom=freedom,
        samples=samples,
        units=len(units),
        effective=effective,
    ).checked()


# units that several findings read

_UNITS = 64  # kept


@lru_cache(maxsize=_UNITS)
def _exit_units(
    evidence: Evidence, points: tuple[OperatingPoint, ...], columns: tuple[str, ...], reference: str
) -> np.ndarray:
    """`exits.table.document_units` at measured thresholds, which are near to those of `points`."""
    measured = operating_points(evidence.exits, reference)
    nearest = []
    for criterion, threshold in points:
        near = [
            point
            for point in measured
            if point[0] == criterion and abs(point[1] - threshold) <= _SAME_THRESHOLD * threshold
        ]
        nearest.append(near[0] if near else (criterion, threshold))
    units = document_units(evidence.exits, nearest, columns, reference)
    is_missing = np.isnan(units).any(axis=(0, 2))
    if len(units) == 0 or not columns or is_missing.any():
        criterion, threshold = points[int(is_missing.argmax())]
        raise InconclusiveError(f"rows missing: {criterion} at {threshold:.3g}")
    return _enough("documents", units)


@lru_cache(maxsize=_UNITS)
def _cost_units(evidence: Evidence, criterion: str) -> np.ndarray:
    if evidence.costs.empty:
        raise InconclusiveError(NO_COSTS)
    units = cost_units(evidence.costs, criterion, groups(evidence.exits))
    if units.size == 0 or np.isnan(units).any():
        raise InconclusiveError(f"rows missing: costs of {criterion}")
    return _enough("repeats", units)


@lru_cache(maxsize=_UNITS)
def _sampled_costs(evidence: Evidence, criterion: str) -> np.ndarray:
    units = evidence.cost_units(criterion)
    samples = bootstrap.replicates(total_costs, units, evidence.seed)
    return np.concatenate([samples, total_costs(units)[None]])


def _check_floor(rows: pd.DataFrame) -> None:
    nulls = rows["nulls"].sum()
    share = nulls / max(1, nulls + rows["count"].sum())
    if share > MOST_UNDER_FLOOR:
        raise InconclusiveError(f"{share:.0%} of the values are {UNDER_FLOOR}")


def _sums(rows: pd.DataFrame, **axes: Iterable[int]) -> np.ndarray:
    """Sum and count of a mean per document: (documents, one axis for each of `axes`, 2)."""
    keys = ["sequence", *axes]
    sequences = sorted(rows["sequence"].unique())
    index = pd.MultiIndex.from_product([sequences, *axes.values()], names=keys)
    cells = rows.set_index(keys)[["mean", "count"]].reindex(index)
    counts = cells["count"]
    is_absent = counts.isna()
    if is_absent.any():
        first = index[is_absent][0]
        place = ", ".join(f"{name} {value}" for name, value in zip(keys, first, strict=True))
        raise InconclusiveError(f"rows missing: {place}")
    sums = cells["mean"].fillna(0) * counts
    shape = [len(level) for level in index.levels]
    units = np.stack([sums, counts], axis=-1).reshape(*shape, 2)
    return _per_document(rows, units)


def _per_document(rows: pd.DataFrame, units: np.ndarray) -> np.ndarray:
    """Sums over the sequences of each document: (sequences, ...) -> (documents, ...).

    The sequences of `units` are in ascending order.
    """
    sequences = rows.drop_duplicates("sequence").sort_values("sequence")
    documents, numbers = np.unique(sequences["document"], return_inverse=True)
    sums = np.zeros((len(documents), *units.shape[1:]))
    np.add.at(sums, numbers, units)  # numbers: the document of each sequence
    return _enough("documents", sums)


def _enough(name: str, units: np.ndarray) -> np.ndarray:
    if len(units) < 2:
        found = f"found {len(units)}, expected at least 2"
        raise InconclusiveError(f"rows missing: too few {name} for an interval ({found})")
    return units


# --- statistics of totals (R, …, 2) ---------------------------------------------------------------


def effective_number(units: np.ndarray) -> float:
    """Effective number of documents by their counts, from units (documents, …, 2)."""
    counts = units[..., 1].reshape(len(units), -1)
    return bootstrap.effective_number(counts.sum(axis=1))


def mean(totals: np.ndarray) -> np.ndarray:
    """Sums and counts (R, …, 2) -> means over all tokens (R, …)."""
    with np.errstate(invalid="ignore"):
        return totals[..., 0] / totals[..., 1]


def _trend_weights(iterations: Sequence[int]) -> np.ndarray:
    """Weights (n,) of values at `iterations`; their weighted sum is the change along their line.

    The line is the least-squares fit over log iteration.
    """
    position = np.log(iterations)
    offset = position - position.mean()
    slope = offset / (offset @ offset)  # weights of the slope of the fit
    return slope * (position[-1] - position[0])


def _trend_error(values: np.ndarray, iterations: Sequence[int]) -> tuple[float, float]:
    """Standard error of the change of values (n,) along their line, and its degrees of freedom.

    The values scatter about the line over log iteration as an autoregression with `CORRELATION`
    from each checkpoint to the next. Scatter that is correlated moves the line more, and residuals
    show less of it. The degrees of freedom are those of Satterthwaite, "An approximate distribution
    of estimates of variance components", Biometrics 2, 1946; for scatter without correlation they
    are n - 2.
    """
    count = len(values)
    number = np.arange(count)
    distance = np.abs(number - number[:, None])  # (n, n), in checkpoints
    correlation = CORRELATION**distance  # R (n, n), of the scatter
    line = np.stack([np.ones(count), np.log(iterations)], axis=1)  # X (n, 2)

    # M = I - X X⁺ makes residuals of values. Those of scatter with the covariance σ² R have the
    # expected sum of squares σ² tr(M R), so the variance σ² is estimated without bias.
    residual = np.eye(count) - line @ np.linalg.pinv(line)  # M (n, n)
    seen = residual @ correlation  # M R, the part of the scatter that residuals show
    residuals = residual @ values
    trace = np.trace(seen)
    variance = residuals @ residuals / trace  # σ²

    # The sum of squares has mean σ² tr(M R) and variance 2 σ⁴ tr(M R M R). Satterthwaite: it is
    # distributed as chi-square with 2 mean² / variance degrees of freedom, scaled.
    freedom = trace**2 / np.trace(seen @ seen)

    weights = _trend_weights(iterations)  # w, the change is w · values with the variance σ² wᵀ R w
    error = np.sqrt(variance * (weights @ correlation @ weights))
    return float(error), float(freedom)


# --- bounds and findings --------------------------------------------------------------------------

MOVED = 1.25  # factor by which a bound that the paper does not state is moved, both ways


@dataclass(frozen=True)
class Bounds:
    """The values that a number may have: from `least` to `most`, both included.

    `smallest` is the least value that the number can have at all, 0 for a variance. Of a bound that
    the paper does not state, `ours_of_least` and `ours_of_most` are the part that is our choice:
    all of it, or the margin about a number of the paper.
    """

    text: str
    least: float = -np.inf
    most: float = np.inf
    smallest: float = -np.inf
    ours_of_least: float = 0.0
    ours_of_most: float = 0.0

    def __str__(self) -> str:
        return self.text

    @property
    def are_ours(self) -> bool:
        """Whether part of them is our choice."""
        return bool(self.ours_of_least or self.ours_of_most)

    def moved(self, is_looser: bool) -> "Bounds":
        """The bounds with the part that is our choice `MOVED` times as large, or as small."""
        of_least, of_most = (min, max) if is_looser else (max, min)
        changes = (MOVED - 1, 1 / MOVED - 1)
        return replace(
            self,
            least=of_least(self.least + change * self.ours_of_least for change in changes),
            most=of_most(self.most + change * self.ours_of_most for change in changes),
        )

    def too_narrow_for(self, estimate: Estimate) -> str:
        """Why no interval as wide as the estimate's can be within the bounds; empty if one can."""
        if self.least < self.smallest:
            # the number is at least `smallest`, so only the part above the value has to fit
            part = "upper part of the interval"
            width = estimate.high - estimate.value
            room = self.most - self.smallest
        elif estimate.is_ratio and self.least > 0:
            part = "interval as a factor"
            width = estimate.high / estimate.low
            room = self.most / self.least
        else:
            part = "interval"
            width = estimate.high - estimate.low
            room = self.most - self.least
        if not width > room:
            return ""
        wider = f"the {part} ({width:.2g}) is wider than the bounds ({room:.2g})"
        return f"no value could be upheld: {wider}"


def at_most(bound: float, smallest: float = -np.inf) -> Bounds:
    return Bounds(f"≤ {bound:g}", most=bound, smallest=smallest, ours_of_most=bound)


def at_least(bound: float) -> Bounds:
    return Bounds(f"≥ {bound:g}", least=bound, ours_of_least=bound)


def below(bound: float) -> Bounds:
    """Below a bound that the claim itself names, such as 1 for "faster"."""
    return Bounds(f"< {bound:g}", most=np.nextafter(bound, -np.inf))


def above(bound: float, ours: float = 0.0) -> Bounds:
    """Above a bound, of which `ours` is our choice."""
    return Bounds(f"> {bound:g}", least=np.nextafter(bound, np.inf), ours_of_least=ours)


def between(least: float, most: float, margin: float | None = None) -> Bounds:
    """From `least` to `most`, our choice, or the paper's numbers with a `margin` about them."""
    text = f"{least:g} … {most:g}"
    if margin is not None:
        return Bounds(text, least, most, ours_of_least=-margin, ours_of_most=margin)
    return Bounds(text, least, most, ours_of_least=least, ours_of_most=most)


class Role(StrEnum):
    """The part that a number has in the verdict on its claim."""

    COUNTED = "counted"  # the verdict depends on it
    REFERENCE = "reference"  # for comparison
    PREMISE = "premise"  # where it does not hold, the claim cannot be judged
    CHANCE = "chance"  # random exits: where they hold as well, the claim cannot be judged


@dataclass(frozen=True)
class Reading:
    """One way to read a sentence of the paper that leaves a choice open."""

    choice: str  # see `twoscale.claims.words`
    name: str
    # the reading that makes only this choice in another way; None for the first one of the claim
    other: "Reading | None" = None


@dataclass(frozen=True)
class Quantity:
    """A number that a claim is about, before it is measured."""

    scope: str  # group, boundary, reference state or exit criterion
    name: str
    measure: Callable[[], Estimate]  # may raise InconclusiveError
    bounds: Bounds | None  # None for a number for comparison, without a verdict
    role: Role
    reading: Reading | None = None  # the only one that it belongs to; None for all of its claim
    # its change along a line over training; None for a number that has no course
    trend: Callable[[], Estimate] | None = None

    def moves_towards(self, estimate: Estimate) -> bool:
        """Whether the number, which is outside its bounds, is shown to move towards them.

        It does if the whole 95 % interval of its trend has the sign that leads to the bounds.
        """
        if self.bounds is None or self.trend is None:
            return False
        try:
            change = self.trend()
        except InconclusiveError:
            return False
        if estimate.value > self.bounds.most:
            return change.high < 0
        return change.low > 0


@dataclass(frozen=True)
class Finding:
    """One measured number of a claim. Without bounds it has no verdict."""

    subject: Quantity
    estimate: Estimate
    verdict: str = ""
    reason: str = ""
    moves: bool = False  # whether it is outside its bounds and moves towards them with training
    findings: int = 1  # number of those that it was judged as one of

    @property
    def scope(self) -> str:
        return self.subject.scope

    @property
    def quantity(self) -> str:
        return self.subject.name

    @property
    def bounds(self) -> str:
        """The bounds in words; empty for a number for comparison."""
        return str(self.subject.bounds or "")

    @property
    def counts(self) -> bool:
        return self.subject.role == Role.COUNTED

    def with_moved_bounds(self, is_looser: bool) -> "Finding":
        """The finding judged against `Bounds.moved`."""
        bounds = self.subject.bounds
        if bounds is None or np.isnan(self.estimate.value):
            return self
        verdict, reason = judge(bounds.moved(is_looser), self.estimate, self.findings)
        return replace(self, verdict=verdict, reason=reason)


def judged(
    scope: str,
    name: str,
    bounds: Bounds,
    measure: Callable[..., Estimate],
    /,
    *arguments: object,
    role: Role = Role.COUNTED,
    reading: Reading | None = None,
    trend: Callable[[], Estimate] | None = None,
    **named: object,
) -> Quantity:
    """The quantity `measure(*arguments, **named)` with bounds."""
    measured = partial(measure, *arguments, **named)
    return Quantity(scope, name, measured, bounds, role, reading, trend)


def reference(
    scope: str, name: str, measure: Callable[..., Estimate], /, *arguments: object, **named: object
) -> Quantity:
    """The quantity `measure(*arguments, **named)` for comparison, without bounds."""
    return Quantity(scope, name, partial(measure, *arguments, **named), None, Role.REFERENCE)


def judge(bounds: Bounds, estimate: Estimate, findings: int = 1) -> tuple[str, str]:
    """Verdict and reason for a number with its interval, one of so many `findings` of a claim."""
    if bounds.least <= estimate.low and estimate.high <= bounds.most:
        return HOLDS, "whole interval inside"
    if not _is_outside(bounds, estimate):
        return OPEN, bounds.too_narrow_for(estimate) or "the interval crosses the bounds"
    if not _is_outside(bounds, estimate.widened(findings)):
        return OPEN, f"outside, but within the chance of one in {findings} findings"
    return FAILS, "whole interval outside"


def _is_outside(bounds: Bounds, estimate: Estimate) -> bool:
    return estimate.high < bounds.least or bounds.most < estimate.low


def find(quantity: Quantity, findings: int) -> Finding:
    """Measure a quantity, and judge it as one of so many `findings` of its claim."""
    bounds = quantity.bounds
    try:
        estimate = quantity.measure()
    except InconclusiveError as error:
        return Finding(quantity, Estimate(), OPEN if bounds else "", str(error))
    verdict, reason = judge(bounds, estimate, findings) if bounds else ("", "")
    moves = verdict == FAILS and quantity.moves_towards(estimate)
    parts = (reason, estimate.remark, "moves towards the bounds" if moves else "")
    reason = "; ".join(part for part in parts if part)
    return Finding(quantity, estimate, verdict, reason, moves, findings)


def combine(findings: Iterable[Finding]) -> tuple[str, str]:
    """Verdict and reason of a claim: a finding that does not hold decides, then an open one."""
    counted = [finding for finding in findings if finding.counts]
    if not counted:
        return OPEN, "rows missing: nothing was measured that the claim is about"
    for verdict in (FAILS, OPEN):
        reasons = [
            f"{finding.scope}, {finding.quantity}: {finding.reason}"
            for finding in counted
            if finding.verdict == verdict
        ]
        if reasons:
            return verdict, "; ".join(reasons)
    return HOLDS, "every finding is within its bounds"
