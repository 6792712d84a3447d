"""The path of held-out tokens through the loops at a fixed budget, measured as it goes by.

States are dropped as soon as they are measured, so memory does not grow with the number of tokens.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from twoscale import measures, progress, settings, tables
from twoscale.files import replacing
from twoscale.model import LoopedTransformer, Place
from twoscale.noise import EvaluationNoise

Columns = dict[str, np.ndarray]


class GroupRecorder:
    """Measures the states x^0 … x^K of one group as they come; all tensors are (B, T, …)."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Tensor]] = []
        self.state: Tensor | None = None
        self.update: Tensor | None = None

    def add(self, state: Tensor) -> None:
        if self.state is not None:
            update = state - self.state
            self.rows.append(measures.step_measures(self.state, update, self.update))
            self.update = update
        self.state = state

    def finish(self) -> tuple[list[dict[str, Tensor]], Tensor]:
        """One dict of (B, T) measures per k = 0 … K, and the step norms (K, B, T)."""
        undefined = dict.fromkeys(self.rows[0], torch.full_like(self.rows[0]["step_norm"], torch.nan))
        last = undefined | {"state_norm": measures.norm(self.state)}
        return [*self.rows, last], torch.stack([row["step_norm"] for row in self.rows])


def drift_readings(model: LoopedTransformer, group: int, entered: Tensor, states: dict[int, Tensor], budget: int):
    """The readings of "x^0 of the next group" in Eq. 2, for the group that is entered: name -> (B, T, C).

    Adjacent groups leave open what the first state after the hand-off is: the first computed one, the
    projection of [x^0 ; e] before any layer, the last one, or x^0 to the letter (with a noise start that
    measures the noise).
    """
    return {
        "first_state": states[1],
        "projected": model.project(group, states[0], model.inject(group, entered)),
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
) -> Iterator[tuple[str, Columns]]:
    """Rows of the tables "trajectories" and "token_drift" for held-out blocks (B, T), group by group."""
    labels = model.settings.group_labels
    keys = token_keys(sequences, tokens.shape[1], step)
    recorder = entered = before = None  # before: last state and step norms of the previous group
    ends: dict[int, Tensor] = {}
    walk = model.walk(tokens, [budget] * len(labels), EvaluationNoise(seed, sequences, model.settings.block))
    for place, hidden in walk:
        if place.stage == "loop":
            if place.k == 0:
                recorder = GroupRecorder()
            recorder.add(hidden)
            if place.k in (0, 1, budget):
                ends[place.k] = hidden
            continue
        if place.stage == "left":
            rows, step_norms = recorder.finish()
            yield "trajectories", loop_columns(keys, labels[place.group], rows)
            if before is not None:
                boundary = model.settings.boundary_labels[place.group - 1]
                readings = drift_readings(model, place.group, entered, ends, budget)
                yield "token_drift", drift_columns(keys, boundary, readings, *before)
            before = (ends[budget], step_norms)
        entered = hidden


def token_keys(sequences: Sequence[int], length: int, step: int) -> Columns:
    """The key columns of B * T tokens, sequence by sequence."""
    return {
        "step": np.full(len(sequences) * length, step),
        "sequence": np.repeat(np.asarray(sequences, dtype=np.int32), length),
        "position": np.tile(np.arange(length, dtype=np.int32), len(sequences)),
    }


def loop_columns(keys: Columns, label: str, rows: list[dict[str, Tensor]]) -> Columns:
    """One row per (k, token) of a group, from one dict of (B, T) measures per k."""
    count = len(keys["step"])
    columns = {name: np.tile(values, len(rows)) for name, values in keys.items()}
    columns |= {"group": np.full(count * len(rows), label), "k": np.repeat(np.arange(len(rows)), count)}
    return columns | {name: flat(torch.stack([row[name] for row in rows])) for name in rows[0]}


def drift_columns(
    keys: Columns, boundary: str, readings: dict[str, Tensor], left: Tensor, step_norms: Tensor
) -> Columns:
    """One row per (reading, token) of a boundary; left (B, T, C) is x^K of the group before it."""
    jumps = torch.stack([measures.norm(state - left) for state in readings.values()])  # (readings, B, T)
    over_mean, over_path = measures.drift_to_loop(jumps, step_norms)
    count = len(keys["step"])
    columns = {name: np.tile(values, len(readings)) for name, values in keys.items()}
    columns |= {
        "boundary": np.full(count * len(readings), boundary),
        "reading": np.repeat(np.array(list(readings)), count),
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
    chosen: settings.Trajectories,
    trajectories_path: Path,
    drift_path: Path,
) -> None:
    """Measure held-out blocks (N, T) and write both tables; memory is that of one batch."""
    device = next(model.parameters()).device
    with (
        tables.writing("trajectories", trajectories_path) as append_loops,
        tables.writing("token_drift", drift_path) as append_drift,
        progress.meter(f"trajectories of step {step}", blocks.numel(), "tokens") as bar,
    ):
        append: dict[str, Callable] = {"trajectories": append_loops, "token_drift": append_drift}
        for start in range(0, len(blocks), chosen.batch):
            batch = blocks[start : start + chosen.batch].to(device)
            sequences = range(start, start + len(batch))
            for table, columns in measure_batch(model, batch, sequences, seed, step, chosen.budget):
                append[table](columns)
            bar.update(batch.numel())


@torch.no_grad()
def save_states(
    model: LoopedTransformer,
    block: Tensor,
    words: Sequence[str],
    step: int,
    seed: int,
    chosen: settings.Trajectories,
    path: Path,
) -> None:
    """Write every hidden state of one held-out block (T,) as float32 (P, T, C), with what stands where.

    P counts the places on the way: the embedding, each single-pass layer, x^0 … x^K of each group.
    """
    from safetensors.torch import save_file

    labels = model.settings.group_labels
    noise = EvaluationNoise(seed, [chosen.states_sequence], model.settings.block)
    tokens = block[None].to(next(model.parameters()).device)
    walk = model.walk(tokens, [chosen.budget] * len(labels), noise)
    kept = [(place, hidden[0].float().cpu()) for place, hidden in walk if place.stage != "left"]
    header = {
        "step": step,
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
