"""Columns, types and units of every parquet table, and the only functions that read or write one.

The columns are plain data and the imports of pandas and pyarrow wait inside the functions, because the
Snakefile imports this module: a rule that writes a table carries the table's columns in its params, so a
new column reruns just the rules that write it.

A column whose name ends in `_g*` stands for one column per looped group: `evaluations_g*` becomes
`evaluations_g4`, `evaluations_g5-6`, `evaluations_g7`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from twoscale.errors import InputError, first_line
from twoscale.files import replacing

if TYPE_CHECKING:
    import pandas as pd

# Statistics over tokens that every aggregated measure carries.
STATISTICS = {
    "mean": "float64",
    "std": "float64",  # 1 sigma over tokens
    "q05": "float64",
    "q25": "float64",
    "q50": "float64",
    "q75": "float64",
    "q95": "float64",
    "count": "int64",  # values that entered
    "nulls": "int64",  # values left out: undefined, or under the rounding floor
}

# The same over the tokens of one sequence.
SEQUENCE_STATISTICS = {name: STATISTICS[name] for name in ("mean", "count", "nulls")}

# table -> column -> dtype; the keys of a row stand first.
COLUMNS: dict[str, dict[str, str]] = {
    # One document a row; `held_out` says which of the two parts it belongs to.
    "text": {"document": "string", "held_out": "bool", "text": "string"},
    # The same while it is collected; `size` counts tokens of GPT-2 or characters, as the budget does.
    "text_part": {"document": "string", "text": "string", "size": "int64"},
    # One iteration a row. `step` counts finished iterations, so the first row is step 1.
    "training": {
        "iteration": "int64",
        "tokens_seen": "int64",
        "loss": "float64",  # nats per token, mean over the batch
        "held_out_loss": "float64",  # nats per token at train.held_out_loops; null between measurements
        "learning_rate": "float64",
        "gradient_norm": "float64",  # before clipping
        "tokens_per_s": "float64",
        "tflops": "float64",  # model FLOP/s of the iteration in 1e12, causal count, all processes
        "utilisation": "float64",  # of train.peak_tflops times the processes; null where that is not set
        "loops_g*": "int64",
    },
    # One (token, group, loop step) a row; k = 0 is the initial state, k = budget the last one.
    # A step from x^k to x^{k+1} stands in row k, so the last row has none. Measured in
    # trajectories.dtype, stored in float32.
    "trajectories": {
        "iteration": "int64",
        "sequence": "int32",
        "position": "int32",
        "group": "string",
        "k": "int32",
        "state_norm": "float32",
        "step_norm": "float32",
        "step_norm_relative": "float32",
        "cosine": "float32",
        "acceleration": "float32",
        "acceleration_normalized": "float32",
        "acceleration_relative": "float32",
        "distance_to_final": "float32",
    },
    # One (token, group) a row: what is said of a whole path (`measures`) and of its end (`kinds`).
    "token_paths": {
        "iteration": "int64",
        "sequence": "int32",
        "position": "int32",
        "group": "string",
        "contraction_rate": "float32",  # after the leap from x^0; null where the steps are rounding
        "effective_dimension": "float32",
        "settling_rate": "float32",
        "return_ratio": "float32",
        "straightness": "float32",
        "path_type": "string",
        "period": "int32",  # loop steps of an orbit, 0 for other kinds
    },
    # One (token, boundary) a row: the jump over the mean loop step, once per reading of "x^0 of the next
    # group", and the jump over the summed loop steps, which does not grow with the budget.
    "token_drift": {
        "iteration": "int64",
        "sequence": "int32",
        "position": "int32",
        "boundary": "string",
        "reference_state": "string",
        "jump": "float32",
        "dlr": "float32",
        "jump_over_path": "float32",
    },
    # One (token, varied group, draw of the noise) a row, each compared with the run's own draw.
    "token_independence": {
        "iteration": "int64",
        "sequence": "int32",
        "position": "int32",
        "group": "string",  # whose noise is varied, or "all"
        "draw": "int32",
        "distance": "float32",  # between the last states of the varied group
        "distance_relative": "float32",  # over the norm of that state
        "kl": "float32",  # nats, from the run's own prediction to that of the draw
        "agreement": "float32",  # 1 where both predict the same token, else 0
    },
    "path_types": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "path_type": "string",
        "period": "int32",  # loop steps of an orbit, 0 for other kinds
        "tokens": "int64",
        "share": "float64",  # of the tokens of this step and group
    },
    "path_metrics": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "measure": "string",
        **STATISTICS,
    },
    "path_independence": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "measure": "string",
        **STATISTICS,
    },
    "loop_metrics": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "k": "int32",
        "measure": "string",
        **STATISTICS,
    },
    "drift": {
        "run": "string",
        "iteration": "int64",
        "boundary": "string",
        "reference_state": "string",
        "measure": "string",
        **STATISTICS,
    },
    # One held-out sequence a row: what bootstraps over sequences need.
    "loop_sequences": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "k": "int32",
        "sequence": "int32",
        "measure": "string",
        **SEQUENCE_STATISTICS,
    },
    "drift_sequences": {
        "run": "string",
        "iteration": "int64",
        "boundary": "string",
        "reference_state": "string",
        "sequence": "int32",
        "measure": "string",
        **SEQUENCE_STATISTICS,
    },
    # One measured repeat of one setting a row.
    "exit_latency": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "repeat": "int32",
        "tokens": "int64",
        "latency_ms": "float64",  # per token, under the rule
        "baseline_ms": "float64",  # per token, the same evaluations without any rule
        "load_average": "float64",
        "evaluations_g*": "float64",  # mean calls of f per token
    },
    # One held-out sequence under one setting a row.
    "exit_quality": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "sequence": "int32",
        "tokens": "int64",
        "ce": "float64",  # nats per token
        "ppl": "float64",
        "share_at_max_loops": "float64",  # share of (token, group) pairs that spent the whole budget
        "steps_g*": "float64",  # mean steps that the returned state took (k of Algorithm 1)
        "evaluations_g*": "float64",  # mean calls of f per token
    },
    # One held-out sequence at one checkpoint and fixed loop count a row.
    "scaling_quality": {
        "iteration": "int64",
        "loops": "int32",  # of every group
        "sequence": "int32",
        "tokens": "int64",
        "ce": "float64",  # nats per token
        "ppl": "float64",
    },
    # The same over sequences: one checkpoint and loop count a row, with 95 % intervals over sequences.
    "scaling": {
        "run": "string",
        "iteration": "int64",
        "loops": "int32",
        "tokens": "int64",
        "ce": "float64",
        "ce_low": "float64",
        "ce_high": "float64",
        "ppl": "float64",  # exp of ce
        "ppl_low": "float64",
        "ppl_high": "float64",
        "excess": "float64",  # ce less that of the most loops, on the same sequences
        "excess_low": "float64",
        "excess_high": "float64",
    },
    # One held-out sequence a row, each token at the least fixed loop count that settles its prediction.
    "uniform_loops": {
        "run": "string",
        "sequence": "int32",
        "tokens": "int64",
        "loops": "float64",  # mean over tokens, of every group
        "ce": "float64",
        "ppl": "float64",
        "share_at_max_loops": "float64",  # share of tokens whose prediction settles at the full budget only
    },
    # One (repeat, group) a row: the price of one KL decision beside that of one loop step, for one token.
    "check_cost": {
        "run": "string",
        "group": "string",
        "repeat": "int32",
        "check_ms": "float64",
        "loop_step_ms": "float64",
    },
    # One measured quantity a row; the last row of a claim, part "all", is the verdict on the claim.
    "claims": {
        "run": "string",
        "claim": "int32",
        "text_part": "string",  # group, boundary, reading or rule
        "statement": "string",
        "where": "string",  # in the paper
        "quantity": "string",
        "value": "float64",  # infinite where a length is not reached, null where nothing was measured
        "low": "float64",  # 95 % bootstrap interval
        "high": "float64",
        "criterion": "string",  # empty for a number that stands beside, unjudged
        "verdict": "string",
        "reason": "string",
    },
}


def columns(table: str, groups: Sequence[str] = ()) -> dict[str, str]:
    """Column names and dtypes of `table` for a model with these group labels."""
    expanded: dict[str, str] = {}
    for name, dtype in COLUMNS[table].items():
        if name.endswith("_g*"):
            expanded |= {f"{name[:-1]}{group}": dtype for group in groups}
        else:
            expanded[name] = dtype
    return expanded


def groups_of(frame: pd.DataFrame, prefix: str = "evaluations") -> list[str]:
    """Group labels in the order in which the columns `{prefix}_g*` of a table stand."""
    return [name.removeprefix(f"{prefix}_g") for name in frame.columns if name.startswith(f"{prefix}_g")]


@contextmanager
def writing(table: str, path: str | Path, groups: Sequence[str] = ()) -> Iterator:
    """Yield a function that appends one batch of columns (name -> array) to the table at `path`.

    Batches go to disk as they come, so memory does not grow with the table. The file appears under its
    name only when the block ends without an exception.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = columns(table, groups)
    schema = pa.schema([(name, _arrow_type(dtype)) for name, dtype in expected.items()])
    # measured floats rarely repeat: looking for a dictionary of them costs ten times the writing itself
    repeating = [name for name, dtype in expected.items() if not dtype.startswith("float")]
    options = {"compression": "zstd", "use_dictionary": repeating}
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:

        def append(batch: Mapping[str, Iterable]) -> None:
            if set(batch) != set(expected):
                raise ValueError(f"table {table}: columns {sorted(batch)} given, {sorted(expected)} expected")
            arrays = [pa.array(batch[name], type=schema.field(name).type, from_pandas=True) for name in expected]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield append


def write(table: str, frame: pd.DataFrame, path: str | Path, groups: Sequence[str] = ()) -> None:
    """Write `frame`, whose columns have to be those of `table`, to `path` in one step."""
    with writing(table, path, groups) as append:
        append({name: frame[name] for name in frame.columns})


def read(table: str, path: str | Path, groups: Sequence[str] | None = None) -> pd.DataFrame:
    """Read `path` and refuse a file whose columns are not those of `table`.

    `groups` None accepts whatever groups the file has.
    """
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a parquet table ({first_line(error)}).") from error
    if groups is None:
        star = next((name for name in COLUMNS[table] if name.endswith("_g*")), "")
        groups = groups_of(frame, star.removesuffix("_g*")) if star else ()
    expected = list(columns(table, groups))
    if list(frame.columns) != expected:
        raise InputError(
            f"{path}: found the columns {', '.join(frame.columns)}; expected those of the table '{table}': "
            f"{', '.join(expected)}."
        )
    return frame


def _arrow_type(dtype: str):
    import pyarrow as pa

    return {"bool": pa.bool_(), "string": pa.string()}.get(dtype) or pa.type_for_alias(dtype)
