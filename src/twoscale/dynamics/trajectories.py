"""Trajectories of held-out tokens through the loops at a fixed number of loop steps, per group.

`extract` is the whole method. The states of one group and one batch are kept until the group has
run, because some measures compare states far apart. Memory does not grow with the number of tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from twoscale import tables
from twoscale.config import PathTypesConfig, TrajectoriesConfig
from twoscale.config.definitions import boundary_label
from twoscale.data.batches import HeldOut
from twoscale.dynamics import measures, vectors
from twoscale.dynamics.measures import PATH_TYPES, LoopPath
from twoscale.dynamics.states import (
    Columns,
    batches,
    check_finite,
    exact,
    flat,
    is_group,
    loop_places,
    token_keys,
)
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import LoopedModel, StageTrace

TABLES = ("trajectories", "token_paths", "token_drift")


@job_files(writes="trajectories paths drift")
def run(job: CheckpointJob) -> None:
    """Write the tables of one checkpoint."""
    config = job.config
    checkpoint = job.checkpoint(config.trajectories.dtype)
    text = job.held_out(config.trajectory_sequences)
    files = [job.file(name) for name in ("trajectories", "paths", "drift")]
    outputs = dict(zip(TABLES, files, strict=True))
    extract(checkpoint, text, config.trajectories, config.path_types, outputs)


@torch.no_grad()
def extract(
    checkpoint: LoadedCheckpoint,
    held_out: HeldOut,
    config: TrajectoriesConfig,
    criteria: PathTypesConfig,
    outputs: Mapping[str, Path],
) -> None:
    """Measure held-out sequences, and write each of `TABLES`, name -> path, batch by batch."""
    with writing(outputs) as append:
        for batch in batches(checkpoint, held_out, config.batch_size, "trajectories"):
            for table, columns in measure_batch(checkpoint, batch, config.loops, criteria):
                append[table](columns)


def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, loops: int, criteria: PathTypesConfig
) -> Iterator[tuple[str, Columns]]:
    """Rows of the tables for B sequences of T tokens, as pairs (table, columns), group by group."""
    model = checkpoint.model
    labels = model.config.group_labels
    tokens = batch.inputs.to(checkpoint.device)
    trace = model.trace(tokens, [loops] * len(labels), checkpoint.noise(batch.sequences))
    around = _AroundCore(model)

    def groups() -> Iterator[GroupStates]:
        """The states (B, T, C) of one group at a time; `around` sees all stages."""
        for stage in around.watch(trace):
            if is_group(stage):
                assert stage.stage is not None
                group = stage.stage.index
                # Eq. 2 needs a group before this one
                references = _reference_states(model, stage) if group else {}
                yield GroupStates(labels[group], stage.states, references)

    keys = token_keys(checkpoint.iteration, batch)
    yield from measure_groups(keys, groups(), criteria)
    # last, because its jumps need the whole trace
    yield from around.rows(keys)


@dataclass(frozen=True)
class GroupStates:
    """The states of one looped group and one batch of tokens (...), which the tables measure."""

    label: str
    states: Sequence[Tensor]  # x^0 … x^K, each (..., C)
    # name -> state (..., C) that may count as "x^0 of this group" in Eq. 2; empty without a group
    # before it
    references: Mapping[str, Tensor]


def measure_groups(
    keys: Columns, groups: Iterable[GroupStates], criteria: PathTypesConfig
) -> Iterator[tuple[str, Columns]]:
    """Rows of the tables, as pairs (table, columns), group by group, for tokens with these keys.

    Raises InputError for a state that is not finite.
    """
    label, last_state, step_norms = "", torch.empty(0), torch.empty(0)  # of the group before
    for group in groups:
        rows, path = measure_group(group.states, criteria)
        places = loop_places(group.label, len(group.states))
        check_finite(rows["state_norm"], keys, places, "a state of norm")
        yield "trajectories", loop_columns(keys, group.label, rows)
        yield "token_paths", path_columns(keys, group.label, path)
        if group.references and label:
            boundary = boundary_label(label, group.label)
            yield _drift(keys, boundary, group.references, last_state, step_norms)
        label = group.label
        last_state = group.states[-1]  # x^K (..., C)
        step_norms = rows["step_norm"][:-1]  # (K, ...)


def measure_group(
    states: Sequence[Tensor], criteria: PathTypesConfig
) -> tuple[dict[str, Tensor], LoopPath]:
    """Measures per state (K + 1, ...), and the path, of the states x^0 … x^K (..., C) of one group.

    States in less than float32 are measured in float32, with the rounding floor of their dtype.
    """
    precision = states[-1].dtype
    states = [exact(state) for state in states]
    path = torch.stack(states, dim=-2)  # (..., K + 1, C)
    distances = measures.path_distances(path)  # (..., K + 1, K + 1)
    to_final = distances[..., -1].movedim(-1, 0)  # (K + 1, ...)
    rows = measures.measure_steps(states, to_final, precision)
    # a path has its loop steps in the last axis, a row of the tables in the first
    step_norms = rows["step_norm"][:-1].movedim(0, -1)  # (..., K)
    floor = vectors.rounding_floor(rows["state_norm"], precision)
    return rows, LoopPath(distances, step_norms, floor.movedim(0, -1), criteria)


# --- drift: the jump between stages, Eq. 2 --------------------------------------------------------


def _reference_states(model: LoopedModel, stage: StageTrace) -> dict[str, Tensor]:
    """Choices of "x^0 of the next group" in Eq. 2, for the trace of that group: name -> (B, T, C).

    The paper leaves the first state after a boundary open: the first computed one, the projection
    of [x^0 ; e] before any layer, the last one, or x^0 to the letter (which measures the noise if a
    group starts from it).
    """
    assert stage.stage is not None
    group = stage.stage.index
    injected = model.project_input(group, stage.entered)
    projected = model.project_state(group, stage.states[0], injected)
    first = {"first_state": stage.states[1], "projected": projected}
    return first | recorded_references(stage.states)


def recorded_references(states: Sequence[Tensor]) -> dict[str, Tensor]:
    """The choices that follow from the states x^0 … x^K (..., C) of the next group alone."""
    return {"first_state": states[1], "final": states[-1], "initial": states[0]}


@dataclass
class _AroundCore:
    """The jumps into and out of the only looped group of a model: prelude -> core -> coda.

    Eq. 2 is about the jump from one group to the next. With one group there are two others: from
    the last state before the core to the core, and from x^K to the coda. Both are measured against
    the loop steps of the core. With another number of groups there are no jumps.
    """

    model: LoopedModel
    core: StageTrace | None = None
    coda: list[Tensor] = field(default_factory=list)  # states after its first and last layer

    def watch(self, trace: Iterable[StageTrace]) -> Iterator[StageTrace]:
        """The same stages; keeps the states that the jumps need."""
        is_alone = len(self.model.config.groups) == 1
        for stage in trace:
            if is_alone and is_group(stage):
                self.core = stage
            elif self.core is not None:
                self.coda = [*self.coda[:1], stage.output]  # the first and the latest
            yield stage

    def rows(self, keys: Columns) -> Iterator[tuple[str, Columns]]:
        """Rows of the table "token_drift", once the trace is at its end."""
        if self.core is None:
            return
        states = [exact(state) for state in self.core.states]
        steps = [vectors.norm(after - before) for before, after in pairwise(states)]
        step_norms = torch.stack(steps)  # (K, B, T)
        into, *out_of = self.model.config.boundary_labels
        references = _reference_states(self.model, self.core)
        yield _drift(keys, into, references, self.core.entered, step_norms)
        for boundary in out_of:  # the coda has no input projection: its first layer sees the output
            references = {"first_state": self.coda[0], "projected": self.core.output}
            references["final"] = self.coda[-1]
            yield _drift(keys, boundary, references, states[-1], step_norms)


def _drift(
    keys: Columns,
    boundary: str,
    references: Mapping[str, Tensor],
    start: Tensor,
    step_norms: Tensor,
) -> tuple[str, Columns]:
    """The table's name, and one row per (reference state, token) of a boundary.

    The jumps lead from `start` to each of R `references`, (B, T, C) each; `step_norms` (K, B, T)
    are those of the group that they are compared with.
    """
    lengths = [vectors.norm(exact(state) - exact(start)) for state in references.values()]
    jumps = torch.stack(lengths)  # (R, B, T)
    over_mean, over_path = measures.drift_to_loop(jumps, step_norms)  # Eq. 2
    columns = _repeated(keys, "reference_state", np.array(list(references)))
    columns["boundary"] = np.full(jumps.numel(), boundary)
    columns["jump"] = flat(jumps)
    columns["dlr"] = flat(over_mean)
    columns["jump_over_path"] = flat(over_path)
    return "token_drift", columns


# --- rows of the tables ---------------------------------------------------------------------------


def loop_columns(keys: Columns, label: str, rows: Mapping[str, Tensor]) -> Columns:
    """One row per (k, token) of a group, from measures (K + 1, B, T)."""
    states = len(rows["state_norm"])
    columns = _repeated(keys, "k", np.arange(states))
    columns["group"] = np.full(len(columns["k"]), label)
    for name, values in rows.items():
        columns[name] = flat(values)
    return columns


def path_columns(keys: Columns, label: str, path: LoopPath) -> Columns:
    """One row per token of a group, from its path (B, T, …)."""
    path_type, period = measures.classify(path)
    names = np.array(PATH_TYPES)
    columns = dict(keys)
    columns["path_type"] = names[path_type.flatten().cpu().numpy()]
    columns["period"] = period.flatten().cpu().numpy()
    columns["group"] = np.full(period.numel(), label)
    for name, values in measures.measure_path(path).items():
        columns[name] = flat(values)
    return columns


def _repeated(keys: Columns, name: str, values: np.ndarray) -> Columns:
    """The key columns of the tokens once for each of `values`, which are a further column."""
    # all tokens with the first value, then all with the second one, …
    columns = {key: np.tile(of_tokens, len(values)) for key, of_tokens in keys.items()}
    tokens = len(keys["iteration"])
    return columns | {name: np.repeat(values, tokens)}


@contextmanager
def writing(outputs: Mapping[str, Path]) -> Iterator[dict[str, Callable[[Columns], None]]]:
    """Open `TABLES` for writing, name -> path; yields name -> function that appends rows."""
    with ExitStack() as files:
        yield {
            table: files.enter_context(tables.writing(table, outputs[table], units))
            for table, units in measured_units().items()
        }


def measured_units() -> dict[str, dict[str, str]]:
    """Name of each of `TABLES` -> its registered measures and their units."""
    return {
        "trajectories": {name: each.unit for name, each in measures.LOOP_MEASURES.items()},
        "token_paths": {name: each.unit for name, each in measures.PATH_MEASURES.items()},
        "token_drift": {},
    }
