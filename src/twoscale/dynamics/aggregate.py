"""From one row per token to one row per statistic: the tables that figures and claims read.

Checkpoint files are read one at a time and column by column, so memory is bounded by a few columns
of the largest file (10 million rows: under 1 GB), however many checkpoints there are.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twoscale import tables
from twoscale.base import InputError
from twoscale.jobs.table_job import TableJob, job_files

# Table of statistics -> table with one row per token, keys of a cell, measures (None: all). With
# "sequence" as a key the statistics are the means for which claims need an interval; each row then
# names the document of its sequence, because the tokens of one document are not independent.
Source = tuple[str, tuple[str, ...], tuple[str, ...] | None]
_LOOP = tuple(
    "state_norm step_norm cosine acceleration direction_step_norm direction_cosine".split()
)
_DRIFT = ("dlr", "jump_over_path")  # `dlr` is Equation 2 of the paper
TABLES: dict[str, Source] = {
    "loop_metrics": ("trajectories", ("group", "k"), None),
    "drift": ("token_drift", ("boundary", "reference_state"), None),
    "loop_sequences": ("trajectories", ("group", "k", "sequence"), _LOOP),
    "drift_sequences": ("token_drift", ("boundary", "reference_state", "sequence"), _DRIFT),
}

QUANTILES = {name: int(name[1:]) / 100 for name in tables.STATISTICS if name.startswith("q")}


def summarise(table: str, paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """One of `TABLES`, of one file per checkpoint: `statistics` of its source."""
    source, keys, measures = TABLES[table]
    return statistics(paths, run, source, table, keys, measures)


# --- the training log -----------------------------------------------------------------------------


def joined(table: str, paths: Iterable[str | Path]) -> pd.DataFrame:
    """The logs ("training") or loop counts ("training_loops") of all training segments.

    Iterations are 1, 2, … without a gap; loop counts are empty for a model without groups. Raises
    InputError if two segments overlap or leave a gap.
    """
    segments = [(path, tables.read(table, path)) for path in paths]
    segments.sort(key=lambda segment: segment[1]["iteration"].min())
    before = 0  # rows before the segment
    for path, rows in segments:
        iterations = rows["iteration"].to_numpy()
        rows_of_iteration = max(rows["group"].nunique(), 1) if "group" in rows else 1
        # an iteration has a row for each group in "training_loops"
        expected = 1 + np.arange(before, before + len(iterations)) // rows_of_iteration
        wrong = np.flatnonzero(iterations != expected)
        if wrong.size:
            found, wanted = iterations[wrong[0]], expected[wrong[0]]
            raise InputError(
                f"{path}: found training iteration {found}, expected iteration {wanted}; the"
                " segment logs must be consecutive, without overlaps or gaps."
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
    """The table `table` of statistics over tokens, from a table `source` of each checkpoint.

    One row per iteration, combination of `keys` and measure (None: all that a file has). The mean
    and the 1-sigma deviation are as in section 2 of the paper. Iterations rise, groups and measures
    keep the order of the file, k rises. A measure that no token has (the step norm at the last
    state) keeps its row: count 0, statistics null.
    """
    frames = []
    for path in paths:
        file = tables.open_file(source, path)
        if file.metadata.num_rows:  # a model without groups or boundaries has none
            frames.append(_summarise(file, ("iteration", *keys), measures))
    columns = list(tables.columns(table))
    if not frames:
        return pd.DataFrame(columns=columns)
    rows = pd.concat(frames).sort_values("iteration", kind="stable", ignore_index=True)
    return rows.assign(run=run)[columns]


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
    if "sequence" in keys:
        # all rows of a sequence have one document, so the first row of a cell tells it
        labels["document"] = _column(file, "document").to_numpy()[order[[0, *starts]]]
    frames = []
    # measures are the columns of float32; keys are integers and labels
    known = [field.name for field in file.schema_arrow if field.type == pa.float32()]
    for name in measures or known:
        if name in known:
            values = _column(file, name).to_numpy()[order]
            statistics = pd.DataFrame([reduce(cell) for cell in np.split(values, starts)])
            rows = labels.assign(measure=name)
            frames.append(pd.concat([rows, statistics], axis="columns"))
    # the index is the number of the cell, so the stable sort interleaves the measures cell by cell
    return pd.concat(frames).sort_index(kind="stable")


def _cells(file: pq.ParquetFile, keys: Sequence[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """The combinations of keys that occur, one per row, and for each row of the file its cell.

    A cell is the number of a combination. Labels are in order of appearance, numbers rise.
    """
    rows = pd.DataFrame()
    dtypes = {}
    for key in keys:
        column = _column(file, key).to_pandas()
        dtypes[key] = column.dtype
        if not pd.api.types.is_integer_dtype(column):  # few labels, in order of appearance
            column = pd.Categorical(column, column.unique())
        rows[key] = column
    by_cell = rows.groupby(list(keys), observed=True)
    labels = by_cell.size().index.to_frame(index=False).astype(dtypes)
    cells = by_cell.ngroup().to_numpy()
    return labels, cells.astype(np.min_scalar_type(len(labels)))  # numpy sorts short types by radix


def _statistics(values: np.ndarray) -> dict[str, float]:
    """`tables.STATISTICS` of one cell; NaN is null."""
    known = values[~np.isnan(values)].astype(np.float64)  # sums of float32 would lose digits
    statistics = dict.fromkeys(tables.STATISTICS, np.nan)
    if known.size:
        statistics |= {"mean": known.mean(), "std": known.std()}
        quantiles = np.quantile(known, list(QUANTILES.values()))
        statistics |= zip(QUANTILES, quantiles, strict=True)
    return statistics | {"count": known.size, "nulls": values.size - known.size}


def _mean(values: np.ndarray) -> dict[str, float]:
    """`tables.SEQUENCE_STATISTICS` of one cell."""
    known = values[~np.isnan(values)]
    mean = known.mean(dtype=np.float64) if known.size else np.nan
    return {"mean": mean, "count": known.size, "nulls": values.size - known.size}


def _column(file: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    return file.read(columns=[name]).column(name)


# --- path types -----------------------------------------------------------------------------------


def path_types(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Number of tokens of each (path type, period) that occurs, per (iteration, group).

    The tables "token_paths" have one checkpoint each. The shares of an (iteration, group) add up to
    one. Iterations rise, groups keep the order of the file.
    """
    checkpoints = []
    for path in paths:
        frame = tables.read("token_paths", path)
        # categories keep the order of the file
        frame["group"] = pd.Categorical(frame["group"], frame["group"].unique())
        keys = ["iteration", "group"]
        counts = frame.groupby([*keys, "path_type", "period"], observed=True).size()
        # every token has one path type, so the sum over types is the number of tokens
        of_group = counts.groupby(keys, observed=True).transform("sum")
        shares = pd.DataFrame({"tokens": counts, "share": counts / of_group}).reset_index()
        checkpoints.append(shares.astype({"group": "string"}))
    rows = pd.concat(checkpoints).assign(run=run)
    rows = rows.sort_values("iteration", kind="stable", ignore_index=True)
    return rows[list(tables.columns("path_types"))]


# --- jobs -----------------------------------------------------------------------------------------


@job_files(reads="paths", writes="path_types path_metrics")
def count_path_types(job: TableJob) -> None:
    """Path types of all checkpoints, and statistics of the measures per trajectory."""
    paths, run = job.files["paths"], job.config.run
    job.write("path_types", path_types(paths, run))
    job.write("path_metrics", statistics(paths, run, "token_paths", "path_metrics"))


@job_files(
    reads="trajectories token_drift", writes="loop_metrics drift loop_sequences drift_sequences"
)
def metrics(job: TableJob) -> None:
    """Statistics over tokens of all checkpoints."""
    for table, (source, *_) in TABLES.items():
        job.write(table, summarise(table, job.files[source], job.config.run))


@job_files(reads="logs loops", writes="training training_loops")
def join_training(job: TableJob) -> None:
    """The training logs of all segments, joined."""
    job.write("training", joined("training", job.files["logs"]))
    job.write("training_loops", joined("training_loops", job.files["loops"]))


@job_files(
    reads="quality_files loops_files cost_matched_files", writes="quality loops cost_matched"
)
def join_exit_quality(job: TableJob) -> None:
    """Joins the tables of quality, loops and cost_matched of all exit criteria."""
    for name in ("quality", "loops", "cost_matched"):
        parts = [tables.read(f"exit_{name}", path) for path in job.files[f"{name}_files"]]
        job.write(f"exit_{name}", pd.concat(parts), name)
