"""The spectrum of a loop at its fixed point, with the paths of tokens: the table "token_spectrum".

A group's loop runs until the update of every token is under the rounding floor. Its input is as in the table
"trajectories": the groups before it pass on their states after trajectories.loops loop steps. A group sees keys and
values of its own layers only, all of the same loop step. Everything is in float64. Fresh noise per loop step
(model.loop_noise) is left out, because a loop with noise has no fixed point.

For the exact sequences, three more things are measured: the diagonal block of every token at the fixed point
(`diagonal_block`), the path of each token with all earlier tokens at their fixed points from the first loop step on,
and the paths of all tokens while one early token takes only a part of each of its steps.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twoscale import tables
from twoscale.data.batches import HeldOut
from twoscale.data.token_files import open_shard, read_end_of_text
from twoscale.dynamics.states import Columns, batches, flat, token_keys
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import CausalAttention, LoopedModel, any_weight, run_stages
from twoscale.studies.spectrum import diagonal_block
from twoscale.studies.spectrum.diagonal_block import DiagonalBlocks, HeldKV, Leading, OwnStep
from twoscale.studies.spectrum.directions import DirectionBlocks, LateDirections
from twoscale.studies.spectrum.late_path import LatePath, mean_spiral_cosine

if TYPE_CHECKING:
    from twoscale.model.checkpoint_job import CheckpointJob
    from twoscale.studies.spectrum.config import SpectrumConfig

TOKEN_CLASSES = ("first", "end of text", "after end of text", "other")
PER = 1e6  # training tokens that `frequency` refers to
COUNTED = 2**24  # training tokens that are counted at a time

# Columns of the exact sequences; NaN for others and for tokens without a fixed point.
EXACT = tuple(
    name
    for name in tables.columns("token_spectrum")
    if name.startswith(("leading_", "prefix_", "isolated_", "slowed_"))
)
# Columns of tokens without a fixed point; NaN for others.
DIRECTION = tuple(
    name
    for name, dtype in tables.columns("token_spectrum").items()
    if name.startswith("direction_") and dtype != "bool"
)


def run(job: "CheckpointJob") -> None:
    """Write the table "token_spectrum"."""
    config = job.config
    checkpoint = job.checkpoint(config.spectrum.dtype)
    held_out, exact = job.held_out(config.sequences), job.held_out(config.exact_sequences)
    train = job.file("train") if job.files.get("train") else None
    text = open_text(train, job.file("metadata"), config.model.vocab_size)
    loops = Loops(checkpoint.model, config.spectrum, config.loops)
    measure(checkpoint, held_out, set(exact.sequences), text, loops, job.file("spectrum"))


@dataclass(frozen=True)
class Text:
    """Facts about token ids: how often each occurs in the training text (V,), or None, and the end of text."""

    end_of_text: int
    counts: Tensor | None = None

    def frequency(self, ids: Tensor) -> Tensor:
        """Occurrences of each id per million training tokens, float64; NaN where the training text is unknown."""
        if self.counts is None:
            return torch.full(ids.shape, torch.nan, dtype=torch.float64)
        return self.counts[ids] / self.counts.sum() * PER

    def token_classes(self, inputs: Tensor) -> np.ndarray:
        """Where each of the token ids (B, T) is in its text, of `TOKEN_CLASSES`: (B * T,)."""
        is_end = inputs == self.end_of_text
        found = torch.full(inputs.shape, TOKEN_CLASSES.index("other"))
        found[:, 1:][is_end[:, :-1]] = TOKEN_CLASSES.index("after end of text")
        found[is_end] = TOKEN_CLASSES.index("end of text")
        found[:, 0] = TOKEN_CLASSES.index("first")
        return np.array(TOKEN_CLASSES)[found.flatten().numpy()]


def open_text(train: Path | None, metadata: Path, vocab_size: int) -> Text:
    """`Text` of the training ids at `train`, None where there are none, which the metadata describes."""
    end_of_text = read_end_of_text(metadata)
    if train is None:
        return Text(end_of_text)
    shard = open_shard(train, metadata, vocab_size)
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for start in range(0, len(shard), COUNTED):
        ids = torch.from_numpy(shard[start : start + COUNTED].astype(np.int64))
        counts += torch.bincount(ids, minlength=vocab_size)
    return Text(end_of_text, counts)


# --- loops to their fixed points -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Converged:
    """A loop that has run to its fixed points.

    Attributes:
        injected: The input of every loop step (B, T, C).
        start: x^0 (B, T, C).
        passed: The state that the next stage sees, after trajectories.loops loop steps.
        state: The last state.
        late: The ends of the paths.
        steps: Loop steps until the update was under the rounding floor for the token and all earlier ones, int64
            (B, T); -1 for a token without a fixed point.
        directions: The ends of the paths of directions; complete if a token has no fixed point.
    """

    injected: Tensor
    start: Tensor
    passed: Tensor
    state: Tensor
    late: LatePath
    steps: Tensor
    directions: LateDirections

    @property
    def last(self) -> int:
        """Index of the last loop step."""
        return self.late.steps - 1

    @property
    def has_fixed_point(self) -> Tensor:
        """Whether the token and all earlier ones have one, bool (B, T)."""
        return self.steps >= 0


class Loops:
    """Loops of one model that run to their fixed points.

    Args:
        model: The model, in float64.
        config: Loop steps, window and the rest.
        loops: Loop steps after which a group passes its state on (trajectories.loops).

    Raises:
        InputError: As `diagonal_block.check_precision`.
    """

    def __init__(self, model: LoopedModel, config: "SpectrumConfig", loops: int) -> None:
        diagonal_block.check_precision(any_weight(model))
        self.model, self.config, self.loops = model, config, loops

    def converge(self, group: int, entered: Tensor, start: Tensor) -> Converged:
        """Run a group for the hidden states (B, T, C) that enter it, from `start`, at least `loops` loop steps."""
        attend = CausalAttention(torch.arange(entered.shape[1], device=entered.device))
        injected = self.model.project_input(group, entered)
        late, state, passed = self._late(start), start, start
        steps = torch.full(start.shape[:2], -1, device=start.device)
        directions = LateDirections(most := max(self.config.steps, self.loops))
        for k in range(most):
            before, state = state, self.model.recur(group, k, state, injected, attend)
            late.add(before, state)
            directions.add(k, before, state)
            converged = late.converged.cumprod(-1).bool()  # the token and all earlier ones
            steps = torch.where(converged, torch.where(steps < 0, k + 1, steps), -1)
            passed = state if k + 1 == self.loops else passed
            if k + 1 >= self.loops and converged.all():
                break
        return Converged(injected, start, passed, state, late, steps, directions)

    def slowed(self, group: int, converged: Converged, sequences: list[int]) -> LatePath:
        """The paths of some sequences while the token at `slowed_position` takes `slow_factor` of each step."""
        injected, start = converged.injected[sequences], converged.start[sequences]
        attend = CausalAttention(torch.arange(start.shape[1], device=start.device))
        share = torch.ones(start.shape[1], 1, dtype=start.dtype, device=start.device)
        share[self.config.slowed_position] = self.config.slow_factor

        def step(k: int, state: Tensor) -> Tensor:
            return torch.lerp(state, self.model.recur(group, k, state, injected, attend), share)

        return self.until_late(start, step)

    def until_late(self, state: Tensor, step: Callable[[int, Tensor], Tensor]) -> LatePath:
        """The paths from x^0 (..., C), where `step` leads from k and x^k to x^{k+1}."""
        late = self._late(state)
        for k in range(self.config.steps):
            before, state = state, step(k, state)
            late.add(before, state)
            if not late.is_open.any():
                break
        return late

    def _late(self, start: Tensor) -> LatePath:
        return LatePath(self.config.window, self.config.tolerance, start)


# --- the exact sequences ---------------------------------------------------------------------------------------


def exact_values(loops: Loops, group: int, converged: Converged, sequences: list[int]) -> dict[str, Tensor]:
    """The columns `EXACT` and `source` of some sequences of a batch, numbered in it: (S, T) each."""
    held = diagonal_block.record_kv(
        loops.model, group, converged.last, converged.state[sequences], converged.injected[sequences]
    )
    each = [_sequence_values(loops, group, converged, b, kv) for b, kv in zip(sequences, held, strict=True)]
    own = {name: torch.stack([values[name] for values, _ in each]) for name in each[0][0]}
    path = {name: value[sequences] for name, value in converged.late.summary().items()}
    slow_modulus, slow_angle = (torch.cat([getattr(slow, name) for _, slow in each]) for name in ("modulus", "angle"))
    modulus, angle, source = diagonal_block.inherit(own["leading_modulus"], own["leading_angle"])
    return own | {
        "prefix_modulus": modulus,
        "prefix_angle": angle,
        "prefix_spiral": mean_spiral_cosine(angle, path["path_axis_ratio"]),
        "source": source,
        **_slowed_values(loops, group, converged, sequences, own, slow_modulus, slow_angle),
    }


def _sequence_values(
    loops: Loops, group: int, converged: Converged, b: int, held: HeldKV
) -> tuple[dict[str, Tensor], Leading]:
    """Columns leading_* and isolated_* of one sequence (T,), and the leading eigenvalue of the slowed token (1,)."""
    config, states, injected = loops.config, converged.state[b], converged.injected[b]
    positions = torch.arange(len(states), device=states.device)
    step = OwnStep(loops.model, group, held, injected, positions)
    own, gain = diagonal_block.leading(DiagonalBlocks(step, converged.last, states), config.dense_size)
    isolated = loops.until_late(converged.start[b], step)  # all earlier tokens held
    path = isolated.summary()
    values = {
        "leading_modulus": own.modulus,
        "leading_angle": own.angle,
        "leading_axis_ratio": own.axis_ratio,
        "leading_spiral": mean_spiral_cosine(own.angle, own.axis_ratio),
        "leading_singular_value": gain,
        "isolated_rate": path["rate"],
        "isolated_cosine": path["cosine"],
        "isolated_loops": isolated.loops,
    }
    place = slice(config.slowed_position, config.slowed_position + 1)
    slow_step = OwnStep(loops.model, group, held, injected[place], positions[place])
    slow_block = DiagonalBlocks(slow_step, converged.last, states[place])
    return values, diagonal_block.slowed(slow_block, config.slow_factor, config.dense_size)


def _slowed_values(
    loops: Loops,
    group: int,
    converged: Converged,
    sequences: list[int],
    own: dict[str, Tensor],
    slow_modulus: Tensor,
    slow_angle: Tensor,
) -> dict[str, Tensor]:
    """The columns slowed_* (S, T): the paths after the slowed token, and what they inherit then; NaN up to it."""
    place, path = loops.config.slowed_position, loops.slowed(group, converged, sequences).summary()
    modulus, angle = own["leading_modulus"].clone(), own["leading_angle"].clone()
    modulus[:, place], angle[:, place] = slow_modulus, slow_angle
    largest, its_angle, _ = diagonal_block.inherit(modulus, angle)
    values = {
        "slowed_rate": path["rate"],
        "slowed_cosine": path["cosine"],
        "slowed_modulus": largest,
        "slowed_angle": its_angle,
    }
    is_later = torch.arange(modulus.shape[-1], device=modulus.device) > place
    return {name: value.where(is_later, torch.nan) for name, value in values.items()}


def direction_values(loops: Loops, group: int, converged: Converged, sequences: list[int]) -> dict[str, Tensor]:
    """The columns direction_* of eigenvalues of some sequences of a batch (S, T), for tokens without a fixed point."""
    late = converged.directions
    assert late.middle is not None
    has_fixed_point = converged.has_fixed_point[sequences]
    last = _direction_leading(loops, group, converged, sequences, converged.last, converged.state)
    half = _direction_leading(loops, group, converged, sequences, late.half, late.middle)
    values = {
        "direction_modulus": last.modulus,
        "direction_angle": last.angle,
        "direction_half_modulus": half.modulus,
        "direction_prefix_modulus": last.modulus.where(~has_fixed_point, 0).cummax(-1).values,
    }
    counts = late.frozen[sequences] & ~has_fixed_point
    return {name: value.where(counts, torch.nan) for name, value in values.items()}


def _direction_leading(
    loops: Loops, group: int, converged: Converged, sequences: list[int], k: int, states: Tensor
) -> Leading:
    """Leading eigenvalues of the maps on directions at the states (B, T, C) before loop step k: (S, T) each."""
    states, injected = states[sequences], converged.injected[sequences]
    positions = torch.arange(states.shape[1], device=states.device)
    held = diagonal_block.record_kv(loops.model, group, k, states, injected)
    found = []
    for kv, of_sequence, its_input in zip(held, states, injected, strict=True):
        step = OwnStep(loops.model, group, kv, its_input, positions)
        found.append(diagonal_block.leading(DirectionBlocks(step, k, of_sequence), loops.config.dense_size)[0])
    return Leading(*(torch.stack([getattr(one, name) for one in found]) for name in ("modulus", "angle", "axis_ratio")))


# --- the table -------------------------------------------------------------------------------------------------


@torch.no_grad()
def measure(
    checkpoint: LoadedCheckpoint,
    held_out: HeldOut,
    exact: Collection[int],
    text: Text,
    loops: Loops,
    path: Path,
) -> None:
    """Write the table "token_spectrum" of one checkpoint, with one batch in memory at a time.

    Args:
        checkpoint: The model in float64, its iteration and the seed of its noise.
        held_out: N held-out sequences.
        exact: Numbers of those whose diagonal blocks are computed.
        text: Facts about token ids.
        loops: The loops of this model.
        path: The parquet file.
    """
    with tables.writing("token_spectrum", path) as append:
        for batch in batches(checkpoint, held_out, loops.config.batch_size, "spectrum"):
            for columns in measure_batch(checkpoint, batch, exact, text, loops):
                append(columns)


def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, exact: Collection[int], text: Text, loops: Loops
) -> Iterator[Columns]:
    """Rows of the table "token_spectrum" for B held-out sequences, group by group."""
    model, tokens = checkpoint.model, batch.inputs.to(checkpoint.device)
    noise, attend = checkpoint.noise(batch.sequences), CausalAttention.of(tokens)
    keys = token_keys(checkpoint.iteration, batch) | _text_columns(batch, text)
    found: list[Columns] = []

    def layer(number: int, hidden: Tensor) -> Tensor:
        return model.unlooped_layer(number, hidden, attend)

    def group(index: int, entered: Tensor) -> Tensor:
        converged = loops.converge(index, entered, model.init_state(index, entered, noise))
        label = {"group": np.full(batch.inputs.numel(), model.config.group_labels[index])}
        found.append(keys | label | _columns(loops, index, converged, batch, exact))
        return model.finish(index, converged.passed)

    run_stages(model, model.embed(tokens, attend.positions), layer, group)
    yield from found


def _text_columns(batch: HeldOut, text: Text) -> Columns:
    ids = batch.inputs.flatten().cpu()
    return {
        "token": ids.numpy(),
        "token_class": text.token_classes(batch.inputs.cpu()),
        "frequency": text.frequency(ids).numpy(),
    }


def _columns(loops: Loops, group: int, converged: Converged, batch: HeldOut, exact: Collection[int]) -> Columns:
    """Columns of one group of a batch: (B * T,) each."""
    sequences = [b for b, number in enumerate(batch.sequences) if number in exact]
    is_exact = torch.tensor([number in exact for number in batch.sequences]).repeat_interleave(batch.inputs.shape[1])
    values = {"loops": converged.late.loops} | converged.late.summary()
    values |= {name: torch.full_like(values["loops"], torch.nan) for name in EXACT}
    values["source"] = torch.full_like(values["loops"], -1)
    has_fixed_point = converged.has_fixed_point
    if sequences:
        for name, rows in exact_values(loops, group, converged, sequences).items():
            values[name][sequences] = rows.to(values[name].dtype).where(
                has_fixed_point[sequences], values[name][sequences]
            )
    frozen = has_fixed_point
    values |= {name: torch.full_like(values["loops"], torch.nan) for name in DIRECTION}
    if not has_fixed_point.all():
        directions = converged.directions
        frozen = has_fixed_point | directions.frozen
        paths = {"direction_exponent": directions.exponent, "direction_rate": directions.rate(loops.config.window)}
        values |= {name: value.where(~has_fixed_point, torch.nan) for name, value in paths.items()}
    if unsettled := [b for b in sequences if not has_fixed_point[b].all()]:
        for name, rows in direction_values(loops, group, converged, unsettled).items():
            values[name][unsettled] = rows
    columns = {name: flat(value) for name, value in values.items() if name != "source"}
    return columns | {
        "exact": is_exact.numpy(),
        "steps": converged.steps.flatten().cpu().numpy(),
        "converged": has_fixed_point.flatten().cpu().numpy(),
        "direction_frozen": frozen.flatten().cpu().numpy(),
        "source": values["source"].long().flatten().cpu().numpy(),
    }
