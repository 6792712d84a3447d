"""Trajectories of held-out tokens through the loops at a fixed number of loop steps, measured per
group.

The states of one group and one batch are kept until the group has run, because some measures
compare states far apart. Memory does not grow with the number of tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True)
class GroupStates:
    """The states of one looped group and one batch of tokens (...): all that the tables are
    measured on.
    """

    label: str
    states: Sequence[Tensor]  # x^0 … x^K, each (..., C)
    # name -> state (..., C) that may count as "x^0 of this group" in Eq. 2; empty without a group
    # before it
    references: Mapping[str, Tensor]


def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, loops: int, config: PathTypesConfig
) -> Iterator[tuple[str, Columns]]:
    """Rows of the tables `TABLES` for B sequences of T tokens, as pairs (table, columns), group by
    group.
    """
    model, labels, around = (
        checkpoint.model,
        checkpoint.model.config.group_labels,
        AroundCore(checkpoint.model),
    )
    tokens, noise = batch.inputs.to(checkpoint.device), checkpoint.noise(batch.sequences)

    def groups() -> Iterator[GroupStates]:
        """The states (B, T, C) of every looped group, one group at a time; `around` sees all
        stages.
        """
        for stage in filter(
            is_group, around.watch(model.trace(tokens, [loops] * len(labels), noise))
        ):
            assert stage.stage is not None
            group = stage.stage.index
            yield GroupStates(
                labels[group], stage.states, reference_states(model, stage) if group else {}
            )

    return measure_groups(token_keys(checkpoint.iteration, batch), groups(), config, around.jumps)


def measure_groups(
    keys: Columns,
    groups: Iterable[GroupStates],
    config: PathTypesConfig,
    jumps_around: Callable[[], Mapping[str, Mapping[str, Tensor]]] = dict,
) -> Iterator[tuple[str, Columns]]:
    """Rows of the tables `TABLES`, as pairs (table, columns), group by group, for the tokens with
    these key columns.

    `jumps_around` is called after the last group: further boundaries -> reference state -> length
    of the jump (...), compared with the loop steps of that group. Raises InputError for a state
    that is not finite.
    """
    # the group before: label, x^K (..., C), step norms (K, ...)
    previous: tuple[str, Tensor, Tensor] | None = None
    for group in groups:
        rows, path = measure_group(group.states, config)
        places = loop_places(group.label, len(group.states))
        check_finite(rows["state_norm"], keys, places, "a state of norm")
        yield "trajectories", loop_columns(keys, group.label, rows)
        yield "token_paths", path_columns(keys, group.label, path)
        if group.references and previous is not None:
            label, last_state, step_norms = previous
            jumps = torch.stack(
                [vectors.norm(exact(state) - last_state) for state in group.references.values()]
            )
            boundary = boundary_label(label, group.label)
            yield (
                "token_drift",
                drift_columns(keys, boundary, list(group.references), jumps, step_norms),
            )
        previous = group.label, exact(group.states[-1]), rows["step_norm"][:-1]
    for boundary, lengths in jumps_around().items():
        assert previous is not None
        yield (
            "token_drift",
            drift_columns(
                keys, boundary, list(lengths), torch.stack([*lengths.values()]), previous[2]
            ),
        )


def measure_group(
    states: Sequence[Tensor], config: PathTypesConfig
) -> tuple[dict[str, Tensor], LoopPath]:
    """Measures per state (K + 1, ...), and the path, of the states x^0 … x^K (..., C) of one group.

    States in less than float32 are measured in float32, with the rounding floor of their dtype.
    """
    precision, states = states[-1].dtype, [exact(state) for state in states]
    distances = measures.path_distances(torch.stack(states, dim=-2))  # (..., K + 1, K + 1)
    to_final = distances[..., -1].movedim(-1, 0)
    rows = measures.measure_steps(states, to_final, precision)
    floor = vectors.rounding_floor(rows["state_norm"], precision).movedim(0, -1)
    return rows, LoopPath(distances, rows["step_norm"][:-1].movedim(0, -1), floor, config)


def reference_states(model: LoopedModel, stage: StageTrace) -> dict[str, Tensor]:
    """Choices of "x^0 of the next group" in Eq. 2, for the trace of that group: name -> (B, T, C).

    The paper leaves the first state after a boundary open: the first computed one, the projection
    of [x^0 ; e] before any layer, the last one, or x^0 to the letter (which measures the noise if a
    group starts from it).
    """
    assert stage.stage is not None
    group, initial = stage.stage.index, stage.states[0]
    projected = model.project_state(group, initial, model.project_input(group, stage.entered))
    return {"first_state": stage.states[1], "projected": projected} | recorded_references(
        stage.states
    )


def recorded_references(states: Sequence[Tensor]) -> dict[str, Tensor]:
    """The `reference_states` that follow from the states x^0 … x^K (..., C) of the next group
    alone.
    """
    return {"first_state": states[1], "final": states[-1], "initial": states[0]}


class AroundCore:
    """The jumps into and out of the only looped group of a model: prelude -> core -> coda.

    Eq. 2 is about the jump from one group to the next. With one group there are two others: from
    the last state before the core to the core, and from x^K to the coda. Both are measured against
    the mean loop step of the core. With another number of groups nothing is remembered, and there
    are no jumps.
    """

    def __init__(self, model: LoopedModel) -> None:
        self.model, self.labels = model, model.config.boundary_labels
        self.is_alone = len(model.config.groups) == 1
        self.before: dict[str, Tensor] = {}
        self.after: dict[str, Tensor] = {}
        self.last_state: Tensor | None = None  # x^K

    def watch(self, trace: Iterable[StageTrace]) -> Iterator[StageTrace]:
        """The same stages; keeps the states that the jumps need."""
        for stage in trace:
            if self.is_alone and is_group(stage):
                self.before = self._norms(reference_states(self.model, stage), stage.entered)
                self.last_state, entered_coda = stage.states[-1], stage.output
            elif self.last_state is not None:
                # the coda has no input projection: "projected" is what its first layer sees
                first = (
                    {"first_state": stage.output, "projected": entered_coda}
                    if not self.after
                    else {}
                )
                self.after |= self._norms(first | {"final": stage.output}, self.last_state)
            yield stage

    def jumps(self) -> dict[str, dict[str, Tensor]]:
        """Boundary -> reference state -> length of the jump (B, T), once the trace is at its
        end.
        """
        return (
            dict(zip(self.labels, filter(None, (self.before, self.after)), strict=True))
            if self.is_alone
            else {}
        )

    @staticmethod
    def _norms(states: Mapping[str, Tensor], start: Tensor) -> dict[str, Tensor]:
        return {name: vectors.norm(exact(state) - exact(start)) for name, state in states.items()}


def loop_columns(keys: Columns, label: str, rows: Mapping[str, Tensor]) -> Columns:
    """One row per (k, token) of a group, from measures (K + 1, B, T)."""
    count, states = len(keys["iteration"]), len(rows["state_norm"])
    columns = {name: np.tile(values, states) for name, values in keys.items()}
    columns |= {"group": np.full(count * states, label), "k": np.repeat(np.arange(states), count)}
    return columns | {name: flat(values) for name, values in rows.items()}


def path_columns(keys: Columns, label: str, path: LoopPath) -> Columns:
    """One row per token of a group, from its path (B, T, …)."""
    path_type, period = (values.flatten().cpu().numpy() for values in measures.classify(path))
    columns = keys | {"group": np.full(len(keys["iteration"]), label)}
    columns |= {"path_type": np.array(PATH_TYPES)[path_type], "period": period}
    return columns | {name: flat(values) for name, values in measures.measure_path(path).items()}


def drift_columns(
    keys: Columns, boundary: str, references: Sequence[str], jumps: Tensor, step_norms: Tensor
) -> Columns:
    """One row per (reference state, token) of a boundary, from jumps (R, B, T) and step norms (K,
    B, T).
    """
    over_mean, over_path = measures.drift_to_loop(jumps, step_norms)
    count = len(keys["iteration"])
    columns = {name: np.tile(values, len(references)) for name, values in keys.items()}
    columns["boundary"] = np.full(count * len(references), boundary)
    columns["reference_state"] = np.repeat(np.array(references), count)
    return columns | {
        "jump": flat(jumps),
        "dlr": flat(over_mean),
        "jump_over_path": flat(over_path),
    }


@torch.no_grad()
def extract(
    checkpoint: LoadedCheckpoint,
    held_out: HeldOut,
    config: TrajectoriesConfig,
    criteria: PathTypesConfig,
    outputs: Mapping[str, Path],
) -> None:
    """Measure held-out sequences and write each of `TABLES`, name -> path, with one batch in memory
    at a time.
    """
    with ExitStack() as files:
        append = {
            table: files.enter_context(tables.writing(table, outputs[table], units()[table]))
            for table in TABLES
        }
        for batch in batches(checkpoint, held_out, config.batch_size, "trajectories"):
            for table, columns in measure_batch(checkpoint, batch, config.loops, criteria):
                append[table](columns)


@job_files(writes="trajectories paths drift")
def run(job: CheckpointJob) -> None:
    config, checkpoint = job.config, job.checkpoint(job.config.trajectories.dtype)
    outputs = dict(zip(TABLES, map(job.file, ("trajectories", "paths", "drift")), strict=True))
    extract(
        checkpoint,
        job.held_out(config.trajectory_sequences),
        config.trajectories,
        config.path_types,
        outputs,
    )


def units() -> dict[str, dict[str, str]]:
    """Table -> its registered measures and their units."""
    registries: tuple[dict[str, measures.Measure], ...] = (
        measures.LOOP_MEASURES,
        measures.PATH_MEASURES,
        {},
    )
    return {
        table: {name: m.unit for name, m in found.items()}
        for table, found in zip(TABLES, registries, strict=True)
    }
