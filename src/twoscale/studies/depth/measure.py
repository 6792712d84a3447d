"""Measurements through the loops, also far beyond those of training: the lens, and the depth card's
quality and states.

The lens decodes a state x^k of a group as the model would continue with it: all tokens of a
sequence leave the group with their x^k and pass the stages after it, whose loop steps do not depend
on k. The logit lens (nostalgebraist 2020) applies the head alone; here the remaining layers come
first, as in Geiping et al., `predict_from_latents`, because the head has been trained on their
output only.

The card runs every group for the largest loop count, in one pass. The first group has the same
states whatever its loop count is; at every smaller one its state passes the stages after it with as
many loop steps. States are measured one after another, with a few of one batch in memory at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from twoscale.base import meter
from twoscale.data.batches import HeldOut
from twoscale.dynamics.measures import LOOP_MEASURES, LoopStep, direction
from twoscale.dynamics.states import batches, check_finite, exact, loop_places, token_keys
from twoscale.exits.oracle import Pass, measure_tokens
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import run_stages

Row = dict[str, object]
STATE_MEASURES = (
    "state_norm",
    "step_norm",
    "cosine",
    "direction_step_norm",
)  # in the table "depth_states"


# --- lens -----------------------------------------------------------------------------------------


@job_files(writes="lens")
def run_lens(job: CheckpointJob) -> None:
    config = job.config
    checkpoint, text = job.checkpoint(config.lens.dtype), job.held_out(config.sequences)
    job.write(
        "lens",
        measure_lens(checkpoint, text, config.steps, config.other_loops, config.lens.batch_size),
    )


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
    with meter("lens", len(labels) * len(steps) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, other_loops)
            for group, entered in passing.entering(tokens):
                measured = _measure_group(passing, group, entered, batch.targets, steps)
                means = {
                    name: values.double().mean(-1).tolist() for name, values in measured.items()
                }  # (S, B)
                for place, k in enumerate(steps):
                    point = {"iteration": checkpoint.iteration, "group": labels[group], "k": k}
                    of_step = {name: values[place] for name, values in means.items()}
                    yield from (point | row for row in batch.rows(**of_step))
                bar.update(len(steps) * batch.inputs.numel())


def _measure_group(
    passing: Pass, group: int, entered: Tensor, targets: Tensor, steps: Sequence[int]
) -> dict[str, Tensor]:
    """Columns of the table "lens" per token, (S, B, T) each for S loop steps; NaN where one is
    undefined.
    """
    states = enumerate(passing.states(group, entered, steps[-1]))
    decoded = [
        measure_tokens(passing.model, passing.after(group, x), targets)
        for k, x in states
        if k in steps
    ]
    measured = {
        name: torch.stack([columns[name] for columns in decoded])
        for name in ("ce", "entropy", "rank")
    }
    predicted = torch.stack([columns["predicted"] for columns in decoded])
    trained = steps.index(passing.model.config.typical_loops)
    right = measured["rank"] == 1
    measured["log_rank"] = measured.pop("rank").double().log()
    # wrong now and right at an earlier loop step; no loop step precedes x^0, so nothing is lost by
    # more of them
    lost = _from(1, right[1:].int().cummax(0).values.bool() & ~right[1:])
    since = _from(trained + 1, right[trained] & ~right[trained + 1 :])
    agrees = predicted == predicted[trained]
    return measured | {
        "right": right.double(),
        "lost": lost,
        "lost_since_mean": since,
        "agreement": agrees,
    }


def _from(first: int, values: Tensor) -> Tensor:
    """Values of later loop steps (S - first, ...) as floats (S, ...), NaN before the first."""
    return torch.cat(
        [torch.full((first, *values.shape[1:]), torch.nan, device=values.device), values.double()]
    )


# --- depth card -----------------------------------------------------------------------------------


@job_files(writes="quality states")
def run_card(job: CheckpointJob) -> None:
    config = job.config
    checkpoint, text = job.checkpoint(config.dtype), job.held_out(config.sequences)
    found: dict[str, list[Row]] = {"quality": [], "states": []}
    for batch in batches(checkpoint, text, config.batch_size, "depth card"):
        for name, rows in zip(found, measure_batch(checkpoint, batch, config.counts), strict=True):
            found[name] += ({"iteration": checkpoint.iteration} | row for row in rows)
    for name, rows in found.items():
        job.write(f"depth_{name}", rows, name)


@torch.no_grad()
def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, counts: Sequence[int]
) -> tuple[list[Row], list[Row]]:
    """Rows of "depth_quality" and of "depth_states" of B held-out sequences, without `iteration`.

    `counts` has the loop counts, ascending.
    """
    tokens = batch.inputs.to(checkpoint.device)
    walk = _Walk(Pass.of(checkpoint, tokens, batch.sequences, counts[-1]), batch, counts)
    model, attend = checkpoint.model, walk.passing.attend
    hidden = model.embed(tokens, attend.positions)
    walk.decode(
        run_stages(model, hidden, lambda n, x: model.unlooped_layer(n, x, attend), walk.group)
    )
    return list(walk.quality_rows()), walk.states


@dataclass
class _Walk:
    """One batch on its way through the groups, with `passing.loops` loop steps each."""

    passing: Pass
    batch: HeldOut
    counts: Sequence[int]
    decoded: list[dict[str, Tensor]] = field(default_factory=list)  # by loop count, (B, T) each
    states: list[Row] = field(default_factory=list)

    def group(self, index: int, entered: Tensor) -> Tensor:
        """The hidden states after a group, whose rows are added."""
        label, loops = self.passing.model.config.group_labels[index], self.passing.loops
        states = self.passing.states(
            index, entered, loops + 1
        )  # one more, for the step after the last row
        steps = loop_steps(self._decoding(states) if index == 0 else states)
        keys, places = token_keys(0, self.batch), loop_places(label, loops + 1)
        for k, step in zip(range(loops + 1), steps, strict=False):
            check_finite(step.state_norm[None], keys, places[k : k + 1], "a state of norm")
            for measure, values in measure_state(step).items():
                key = {"group": label, "k": k, "measure": measure}
                self.states += (key | row for row in self.batch.rows(**over_tokens(values)))
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
        typical = (
            self.passing.model.config.typical_loops
        )  # more than the one count of a model without groups
        previous, trained = (
            None,
            self.decoded[self.counts.index(min(typical, self.counts[-1]))]["predicted"],
        )
        for loops, found in zip(self.counts, self.decoded, strict=True):
            flips = (
                torch.full_like(found["ce"], torch.nan)
                if previous is None
                else found["predicted"] != previous
            )
            columns = {"ce": found["ce"], "entropy": found["entropy"], "flips": flips}
            columns["agreement"] = found["predicted"] == trained
            means = {name: values.double().mean(-1).tolist() for name, values in columns.items()}
            yield from ({"loops": loops, **row} for row in self.batch.rows(**means))
            previous = found["predicted"]


def loop_steps(states: Iterator[Tensor]) -> Iterator[LoopStep]:
    """The loop steps of x^0, x^1, … (..., C), of which three are held at a time."""
    unknown = torch.empty(0)  # the distance to the final state
    update = length = None
    precision = (first := next(states)).dtype
    state = exact(first)
    for after in map(exact, states):
        step = LoopStep(state, after - state, update, length, unknown, precision)
        yield step
        state, update, length = after, step.update, step.step_norm


def measure_state(step: LoopStep) -> dict[str, Tensor]:
    """The `STATE_MEASURES` of a loop step, (...) each; NaN where one is undefined."""
    assert step.update is not None
    start = direction(step.state)
    of_direction = LoopStep(
        start, direction(step.state + step.update) - start, None, None, step.distance_to_final
    )
    undefined = torch.full_like(step.state_norm, torch.nan)
    measures = [LOOP_MEASURES[name] for name in STATE_MEASURES]
    read = [(each, of_direction if each.of_direction else step) for each in measures]
    return {
        each.name: each.compute(found) if each.defined(found) else undefined for each, found in read
    }


def over_tokens(values: Tensor) -> dict[str, list[float]]:
    """`SEQUENCE_STATISTICS` of values (B, T), of which NaN is no value: name -> one number per
    sequence.
    """
    nulls = values.isnan().sum(-1)
    counts = values.shape[-1] - nulls
    return {
        "mean": values.double().nanmean(-1).tolist(),
        "count": counts.tolist(),
        "nulls": nulls.tolist(),
    }
