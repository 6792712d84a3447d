"""The exits of a run, for the same check: sums over documents from its tables.

In the workflow the model itself ran under every criterion and threshold, and under random exits of
the same cost, so later tokens read what earlier exits left behind. A recorded model ran all loop
steps.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError, mismatch
from twoscale.dynamics.run_tables import last_recorded, read_facts, table_path
from twoscale.exits.references import FIXED, RANDOM
from twoscale.exits.table import (
    OperatingPoint,
    document_units,
    of_recording,
    of_run,
    operating_points,
)
from twoscale.replay.recording import first_half
from twoscale.replay.rules import Option

TABLES = ("quality", "loops", "cost_matched")
GRIDS = ("pareto", "exit")  # the denser grid first


@dataclass(frozen=True)
class RunTables:
    """Documents of a run with what each operating point costs them.

    Attributes:
        path: Folder of the run.
        documents: The documents (D,), in the order of all sums.
        tokens: Of each document (D,).
        points: (criterion, threshold) -> units (D, 4) of `Option`.
        fixed: Mean loop steps -> sums of the excess (D,) of fixed loops; where the mean is no
            whole number, random tokens take one loop step more than the others. K among them.
        depths: K, full depth.
    """

    path: Path
    documents: np.ndarray
    tokens: np.ndarray
    points: dict[OperatingPoint, np.ndarray]
    fixed: dict[float, np.ndarray]
    depths: int
    is_loss = True
    note = ""

    def halves(self, seed: int) -> tuple["RunTables", "RunTables"]:
        """Two parts with half of the documents each, drawn at random."""
        is_first = np.isin(self.documents, first_half(self.path, self.documents, seed))
        return self._part(is_first), self._part(~is_first)

    def _part(self, is_in: np.ndarray) -> "RunTables":
        return replace(
            self,
            documents=self.documents[is_in],
            tokens=self.tokens[is_in],
            points={point: units[is_in] for point, units in self.points.items()},
            fixed={count: excess[is_in] for count, excess in self.fixed.items()},
        )

    def options(self) -> list[list[Option]]:
        """The thresholds of each criterion that were measured."""
        by_rule: dict[str, list[Option]] = {}
        for point in self.points:
            criterion, threshold = point
            condition = f"{criterion} at {threshold:.3g}"
            option = Option(criterion, condition, threshold, partial(_units, point=point))
            by_rule.setdefault(criterion, []).append(option)
        return list(by_rule.values())


def _units(part: RunTables, point: OperatingPoint) -> np.ndarray:
    return part.points[point]


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
    frames = (tables.read(f"exit_{name}", path) for name, path in zip(TABLES, paths, strict=True))
    return of_exits(folder, of_run(*frames))


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
    if trained not in quality["loops"].to_numpy():
        most = quality["loops"].max()
        raise mismatch(path, f"{most} loop steps", f"at least the {trained} trained ones")
    exits = of_recording(quality)
    if table_path(folder, "recorded_exits", iteration).exists():
        names = ("recorded_exits", "recorded_depths")
        of_criteria = (tables.read(name, table_path(folder, name, iteration)) for name in names)
        exits = of_recording(quality, *of_criteria)
    return of_exits(folder, exits, trained)


def of_exits(path: Path, exits: pd.DataFrame, depths: int | None = None) -> RunTables:
    """The exits in a table of exits (`twoscale.exits.table`).

    Full depth is by default the largest fixed count. Raises InputError with `path` where no fixed
    loops were measured.
    """
    points = operating_points(exits)
    counts = [threshold for criterion, threshold in points if criterion == "fixed"]
    points = [(criterion, threshold) for criterion, threshold in points if criterion != "fixed"]
    if not counts:
        raise InputError(f"{path}: found no rows of fixed loops, expected those of full depth.")
    depths = int(max(counts)) if depths is None else depths
    of_counts = document_units(exits, [("fixed", count) for count in counts], ["ce"])
    # nats at full depth, from which all excess is counted, and tokens (D,)
    full, tokens = of_counts[:, counts.index(depths)].T

    nats, spent, _ = np.moveaxis(document_units(exits, points), -1, 0)  # (D, P) each
    random = document_units(exits, points, ["ce"], RANDOM)[..., 0]
    excess = [spent, nats - full[:, None], random - full[:, None]]
    units = np.stack([*excess, np.broadcast_to(tokens[:, None], nats.shape)], axis=-1)

    fixed = {}
    if operating_points(exits, FIXED):
        # counts between two whole ones, of the fixed loops with the cost of a criterion
        of_same_cost = document_units(exits, points, reference=FIXED)  # (D, P, 3)
        for nats, spent, taken in of_same_cost.transpose(1, 2, 0):
            fixed[round(float(spent.sum() / taken.sum()), 2)] = nats - full
    # whole counts last, because these were measured without a random part
    for place, count in enumerate(counts):
        fixed[float(count)] = of_counts[:, place, 0] - full
    return RunTables(
        path,
        np.unique(exits["document"]),
        tokens,
        dict(zip(points, units.swapaxes(0, 1), strict=True)),
        dict(sorted(fixed.items())),
        depths,
    )
