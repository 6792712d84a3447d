"""Measurements through the loops, also far beyond those of training: lens and depth card.

The lens decodes a state x^k of a group as the model would continue with it: all tokens of a
sequence leave the group with their x^k and pass the stages after it, whose loop steps do not depend
on k. The logit lens (nostalgebraist 2020) applies the head alone; here the remaining layers come
first, as in Geiping et al., `predict_from_latents`, because the head has been trained on their
output only.

The card runs every group for the largest loop count, in one pass. The first group has the same
states whatever its loop count is; at every smaller one its state passes the stages after it with as
many loop steps. States are measured one after another, with a few of one batch in memory at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

import torch
from torch import Tensor

from twoscale.base import meter
from twoscale.data.batches import HeldOut
from twoscale.dynamics.measures import (
    LOOP_MEASURES,
    LoopStep,
    direction,
    loop_steps,
    measure_step,
)
from twoscale.dynamics.states import (
    Row,
    batches,
    check_finite,
    compare_predictions,
    exact,
    loop_places,
    sequence_means,
    token_keys,
)
from twoscale.exits.passes import Pass, measure_tokens
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import run_stages

# Measures in the table "depth_states", of states and of directions.
STATE_MEASURES = ("state_norm", "step_norm", "cosine")
DIRECTION_MEASURES = ("direction_step_norm",)


# --- lens -----------------------------------------------------------------------------------------


@job_files(writes="lens")
def run_lens(job: CheckpointJob) -> None:
    """Write the table "lens"."""
    config = job.config
    checkpoint, text = job.checkpoint(config.lens.dtype), job.held_out(config.sequences)
    size = config.lens.batch_size
    job.write("lens", measure_lens(checkpoint, text, config.steps, config.other_loops, size))


@torch.no_grad()
def measure_lens(
    checkpoint: LoadedCheckpoint,
    text: HeldOut,
    steps: Sequence[int],
    other_loops: int,
    batch_size: int,
) -> Iterator[Row]:
    """Rows of the table "lens" without its column `run`, with one batch in memory at a time.

    `steps` has the loop steps k to decode, 0 first; the other groups run `other_loops`.
    """
    labels = checkpoint.model.config.group_labels
    decoded = len(labels) * len(steps)  # states of each token
    with meter("lens", decoded * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, other_loops)
            for group, entered in passing.entering(tokens):
                measured = _measure_group(passing, group, entered, batch.targets, steps)
                for place, k in enumerate(steps):
                    point = {"iteration": checkpoint.iteration, "group": labels[group], "k": k}
                    of_step = {name: values[place] for name, values in measured.items()}
                    yield from sequence_means(point, batch, of_step)
                bar.update(len(steps) * batch.inputs.numel())


def _measure_group(
    passing: Pass, group: int, entered: Tensor, targets: Tensor, steps: Sequence[int]
) -> dict[str, Tensor]:
    """Columns of the table "lens" per token, (S, B, T) each for S loop steps.

    NaN where one is undefined.
    """
    decoded = []
    for k, state in enumerate(passing.states(group, entered, steps[-1])):
        if k in steps:
            hidden = passing.after(group, state)  # as the model continues with x^k
            decoded.append(measure_tokens(passing.model, hidden, targets))
    ce, entropy, rank, predicted = (
        torch.stack([columns[name] for columns in decoded])
        for name in ("ce", "entropy", "rank", "predicted")
    )
    trained = steps.index(passing.model.config.typical_loops)  # its place in the first axis
    right = rank == 1
    # no loop step precedes x^0, so nothing is lost by more of them
    was_right = right[1:].int().cummax(0).values.bool()  # at this or an earlier k > 0
    return {
        "ce": ce,
        "entropy": entropy,
        "log_rank": rank.double().log(),
        "right": right,
        "lost": _from(1, was_right & ~right[1:]),
        "lost_since_mean": _from(trained + 1, right[trained] & ~right[trained + 1 :]),
        "agreement": predicted == predicted[trained],
    }


def _from(first: int, values: Tensor) -> Tensor:
    """Values of later loop steps (S - first, ...) as floats (S, ...), NaN before the first."""
    before = torch.full((first, *values.shape[1:]), torch.nan, device=values.device)
    return torch.cat([before, values.double()])


# --- depth card -----------------------------------------------------------------------------------


@job_files(writes="quality states")
def run_card(job: CheckpointJob) -> None:
    """Write the tables "depth_quality" and "depth_states"."""
    config = job.config
    checkpoint, text = job.checkpoint(config.dtype), job.held_out(config.sequences)
    quality: list[Row] = []
    states: list[Row] = []
    for batch in batches(checkpoint, text, config.batch_size, "depth card"):
        of_counts, of_steps = measure_batch(checkpoint, batch, config.counts)
        quality += of_counts
        states += of_steps
    for name, rows in (("quality", quality), ("states", states)):
        keyed = ({"iteration": checkpoint.iteration} | row for row in rows)
        job.write(f"depth_{name}", keyed, name)


@torch.no_grad()
def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, counts: Sequence[int]
) -> tuple[list[Row], list[Row]]:
    """Rows of "depth_quality" and of "depth_states" of B held-out sequences, without `iteration`.

    `counts` has the loop counts, ascending.
    """
    tokens = batch.inputs.to(checkpoint.device)
    passing = Pass.of(checkpoint, tokens, batch.sequences, counts[-1])
    model, attend = checkpoint.model, passing.attend
    card = _Card(passing, batch, counts)
    hidden = model.embed(tokens, attend.positions)
    hidden = run_stages(model, hidden, lambda n, x: model.unlooped_layer(n, x, attend), card.group)
    card.decode(hidden)
    return list(card.quality_rows()), card.states


@dataclass
class _Card:
    """One batch that passes the groups, with `passing.loops` loop steps each."""

    passing: Pass
    batch: HeldOut
    counts: Sequence[int]
    decoded: list[dict[str, Tensor]] = field(default_factory=list)  # by loop count, (B, T) each
    states: list[Row] = field(default_factory=list)

    def group(self, index: int, entered: Tensor) -> Tensor:
        """The hidden states after a group, whose rows are added."""
        label = self.passing.model.config.group_labels[index]
        last = self.passing.loops
        states = self.passing.states(index, entered, last + 1)  # one more, for the last row's step
        if index == 0:
            states = self._decoding(states)
        # for the messages of `check_finite`
        keys, places = token_keys(0, self.batch), loop_places(label, last + 1)
        for k, step in enumerate(_loop_steps(states, entered.dtype)):
            check_finite(step.state_norm[None], keys, places[k:], "a state of norm")
            for measure, values in measure_state(step).items():
                point = {"group": label, "k": k, "measure": measure}
                rows = self.batch.rows(**over_tokens(values))
                self.states += (point | row for row in rows)
            if k == last:
                break
        # in the dtype of the model again: states are measured in float32 at least
        return self.passing.model.finish(index, step.state.to(entered.dtype))

    def _decoding(self, states: Iterator[Tensor]) -> Iterator[Tensor]:
        """The states of the first group; states at smaller loop counts are decoded."""
        for k, state in enumerate(states):
            if k in self.counts[:-1]:
                self.decode(replace(self.passing, loops=k).after(0, state))
            yield state

    def decode(self, hidden: Tensor) -> None:
        """Measure what the head reads (B, T, C) after the next loop count."""
        self.decoded.append(measure_tokens(self.passing.model, hidden, self.batch.targets))

    def quality_rows(self) -> Iterator[Row]:
        """Rows of "depth_quality", once all loop counts are decoded."""
        # a model without groups has one count, which may be below that of its config
        typical = self.passing.model.config.typical_loops
        place = self.counts.index(min(typical, self.counts[-1]))
        at_trained = self.decoded[place]
        compared = compare_predictions(self.decoded, at_trained)
        for loops, columns in zip(self.counts, compared, strict=True):
            yield from sequence_means({"loops": loops}, self.batch, columns)


def _loop_steps(states: Iterable[Tensor], precision: torch.dtype) -> Iterator[LoopStep]:
    """The loop steps of x^0, x^1, … (..., C); the distance to the final state is unknown."""
    return loop_steps(map(exact, states), repeat(torch.empty(0)), precision)


def measure_state(step: LoopStep) -> dict[str, Tensor]:
    """Measures of a loop step in the table "depth_states", (...) each; NaN where undefined."""
    start = direction(step.state)
    update = direction(step.state + step.update) - start
    of_direction = LoopStep(start, update, None, None, step.distance_to_final)
    found = measure_step(step, [LOOP_MEASURES[name] for name in STATE_MEASURES])
    measures = [LOOP_MEASURES[name] for name in DIRECTION_MEASURES]
    return found | measure_step(of_direction, measures)


def over_tokens(values: Tensor) -> dict[str, list[float]]:
    """`SEQUENCE_STATISTICS` of values (B, T), name -> one per sequence; NaN is no value."""
    nulls = values.isnan().sum(-1)
    return {
        "mean": values.double().nanmean(-1).tolist(),
        "count": (values.shape[-1] - nulls).tolist(),
        "nulls": nulls.tolist(),
    }
