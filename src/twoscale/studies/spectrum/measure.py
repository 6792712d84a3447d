"""The spectrum of a loop at its fixed point, with the paths of tokens: the table "token_spectrum".

A group's loop runs until the update of every token is under the rounding floor. Its input is as in
the table "trajectories": the groups before it pass on their states after trajectories.loops loop
steps. A group sees keys and values of its own layers only, all of the same loop step. Everything is
in float64. Fresh noise per loop step (model.loop_noise) is left out, because a loop with noise has
no fixed point.

The Jacobian of a loop step over a text of T tokens is block lower triangular, because attention is
causal. Its eigenvalues are the eigenvalues of the T blocks on its diagonal, C × C each: the
derivative of a token's next state by its state, its keys and values included, with the keys and
values of all earlier tokens held. They are computed at the last loop step of the exact sequences.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twoscale import tables
from twoscale.data.batches import HeldOut
from twoscale.dynamics import vectors
from twoscale.dynamics.arnoldi import (
    TOLERANCE,
    LoopStepMap,
    arnoldi,
    check_precision,
    start_vectors,
)
from twoscale.dynamics.states import Columns, batches, flat, token_keys
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import (
    Attend,
    AttendAt,
    CausalAttention,
    LoopedModel,
    any_weight,
    loop_states,
    run_stages,
)

if TYPE_CHECKING:
    from twoscale.studies.spectrum.config import SpectrumConfig

MARGIN = 64  # an update this many times the rounding floor has an error of about a thousandth
FEWEST = 4  # updates for a rate
# Columns of the exact sequences; NaN for others and for tokens without a fixed point.
EXACT = ("leading_modulus", "leading_angle", "prefix_modulus", "prefix_angle")


@job_files(writes="spectrum")
@torch.no_grad()
def run(job: CheckpointJob) -> None:
    """Write the table "token_spectrum", one batch in memory at a time."""
    config = job.config
    checkpoint = job.checkpoint(config.spectrum.dtype)
    exact = job.held_out(config.exact_sequences).sequences
    loops = Loops(checkpoint.model, config.spectrum, config.loops)
    text, size = job.held_out(config.sequences), config.spectrum.batch_size
    with tables.writing("token_spectrum", job.file("spectrum")) as append:
        for batch in batches(checkpoint, text, size, "spectrum"):
            for columns in measure_batch(checkpoint, batch, exact, loops):
                append(columns)


# --- loops to their fixed points ------------------------------------------------------------------


class LatePath:
    """Collects the last updates of each token (...) that rounding does not decide, while a loop
    runs.

    A token's window ends for good with its first update under `MARGIN` rounding floors. Only the
    window is in memory.
    """

    def __init__(self, window: int, x0: Tensor) -> None:
        # the window (W, ..., C); the latest update is last, unused places hold zeros
        self.updates = x0.new_zeros(window, *x0.shape)
        # updates before the end of the window, (...); those beyond W have been dropped
        self.count = torch.zeros(x0.shape[:-1], dtype=torch.int64, device=x0.device)
        self.is_open = self.count == 0  # whether the window has not ended
        self.converged = ~self.is_open  # whether the latest update is under the rounding floor

    def add(self, before: Tensor, after: Tensor) -> None:
        """One more loop step, from `before` to `after` (..., C)."""
        update = after - before
        step_norm = vectors.norm(update)  # (...)
        floor = vectors.rounding_floor(vectors.norm(before))
        self.is_open = self.is_open & (step_norm > MARGIN * floor)
        # open windows drop their oldest update for the new one
        moved = torch.cat([self.updates[1:], update[None]])
        self.updates = torch.where(self.is_open[..., None], moved, self.updates)
        self.count += self.is_open
        self.converged = step_norm <= floor

    def summary(self) -> dict[str, Tensor]:
        """`rate` and `cosine` of the table, (...) each; NaN for fewer than `FEWEST` updates."""
        window = len(self.updates)
        # a short path counts from its middle on, but `FEWEST` updates
        valid = (self.count // 2).clamp(FEWEST, window)
        first = window - valid  # place of the first update that counts, (...)
        norms = vectors.norm(self.updates)  # (W, ...)
        # geometric mean of the ratios of successive norms: all but the first and last cancel
        first_norm = norms.gather(0, first[None])[0]
        rate = (norms[-1] / first_norm) ** (1 / (valid - 1))
        # mean cosine between successive updates; pairs that begin before `first` do not count
        cosines = vectors.cosine(self.updates[1:], self.updates[:-1])  # (W - 1, ...)
        place = torch.arange(window - 1, device=valid.device)
        place = place.view(-1, *[1] * valid.dim())  # one axis for the window, broadcast over tokens
        cosine = cosines.where(place >= first, torch.nan).nanmean(0)
        is_long = self.count >= FEWEST
        return {
            "rate": rate.where(is_long, torch.nan),
            "cosine": cosine.where(is_long, torch.nan),
        }


@dataclass(frozen=True)
class Converged:
    """A loop that has run to its fixed points."""

    injected: Tensor  # the input of every loop step (B, T, C)
    passed: Tensor  # the state that the next stage sees, after trajectories.loops loop steps
    state: Tensor  # the last one, (B, T, C)
    last: int  # index of the last loop step
    late: LatePath
    # loop steps until the update was under the rounding floor for the token and all earlier ones,
    # int64 (B, T); or -1
    steps: Tensor


class Loops:
    """Loops of one model, in float64, that run to their fixed points; a state is passed on after
    `loops` loop steps.
    """

    def __init__(self, model: LoopedModel, config: "SpectrumConfig", loops: int) -> None:
        check_precision(any_weight(model))
        self.model, self.config, self.loops = model, config, loops

    def converge(self, group: int, entered: Tensor, start: Tensor, attend: Attend) -> Converged:
        """Run a group, which (B, T, C) enters, from `start`, at least `loops` loop steps."""
        injected = self.model.project_input(group, entered)
        late, passed = LatePath(self.config.window, start), start
        steps = torch.full(start.shape[:2], -1, device=start.device)
        most = max(self.config.steps, self.loops)
        states = loop_states(
            self.model, group, entered, most, lambda _: attend, _without_noise, x0=start
        )
        for k, (before, state) in enumerate(pairwise(states)):
            late.add(before, state)
            converged = late.converged.cumprod(-1).bool()  # the token and all earlier ones
            # the first of the steps since when they have been converged
            steps = torch.where(converged, torch.where(steps < 0, k + 1, steps), -1)
            if k + 1 == self.loops:
                passed = state
            if k + 1 >= self.loops and converged.all():
                break
        return Converged(injected, passed, state, k, late, steps)


def _without_noise(group: int, k: int, like: Tensor) -> Tensor:
    return torch.zeros_like(like)


# --- diagonal blocks ------------------------------------------------------------------------------


def diagonal_blocks(
    model: LoopedModel, group: int, k: int, states: Tensor, injected: Tensor, tokens: Tensor
) -> Iterator[LoopStepMap]:
    """The diagonal blocks of all `tokens` (B, T) of each sequence, at the states (B, T, C) before
    loop step k.
    """
    found: dict[int, tuple[Tensor, Tensor]] = {}
    causal = CausalAttention.of(tokens)

    def record(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found[layer] = k, v
        return causal(layer, q, k, v)

    def step(x: Tensor, its_input: Tensor, attend: Attend) -> Tensor:
        return model.recur(group, k, x, its_input, attend)

    # one pass over whole sequences, for the keys and values that are then held
    model.recur(group, k, states, injected, AttendAt(causal.positions, record, tokens))
    for b, (of_sequence, its_input) in enumerate(zip(states, injected, strict=True)):
        held = {layer: (keys[b], values[b]) for layer, (keys, values) in found.items()}
        attend = attend_held(held, causal.positions, tokens[b])
        yield LoopStepMap(partial(step, its_input=its_input, attend=attend), of_sequence)


def attend_held(
    held: Mapping[int, tuple[Tensor, Tensor]], positions: Tensor, tokens: Tensor
) -> Attend:
    """Attention of `tokens` at `positions` (N,) to held keys and values (T, G, D) before them, and
    to their own.
    """
    length = len(next(iter(held.values()))[0])
    places = torch.arange(length, device=positions.device)
    is_hidden = places >= positions[:, None, None]  # (N, 1, T): the token itself and later ones

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held_k, held_v = held[layer]
        heads = q.shape[-2] // k.shape[-2]  # query heads of each head of keys and values

        def repeated(z: Tensor) -> Tensor:
            return z.repeat_interleave(heads, -2)  # (..., G, D) -> (..., H, D)

        # scores with the earlier tokens, whose keys do not depend on the state, (N, H, T)
        earlier = torch.einsum("nhd,thd->nht", q, repeated(held_k))
        earlier = earlier.masked_fill(is_hidden, -torch.inf)
        # the score with the token itself, the only one that the state acts on by its key, (N, H, 1)
        own = (q * repeated(k)).sum(-1, keepdim=True)  # q k^T
        # over sqrt(D), as in causal attention
        scores = torch.cat([earlier, own], dim=-1) * q.shape[-1] ** -0.5
        weights = scores.softmax(-1)  # (N, H, T + 1)
        of_earlier = torch.einsum("nht,thd->nhd", weights[..., :-1], repeated(held_v))
        of_itself = weights[..., -1:] * repeated(v)
        return of_earlier + of_itself

    return AttendAt(positions, attend, tokens)


def leading(blocks: LoopStepMap, dense_size: int) -> tuple[Tensor, Tensor]:
    """Modulus and angle in 0 … π of the eigenvalue of largest modulus of each block, (N,) each.

    Up to a hidden size of `dense_size` from the dense blocks, beyond by Arnoldi's method. An
    eigenvalue that has not converged then is NaN.
    """
    if blocks.state.shape[-1] <= dense_size:
        values, _ = torch.linalg.eig(blocks.dense())  # (N, C), complex
        largest = values.abs().argmax(-1, keepdim=True)
        value = values.gather(-1, largest)[..., 0]
    else:
        value, _, residual = arnoldi(blocks.product, start_vectors(blocks.state))
        has_converged = residual <= TOLERANCE * value.abs()
        value = value.where(has_converged, complex(torch.nan, torch.nan))
    # a real block has conjugate pairs, of which either may be found: the angle has no sign
    return value.abs(), value.angle().abs()


def inherit(modulus: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest modulus at this position or before, its angle and its position, the first of
    equals: (B, T) each.
    """
    largest = modulus.cummax(-1).values
    # a position sets a new record if it exceeds all before it
    is_new = torch.ones_like(modulus, dtype=torch.bool)
    is_new[:, 1:] = modulus[:, 1:] > largest[:, :-1]
    place = torch.arange(modulus.shape[-1], device=modulus.device)
    records = torch.where(is_new, place, -1)  # (B, T); -1 where there is none
    source = records.cummax(-1).values  # the latest record
    return largest, angle.gather(-1, source), source


# --- the table ------------------------------------------------------------------------------------


def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, exact: Collection[int], loops: Loops
) -> list[Columns]:
    """Rows of the table "token_spectrum" for B held-out sequences, group by group; `exact` numbers
    the sequences whose diagonal blocks are computed.
    """
    model, tokens = checkpoint.model, batch.inputs.to(checkpoint.device)
    noise, attend = checkpoint.noise(batch.sequences), CausalAttention.of(tokens)
    is_exact = [number in exact for number in batch.sequences]
    found: list[Columns] = []

    def group(index: int, entered: Tensor) -> Tensor:
        start = model.init_state(index, entered, noise)
        converged = loops.converge(index, entered, start, attend)
        keys = token_keys(checkpoint.iteration, batch)
        keys["group"] = np.full(tokens.numel(), model.config.group_labels[index])
        found.append(keys | _columns(loops, index, converged, tokens, is_exact))
        # not the fixed point: later groups are to enter as in the table "trajectories"
        return model.finish(index, converged.passed)

    layer = partial(model.unlooped_layer, attend=attend)
    run_stages(model, model.embed(tokens, attend.positions), layer, group)
    return found


def _columns(
    loops: Loops, group: int, converged: Converged, tokens: Tensor, is_exact: list[bool]
) -> Columns:
    """Columns of one group of a batch of B sequences: (B * T,) each."""
    has_fixed_point = converged.steps >= 0  # (B, T)
    values = converged.late.summary()
    values |= {name: torch.full_like(values["rate"], torch.nan) for name in EXACT}
    source = torch.full_like(converged.steps, -1)
    chosen = np.flatnonzero(is_exact)  # the S exact sequences
    if len(chosen):
        blocks = diagonal_blocks(
            loops.model,
            group,
            converged.last,
            states=converged.state[chosen],
            injected=converged.injected[chosen],
            tokens=tokens[chosen],
        )
        own = [leading(of_sequence, loops.config.dense_size) for of_sequence in blocks]
        # pairs of (T,), one for each of the S sequences
        modulus, angle = map(torch.stack, zip(*own, strict=True))  # (S, T) each
        largest, its_angle, its_source = inherit(modulus, angle)
        # a block means something at a fixed point only
        known = has_fixed_point[chosen]
        for name, rows in zip(EXACT, (modulus, angle, largest, its_angle), strict=True):
            values[name][chosen] = rows.where(known, torch.nan)
        source[chosen] = its_source.where(known, -1)

    columns = {name: flat(value) for name, value in values.items()}
    integers = {"converged": has_fixed_point, "steps": converged.steps, "source": source}
    for name, value in integers.items():
        columns[name] = value.flatten().cpu().numpy()
    columns["exact"] = np.repeat(is_exact, tokens.shape[1])
    return columns
