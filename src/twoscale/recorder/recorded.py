"""Tables of recorded states, as `trajectories.extract` writes them, for any model.

`StateTables` writes them batch by batch, with one batch in memory at a time.
`twoscale.recorder.recorder` records a PyTorch module into it; states that were saved elsewhere are
appended as batches.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import PathTypesConfig
from twoscale.config.definitions import loop_counts
from twoscale.data.batches import HeldOut
from twoscale.dynamics.run_tables import facts_path, table_path
from twoscale.dynamics.states import (
    Columns,
    check_finite,
    compare_predictions,
    describe_loop,
    exact,
    token_keys,
    write_states,
)
from twoscale.dynamics.trajectories import (
    TABLES,
    GroupStates,
    measure_groups,
    recorded_references,
    writing,
)
from twoscale.exits import loop_tokens

Key = Mapping[str, Any]  # key columns of a row
Row = dict[str, Any]
# of some recordings
OPTIONAL_TABLES = (
    *("scaling_quality", "depth_quality", "recorded_exits", "recorded_depths"),
    *loop_tokens.TABLES,
)


@dataclass(frozen=True)
class RecordedBatch:
    """The states of B sequences of T tokens, and what is known of them."""

    # group -> x^0 … x^K, each (B, T, C), in the order of the groups
    states: Mapping[str, Sequence[Tensor]]
    # groups that start after the last loop step of the group before: there drift is measured
    follows: frozenset[str] = frozenset()
    tokens: Tensor | None = None  # token ids (B, T), for the words of Fig. 1
    mask: Tensor | None = None  # tokens that are measured, bool (B, T); None: all
    # ids (B, T) that the states predict, negative for none; None: the next tokens
    targets: Tensor | None = None
    documents: Sequence[int] | None = None  # of each sequence; None: each is a document
    # "ce" and "entropy" in nats and "predicted" (B, T or T - 1) after the loop steps 1 … K of the
    # last group, if known
    decoded: Sequence[Mapping[str, Tensor]] = ()
    # (criterion, threshold) -> "ce" and "evaluations" of each target, and optionally whether it has
    # "left", if known
    exits: Mapping[tuple[str, float], Mapping[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = tuple(next(iter(self.states.values()))[0].shape)
        if 0 in shape:
            raise InputError(
                f"recorded states: found a batch of the shape {shape}, expected at least one"
                " sequence of one token."
            )

    @property
    def kept(self) -> Tensor:
        """The mask, or all tokens: bool (B, T)."""
        if self.mask is not None:
            return self.mask
        first = next(iter(self.states.values()))[0]
        return torch.ones(first.shape[:-1], dtype=torch.bool)

    @property
    def predicted(self) -> Tensor:
        """Targets that count, bool (B, T), or (B, T - 1) for next tokens.

        Of a next token, the token and its context are measured.
        """
        if self.targets is not None:
            return self.kept & (self.targets >= 0)
        return self.kept[:, 1:] & self.kept[:, :-1]

    def groups(self) -> Iterator[GroupStates]:
        """The states of the tokens that are measured, (N, C) each.

        A group has references for its drift if it starts from where the group before it ended, in
        a space of the same size.
        """
        size = None  # C of the group before
        for label, states in self.states.items():
            states = [state[self.kept] for state in states]  # (N, C)
            is_next = label in self.follows and states[0].shape[-1] == size
            references = recorded_references(states) if is_next else {}
            yield GroupStates(label, states, references)
            size = states[0].shape[-1]


@dataclass
class StateTables:
    """Writes the tables of recorded states into the folder of a run. Use it under `with`.

    The files appear when the block ends without an exception: `trajectories/`, `paths/` and
    `drift/iteration_*.parquet`; `scaling/` and `depth/iteration_*.parquet` if predictions are
    given, and `exits/` if exits are; `recorded/iteration_*.json`, what was recorded; and of the
    first sequence `loops/iteration_*.parquet` with its predictions and exits, and
    `states.safetensors` with its states for Fig. 1, if all groups have the same number of channels.
    For the attributes see `Recorder`; `facts` is the description of the recording. Raises
    InputError for an earlier recording.
    """

    folder: str | Path
    iteration: int
    word: Callable[[int], str] = str
    criteria: PathTypesConfig = field(default_factory=PathTypesConfig)
    trained_loops: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = False

    def __enter__(self) -> Self:
        paths = {table: table_path(self.folder, table, self.iteration) for table in TABLES}
        check_absent(paths["trajectories"], self.iteration, self.replace)
        self._sequences = 0
        self._tokens = 0  # that are measured
        self._text = hashlib.sha256()  # of the token ids
        self._loops: dict[str, int] = {}  # of each group
        # states of the first sequence and their header
        self._first: tuple[Tensor, dict[str, Any]] | None = None
        self._rows: dict[str, list[Row]] = {name: [] for name in OPTIONAL_TABLES}
        self._files = ExitStack()
        self._append = self._files.enter_context(writing(paths))
        return self

    def __exit__(self, error: type | None, *details: Any) -> None:
        if error is None and not self._tokens:
            missing = "token to measure" if self._sequences else "forward pass"
            with self._files:  # so that no table appears
                raise InputError(f"recorded states: found no {missing}, expected at least one.")
        self._files.__exit__(error, *details)
        if error is None:
            self._write_rest()

    def _write_rest(self) -> None:
        """The files besides those that are written batch by batch."""
        if self._first is not None:
            write_states(Path(self.folder) / "states.safetensors", *self._first)
        for table, rows in self._rows.items():
            path = table_path(self.folder, table, self.iteration)
            # an earlier recording may have had this table
            path.unlink(missing_ok=True)
            if rows:
                tables.write(table, pd.DataFrame(rows)[list(tables.columns(table))], path)
        *_, loops = self._loops.values()
        facts = dict(self.facts) | {
            "trained_loops": self.trained_loops or loops,
            "loops": self._loops,
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
        self._check_loops(batch)
        kept = batch.kept
        numbers = range(self._sequences, self._sequences + len(kept))
        documents = numbers if batch.documents is None else batch.documents
        text = HeldOut(kept, kept, tuple(numbers), tuple(documents))
        columns = token_keys(self.iteration, text)
        # positions count the tokens that are measured
        columns["position"] = (kept.cumsum(-1) - 1).int().flatten().numpy()
        measured_keys = {name: each[kept.flatten().numpy()] for name, each in columns.items()}
        # nothing is written of a batch that is refused, first for its states, which may be the
        # cause of its losses
        rows = list(measure_groups(measured_keys, batch.groups(), self.criteria))
        _check_losses(batch, columns)
        for table, measured in rows:
            self._append[table](measured)
        keys = [{"iteration": self.iteration} | key for key in text.keys]
        self._rows["scaling_quality"] += _scaling_rows(batch, keys)
        self._rows["depth_quality"] += _depth_rows(batch, keys, self.trained_loops)
        self._rows["recorded_exits"] += _exit_rows(batch, keys)
        self._rows["recorded_depths"] += _exit_depths(batch, keys)
        self._tokens += int(kept.sum())
        if batch.tokens is not None:
            # as int64, so that the digest does not depend on the type of the ids
            self._text.update(batch.tokens.long().numpy().tobytes())
        if not self._sequences:
            self._first = self._first_sequence(batch)
            key = {**keys[0], "run": Path(self.folder).name}
            self._rows["loop_tokens"] = list(_token_rows(batch, key, self.word))
            self._rows["loop_exits"] = list(_token_exits(batch, key))
        self._sequences = numbers.stop

    def _check_loops(self, batch: RecordedBatch) -> None:
        for label, states in batch.states.items():
            loops = len(states) - 1
            first = self._loops.setdefault(label, loops)
            found = f"group {label}: found {loops} loop steps in a forward pass"
            if loops < 2:
                raise InputError(f"{found}, expected at least 2.")
            if loops != first:
                raise InputError(
                    f"{found}, expected {first} as in the first one; record each loop count into a"
                    " folder of its own."
                )

    def _first_sequence(self, batch: RecordedBatch) -> tuple[Tensor, dict[str, Any]] | None:
        """States (P, T, C) of the first sequence and their header, for Fig. 1."""
        kept = batch.kept[0]
        sizes = {states[0].shape[-1] for states in batch.states.values()}
        # Fig. 1 projects all states together
        if len(sizes) > 1 or not kept.any():
            return None
        # numbers in place of ids that are not known
        tokens = torch.arange(len(kept)) if batch.tokens is None else batch.tokens[0]
        words = [self.word(token) for token in tokens[kept].tolist()]
        sites = []
        found = []
        for label, states in batch.states.items():
            follows = label in batch.follows
            for site, state in zip(describe_loop(label, len(states)), states, strict=True):
                sites.append(site | {"follows": follows})
                found.append(exact(state[0][kept]).float())
        header = {"iteration": self.iteration, "sequence": 0, "tokens": words, "sites": sites}
        return torch.stack(found), header


def _check_losses(batch: RecordedBatch, keys: Columns) -> None:
    """Raise InputError for a loss that counts and is not finite; `keys` are of all B T tokens."""
    if batch.decoded:
        losses = torch.stack([decoded["ce"] for decoded in batch.decoded])  # (K, B, T or T - 1)
        losses = losses.where(batch.predicted, 0)
        missing = batch.kept.shape[1] - losses.shape[-1]  # a last token without a target
        losses = pad(losses, (0, missing))  # (K, B, T)
        steps = range(1, len(losses) + 1)
        places = [f"decode, loop step {k}" for k in steps]
        check_finite(losses, keys, places, "a loss of")


def _scaling_rows(batch: RecordedBatch, keys: Sequence[Key]) -> Iterator[Row]:
    """Rows of the table "scaling_quality": the loss after each loop step."""
    for loops, decoded in enumerate(batch.decoded, start=1):
        for row in _means({"ce": decoded["ce"]}, batch.predicted, keys):
            yield row | {"loops": loops}


def _depth_rows(batch: RecordedBatch, keys: Sequence[Key], trained: int | None) -> Iterator[Row]:
    """Rows of the table "depth_quality" at multiples of the trained loops."""
    if not batch.decoded:
        return
    most = len(batch.decoded)
    trained = trained or most
    counts = loop_counts(trained, most=most)
    decoded = [batch.decoded[count - 1] for count in counts]  # [0]: after loop step 1
    # fewer loop steps than in training may have been recorded
    at_trained = batch.decoded[min(trained, most) - 1]
    for loops, columns in zip(counts, compare_predictions(decoded, at_trained), strict=True):
        for row in _means(columns, batch.predicted, keys):
            yield row | {"loops": loops}


def _exit_rows(batch: RecordedBatch, keys: Sequence[Key]) -> Iterator[Row]:
    """Rows of the table "recorded_exits"."""
    for (criterion, threshold), columns in batch.exits.items():
        for row in _means(columns, batch.predicted, keys):
            yield row | {"criterion": criterion, "threshold": float(threshold)}


def _exit_depths(batch: RecordedBatch, keys: Sequence[Key]) -> Iterator[Row]:
    """Rows of the table "recorded_depths"."""
    for (criterion, threshold), columns in batch.exits.items():
        point = {"criterion": criterion, "threshold": float(threshold)}
        for place, key in enumerate(keys):
            depths = columns["evaluations"][place][batch.predicted[place]]
            for depth, tokens in enumerate(depths.bincount().tolist()):
                if tokens:
                    yield {**key, **point, "depth": depth, "tokens": tokens}


def _token_rows(batch: RecordedBatch, key: Key, word: Callable[[int], str]) -> Iterator[Row]:
    """Rows of the table "loop_tokens" of the first sequence: each loop step of the last group."""
    *_, label = batch.states
    is_counted, positions = _targets_of_first(batch)
    targets = batch.targets
    if targets is None and batch.tokens is not None:
        targets = batch.tokens[:, 1:]
    if targets is None:  # what the states predict is not known
        return
    for k, decoded in enumerate(batch.decoded, start=1):
        columns = {name: decoded[name][0][is_counted] for name in ("predicted", "ce", "entropy")}
        rows = loop_tokens.token_rows(positions, columns, targets[0][is_counted], word)
        yield from ({**key, "group": label, "k": k, **row} for row in rows)


def _token_exits(batch: RecordedBatch, key: Key) -> Iterator[Row]:
    """Rows of the table "loop_exits" of the first sequence, without fixed loop counts.

    Where only evaluations are known, a token has left if it did not take all loop steps.
    """
    *_, (label, states) = batch.states.items()
    most = len(states) - 1
    is_counted, positions = _targets_of_first(batch)
    for (criterion, threshold), columns in batch.exits.items():
        if criterion != "fixed":
            point = {**key, "group": label, "criterion": criterion, "threshold": float(threshold)}
            loops = columns["evaluations"][0][is_counted].long()
            left = columns["left"][0][is_counted] if "left" in columns else loops < most
            for position, steps, has_left in zip(
                positions, loops.tolist(), left.tolist(), strict=True
            ):
                yield point | {"position": position, "loops": steps, "left": has_left}


def _targets_of_first(batch: RecordedBatch) -> tuple[Tensor, list[int]]:
    """Which targets of the first sequence count, and the positions of their N tokens.

    bool (T,), or (T - 1,) for next tokens, of which N are true.
    """
    is_counted = batch.predicted[0]
    positions = batch.kept[0].cumsum(-1)[: len(is_counted)] - 1  # count the tokens measured
    return is_counted, positions[is_counted].tolist()


def _means(columns: Mapping[str, Tensor], predicted: Tensor, keys: Sequence[Key]) -> Iterator[Row]:
    """One row per sequence with a target that counts: means of columns (B, T - 1) over these."""
    for place, key in enumerate(keys):
        is_counted = predicted[place]
        row = {**key, "tokens": int(is_counted.sum())}
        if row["tokens"]:
            for name, values in columns.items():
                row[name] = values[place][is_counted].double().mean().item()
            yield row


def check_absent(path: Path, iteration: int, replace: bool) -> None:
    """Raise InputError if the file of a recording exists, unless it is replaced."""
    if path.exists() and not replace:
        found = f"found an earlier recording of iteration {iteration}"
        raise InputError(f"{path}: {found}; use replace=True, or another iteration or folder.")
