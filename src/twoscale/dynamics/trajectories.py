"""The path of held-out tokens through the loops at a fixed budget, measured as it goes by.

What compares states far apart needs the whole loop, so the states of one group and one batch are kept until it
is left; memory does not grow with the number of tokens.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from twoscale.dynamics import path_types, measures
from twoscale import progress, tables
from twoscale import config
from twoscale.files import replacing
from twoscale.model.transformer import LoopedTransformer, Place
from twoscale.model.noise import EvaluationNoise

Columns = dict[str, np.ndarray]
TABLES = ("trajectories", "token_paths", "token_drift")


class GroupRecorder:
    """Measures the states x^0 … x^K of one group as they come; all tensors are (B, T, …)."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.rows: list[dict[str, Tensor]] = []
        self.update: Tensor | None = None

    def add(self, state: Tensor) -> None:
        if self.states:
            update = state - self.states[-1]
            self.rows.append(measures.step_measures(self.states[-1], update, self.update))
            self.update = update
        self.states.append(state)

    def finish(self, criteria: config.PathTypesConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Measures per state, (K + 1, B, T), and per path, (B, T); the states are dropped."""
        undefined = dict.fromkeys(self.rows[0], torch.full_like(self.rows[0]["step_norm"], torch.nan))
        self.rows.append(undefined | {"state_norm": measures.norm(self.states[-1])})
        rows = {name: torch.stack([row[name] for row in self.rows]) for name in undefined}
        distances = measures.path_distances(torch.stack(self.states, dim=-2))
        self.states.clear()
        rows["distance_to_final"] = distances[..., -1].movedim(-1, 0)
        return rows, path_measures(rows["step_norm"], rows["state_norm"], distances, criteria)


def path_measures(
    step_norms: Tensor, state_norms: Tensor, distances: Tensor, criteria: config.PathTypesConfig
) -> dict[str, Tensor]:
    """What is said of a whole path: norms (K + 1, B, T), distances (B, T, K + 1, K + 1) -> (B, T) each.

    The contraction rate leaves out the first step, the leap from x^0 (noise under the default reading).
    """
    floor = measures.rounding_floor(state_norms).movedim(0, -1)
    steps = step_norms[1:-1].movedim(0, -1)
    return {
        "contraction_rate": measures.contraction_rate(steps, steps > floor[..., 1:-1]),
        "effective_dimension": measures.effective_dimension(distances),
        **path_types.classify(distances, floor[..., -1], criteria),
    }


def reference_states(model: LoopedTransformer, group: int, entered: Tensor, states: dict[int, Tensor], budget: int):
    """The readings of "x^0 of the next group" in Eq. 2, for the group that is entered: name -> (B, T, C).

    Adjacent groups leave open what the first state after the hand-off is: the first computed one, the
    projection of [x^0 ; e] before any layer, the last one, or x^0 to the letter (with a noise start that
    measures the noise).
    """
    return {
        "first_state": states[1],
        "projected": model.project(group, states[0], model.project_input(group, entered)),
        "final": states[budget],
        "initial": states[0],
    }


def measure_batch(
    model: LoopedTransformer,
    tokens: Tensor,
    sequences: Sequence[int],
    seed: int,
    step: int,
    budget: int,
    criteria: config.PathTypesConfig,
) -> Iterator[tuple[str, Columns]]:
    """Rows of the tables TABLES for held-out blocks (B, T), group by group."""
    labels = model.config.group_labels
    keys = token_keys(sequences, tokens.shape[1], step)
    recorder = entered = before = None  # before: last state and step norms of the previous group
    ends: dict[int, Tensor] = {}
    walk = model.walk(tokens, [budget] * len(labels), EvaluationNoise(seed, sequences, model.config.context_length))
    for place, hidden in walk:
        if place.stage == "loop":
            if place.k == 0:
                recorder = GroupRecorder()
            recorder.add(hidden)
            if place.k in (0, 1, budget):
                ends[place.k] = hidden
            continue
        if place.stage == "left":
            rows, paths = recorder.finish(criteria)
            yield "trajectories", loop_columns(keys, labels[place.group], rows)
            yield "token_paths", path_columns(keys, labels[place.group], paths)
            if before is not None:
                boundary = model.config.boundary_labels[place.group - 1]
                readings = reference_states(model, place.group, entered, ends, budget)
                yield "token_drift", drift_columns(keys, boundary, readings, *before)
            before = (ends[budget], rows["step_norm"][:-1])
        entered = hidden


def token_keys(sequences: Sequence[int], length: int, step: int) -> Columns:
    """The key columns of B * T tokens, sequence by sequence."""
    return {
        "iteration": np.full(len(sequences) * length, step),
        "sequence": np.repeat(np.asarray(sequences, dtype=np.int32), length),
        "position": np.tile(np.arange(length, dtype=np.int32), len(sequences)),
    }


def loop_columns(keys: Columns, label: str, rows: dict[str, Tensor]) -> Columns:
    """One row per (k, token) of a group, from measures (K + 1, B, T)."""
    count, states = len(keys["iteration"]), len(rows["state_norm"])
    columns = {name: np.tile(values, states) for name, values in keys.items()}
    columns |= {"group": np.full(count * states, label), "k": np.repeat(np.arange(states), count)}
    return columns | {name: flat(values) for name, values in rows.items()}


def path_columns(keys: Columns, label: str, paths: dict[str, Tensor]) -> Columns:
    """One row per token of a group, from measures (B, T)."""
    columns = keys | {"group": np.full(len(keys["iteration"]), label)}
    columns |= {name: flat(values) for name, values in paths.items()}
    kind, period = (paths[name].flatten().cpu().numpy() for name in ("path_type", "period"))
    return columns | {"path_type": np.array(path_types.PATH_TYPES)[kind], "period": period}


def drift_columns(
    keys: Columns, boundary: str, readings: dict[str, Tensor], left: Tensor, step_norms: Tensor
) -> Columns:
    """One row per (reading, token) of a boundary; left (B, T, C) is x^K of the group before it."""
    jumps = torch.stack([measures.norm(state - left) for state in readings.values()])  # (readings, B, T)
    over_mean, over_path = measures.drift_to_loop(jumps, step_norms)
    count = len(keys["iteration"])
    columns = {name: np.tile(values, len(readings)) for name, values in keys.items()}
    columns |= {
        "boundary": np.full(count * len(readings), boundary),
        "reference_state": np.repeat(np.array(list(readings)), count),
    }
    return columns | {"jump": flat(jumps), "dlr": flat(over_mean), "jump_over_path": flat(over_path)}


def flat(values: Tensor) -> np.ndarray:
    return values.flatten().float().cpu().numpy()


@torch.no_grad()
def extract(
    model: LoopedTransformer,
    blocks: Tensor,
    step: int,
    seed: int,
    chosen: config.TrajectoriesConfig,
    criteria: config.PathTypesConfig,
    outputs: Mapping[str, Path],
) -> None:
    """Measure held-out blocks (N, T) and write each of TABLES to its path; memory is that of one batch."""
    device = next(model.parameters()).device
    with (
        ExitStack() as files,
        progress.meter(f"trajectories of step {iteration}", blocks.numel(), "tokens") as bar,
    ):
        append: dict[str, Callable] = {
            table: files.enter_context(tables.writing(table, outputs[table])) for table in TABLES
        }
        for start in range(0, len(blocks), chosen.batch):
            batch = blocks[start : start + chosen.batch].to(device)
            sequences = range(start, start + len(batch))
            for table, columns in measure_batch(model, batch, sequences, seed, step, chosen.budget, criteria):
                append[table](columns)
            bar.update(batch.numel())


@torch.no_grad()
def save_states(
    model: LoopedTransformer,
    block: Tensor,
    words: Sequence[str],
    step: int,
    seed: int,
    chosen: config.TrajectoriesConfig,
    path: Path,
) -> None:
    """Write every hidden state of one held-out block (T,) as float32 (P, T, C), with what stands where.

    P counts the places on the way: the embedding, each single-pass layer, x^0 … x^K of each group.
    """
    from safetensors.torch import save_file

    labels = model.config.group_labels
    noise = EvaluationNoise(seed, [chosen.states_sequence], model.config.context_length)
    tokens = block[None].to(next(model.parameters()).device)
    walk = model.walk(tokens, [chosen.budget] * len(labels), noise)
    kept = [(place, hidden[0].float().cpu()) for place, hidden in walk if place.stage != "left"]
    header = {
        "iteration": step,
        "sequence": chosen.states_sequence,
        "tokens": list(words),
        "places": [describe(place, labels) for place, _ in kept],
    }
    states = torch.stack([hidden for _, hidden in kept])
    with replacing(path) as temporary:
        save_file({"states": states}, temporary, metadata={"twoscale": json.dumps(header, sort_keys=True)})


def describe(place: Place, labels: Sequence[str]) -> dict:
    group = None if place.group is None else labels[place.group]
    return {"stage": place.stage, "layer": place.layer, "group": group, "k": place.k}
