"""The tables of one run as arrays of units to resample.

The first axis of each array is the unit: whole documents for geometry, quality and evaluations,
repeats for costs, whole prompts for measured latency. Missing values, or too many values under the
rounding floor, raise `InconclusiveError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import Statistic
from twoscale.claims.costs import cost_units, total_costs
from twoscale.claims.estimates import (
    Estimate,
    InconclusiveError,
    effective_number,
    estimate_of,
    trend_error,
    trend_weights,
)
from twoscale.claims.regime import Regime, of_sequences
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
        return estimate_of(value, samples, units, effective_number(units), remark)

    def ratio(self, statistic: Statistic, units: np.ndarray, remark: str = "") -> Estimate:
        """As `estimate`, for a positive ratio; its interval is computed for the logarithm."""
        logarithm = self.estimate(lambda totals: np.log(statistic(totals)), units, remark)
        return logarithm.exponential()

    def trend(self, statistic: Statistic, units: np.ndarray, unbias: bool = False) -> Estimate:
        """Change of a statistic over training, on a line fitted over the checkpoints after warm-up.

        The line is a least-squares fit over log iteration, and the change that from the first to
        the last checkpoint. Its interval has the spread over documents, and the scatter of the
        checkpoints about the line (`trend_error`). `statistic` maps totals (R, iterations, ..., 2)
        to (R, iterations); the units (documents, iterations, ..., 2) are those of
        `after_warmup(FEWEST_FOR_TREND)`.
        """
        iterations = self.after_warmup(FEWEST_FOR_TREND)
        values, samples = self._resampled(statistic, units)  # (iterations,), (R, iterations)
        weights = trend_weights(iterations)
        change = values @ weights
        changes = samples @ weights  # (R,)
        change = change - unbias * (changes.mean() - change)
        scatter, freedom = trend_error(values, iterations)
        effective = effective_number(units)
        return estimate_of(
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
        return estimate_of(value, samples, units, len(units), remark).exponential()

    def _resampled(self, statistic: Statistic, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A statistic of the totals of all units (...), and of those of each sample (R, ...)."""
        everything = units.sum(axis=0)
        samples = bootstrap.totals(units, self.seed)
        return statistic(everything[None])[0], statistic(samples)


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
