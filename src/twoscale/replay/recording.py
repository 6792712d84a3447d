"""A recording: the loss and the signals of tokens at every depth, and how its files are read.

A depth is the number of evaluations of the loop after which a token's values were recorded, 1 … K.
The loss at a depth is taken not to depend on the depths at which other tokens leave.
"""

import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twoscale import tables
from twoscale.base import InputError, did_you_mean, first_line, mismatch
from twoscale.config.criteria import CRITERIA_OF_COLUMNS

# Columns that are no signals. `document` is optional: without it each sequence is a document.
KEYS = ("document", "sequence", "position", "depth")
LOSS, TOP1 = "loss", "top1"
# Names of an index in files that pandas wrote, or that were made of such files.
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d.*|level_\d+|index")
FEWEST_DOCUMENTS = 4  # of a check: two in each half

# vLLM-Hook (IBM, pull request 30, benchmarks/recurrent_depth/trajectory_io.py): its columns, and
# the names they have here. Its `iteration` counts from 0 (analyze_signals.py), that of others from
# 1.
HOOK_KEYS = ("forward_index", "iteration", "token_index", "is_decode", "has_prediction_metrics")
HOOK_SIGNALS = CRITERIA_OF_COLUMNS | {"hidden_norm": "norm", "top1_token": TOP1}
# Where a trajectory of decoding names no prompts, so many passes in a row count as a document.
HOOK_PASSES = 64


class ExitSteps(NamedTuple):
    """When tokens leave, (M,) each.

    Attributes:
        evaluations: The depth after which a token leaves, 1 … K: its cost.
        loop_steps: The depth whose prediction it keeps, one less where a criterion discards the
            step that triggers the exit (Algorithm 1).
    """

    evaluations: np.ndarray
    loop_steps: np.ndarray


@dataclass(frozen=True)
class Recording:
    """M tokens with what each of K depths would give.

    Attributes:
        path: The file.
        documents: Number of the document of each token (M,).
        sequences, positions: The place of each token (M,).
        cost: Per depth and token (K, M): the loss in nats, or, where `is_loss` is false, 1 where
            the predicted token differs from that at full depth.
        signals: Name -> value per depth and token (K, M); NaN where there is none.
        places: Where this is a part of a recording, the places of its tokens in it (M,).
        note: How the file was read, where there is more than one way.
    """

    path: Path
    documents: np.ndarray
    sequences: np.ndarray
    positions: np.ndarray
    cost: np.ndarray
    is_loss: bool = True
    signals: Mapping[str, np.ndarray] = field(default_factory=dict)
    places: np.ndarray | None = None
    note: str = ""

    @property
    def depths(self) -> int:
        return len(self.cost)

    @cached_property
    def codes(self) -> np.ndarray:
        """Place of each token's document among the D documents (M,)."""
        return np.unique(self.documents, return_inverse=True)[1]

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of each document (D,)."""
        return np.bincount(self.codes).astype(np.float64)

    @cached_property
    def fixed(self) -> dict[float, np.ndarray]:
        """Fixed count -> sums (D,) of the excess."""
        counts = range(1, self.depths + 1)
        return {k: np.bincount(self.codes, self._excess(np.array(k))) for k in counts}

    def units(self, exits: ExitSteps) -> np.ndarray:
        """Units (D, 4) of `replay.rules.Option` where the M tokens leave so.

        Random exits are the mean over all ways to give the evaluations to tokens, which keep their
        last state.
        """
        # dealt at random, every count comes to each token with its share of the tokens
        shares = np.bincount(exits.evaluations - 1, minlength=self.depths) / len(exits.evaluations)
        evaluations = np.bincount(self.codes, exits.evaluations)
        excess = np.bincount(self.codes, self._excess(exits.loop_steps))
        random = shares @ np.stack(list(self.fixed.values()))
        return np.stack([evaluations, excess, random, self.tokens], axis=1)

    def _excess(self, depths: np.ndarray) -> np.ndarray:
        """Cost of each token (M,) at its depth above its cost at full depth."""
        at = np.broadcast_to(depths - 1, self.documents.shape)
        cost = np.take_along_axis(self.cost, at[None], axis=0)[0]
        return cost.astype(np.float64) - self.cost[-1]

    def part(self, is_in: np.ndarray) -> "Recording":
        """The tokens where `is_in` (M,) is true."""
        return replace(
            self,
            documents=self.documents[is_in],
            sequences=self.sequences[is_in],
            positions=self.positions[is_in],
            cost=self.cost[:, is_in],
            signals={name: values[:, is_in] for name, values in self.signals.items()},
            places=np.flatnonzero(is_in),
        )

    def halves(self, seed: int) -> tuple["Recording", "Recording"]:
        """Two parts with half of the documents each, drawn at random."""
        is_first = np.isin(self.documents, first_half(self.path, self.documents, seed))
        return self.part(is_first), self.part(~is_first)


def first_half(path: Path, documents: np.ndarray, seed: int) -> np.ndarray:
    """Half of the documents, drawn at random."""
    names = np.unique(documents)
    if len(names) < FEWEST_DOCUMENTS:
        plural = "s" * (len(names) != 1)
        raise InputError(
            f"{path}: found {len(names)} document{plural}, expected at least {FEWEST_DOCUMENTS}:"
            " thresholds are chosen on half of the documents and tried on the others."
        )
    return np.random.default_rng(seed).permutation(names)[: len(names) // 2]


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Either an .npz with the array `losses` (sequences, positions, K), NaN beyond the end of a
    sequence, and optionally `documents` (sequences,); or a parquet table with a row per token and
    depth: `sequence`, `position`, `depth` 1 … K, `document` if it is not the sequence, `loss` in
    nats or `top1`, the predicted token, and signals in any further columns; or a table of
    vLLM-Hook's trajectories as published.

    Raises InputError unless every token has one row, and one finite loss, at each depth.
    """
    if path.suffix == ".npz":
        return _read_arrays(path)
    with tables.reading(path):
        schema = pq.read_schema(path)
        # a second one would be ambiguous
        for name, count in Counter(schema.names).items():
            if count > 1:
                raise mismatch(path, f"two columns {name}", "one of each name")
    if {"forward_index", "iteration", "token_index"} <= set(schema.names):
        return _read_hook(path, schema)
    return _read_table(path, schema)


def _signals(path: Path, schema: pa.Schema, known: tuple[str, ...]) -> list[str]:
    """The columns of numbers that are neither `known` nor the index of a DataFrame."""
    with tables.reading(path):
        index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [
        field.name
        for field in schema
        if _is_numeric(field.type)
        and field.name not in (*known, *index)
        and not _INDEX.fullmatch(field.name)
    ]


# --- tables --------------------------------------------------------------------------------------


def _read_table(path: Path, schema: pa.Schema) -> Recording:
    names = schema.names
    for key in ("sequence", "position", "depth"):
        if key not in names:
            meant = did_you_mean(key, names)
            expected = f"a column {key}, one row for each token and depth{meant}"
            raise InputError(f"{path}: found no column {key}, expected {expected}.")
    known = (*KEYS, LOSS, TOP1)
    columns = {name: _numbers(path, name) for name in known if name in names}
    keys = {name: _whole(path, name, columns.pop(name)) for name in KEYS if name in columns}
    keys.setdefault("document", keys["sequence"])  # without it each sequence is a document
    order = _order(keys["sequence"], keys["position"], keys["depth"])
    grid = _Grid.of(path, keys, order)
    # every further column of numbers is a signal that a rule may exit by
    signals = {name: grid.spread(_numbers(path, name)) for name in _signals(path, schema, known)}
    return grid.recording(path, columns.get(LOSS), columns.get(TOP1), signals)


def _read_hook(path: Path, schema: pa.Schema) -> Recording:
    """The decoded tokens of a trajectory. A slot of a batch, between two prompts, is a document."""
    forward = _whole(path, "forward_index", _numbers(path, "forward_index"))
    slot = _whole(path, "token_index", _numbers(path, "token_index"))
    iteration = _whole(path, "iteration", _numbers(path, "iteration"))
    first = int(iteration.min()) if len(iteration) else 0
    if first not in (0, 1):
        raise mismatch(path, f"iteration {first} as the first", "0 or 1")
    decoded = np.ones(len(forward), dtype=bool)
    if "is_decode" in schema.names:
        # where it is null, NaN, which is true
        decoded = _numbers(path, "is_decode").astype(bool)
    # a pass starts where the number of the forward pass changes, in the order of the file
    starts = np.r_[True, forward[1:] != forward[:-1]]
    passes = np.cumsum(starts) - 1
    # a prompt starts where decoding ends, or where the numbers start again
    prompt = starts & np.r_[True, (decoded[:-1] & ~decoded[1:]) | (forward[1:] < forward[:-1])]
    prompts = np.cumsum(prompt) - 1
    if prompts.max(initial=0) == 0:
        prompts = passes // HOOK_PASSES
    # a document is a pair of prompt and slot, as one number
    keys = {
        "document": prompts * (slot[decoded].max(initial=0) + 1) + slot,
        "sequence": passes,
        "position": slot,
        "depth": iteration + 1 - first,
        "forward_index": forward,
        "token_index": slot,
    }
    keys = {name: values[decoded] for name, values in keys.items()}
    order = _order(keys["sequence"], keys["position"], keys["depth"])
    grid = _Grid.of(path, keys, order, ("forward_index", "token_index", "iteration"), first)
    further = _signals(path, schema, HOOK_KEYS)
    found = {HOOK_SIGNALS.get(name, name): name for name in further}  # our name -> theirs
    columns = {
        name: _numbers(path, found.pop(name))[decoded] for name in (LOSS, TOP1) if name in found
    }
    signals = {}
    for name, column in found.items():
        values = _numbers(path, column)[decoded]
        if not np.isnan(values).all():
            signals[name] = grid.spread(values)
    recording = grid.recording(path, columns.get(LOSS), columns.get(TOP1), signals)
    return replace(recording, note=f"iteration {first} was read as the first loop step")


@dataclass(frozen=True)
class _Grid:
    """The rows of a table, ordered by token and depth."""

    keys: Mapping[str, np.ndarray]  # of the M tokens
    order: np.ndarray | slice  # of the rows
    depths: int
    names: tuple[str, str, str]  # of sequence, position and depth in the file, for its errors
    first: int  # number of the first depth in the file

    @classmethod
    def of(
        cls,
        path: Path,
        keys: Mapping[str, np.ndarray],
        order: np.ndarray | slice,
        names: tuple[str, str, str] = ("sequence", "position", "depth"),
        first: int = 1,
    ) -> "_Grid":
        """Raises InputError unless every token has one row at each depth 1 … K."""
        if not len(keys["depth"]):
            raise InputError(f"{path}: found no rows, expected one for each token and depth.")
        ordered = {name: values[order] for name, values in keys.items()}
        depths = int(ordered["depth"].max())
        if depths < 2:
            expected = "at least 2 depths to choose from"
            raise InputError(f"{path}: found {depths} depth, expected {expected}.")
        is_new = np.r_[True, np.diff(ordered["sequence"]) != 0]  # whether a token begins
        is_new[1:] |= np.diff(ordered["position"]) != 0
        starts = np.flatnonzero(is_new)
        counts = np.diff(np.r_[starts, len(is_new)])  # rows of each token
        # the depth that each row should have
        due = np.arange(len(is_new)) - np.repeat(starts, counts) + 1
        wrong = np.flatnonzero((ordered["depth"] != due) | np.repeat(counts != depths, counts))
        if len(wrong):
            same_token = np.cumsum(is_new) == np.cumsum(is_new)[wrong[0]]
            shift = first - 1
            found = ", ".join(map(str, ordered["depth"][same_token][:8] + shift))
            raise InputError(
                f"{path}: found {names[2]}s {found} for {_place(ordered, names, wrong[0])},"
                f" expected each of {first} … {depths + shift} once: record without early exits."
            )
        tokens = {name: values[starts] for name, values in ordered.items()}
        same = np.diff(tokens["sequence"]) == 0
        torn = np.flatnonzero(same & (np.diff(tokens["document"]) != 0))  # within a sequence
        if len(torn):
            sequence = tokens["sequence"][torn[0]]
            expected = "one document per sequence"
            raise InputError(f"{path}: found two in sequence {sequence}, expected {expected}.")
        return cls(tokens, order, depths, names, first)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """A column (rows,) per depth and token (K, M), in float32."""
        ordered = values[self.order].astype(np.float32)
        return np.ascontiguousarray(ordered.reshape(-1, self.depths).T)

    def recording(
        self,
        path: Path,
        loss: np.ndarray | None,
        top1: np.ndarray | None,
        signals: dict[str, np.ndarray],
    ) -> Recording:
        """With the cost from the losses or, where there are none, from the predicted tokens."""
        if loss is None and top1 is None:
            expected = f"a column {LOSS} in nats, or {TOP1}, the predicted token"
            raise InputError(f"{path}: found neither losses nor predictions, expected {expected}.")
        if top1 is not None:
            # float32 is exact for ids below 2**24
            predicted = self.spread(top1)
            signals = signals | {"argmax_stability": _unchanged(predicted)}
        if loss is not None:
            # in the precision of the file, because small differences of losses are summed
            cost = np.ascontiguousarray(loss[self.order].reshape(-1, self.depths).T)
            self._check_finite(path, cost, "loss")
        else:
            self._check_finite(path, predicted, "predicted token")
            cost = (predicted != predicted[-1]).astype(np.float32)
        return Recording(
            path,
            self.keys["document"],
            self.keys["sequence"],
            self.keys["position"],
            cost,
            is_loss=loss is not None,
            signals=signals,
        )

    def _check_finite(self, path: Path, values: np.ndarray, what: str) -> None:
        wrong = np.argwhere(~np.isfinite(values))
        if not len(wrong):
            return
        depth, token = wrong[0]
        where = f"{_place(self.keys, self.names, token)}, {self.names[2]} {depth + self.first}"
        found = f"the {what} {values[depth, token]} for {where}"
        raise InputError(f"{path}: found {found}, expected a finite number.")


def _place(keys: Mapping[str, np.ndarray], names: tuple[str, str, str], row: int) -> str:
    """The sequence and the position in a row, by their names in the file."""
    return ", ".join(f"{name} {keys[name][row]}" for name in names[:2])


def _unchanged(predicted: np.ndarray) -> np.ndarray:
    """For how many depths in a row the prediction (K, M) has been the same: 1, 2, … (K, M)."""
    same = np.ones_like(predicted)
    for depth in range(1, len(predicted)):
        same[depth] += np.where(predicted[depth] == predicted[depth - 1], same[depth - 1], 0)
    return same


def _order(*keys: np.ndarray) -> np.ndarray | slice:
    """The order of rows by these keys, the first one first; a slice if they are ordered already."""
    neighbours = max(0, len(keys[0]) - 1)
    # from the last key to the first: a pair of rows is in order if its key rises, or if the key is
    # equal and the later keys are in order
    ordered = np.ones(neighbours, dtype=bool)
    for key in reversed(keys):
        difference = np.diff(key)
        ordered = (difference > 0) | ((difference == 0) & ordered)
    if ordered.all():
        return slice(None)
    return np.lexsort(keys[::-1])  # which sorts by its last key first


def _numbers(path: Path, name: str) -> np.ndarray:
    """A column as float64, or as integers where it has no nulls; nulls are NaN."""
    with tables.reading(path):
        column = pq.read_table(path, columns=[name])[name]
    if not _is_numeric(column.type):
        expected = "numbers"
        raise InputError(f"{path}: found the column {name} of {column.type}, expected {expected}.")
    if column.null_count:
        column = pc.fill_null(column.cast(pa.float64()), np.nan)
    return column.to_numpy()


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _whole(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """Whole numbers, which may be stored as floats."""
    if values.dtype.kind == "f":
        wrong = values[~np.isfinite(values) | (values % 1 != 0)]
        if len(wrong):
            expected = "whole numbers"
            raise InputError(f"{path}: found {name} {wrong[0]:g}, expected {expected}.")
    return values.astype(np.int64)


# --- arrays --------------------------------------------------------------------------------------


# Exceptions of numpy and of zipfile for a file that is no archive, cut, damaged or encrypted, or
# that has an array of objects.
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    MemoryError,
    RuntimeError,
    BadZipFile,
    zlib.error,
)


def _read_arrays(path: Path) -> Recording:
    try:
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in ("losses", "documents") if name in archive}
    except _UNREADABLE as error:
        expected = "an .npz with arrays of numbers, losses and documents"
        raise InputError(
            f"{path}: cannot be read ({first_line(error)}), expected {expected}."
        ) from error
    shape = arrays["losses"].shape if "losses" in arrays else None
    if shape is None or len(shape) != 3 or 0 in shape:
        found = "no array losses" if shape is None else f"losses with shape {shape}"
        expected = "an array losses of sequences, positions and depths"
        raise InputError(f"{path}: found {found}, expected {expected}.")
    losses = _floats(path, "losses", arrays["losses"])
    documents = arrays.get("documents", np.arange(len(losses)))
    if shape[-1] < 2:
        expected = "at least 2 depths to choose from"
        raise InputError(f"{path}: found losses at {shape[-1]} depth, expected {expected}.")
    if documents.shape != shape[:1]:
        expected = f"{shape[:1]} as in losses"
        raise InputError(
            f"{path}: found documents with shape {documents.shape}, expected {expected}."
        )
    documents = _whole(path, "documents", _floats(path, "documents", documents))
    missing = np.isnan(losses).sum(-1)  # (sequences, positions)
    # NaN at some depths but not at all of them, or infinite
    wrong = np.argwhere((missing % shape[-1] > 0) | np.isinf(losses).any(-1))
    if len(wrong):
        where = f"sequence {wrong[0][0]}, position {wrong[0][1]}"
        expected = "one finite loss at each depth, or NaN at all of them"
        raise InputError(f"{path}: found {where}, expected {expected}.")
    # tokens with losses, sequence by sequence
    sequence, position = np.nonzero(missing < shape[-1])
    if not len(sequence):
        expected = "those of at least one token"
        raise InputError(f"{path}: found no losses besides NaN, expected {expected}.")
    cost = np.ascontiguousarray(losses[sequence, position].T)  # (K, M)
    return Recording(path, documents[sequence], sequence, position, cost)


def _floats(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """An array of numbers as floats of its precision."""
    if values.dtype.kind not in "iuf":
        raise InputError(f"{path}: found {name} with type {values.dtype}, expected numbers.")
    return values if values.dtype.kind == "f" else values.astype(np.float64)


# --- exits of another program --------------------------------------------------------------------

Exits = dict[tuple[str, float], np.ndarray]  # (criterion, threshold) -> depths int64 (M,)


def read_exit_rows(path: Path) -> pd.DataFrame:
    """The table "gate_exits" of another program: a row per criterion, threshold and token.

    Raises InputError for other columns, no rows, and numbers that are not what they should be.
    """
    frame = tables.read("gate_exits", path)
    if frame.empty:
        raise InputError(f"{path}: found no rows, expected one for each token and threshold.")
    if not np.isfinite(_floats(path, "threshold", frame["threshold"].to_numpy())).all():
        expected = "a finite number for each exit"
        raise InputError(f"{path}: found a threshold that is not finite, expected {expected}.")
    if frame["criterion"].isna().any():
        raise mismatch(path, "a criterion that is missing", "the name of one for each exit")
    for name in ("sequence", "position", "depth"):
        numbers = _floats(path, name, frame[name].to_numpy())
        frame[name] = _whole(path, name, numbers)
    return frame


def read_exits(path: Path, recording: Recording) -> Exits:
    """The depths at which another program lets the tokens leave, see `read_exit_rows`.

    Raises InputError unless each criterion and threshold has one exit of each token.
    """
    frame = read_exit_rows(path)
    depths = frame["depth"].to_numpy()
    outside = depths[(depths < 1) | (depths > recording.depths)]
    if len(outside):
        expected = f"1 … {recording.depths}"
        raise InputError(f"{path}: found depth {outside[0]}, expected {expected}.")
    if (frame["criterion"] == "fixed").any():
        expected = "another name than that of fixed loops"
        raise InputError(f"{path}: found the criterion fixed, expected {expected}.")
    exits: Exits = {}
    for (criterion, threshold), rows in frame.groupby(["criterion", "threshold"], sort=False):
        # the order of tokens in a recording
        rows = rows.sort_values(["sequence", "position"])
        matches = np.array_equal(rows["sequence"], recording.sequences)
        if not matches or not np.array_equal(rows["position"], recording.positions):
            raise InputError(
                f"{path}: found {len(rows)} exits for {criterion} at threshold {threshold:g},"
                f" expected one of each of the {len(recording.sequences)} tokens of"
                f" {recording.path}."
            )
        exits[criterion, float(threshold)] = rows["depth"].to_numpy()
    return exits
