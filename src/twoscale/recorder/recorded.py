"""Tables of recorded states, as `trajectories.extract` writes them, for any model.

`StateTables` writes them batch by batch, with one batch in memory at a time.
`twoscale.recorder.recorder` records a PyTorch module into it; states that were saved elsewhere are
appended as batches.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import PathTypesConfig
from twoscale.config.definitions import loop_counts
from twoscale.data.batches import HeldOut
from twoscale.dynamics.states import check_finite, describe_loop, exact, token_keys, write_states
from twoscale.dynamics.trajectories import (
    TABLES,
    GroupStates,
    measure_groups,
    recorded_references,
)
from twoscale.dynamics.trajectories import measured_units as units

# Folder of each table in the folder of a run, as in the workflow.
FOLDERS = {
    "trajectories": "trajectories",
    "token_paths": "paths",
    "token_drift": "drift",
    "scaling_quality": "scaling",
    "depth_quality": "depth",
    "recorded_exits": "exits",
    "recorded_spectrum": "spectrum",
}
MEASURED_LATER = (
    "scaling_quality",
    "depth_quality",
    "recorded_exits",
)  # tables that only some recordings have


@dataclass(frozen=True)
class RecordedBatch:
    """The states of B sequences of T tokens, and what is known of them."""

    states: Mapping[
        str, Sequence[Tensor]
    ]  # group -> x^0 … x^K, each (B, T, C), in the order of the groups
    # groups whose first loop step comes after the last one of the group before: there drift is
    # measured
    follows: frozenset[str] = frozenset()
    tokens: Tensor | None = None  # token ids (B, T), for the words of Fig. 1
    mask: Tensor | None = None  # tokens that are measured, bool (B, T); None: all
    # ids (B, T) that the states predict, negative for none; None: the next tokens
    targets: Tensor | None = None
    documents: Sequence[int] | None = None  # of each sequence; None: each is a document
    # "ce" and "entropy" in nats and "predicted" (B, T or T - 1) after the loop steps 1 … K of the
    # last group, if known
    decoded: Sequence[Mapping[str, Tensor]] = ()
    # key columns of the sequences -> rows of the table "recorded_exits", if known
    exits: Callable[[Sequence[Mapping[str, Any]]], Iterable[dict[str, Any]]] | None = None

    @property
    def kept(self) -> Tensor:
        """The mask, or all tokens: bool (B, T)."""
        first = next(iter(self.states.values()))[0]
        return torch.ones(first.shape[:-1], dtype=torch.bool) if self.mask is None else self.mask

    @property
    def predicted(self) -> Tensor:
        """Mask of the targets that count, bool (B, T); of next tokens (B, T - 1): token and context
        are measured.
        """
        if self.targets is not None:
            return self.kept & (self.targets >= 0)
        return self.kept[:, 1:] & self.kept[:, :-1]

    @property
    def hand_offs(self) -> list[bool]:
        """For each group whether it starts from where the group before it ended, in a space of the
        same size.
        """
        sizes = [states[0].shape[-1] for states in self.states.values()]
        pairs = zip(self.states, [None, *sizes[:-1]], sizes, strict=True)
        return [label in self.follows and before == size for label, before, size in pairs]

    def groups(self) -> Iterator[GroupStates]:
        """The states of the tokens that are measured, (N, C) each."""
        for (label, states), follows in zip(self.states.items(), self.hand_offs, strict=True):
            states = [state[self.kept] for state in states]
            yield GroupStates(label, states, recorded_references(states) if follows else {})


@dataclass
class StateTables:
    """Writes the tables of recorded states into the folder of a run. Use it under `with`.

    The files appear when the block ends without an exception: `trajectories/`, `paths/` and
    `drift/iteration_*.parquet`; `scaling/` and `depth/iteration_*.parquet` if predictions are
    given, and `exits/` if exits are; `recorded/iteration_*.json`, what was recorded; and
    `states.safetensors` with the states of the first sequence for Fig. 1, if all groups have the
    same number of channels. For the attributes see `Recorder`; `facts` is the description of the
    recording. Raises InputError for an earlier recording.
    """

    folder: str | Path
    iteration: int
    word: Callable[[int], str] = str
    criteria: PathTypesConfig = field(default_factory=PathTypesConfig)
    trained_loops: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = False

    def __enter__(self) -> Self:
        path = table_path(self.folder, "trajectories", self.iteration)
        check_absent(path, self.iteration, self.replace)
        self._sequences = 0
        self._loops: dict[str, int] = {}  # of each group
        # states and header of the first sequence
        self._first: tuple[Tensor, dict[str, Any]] | None = None
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in MEASURED_LATER}
        self._tokens, self._text = 0, hashlib.sha256()  # number and digest of the measured tokens
        with ExitStack() as files:
            paths = {table: table_path(self.folder, table, self.iteration) for table in TABLES}
            writing = {
                table: tables.writing(table, path, units()[table]) for table, path in paths.items()
            }
            self._append = {table: files.enter_context(writer) for table, writer in writing.items()}
            self._files = files.pop_all()
        return self

    def __exit__(self, error: type | None, *details: Any) -> None:
        if error is None and not self._sequences:
            with self._files:  # so that no table appears
                raise InputError("recorded states: found no forward pass, expected at least one.")
        self._files.__exit__(error, *details)
        if error is None:
            self._write_rest()

    def _write_rest(self) -> None:
        """The files besides those that are written batch by batch."""
        if self._first is not None:
            write_states(Path(self.folder) / "states.safetensors", *self._first)
        for table, rows in self._rows.items():
            path = table_path(self.folder, table, self.iteration)
            path.unlink(missing_ok=True)
            if rows:
                tables.write(table, pd.DataFrame(rows)[list(tables.columns(table))], path)
        loops = list(self._loops.values())[-1]
        facts = dict(self.facts) | {
            "trained_loops": self.trained_loops or loops,
            "loops": self._loops,
        }
        facts |= {
            "sequences": self._sequences,
            "tokens": self._tokens,
            "text_sha256": self._text.hexdigest(),
        }
        with replacing(facts_path(self.folder, self.iteration)) as temporary:
            temporary.write_text(json.dumps(facts, indent=1), encoding="utf-8")

    @torch.no_grad()
    def append(self, batch: RecordedBatch) -> None:
        """Measure one batch and write its rows.

        Raises InputError for too few or another number of loop steps, and for states and losses
        that are not finite.
        """
        for label, states in batch.states.items():
            loops = len(states) - 1
            expected = self._loops.setdefault(label, loops)
            if loops < 2 or loops != expected:
                self.refuse_loops(label, f"{loops}", "at least 2" if loops < 2 else "")
        kept, first = batch.kept, self._sequences
        numbers = range(first, first + len(kept))
        documents = numbers if batch.documents is None else batch.documents
        # positions count the tokens that are measured
        columns = token_keys(self.iteration, HeldOut(kept, kept, tuple(numbers), tuple(documents)))
        columns["position"] = (kept.cumsum(-1) - 1).int().flatten().numpy()
        columns = {name: values[kept.flatten().numpy()] for name, values in columns.items()}
        # nothing is written of a batch that is refused, first for its states, which may be the
        # cause of its losses
        rows = list(measure_groups(columns, batch.groups(), self.criteria))
        check_losses(batch, numbers)
        for table, measured in rows:
            self._append[table](measured)
        keys = [
            {"iteration": self.iteration, "sequence": sequence, "document": int(document)}
            for sequence, document in zip(numbers, documents, strict=True)
        ]
        self._rows["scaling_quality"] += self._scaling_rows(batch, keys)
        self._rows["depth_quality"] += (
            self._depth_rows(batch, keys) if "depth_quality" in tables.declared() else ()
        )
        self._rows["recorded_exits"] += () if batch.exits is None else batch.exits(keys)
        self._tokens += int(kept.sum())
        if batch.tokens is not None:
            self._text.update(batch.tokens.long().numpy().tobytes())
        if not first:
            self._first = self._first_sequence(batch)
        self._sequences = numbers.stop

    def check_further_step(self, label: str, loops: int) -> None:
        """Refuse a loop step of the running pass, its number `loops`, that exceeds those of the
        passes before.
        """
        if loops > self._loops.get(label, loops):
            self.refuse_loops(label, f"more than {self._loops[label]}")

    def refuse_loops(self, label: str, found: str, expected: str = "") -> NoReturn:
        """Raise InputError for a pass with this number of loop steps, by default one that differs
        from the first.
        """
        if not expected:
            expected = (
                f"{self._loops[label]} as in the first one; record each loop count into a folder"
                f" of its own"
            )
        raise InputError(
            f"group {label}: found {found} loop steps in a forward pass, expected {expected}."
        )

    @staticmethod
    def _scaling_rows(
        batch: RecordedBatch, keys: Sequence[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Rows of the table "scaling_quality": the cross-entropy of the next token after each loop
        step.
        """
        for loops, decoded in enumerate(batch.decoded, start=1):
            for row in means({"ce": decoded["ce"]}, batch.predicted, keys):
                yield row | {"loops": loops, "ppl": math.exp(row["ce"])}

    def _depth_rows(
        self, batch: RecordedBatch, keys: Sequence[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Rows of the table "depth_quality" at multiples of the trained loops."""
        most, previous = len(batch.decoded), None
        trained = self.trained_loops or most
        for loops in loop_counts(trained, most=most) if most else ():
            decoded = batch.decoded[loops - 1]
            flips = torch.nan if previous is None else decoded["predicted"] != previous
            values = {name: decoded[name] for name in ("ce", "entropy")}
            values["flips"] = torch.zeros_like(decoded["ce"]) + flips
            values["agreement"] = (
                decoded["predicted"] == batch.decoded[min(trained, most) - 1]["predicted"]
            )
            yield from (row | {"loops": loops} for row in means(values, batch.predicted, keys))
            previous = decoded["predicted"]

    def _first_sequence(self, batch: RecordedBatch) -> tuple[Tensor, dict[str, Any]] | None:
        """States (P, T, C) of the first sequence and their header, for Fig. 1."""
        kept = batch.kept[0]
        if len({states[0].shape[-1] for states in batch.states.values()}) > 1 or not kept.any():
            return None
        tokens = range(int(kept.sum())) if batch.tokens is None else batch.tokens[0][kept].tolist()
        sites = [
            place | {"follows": follows}
            for (label, states), follows in zip(batch.states.items(), batch.hand_offs, strict=True)
            for place in describe_loop(label, len(states))
        ]
        states = torch.stack(
            [exact(state[0][kept]).float() for state in chain(*batch.states.values())]
        )
        header = {
            "iteration": self.iteration,
            "sequence": 0,
            "tokens": [self.word(token) for token in tokens],
        }
        return states, header | {"sites": sites}


def check_losses(batch: RecordedBatch, sequences: Sequence[int]) -> None:
    """Raise InputError for a loss of a measured token that is not finite; `sequences` are the
    numbers of the rows.
    """
    if not batch.decoded:
        return
    losses = torch.stack([decoded["ce"] for decoded in batch.decoded])
    length = losses.shape[-1]
    position = batch.kept.cumsum(-1)[:, :length] - 1
    keys = {"sequence": np.repeat(sequences, length), "position": position.flatten().numpy()}
    places = [f"decode, loop step {k}" for k in range(1, len(losses) + 1)]
    check_finite(losses.where(batch.predicted, 0), keys, places, "a loss of")


def means(
    values: Mapping[str, Tensor], predicted: Tensor, keys: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """One row per sequence with a token that counts: means of the values (B, T - 1) over these."""
    for i, key in enumerate(keys):
        if count := int(predicted[i].sum()):
            own = {
                name: each[i][predicted[i]].double().mean().item() for name, each in values.items()
            }
            yield {**key, "tokens": count, **own}


def check_absent(path: Path, iteration: int, replace: bool) -> None:
    """Raise InputError if the file of a recording exists, unless it is replaced."""
    if path.exists() and not replace:
        found = f"found an earlier recording of iteration {iteration}"
        raise InputError(f"{path}: {found}; use replace=True, or another iteration or folder.")


def facts_path(folder: str | Path, iteration: int) -> Path:
    """The file with the description of a recording."""
    return Path(folder) / "recorded" / f"iteration_{iteration:06d}.json"


def table_path(folder: str | Path, table: str, iteration: int) -> Path:
    """The file of a table with one row per token in the folder of a run."""
    return Path(folder) / FOLDERS[table] / f"iteration_{iteration:06d}.parquet"
