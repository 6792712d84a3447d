"""Tables of finished runs, found by their name."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from twoscale import tables
from twoscale.base import InputError, did_you_mean

if TYPE_CHECKING:
    from twoscale.model.trained_run import TrainedRun

# Tables that a run or a recording has in one file per checkpoint, ? for the digits of the
# iteration; all others are in tables/.
PARTS = {
    "training": "training/iteration_??????.parquet",
    "training_loops": "training/iteration_??????.loops.parquet",
    "trajectories": "trajectories/iteration_??????.parquet",
    "token_paths": "paths/iteration_??????.parquet",
    "token_drift": "drift/iteration_??????.parquet",
    "scaling_quality": "scaling/iteration_??????.parquet",
    "depth_quality": "depth/iteration_??????.parquet",
    "recorded_exits": "exits/iteration_??????.parquet",
    "loop_tokens": "loops/iteration_??????.tokens.parquet",  # of a recording
    "loop_exits": "loops/iteration_??????.exits.parquet",  # of a recording
    "recorded_depths": "exits/iteration_??????.depths.parquet",
    "recorded_spectrum": "spectrum/iteration_??????.parquet",
}


def table_path(folder: str | PathLike[str], table: str, iteration: int) -> Path:
    """The file of one of `PARTS` in the folder of a run."""
    return Path(folder) / PARTS[table].replace("??????", f"{iteration:06d}")


def facts_path(folder: str | PathLike[str], iteration: int) -> Path:
    """The file with the description of a recording."""
    return Path(folder) / "recorded" / f"iteration_{iteration:06d}.json"


def read_facts(folder: Path, iteration: int) -> dict[str, Any]:
    """The description of a recording."""
    return json.loads(facts_path(folder, iteration).read_text(encoding="utf-8"))


def last_recorded(folder: Path) -> int:
    """The last iteration that was recorded with `decode`. Raises InputError if there is none."""
    files = table_files(folder, "depth_quality")
    if not files:
        raise InputError(
            f"{folder}: found no depth/iteration_*.parquet, expected a recording with decode."
        )
    return int(files[-1].stem.removeprefix("iteration_"))


def table_files(folder: str | PathLike[str], table: str) -> list[Path]:
    """The files of one of `PARTS` that a run has, one per checkpoint; iterations rise."""
    return sorted(Path(folder).glob(PARTS[table]))


def read_table(
    run: str | PathLike[str] | TrainedRun, table: str, iteration: int | None = None
) -> pd.DataFrame:
    """The table `table` of a run, one row per observation.

    The meaning and unit of each column is in `frame.attrs["columns"]`.

    Args:
        run: Folder of the run, such as "results/demo" or "docs/demo-release/demo", or what
            `open_run` returned.
        table: Name of the table, such as "loop_metrics" (statistics of each measure at each loop
            step), "training" (loss at each iteration), "exit_quality" or "trajectories" (each token
            at each loop step). The error for an unknown name lists all tables of the run.
        iteration: Only the rows of this checkpoint. Tables with a row per token may have millions
            of rows in all.

    Raises:
        InputError: if the folder or table does not exist, or the table has no rows of the
            iteration.

    Example:
        >>> metrics = twoscale.read_table("results/demo", "loop_metrics")
        >>> steps = metrics[metrics["measure"] == "step_norm"]
        >>> steps.pivot_table(index="k", columns="group", values="mean")
    """
    folder = _folder(run)
    found = {name: files for name in PARTS if (files := table_files(folder, name))}
    found |= {path.stem: [path] for path in (folder / "tables").glob("*.parquet")}
    if table not in found:
        hint = did_you_mean(table, found)
        if table in tables.declared():
            hint = f" (the job for the table {table} has not run)"
        expected = ", ".join(sorted(found)) or "(none)"
        raise InputError(f"{folder}: found no table {table!r}, expected one of {expected}{hint}.")
    # pareto_quality is exit_quality on a denser grid
    declared = table if table in tables.declared() else table.replace("pareto_", "exit_", 1)
    files = found[table]
    if iteration is not None:  # where a checkpoint has its own file, only that one is read
        files = [path for path in files if path.match(f"iteration_{iteration:06d}.*")] or files
    frame = pd.concat([tables.read(declared, path) for path in files], ignore_index=True)
    if iteration is not None:
        frame = _at_iteration(frame, iteration, f"{folder}, table {table}")
    frame.attrs["columns"] = tables.meanings(declared)
    return frame


def _at_iteration(frame: pd.DataFrame, iteration: int, name: str) -> pd.DataFrame:
    """The rows of a table of one checkpoint. Raises InputError if there is none."""
    if "iteration" not in frame:
        raise InputError(
            f"{name}: found no column `iteration`, expected a call without an iteration."
        )
    rows = frame[frame["iteration"] == iteration].reset_index(drop=True)
    if rows.empty:
        known = sorted(frame["iteration"].unique())
        expected = f"one of {', '.join(map(str, known))}"
        if len(known) >= 20:  # a training log
            expected = f"one from {known[0]} to {known[-1]}"
        raise InputError(f"{name}: found no rows of iteration {iteration}, expected {expected}.")
    return rows


def compare(
    run_a: str | PathLike[str] | TrainedRun,
    run_b: str | PathLike[str] | TrainedRun,
    table: str,
    iteration: int | None = None,
) -> pd.DataFrame:
    """The table `table` of two runs as one frame, with their names in the first column, `run`.

    The arguments are as for `read_table`. The rows of run_a come before those of run_b. The name of
    a run is the name of its folder, "demo" for results/demo, or the whole path if both folders have
    the same name.

    Raises:
        InputError: as for `read_table`, and if both runs are the same folder.

    Example:
        >>> runs = "results/demo", "results/demo-seed1338"
        >>> both = twoscale.compare(*runs, "loop_metrics", iteration=600)
        >>> both.pivot_table(index=["measure", "group", "k"], columns="run", values="mean")
    """
    folders = [_folder(run_a), _folder(run_b)]
    if folders[0].resolve() == folders[1].resolve():
        raise InputError(
            f"compare: found {folders[0]} twice, expected two runs; within a run, the column"
            " `iteration` distinguishes the checkpoints."
        )
    names = [folder.absolute().name for folder in folders]
    if names[0] == names[1]:
        names = [str(folder) for folder in folders]
    frames = [read_table(folder, table, iteration) for folder in folders]
    for frame, name in zip(frames, names, strict=True):
        frame["run"] = name
    both = pd.concat(frames, ignore_index=True)
    both.attrs = frames[0].attrs  # `concat` drops them where they differ
    return both[["run", *both.columns.drop("run")]]


def _folder(run: str | PathLike[str] | TrainedRun) -> Path:
    if not isinstance(run, str) and hasattr(run, "folder"):
        run = run.folder
    folder = Path(run)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: found no such folder, expected the folder of a run, such as results/demo."
        )
    return folder
