"""From one row per token to one row per statistic: the tables that figures and claims read.

Checkpoint files are read one at a time and column by column, so memory is bounded by a few columns of the
largest file (10 million rows: well under 1 GB) whatever the number of checkpoints.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twoscale import tables
from twoscale.errors import InputError

LOOP_MEASURES = (
    "state_norm",
    "step_norm",
    "step_norm_relative",
    "cosine",
    "acceleration",
    "acceleration_normalized",
    "acceleration_relative",
    "distance_to_final",
)
DRIFT_MEASURES = ("jump", "dlr", "jump_over_path")
PATH_MEASURES = ("contraction_rate", "effective_dimension", "settling_rate", "return_ratio", "straightness")
INDEPENDENCE_MEASURES = ("distance", "distance_relative", "kl", "agreement")
# Those whose interval a claim asks for.
LOOP_SEQUENCE_MEASURES = ("step_norm", "cosine")
DRIFT_SEQUENCE_MEASURES = ("dlr",)

QUANTILES = {name: int(name[1:]) / 100 for name in tables.STATISTICS if name.startswith("q")}


def loop_metrics(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Statistics over tokens of every loop measure, per (step, group, k), of tables "trajectories".

    The mean and the 1-sigma deviation are those of section 2 of the paper. Steps rise, groups keep the order
    of the file, k rises. A measure that no token has (the step out of the last state) keeps its row: count 0,
    statistics null.

    Raises InputError for a file that is not such a table, holds two checkpoints, or repeats one.
    """
    return _aggregate("trajectories", "loop_metrics", paths, run, ("group", "k"), LOOP_MEASURES, _statistics)


def drift(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Statistics over tokens of the jumps between groups, per (step, boundary, reading), of "token_drift".

    Equation 2 of the paper is the measure `dlr`. Order and errors as in `loop_metrics`.
    """
    return _aggregate("token_drift", "drift", paths, run, ("boundary", "reference_state"), DRIFT_MEASURES, _statistics)


def loop_sequences(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Means of LOOP_SEQUENCE_MEASURES over the tokens of each sequence, per (step, group, k, sequence).

    They are the units of a bootstrap over sequences: tokens of one sequence are not independent. Order and
    errors as in `loop_metrics`.
    """
    keys = ("group", "k", "sequence")
    return _aggregate("trajectories", "loop_sequences", paths, run, keys, LOOP_SEQUENCE_MEASURES, _mean)


def drift_sequences(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Means of DRIFT_SEQUENCE_MEASURES over the tokens of each sequence, per (step, boundary, reading, sequence)."""
    keys = ("boundary", "reference_state", "sequence")
    return _aggregate("token_drift", "drift_sequences", paths, run, keys, DRIFT_SEQUENCE_MEASURES, _mean)


def path_metrics(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Statistics over tokens of what is said of whole paths, per (step, group), of tables "token_paths".

    Order and errors as in `loop_metrics`.
    """
    return _aggregate("token_paths", "path_metrics", paths, run, ("group",), PATH_MEASURES, _statistics)


def path_independence(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Statistics over tokens and draws of the noise, per (step, varied group), of "token_independence".

    The mean of `agreement` is the share of tokens with the same most probable successor. Order and errors as
    in `loop_metrics`.
    """
    return _aggregate(
        "token_independence", "path_independence", paths, run, ("group",), INDEPENDENCE_MEASURES, _statistics
    )


def kinds(paths: Iterable[str | Path], run: str) -> pd.DataFrame:
    """Tokens of each kind of trajectory and orbits' period that occur, per (step, group), of "token_paths".

    The shares of a (step, group) add up to one. Steps rise, groups keep the order of the file.
    """
    parts = []
    for path in paths:
        frame = tables.read("token_paths", path)
        frame["group"] = pd.Categorical(frame["group"], frame["group"].unique())
        counts = frame.groupby(["iteration", "group", "path_type", "period"], observed=True).size()
        share = counts / counts.groupby(["iteration", "group"], observed=True).transform("sum")
        parts.append(pd.DataFrame({"tokens": counts, "share": share}).reset_index().astype({"group": "string"}))
    found = pd.concat(parts).assign(run=run).sort_values("iteration", kind="stable", ignore_index=True)
    return found[list(tables.columns("path_types"))]


def training(paths: Iterable[str | Path]) -> pd.DataFrame:
    """The logs of all training segments as one table "training", steps 1, 2, … without a gap.

    Raises InputError where two segments overlap, leave a gap, or come from models with other groups.
    """
    segments = [(path, tables.read("training", path)) for path in paths]
    for path, segment in segments:
        if segment.empty:
            raise InputError(f"{path}: found no training step, expected at least one.")
    segments.sort(key=lambda named: named[1]["iteration"].iloc[0])
    expected, columns = 1, segments[0][1].columns
    for path, segment in segments:
        steps = segment["iteration"].to_numpy()
        wrong = np.flatnonzero(steps != np.arange(expected, expected + len(steps)))
        if wrong.size:
            raise InputError(
                f"{path}: found training step {steps[wrong[0]]}, expected step {expected + wrong[0]}; the logs of "
                "the segments have to follow one another without overlap or gap."
            )
        if not segment.columns.equals(columns):
            raise InputError(
                f"{path}: found the groups {tables.groups_of(segment, 'loops')}, expected "
                f"{[name.removeprefix('loops_g') for name in columns if name.startswith('loops_g')]} "
                f"as in {segments[0][0]}."
            )
        expected += len(steps)
    return pd.concat([segment for _, segment in segments], ignore_index=True)


def _aggregate(
    source: str,
    table: str,
    paths: Iterable[str | Path],
    run: str,
    keys: Sequence[str],
    measures: Sequence[str],
    reduce: Callable[[np.ndarray], dict[str, float]],
) -> pd.DataFrame:
    """The frame of `table` from files of the table `source`; `reduce` turns the values of one cell into columns."""
    by_step: dict[int, pd.DataFrame] = {}
    for path in paths:
        file = _open(source, path)
        if file.metadata.num_rows == 0:  # a model without groups or boundaries
            continue
        step = _only_step(file, path)
        if step in by_step:
            raise InputError(f"{path}: found step {iteration} a second time, expected one file per checkpoint.")
        by_step[step] = _summarise(file, keys, measures, reduce)
    columns = list(tables.columns(table))
    if not by_step:
        return pd.DataFrame(columns=columns)
    frame = pd.concat({step: by_step[step] for step in sorted(by_step)}, names=["iteration"]).reset_index("iteration")
    return frame.assign(run=run)[columns].reset_index(drop=True)


def _summarise(file: pq.ParquetFile, keys: Sequence[str], measures: Sequence[str], reduce: Callable) -> pd.DataFrame:
    """One row per combination of keys and measure, the measures of a combination together."""
    labels, cells = _cells(file, keys)
    # Rows are sorted into cells once; each measure is then read, gathered and reduced on its own.
    order = np.argsort(cells, kind="stable")
    starts = np.searchsorted(cells[order], np.arange(1, len(labels)))
    del cells
    blocks = []
    for measure in measures:
        values = _column(file, measure).to_numpy()[order]
        statistics = pd.DataFrame([reduce(part) for part in np.split(values, starts)])
        blocks.append(pd.concat([labels.assign(measure=measure), statistics], axis="columns"))
    return pd.concat(blocks).sort_index(kind="stable")


def _cells(file: pq.ParquetFile, keys: Sequence[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """The combinations of keys that occur, one a row, and for each row of the file the index of its own."""
    codes, levels = zip(*(_encode(_column(file, key)) for key in keys), strict=True)
    sizes = [len(level) for level in levels]
    cells = np.ravel_multi_index(codes, sizes)
    present = np.flatnonzero(np.bincount(cells, minlength=np.prod(sizes)))
    compact = np.zeros(np.prod(sizes), dtype=np.min_scalar_type(len(present)))  # a short type sorts by radix
    compact[present] = np.arange(len(present))
    picked = zip(keys, levels, np.unravel_index(present, sizes), strict=True)
    return pd.DataFrame({key: level[index] for key, level, index in picked}), compact[cells]


def _encode(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the rows and their levels: labels in order of appearance, numbers rising."""
    codes, levels = pd.factorize(column.to_pandas(), sort=pa.types.is_integer(column.type))
    return codes.astype(np.min_scalar_type(len(levels))), np.asarray(levels)


def _statistics(values: np.ndarray) -> dict[str, float]:
    """tables.STATISTICS of one cell; NaN stands for null."""
    known = values[~np.isnan(values)].astype(np.float64)  # sums of float32 would lose digits
    counts = {"count": known.size, "nulls": values.size - known.size}
    if not known.size:
        return dict.fromkeys(tables.STATISTICS, np.nan) | counts
    quantiles = zip(QUANTILES, np.quantile(known, list(QUANTILES.values())), strict=True)
    return {"mean": known.mean(), "std": known.std(), **dict(quantiles), **counts}


def _mean(values: np.ndarray) -> dict[str, float]:
    """tables.SEQUENCE_STATISTICS of one cell."""
    known = values[~np.isnan(values)]
    mean = known.mean(dtype=np.float64) if known.size else np.nan
    return {"mean": mean, "count": known.size, "nulls": values.size - known.size}


def _open(table: str, path: str | Path) -> pq.ParquetFile:
    """The file at `path`, refused unless its columns are those of `table`; nothing is read yet."""
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot be read as a parquet table ({str(error).splitlines()[0]}).") from error
    expected = list(tables.columns(table))
    if file.schema_arrow.names != expected:
        raise InputError(
            f"{path}: found the columns {', '.join(file.schema_arrow.names)}; expected those of the table "
            f"'{table}': {', '.join(expected)}."
        )
    return file


def _column(file: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    return file.read(columns=[name]).column(name)


def _only_step(file: pq.ParquetFile, path: str | Path) -> int:
    steps = _column(file, "iteration").unique().to_pylist()
    if len(steps) > 1:
        raise InputError(f"{path}: found the steps {sorted(steps)}, expected those of one checkpoint.")
    return steps[0]
