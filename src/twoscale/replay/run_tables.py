"""The exits of a run, for the same check: sums over documents from its tables.

In the workflow the model itself ran under every criterion and threshold, and under random exits of
the same cost, so later tokens read what earlier exits left behind. A recorded model ran all loop
steps.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError, mismatch
from twoscale.dynamics.run_tables import last_recorded, read_facts, table_path
from twoscale.replay.recording import Sums, first_half
from twoscale.replay.rules import Option

_POINT = ["criterion", "threshold"]
TABLES = ("quality", "loops", "cost_matched")
GRIDS = ("pareto", "exit")  # the denser grid first


@dataclass(frozen=True)
class RunTables:
    """Documents of a run with what each operating point costs them.

    Attributes:
        path: Folder of the run.
        documents: The documents (D,), in the order of all sums.
        tokens: Of each document (D,).
        points: (criterion, threshold) -> sums over the tokens of each document.
        fixed: Mean loop steps -> sums of the excess (D,) of fixed loops; where the mean is no
            whole number, random tokens take one loop step more than the others. K among them.
        depths: K, full depth.
    """

    path: Path
    documents: np.ndarray
    tokens: np.ndarray
    points: dict[tuple[str, float], Sums]
    fixed: dict[float, np.ndarray]
    depths: int
    is_loss = True
    note = ""

    def halves(self, seed: int) -> tuple["RunTables", "RunTables"]:
        """Two parts with half of the documents each, drawn at random."""
        is_first = np.isin(self.documents, first_half(self.path, self.documents, seed))
        return self._part(is_first), self._part(~is_first)

    def _part(self, is_in: np.ndarray) -> "RunTables":
        points = {
            point: Sums(sums.evaluations[is_in], sums.excess[is_in], sums.random[is_in])
            for point, sums in self.points.items()
        }
        return replace(
            self,
            documents=self.documents[is_in],
            tokens=self.tokens[is_in],
            points=points,
            fixed={count: excess[is_in] for count, excess in self.fixed.items()},
        )

    def options(self) -> list[list[Option]]:
        """The thresholds of each criterion that were measured."""
        by_rule: dict[str, list[Option]] = {}
        for criterion, threshold in self.points:
            by_rule.setdefault(criterion, []).append(_option(criterion, threshold))
        return list(by_rule.values())


def _option(criterion: str, threshold: float) -> Option:
    def sums(part: RunTables) -> Sums:
        return part.points[criterion, threshold]

    return Option(criterion, f"{criterion} at {threshold:.3g}", threshold, sums)


def read_run(folder: Path) -> RunTables:
    """Read the tables of exits of a run, on its densest grid of thresholds, or of a recording.

    Raises InputError where there are none, or where full depth was not measured.
    """
    if (folder / "recorded").is_dir():
        return read_recorded(folder)
    for grid in GRIDS:
        paths = [folder / "tables" / f"{grid}_{name}.parquet" for name in TABLES]
        if all(path.is_file() for path in paths):
            break
    else:
        expected = "exit_quality, exit_loops and exit_cost_matched in its folder tables"
        raise InputError(f"{folder}: found no tables of exits, expected {expected}.")
    quality, loops, matched = (
        tables.read(f"exit_{name}", path) for name, path in zip(TABLES, paths, strict=True)
    )
    return of_tables(folder, quality, loops, matched)


def of_tables(
    path: Path, quality: pd.DataFrame, loops: pd.DataFrame, matched: pd.DataFrame
) -> RunTables:
    """The exits in the tables "exit_quality", "exit_loops" and "exit_cost_matched" of a run.

    Raises InputError with `path` where full depth was not measured.
    """
    spent = loops.groupby([*_POINT, "sequence"])["evaluations"].mean()  # over groups
    quality = quality.join(spent, on=[*_POINT, "sequence"])
    is_fixed = quality["criterion"] == "fixed"
    if not is_fixed.any():
        raise InputError(f"{path}: found no rows of fixed loops, expected those of full depth.")
    depths = quality.loc[is_fixed, "threshold"].max()
    # loss of each sequence at full depth, from which all excess is counted
    full = quality[is_fixed & (quality["threshold"] == depths)].set_index("sequence")["ce"]
    own = dict(list(quality[~is_fixed].groupby(_POINT, sort=False)))  # by operating point
    keys = [*_POINT, "reference", "sequence"]
    matched = matched.groupby(keys, sort=False).mean(numeric_only=True).reset_index()  # over draws
    points = {}
    fixed = {float(depths): np.zeros(quality["document"].nunique())}
    for (criterion, threshold), rows in own.items():
        is_of = (matched["criterion"] == criterion) & (matched["threshold"] == threshold)
        of_point = matched[is_of]
        (random,) = _sums(of_point[of_point["reference"] == "random"], full, "ce")
        evaluations, excess = _sums(rows, full, "evaluations", "ce")
        points[criterion, threshold] = Sums(evaluations, excess, random)
        of_fixed = of_point[of_point["reference"] == "fixed"]
        taken, of_fixed_excess = _sums(of_fixed, full, "evaluations", "ce")
        mean = float(taken.sum() / of_fixed["tokens"].sum())
        # a count between two whole ones, of the fixed loops with the cost of this criterion
        fixed[round(mean, 2)] = of_fixed_excess
    # whole counts last, because these were measured without a random part
    for threshold, rows in quality[is_fixed].groupby("threshold"):
        (fixed[float(threshold)],) = _sums(rows, full, "ce")
    at_full = quality[is_fixed & (quality["threshold"] == depths)]
    tokens = at_full.groupby("document")["tokens"].sum()
    return RunTables(
        path,
        tokens.index.to_numpy(),
        tokens.to_numpy(np.float64),
        points,
        dict(sorted(fixed.items())),
        int(depths),
    )


def _sums(rows: pd.DataFrame, full: pd.Series, *columns: str) -> list[np.ndarray]:
    """Sums of columns over the tokens of each document (D,); of `ce` above that at full depth.

    `full` is the loss at full depth by sequence.
    """
    # columns are means over the tokens of a sequence
    weighted = rows.assign(ce=rows["ce"] - rows["sequence"].map(full))
    sums = weighted[list(columns)].mul(rows["tokens"], axis="index")
    return list(sums.groupby(rows["document"]).sum().to_numpy().T)  # (D,) for each column


def read_recorded(folder: Path, iteration: int | None = None) -> RunTables:
    """Read the exits of a recorded model on frozen trajectories; full depth is its trained loops.

    Random exits are the mean over all ways to give the depths of a criterion to other tokens. A
    recording without exits has fixed counts only.

    Args:
        folder: Folder of a recording with `decode`.
        iteration: Training iteration of the weights; by default the last one recorded.

    Raises:
        InputError: There is no such recording, it has fewer loop steps than were trained, or
            an earlier version recorded its exits.
    """
    iteration = last_recorded(folder) if iteration is None else iteration
    trained = read_facts(folder, iteration)["trained_loops"]
    path = table_path(folder, "scaling_quality", iteration)
    quality = tables.read("scaling_quality", path)
    at_full = quality[quality["loops"] == trained]
    if at_full.empty:
        most = quality["loops"].max()
        raise mismatch(path, f"{most} loop steps", f"at least the {trained} trained ones")
    full = at_full.set_index("sequence")["ce"]
    fixed = {}
    for loops, rows in quality.groupby("loops"):
        (fixed[float(loops)],) = _sums(rows, full, "ce")
    tokens = at_full.groupby("document")["tokens"].sum()
    points = _recorded_points(folder, iteration, full, np.stack(list(fixed.values())))
    counts = tokens.to_numpy(np.float64)
    return RunTables(folder, tokens.index.to_numpy(), counts, points, fixed, trained)


def _recorded_points(
    folder: Path, iteration: int, full: pd.Series, fixed: np.ndarray
) -> dict[tuple[str, float], Sums]:
    """What each recorded criterion costs at each threshold; `fixed` is the excess (K, D)."""
    path = table_path(folder, "recorded_exits", iteration)
    if not path.exists():
        return {}
    exits = tables.read("recorded_exits", path)
    left = tables.read("recorded_depths", table_path(folder, "recorded_depths", iteration))
    tokens = dict(list(left.groupby(_POINT)))
    points = {}
    for point, rows in exits[exits["criterion"] != "fixed"].groupby(_POINT, sort=False):
        evaluations, excess = _sums(rows, full, "evaluations", "ce")
        at = tokens[point]
        leaving = np.bincount(at["depth"] - 1, at["tokens"], minlength=len(fixed))  # (K,)
        # random exits: the excess at each depth (K, D), weighted by the share of tokens that leave
        # there
        points[point] = Sums(evaluations, excess, leaving / leaving.sum() @ fixed)
    return points
