"""From one row per token to one row per statistic: the tables that figures and claims read.

Checkpoint files are read one at a time and column by column, so memory is bounded by a few columns
of the largest file (10 million rows: well under 1 GB), however many checkpoints there are.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twoscale import tables
from twoscale.base import InputError
from twoscale.jobs.table_job import StudyJob, job_files

# Table of statistics -> table with one row per token, keys of a cell, measures (None: all). With
# "sequence" as a key the statistics are the means for which claims need an interval; each row then
# names the document of its sequence, because the tokens of one document are not independent.
Source = tuple[str, tuple[str, ...], tuple[str, ...] | None]
TABLES: dict[str, Source] = {
    "loop_metrics": ("trajectories", ("group", "k"), None),
    "drift": (
        "token_drift",
        ("boundary", "reference_state"),
        None,
    ),  # Equation 2 of the paper is the measure `dlr`
    "loop_sequences": (
        "trajectories",
        ("group", "k", "sequence"),
        (
            "state_norm",
            "step_norm",
            "cosine",
            "acceleration",
            "direction_step_norm",
            "direction_cosine",
        ),
    ),
    "drift_sequences": (
        "token_drift",
        ("boundary", "reference_state", "sequence"),
        ("dlr", "jump_over_path"),
    ),
}

QUANTILES = {name: int(name[1:]) / 100 for name in tables.STATISTICS if name.startswith("q")}


def summarise(table: str, paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """One of `TABLES`, of one file per checkpoint: `statistics` of its source."""
    source, keys, measures = TABLES[table]
    return statistics(paths, run, source, table, keys, measures)


# --- the training log -----------------------------------------------------------------------------


def joined(table: str, paths: Iterable[str | Path]) -> pd.DataFrame:
    """The logs ("training") or loop counts ("training_loops") of all training segments as one
    table.

    Iterations are 1, 2, … without a gap; loop counts are empty for a model without groups. Raises
    InputError if two segments overlap or leave a gap.
    """
    segments = [(path, tables.read(table, path)) for path in paths]
    segments.sort(key=lambda segment: segment[1]["iteration"].min())
    before = 0  # rows before the segment
    for path, rows in segments:
        iterations, groups = (
            rows["iteration"].to_numpy(),
            rows["group"].nunique() if "group" in rows else 1,
        )
        expected = 1 + np.arange(before, before + len(iterations)) // max(groups, 1)
        wrong = np.flatnonzero(iterations != expected)
        if wrong.size:
            raise InputError(
                f"{path}: found training iteration {iterations[wrong[0]]}, expected iteration"
                f" {expected[wrong[0]]}; "
                "the segment logs must be consecutive, without overlaps or gaps."
            )
        before += len(iterations)
    return pd.concat([rows for _, rows in segments], ignore_index=True)


def statistics(
    paths: Iterable[str | Path],
    run: str,
    source: str,
    table: str,
    keys: Sequence[str] = ("group",),
    measures: Sequence[str] | None = None,
) -> pd.DataFrame:
    """The table `table` of statistics over tokens, from tables `source` with one row per token, one
    per checkpoint.

    One row per iteration, combination of `keys` and measure (None: all that a file has). The mean
    and the 1-sigma deviation are as in section 2 of the paper. Iterations rise, groups and measures
    keep the order of the file, k rises. A measure that no token has (the step norm at the last
    state) keeps its row: count 0, statistics null. Raises InputError for a file that holds two
    checkpoints or repeats one.
    """
    by_iteration: dict[int, pd.DataFrame] = {}
    for path in paths:
        file = tables.open_file(source, path)
        if file.metadata.num_rows == 0:  # a model without groups or boundaries
            continue
        iteration, *others = _column(file, "iteration").unique().to_pylist()
        if others:
            found = sorted([iteration, *others])
            raise InputError(f"{path}: found the iterations {found}, expected a single iteration.")
        if iteration in by_iteration:
            raise InputError(
                f"{path}: found a second file for iteration {iteration}, expected one per"
                f" checkpoint."
            )
        by_iteration[iteration] = _summarise(file, keys, measures)
    columns = list(tables.columns(table))
    if not by_iteration:
        return pd.DataFrame(columns=columns)
    frame = pd.concat(
        {iteration: by_iteration[iteration] for iteration in sorted(by_iteration)},
        names=["iteration"],
    )
    return frame.reset_index("iteration").assign(run=run)[columns].reset_index(drop=True)


def _summarise(
    file: pq.ParquetFile, keys: Sequence[str], measures: Sequence[str] | None
) -> pd.DataFrame:
    """One row per cell and measure of one file, the measures of a cell together."""
    reduce = _mean if "sequence" in keys else _statistics
    labels, cells = _cells(file, keys)
    # Rows are sorted into cells once. Each measure is then read, brought into that order and
    # reduced on its own.
    order = np.argsort(cells, kind="stable")
    starts = np.searchsorted(cells[order], np.arange(1, len(labels)))
    del cells
    if "sequence" in keys:
        labels["document"] = _column(file, "document").to_numpy()[order[[0, *starts]]]
    frames = []
    measured = [field.name for field in file.schema_arrow if field.type == pa.float32()]
    for measure in [name for name in measures or measured if name in measured]:
        values = _column(file, measure).to_numpy()[order]
        statistics = pd.DataFrame([reduce(cell) for cell in np.split(values, starts)])
        frames.append(pd.concat([labels.assign(measure=measure), statistics], axis="columns"))
    # the index is the number of the cell, so the stable sort interleaves the measures cell by cell
    return pd.concat(frames).sort_index(kind="stable")


def _cells(file: pq.ParquetFile, keys: Sequence[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """The combinations of keys that occur, one per row, and the number of its combination for each
    row of the file.
    """
    codes, levels = [], []
    for column in (_column(file, key) for key in keys):
        # labels in order of appearance, numbers rising
        found, labels = pd.factorize(column.to_pandas(), sort=pa.types.is_integer(column.type))
        codes.append(found.astype(np.min_scalar_type(len(labels))))
        levels.append(np.asarray(labels))
    sizes = [len(level) for level in levels]
    # Number all possible combinations, as positions in an array with one axis per key.
    cells = np.ravel_multi_index(codes, sizes)
    present = np.flatnonzero(np.bincount(cells, minlength=np.prod(sizes)))
    # Renumber those that occur as 0, 1, …: the numbers then fit a short type, which numpy sorts by
    # radix.
    compact = np.zeros(np.prod(sizes), dtype=np.min_scalar_type(len(present)))
    compact[present] = np.arange(len(present))
    # Back from the number of a combination to one label per key.
    codes_present = np.unravel_index(present, sizes)
    cell_labels = {
        key: level[code] for key, level, code in zip(keys, levels, codes_present, strict=True)
    }
    return pd.DataFrame(cell_labels), compact[cells]


def _statistics(values: np.ndarray) -> dict[str, float]:
    """`tables.STATISTICS` of one cell; NaN is null."""
    known = values[~np.isnan(values)].astype(np.float64)  # sums of float32 would lose digits
    counts = {"count": known.size, "nulls": values.size - known.size}
    if not known.size:
        return dict.fromkeys(tables.STATISTICS, np.nan) | counts
    quantiles = zip(QUANTILES, np.quantile(known, list(QUANTILES.values())), strict=True)
    return {"mean": known.mean(), "std": known.std(), **dict(quantiles), **counts}


def _mean(values: np.ndarray) -> dict[str, float]:
    """`tables.SEQUENCE_STATISTICS` of one cell."""
    known = values[~np.isnan(values)]
    mean = known.mean(dtype=np.float64) if known.size else np.nan
    return {"mean": mean, "count": known.size, "nulls": values.size - known.size}


def _column(file: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    return file.read(columns=[name]).column(name)


@job_files(
    reads="trajectories token_drift", writes="loop_metrics drift loop_sequences drift_sequences"
)
def metrics(job: StudyJob) -> None:
    """Statistics over tokens of all checkpoints."""
    for table, (source, *_) in TABLES.items():
        job.write(table, summarise(table, job.files[source], job.config.run))


@job_files(reads="logs loops", writes="training training_loops")
def join_training(job: StudyJob) -> None:
    """The training logs of all segments, joined."""
    job.write("training", joined("training", job.files["logs"]))
    job.write("training_loops", joined("training_loops", job.files["loops"]))


@job_files(
    reads="quality_files loops_files cost_matched_files", writes="quality loops cost_matched"
)
def join_exit_quality(job: StudyJob) -> None:
    """Joins the tables of quality, loops and cost_matched of all exit criteria."""
    for name in ("quality", "loops", "cost_matched"):
        parts = [tables.read(f"exit_{name}", path) for path in job.files[f"{name}_files"]]
        job.write(f"exit_{name}", pd.concat(parts), name)
