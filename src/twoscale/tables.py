"""Columns, types and units of every parquet table, and the only functions that read or write one.

Planning imports this module, so pandas and pyarrow are imported inside the functions: a rule that
writes a table has its columns in its params, so a new column reruns only the rules that write it.

Tables are long: quantities per looped group have one row per group, with its label in the column
`group`. The tables in `MEASURED` declare only their key columns. Their further columns are
measures, float32 each, and follow from the registries in `twoscale.dynamics.measures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twoscale.base import (
    InputError,
    did_you_mean,
    first_line,
    mismatch,
    replacing,
    study_parts,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq


class Column(NamedTuple):
    """Type of a column in parquet, and its meaning with its unit."""

    dtype: str
    meaning: str = ""


# Columns that several tables have.
SHARED = {
    "document": ("int32", "held-out document that contains the first token of the sequence"),
    "text": ("string",),
    "iteration": ("int64", "number of optimizer updates; 0: the untrained or published model"),
    "group": ("string", "label of the looped group, such as 5-6"),
    "sequence": ("int32", "number of the held-out sequence"),
    "position": ("int32", "position of the token in the sequence"),
    "k": ("int32", "loop step"),
    "path_type": ("string", "how the trajectory ends: converging, orbiting, sliding or undecided"),
    "period": ("int32", "period of an orbit in loop steps; 0 for other path types"),
    "boundary": ("string", "boundary between looped groups, such as 4->5-6"),
    "reference_state": ("string", "state that is used as the start of the next group in Eq. 2"),
    "run": ("string", "name of the run"),
    "tokens": ("int64", "number of tokens that the row covers"),
    "measure": ("string", "measured quantity, defined in docs/glossary.md"),
    "criterion": ("string", "exit criterion; fixed: the same number of loop steps for all tokens"),
    "threshold": ("float64", "threshold τ of the criterion; for fixed, the number of loop steps"),
    "repeat": ("int32", "number of the timed repeat"),
    "evaluations": ("float64", "mean evaluations of f per token"),
    "ce": ("float64", "cross-entropy in nats per token"),
    "documents": ("int64",),
    "reason": ("string", "reason for the verdict"),
    "claim": ("int32", "number of the claim"),
    "scope": ("string", "group, boundary, reference state or exit criterion of the row"),
    "bounds": ("string", "bounds of the verdict; empty for a number given only for comparison"),
}


def table(names: str, /, **own: tuple[str, ...]) -> dict[str, Column]:
    """The columns of a table in their order.

    Args:
        names: Names of the first columns, separated by blanks. Those that are not in `own` are
            columns of `SHARED`.
        own: Columns of this table: name -> dtype and meaning. Those that `names` leaves out come
            last.
    """
    ordered = dict.fromkeys(names.split()) | own
    return {name: Column(*own.get(name) or SHARED[name]) for name in ordered}


# Statistics over tokens that every aggregated measure has.
STATISTICS = {
    "mean": ("float64", "mean over tokens"),
    "std": ("float64", "standard deviation over tokens"),
    "q05": ("float64", "5 % quantile over tokens"),
    "q25": ("float64", "25 % quantile over tokens"),
    "q50": ("float64", "median over tokens"),
    "q75": ("float64", "75 % quantile over tokens"),
    "q95": ("float64", "95 % quantile over tokens"),
    "count": ("int64", "number of values used"),
    "nulls": ("int64", "number of values not used: undefined, or below the rounding floor"),
}

# Statistics over the tokens of one sequence.
SEQUENCE_STATISTICS = {name: STATISTICS[name] for name in ("mean", "count", "nulls")}

# Columns with a finite number in every row. All states have a norm, too.
_FINITE = ("ce", "loss", "pc1", "pc2")
_NOT_FINITE = (float("nan"), float("inf"), float("-inf"))

# The tables that claims are judged on, by the attribute of `twoscale.claims.evidence.Evidence`.
CLAIM_TABLES = {
    "loops": "loop_sequences",
    "drift": "drift_sequences",
    "quality": "exit_quality",
    "exit_loops": "exit_loops",
    "latency": "exit_latency",
    "costs": "exit_costs",
    "cost_matched": "exit_cost_matched",
}

# Tables with further columns of this type: one per registered measure, after the declared columns.
MEASURED = ("trajectories", "token_paths")
MEASURE_TYPE = "float32"

# Tables of the reproduction; the keys of a row come first. `declared` adds the tables of the
# studies.
CORE: dict[str, dict[str, Column]] = {
    # One row per document; `held_out` is true for held-out text and false for training text.
    "text": table("document held_out text", document=("string",), held_out=("bool",)),
    # The same while text is collected; `size` is in GPT-2 tokens or characters, the unit of the
    # text quota.
    "text_part": table("document text", document=("string",), size=("int64",)),
    # One row per iteration. `iteration` counts finished iterations, so the first row is iteration
    # 1.
    "training": table(
        "iteration",
        tokens_seen=("int64", "training tokens so far"),
        loss=("float64", "mean over the batch, in nats per token"),
        held_out_loss=(
            "float64",
            "nats per token at train.held_out_loops; null at iterations without a measurement",
        ),
        learning_rate=("float64", "learning rate of the optimizer update"),
        gradient_norm=("float64", "norm before clipping"),
        tokens_per_s=("float64", "training tokens per second"),
        tflops=(
            "float64",
            "model TFLOP/s of all processes in the iteration, with causal attention",
        ),
        utilisation=(
            "float64",
            "tflops divided by train.peak_tflops and the processes; null without that key",
        ),
    ),
    # One row per (iteration, group): the loop steps that the group ran in this iteration.
    "training_loops": table("iteration group", loops=("int64",)),
    # One row per (token, group, state); the loop step from x^k to x^{k+1} is in row k. Further
    # columns are the measures per loop step.
    "trajectories": table("iteration sequence document position group k"),
    # One row per (token, group). Further columns are the measures per trajectory.
    "token_paths": table("iteration sequence document position group path_type period"),
    # One row per (token, boundary, reference state).
    "token_drift": table(
        "iteration sequence document position boundary reference_state",
        jump=("float32", "distance to the reference state"),
        dlr=("float32", "jump divided by the mean loop step"),
        jump_over_path=(
            "float32",
            "jump divided by the sum of the loop steps, a ratio that does not grow with them",
        ),
    ),
    # The states of one held-out sequence on their first two principal components, one row per
    # (site, token).
    "state_paths": table(
        "run iteration sequence site stage layer group k follows position token",
        site=("int32", "number of the recorded state, from 0, in the order of the model"),
        stage=("string", '"embedding", "layer" or "loop"'),
        layer=("int32", "number of an unlooped layer"),
        token=("string",),
        k=("int32", "loop steps before the state; 0 is the initial state of the group"),
        follows=("bool", "false for a group that does not start from the last state before it"),
        pc1=("float64", "coordinate in the first principal component"),
        pc1_share=("float64", "share of the variance of all states, the same in every row"),
        pc2=("float64",),
        pc2_share=("float64",),
    ),
    # What each token of the same sequence would predict from x^k, one row per (group, loop step,
    # token).
    "loop_tokens": table(
        "run iteration sequence group k position",
        predicted=("string", "likeliest next token if all tokens leave the group with x^k"),
        target=("string", "the token to predict"),
        is_right=("bool", "whether the prediction is the target"),
        ce=("float64", "loss of the target in nats"),
        entropy=("float64", "entropy of the prediction in nats"),
    ),
    # When its tokens leave, on frozen trajectories: one row per (group, criterion, threshold,
    # token).
    "loop_exits": table(
        "run iteration sequence group criterion threshold position",
        loops=("int32", "loop steps after which the token leaves, all of them if it does not"),
        left=("bool", "whether the criterion lets it leave"),
    ),
    "loop_metrics": table("run iteration group k measure", **STATISTICS),
    "drift": table("run iteration boundary reference_state measure", **STATISTICS),
    # One row per (checkpoint, group, loop step, held-out sequence, measure).
    "loop_sequences": table(
        "run iteration group k sequence document measure", **SEQUENCE_STATISTICS
    ),
    "drift_sequences": table(
        "run iteration boundary reference_state sequence document measure", **SEQUENCE_STATISTICS
    ),
    # Path types of each (checkpoint, group), and statistics of the measures per trajectory.
    "path_types": table(
        "run iteration group path_type period tokens",
        share=("float64", "share of the tokens at this iteration and in this group"),
    ),
    "path_metrics": table("run iteration group measure", **STATISTICS),
    # One row per (criterion, threshold, timed repeat).
    "exit_latency": table(
        "run criterion threshold repeat tokens latency_ms baseline_ms load_average cpus",
        latency_ms=(
            "float64",
            "time per token, with the exit criterion; on the CPU, time of the processor",
        ),
        baseline_ms=("float64", "time per token for the same evaluations without a criterion"),
        load_average=("float64", "load average of the machine over the last minute"),
        cpus=("int32", "number of cores that the job may use"),
    ),
    # One row per (exit criterion, group, repeat): the costs of which the time of a token consists.
    "exit_costs": table(
        "run criterion group repeat",
        loop_step_ms=("float64", "time of one loop step without a criterion"),
        decision_ms=("float64", "time that a decision adds to it"),
        outside_ms=("float64", "time of a token outside its loops, the same for all groups"),
        start_ms=(
            "float64",
            "time that the criterion adds to a token however short its loops, the same for all"
            " groups",
        ),
    ),
    # One row per (criterion, threshold, held-out sequence).
    "exit_quality": table("run criterion threshold sequence document tokens ce"),
    # The mean loop steps and evaluations per group, for the same sequences.
    "exit_loops": table(
        "run criterion threshold sequence document group loop_steps evaluations",
        loop_steps=("float64", "mean loop steps to the returned state (k of Algorithm 1)"),
    ),
    # One row per (operating point of a criterion, reference, draw, held-out sequence).
    "exit_cost_matched": table(
        "run criterion threshold reference draw sequence document tokens evaluations ce",
        reference=(
            "string",
            "random: the criterion's evaluations at random tokens; fixed: their mean for every"
            " token",
        ),
        draw=("int32", "number of the random draw"),
        evaluations=("float64", "mean evaluations of f over tokens and groups of the whole text"),
    ),
    # One row per (checkpoint, fixed loop count, held-out sequence).
    "scaling_quality": table(
        "iteration loops sequence document tokens ce",
        loops=("int32", "loop count of every group"),
    ),
    # The same as means, one row per (checkpoint, fixed loop count), with 95 % intervals over
    # documents.
    "scaling": table(
        "run iteration loops tokens ce ce_low ce_high ppl ppl_low ppl_high excess excess_low"
        " excess_high",
        loops=("int32",),
        excess=("float64", "ce minus ce at the largest loop count, on the same sequences"),
        ce_low=("float64", "lower end of the 95 % interval of ce"),
        ce_high=("float64", "upper end of the 95 % interval of ce"),
        ppl=("float64", "perplexity, exp of ce"),
        ppl_low=("float64", "lower end of the 95 % interval of ppl"),
        ppl_high=("float64", "upper end of the 95 % interval of ppl"),
        excess_low=("float64", "lower end of the 95 % interval of excess"),
        excess_high=("float64", "upper end of the 95 % interval of excess"),
    ),
    # One row per (checkpoint, loop count, sequence): means over the tokens of the sequence.
    "depth_quality": table(
        "iteration loops sequence document tokens ce",
        loops=("int32", "loop count of every group"),
        entropy=("float64", "entropy of the prediction in nats per token"),
        flips=(
            "float64",
            "share of tokens whose prediction differs from the one at the next smaller loop count",
        ),
        agreement=("float64", "share of tokens whose prediction is that at the trained loop count"),
    ),
    # Written by another program or by `twoscale exits check`: one row per (operating point, token).
    "gate_exits": table(
        "criterion threshold sequence position depth",
        criterion=("string", "name of the gate"),
        threshold=("float64", "threshold of the gate; any number if the gate has none"),
        depth=("int32", "evaluations after which the gate lets the token leave, 1 … K"),
    ),
    # Exits of a recorded run, on frozen trajectories: one row per (criterion, threshold, sequence).
    "recorded_exits": table(
        "iteration criterion threshold sequence document tokens ce evaluations"
    ),
    # The tokens of each sequence by the depth at which they leave: one row per depth with tokens.
    "recorded_depths": table(
        "iteration criterion threshold sequence document depth tokens",
        depth=("int32", "evaluations after which the tokens leave, 1 … K"),
    ),
    # Spectrum of a recorded run: one row per (group, reading, sequence).
    "recorded_spectrum": table(
        "iteration group reading k sequence",
        reading=(
            "string",
            "state: map from x^k to x^{k+1}; direction: the same map for x/||x|| of each token",
        ),
        radius=(
            "float64",
            "modulus of the leading eigenvalue of the Jacobian over all tokens of the sequence",
        ),
        angle=("float64", "angle of the same eigenvalue in radians, 0 … π"),
        error=(
            "float64",
            "norm of J v - λ v for the unit eigenvector v; a matrix this far from J has λ",
        ),
        difference=(
            "float64",
            "relative difference between the exact product with Re v and a central difference",
        ),
    ),
    # One row per (quantity, setting) of `make gpu-check`.
    "gpu_check": table(
        "",
        section=("string",),
        quantity=("string",),
        setting=("string",),
        value=("float64", "null if it was not measured"),
        unit=("string",),
        verdict=("string", 'verdict of a check, or "not measured" with the reason in `note`'),
        note=("string",),
        device=("string",),
        torch=("string", "version of PyTorch"),
        commit=("string",),
    ),
    # One row per measured quantity; the last row of a claim, scope "all", is the verdict on the
    # claim.
    "claims": table(
        "run claim scope statement where quantity role reading value low high bounds verdict"
        " reason scale",
        role=(
            "string",
            "counted: the verdict depends on it; reference: for comparison; premise: where it does"
            " not hold, the claim cannot be judged; chance: of random exits. Empty for a verdict",
        ),
        reading=("string", "the only reading of the claim that the number belongs to"),
        statement=("string", "the claim in words"),
        where=("string", "location in the paper"),
        quantity=("string", "measured quantity"),
        value=("float64", "infinite if a length is not reached; null if nothing was measured"),
        low=("float64", "lower end of the 95 % bootstrap interval"),
        high=("float64", "upper end of the 95 % bootstrap interval"),
        verdict=(
            "string",
            "holds, does not hold, cannot be judged, depends on a choice, or not asked",
        ),
        scale=(
            "string",
            "small scale: less than half of the paper's training tokens or parameters; otherwise"
            " empty. In the row of a verdict also whether its numbers move towards the paper",
        ),
    ),
}


@cache
def declared() -> dict[str, dict[str, Column]]:
    """All tables, with the tables of the studies: name -> columns."""
    return CORE | {
        name: each
        for part in study_parts().values()
        for name, each in getattr(part, "TABLES", {}).items()
    }


def columns(table: str) -> dict[str, str]:
    """Declared column names and dtypes of `table`, without measures (`MEASURED`)."""
    return {name: column.dtype for name, column in declared()[table].items()}


def meanings(table: str) -> dict[str, str]:
    """Column -> its meaning and unit, for the columns of `table` that have one."""
    return {name: column.meaning for name, column in declared()[table].items() if column.meaning}


@contextmanager
def writing(
    table: str,
    path: str | Path,
    units: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Iterator:
    """Yield a function that appends one batch of columns (name -> array) to the table at `path`.

    Batches are written as they arrive, so memory does not grow with the table. The file appears
    under its name only if the block ends without an exception.

    `units` are the measures of a table in `MEASURED` in the order of their columns: name -> unit,
    which is in the metadata of the parquet field unless it is empty. `metadata` is added to that of
    the file. Raises ValueError if a batch has other columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(table, units or {}).with_metadata(metadata)
    # Measured floats rarely repeat: a dictionary of them would cost ten times the writing itself.
    repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
    options = {"compression": "zstd", "use_dictionary": repeating}
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:

        def append(batch: Mapping[str, Iterable]) -> None:
            if set(batch) != set(schema.names):
                expected = f"{sorted(schema.names)} expected"
                raise ValueError(f"table {table}: columns {sorted(batch)} given, {expected}")
            # `from_pandas` makes NaN a null
            arrays = [
                pa.array(batch[field.name], type=field.type, from_pandas=True) for field in schema
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield append


def write(table: str, frame: pd.DataFrame, path: str | Path) -> None:
    """Write `frame`, which must have the columns of `table`, to `path` in one step.

    Further columns of a table in `MEASURED` are measures, in the order of the frame and without
    units. Raises InputError as `check_finite` does.
    """
    check_finite(table, frame, path)
    units = {}
    if table in MEASURED:
        units = {name: "" for name in frame.columns if name not in columns(table)}
    with writing(table, path, units) as append:
        append(dict(frame.items()))


def read(table: str, path: str | Path, **rows: int) -> pd.DataFrame:
    """Read `path`, or only the `rows` whose columns have these values.

    Raises InputError unless it has the columns of `table`, and as `check_finite` does.
    """
    import pandas as pd

    filters = [(name, "==", value) for name, value in rows.items()] or None
    with open_file(table, path), reading(path):
        frame = pd.read_parquet(path, filters=filters)
    check_finite(table, frame, path)
    return frame


def check_finite(table: str, frame: pd.DataFrame, path: str | Path) -> None:
    """Raise InputError for the first row with a number in `_FINITE`, or a norm of states, that is
    not finite.
    """
    known = [name for name in _FINITE if name in frame]
    wrong = frame[known].isin(_NOT_FINITE)
    if {"measure", "nulls"} <= set(frame.columns):
        # a table of statistics has the norm of states in rows, not in a column
        is_norm = frame["measure"] == "state_norm"
        wrong["mean"] = is_norm & (frame["mean"].isin(_NOT_FINITE) | (frame["nulls"] > 0))
    for name in wrong:
        for row in frame[wrong[name]][:1].to_dict("records"):
            keys = [key for key, dtype in columns(table).items() if dtype != "float64"]
            found = [f"{key} {row[key]}" for key in (*keys, name) if key in row]
            raise mismatch(path, ", ".join(found), "finite numbers")


def metadata(path: str | Path) -> dict[str, str]:
    """Keys and values of the metadata of a file.

    Raises OSError or ValueError for one that cannot be read.
    """
    import pyarrow.parquet as pq

    found = pq.read_schema(path).metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


def batches(table: str, path: str | Path, rows: int = 256) -> Iterator[tuple[list, ...]]:
    """The columns of `path`, so many rows at a time and in constant memory.

    Raises InputError as `open_file` does.
    """
    # pre-buffering would fetch a whole file and keep it in memory
    with open_file(table, path, pre_buffer=False, buffer_size=2**20) as file, reading(path):
        for batch in file.iter_batches(rows):
            yield tuple(column.to_pylist() for column in batch.columns)


def open_file(table: str, path: str | Path, **options: Any) -> pq.ParquetFile:
    """Open `path` without reading its rows; raise InputError unless it has the columns of `table`.

    `options` are for ParquetFile.
    """
    import pyarrow.parquet as pq

    known = declared()
    if table not in known:
        expected = f"one of {', '.join(known)}{did_you_mean(table, known)}"
        raise mismatch("table", repr(table), expected)
    with reading(path):
        file = pq.ParquetFile(path, **options)
    _check_columns(table, file.schema_arrow, path)
    return file


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Raise InputError where a file cannot be read as parquet, such as one with damaged pages."""
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ValueError, ArrowException) as error:
        found = first_line(error)
        raise InputError(f"{path}: cannot be read as a parquet table ({found}).") from error


def _check_columns(table: str, schema: pa.Schema, path: str | Path) -> None:
    declared = list(columns(table))
    # pandas writes its index too, and reads it back
    found = [name for name in schema.names if not name.startswith("__index_level_")]
    measures = found[len(declared) :]
    # measures, in tables that have some, come after the declared columns
    if found != declared + measures or bool(measures) != (table in MEASURED):
        expected = f"those of the table '{table}': {', '.join(declared)}"
        if table in MEASURED:
            expected += ", and measures"
        raise mismatch(path, f"the columns {', '.join(schema.names)}", expected)
    for name in measures:
        dtype = schema.field(name).type
        if dtype != _arrow_type(MEASURE_TYPE):
            raise mismatch(path, f"the measure '{name}' with type {dtype}", MEASURE_TYPE)


def _schema(table: str, units: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    assert bool(units) == (table in MEASURED), f"table {table}: measures {list(units)} given"
    fields = [pa.field(name, _arrow_type(dtype)) for name, dtype in columns(table).items()]
    for name, unit in units.items():
        metadata = {"unit": unit} if unit else None
        fields.append(pa.field(name, _arrow_type(MEASURE_TYPE), metadata=metadata))
    return pa.schema(fields)


def _arrow_type(dtype: str) -> pa.DataType:
    import pyarrow as pa

    return {"bool": pa.bool_(), "string": pa.string()}.get(dtype) or pa.type_for_alias(dtype)
