"""Quality and geometry far beyond the trained loops: the tables "depth_quality" and "depth_states".

One pass runs every group for the largest loop count, and its states are in "depth_states". The first group has
the same states whatever its loop count is; at every smaller one its state passes the stages after it with as many loop
steps. States are measured one after another, with a few states of one batch in memory at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twoscale.data.batches import HeldOut
from twoscale.dynamics.measures import LOOP_MEASURES, LoopStep, direction
from twoscale.dynamics.states import batches, exact
from twoscale.exits.sequence_pass import Pass, measure_tokens
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import run_stages
from twoscale.studies.depth_card.steps import STATE_MEASURES, counts_of

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

Row = dict[str, object]


def run(job: "CheckpointJob") -> None:
    """Write the tables "depth_quality" and "depth_states"."""
    config = job.config
    checkpoint, text = job.checkpoint(config.depth_card.dtype), job.held_out(config.sequences)
    found: dict[str, list[Row]] = {"depth_quality": [], "depth_states": []}
    for batch in batches(checkpoint, text, config.depth_card.batch_size, "depth card"):
        for table, rows in zip(found, measure_batch(checkpoint, batch, counts_of(config)), strict=True):
            found[table] += ({"iteration": checkpoint.iteration} | row for row in rows)
    job.write("depth_quality", found["depth_quality"], "quality")
    job.write("depth_states", found["depth_states"], "states")


@torch.no_grad()
def measure_batch(checkpoint: LoadedCheckpoint, batch: HeldOut, counts: Sequence[int]) -> tuple[list[Row], list[Row]]:
    """Rows of "depth_quality" and of "depth_states" of B held-out sequences, without `iteration`.

    Args:
        checkpoint: The model and the seed of its noise.
        batch: The sequences.
        counts: Loop counts, ascending.
    """
    tokens = batch.inputs.to(checkpoint.device)
    walk = _Walk(Pass.of(checkpoint, tokens, batch.sequences, counts[-1]), batch, counts)
    model, attend = checkpoint.model, walk.passing.attend
    hidden = model.embed(tokens, attend.positions)
    walk.decode(run_stages(model, hidden, lambda n, x: model.unlooped_layer(n, x, attend), walk.group))
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
        states = self.passing.states(index, entered, loops + 1)  # one more, for the step after the last row
        steps = loop_steps(self._decoding(states) if index == 0 else states)
        for k, step in zip(range(loops + 1), steps, strict=False):
            medians = {name: _medians(values) for name, values in measure_state(step).items()}
            self.states += ({"group": label, "k": k} | row for row in self.batch.rows(**medians))
        return self.passing.model.finish(index, step.state.to(entered.dtype))

    def _decoding(self, states: Iterator[Tensor]) -> Iterator[Tensor]:
        """The states of the first group; states at smaller loop counts are decoded."""
        for k, state in enumerate(states):
            if k in self.counts[:-1]:
                self.decode(replace(self.passing, loops=k).behind(0, state))
            yield state

    def decode(self, hidden: Tensor) -> None:
        """Measure what the head reads (B, T, C) after the next loop count."""
        self.decoded.append(measure_tokens(self.passing.model, hidden, self.batch.targets))

    def quality_rows(self) -> Iterator[Row]:
        previous = None
        for loops, found in zip(self.counts, self.decoded, strict=True):
            flips = torch.full_like(found["ce"], torch.nan) if previous is None else found["predicted"] != previous
            means = {"ce": found["ce"], "entropy": found["entropy"], "flips": flips}
            averages = {name: values.double().mean(-1).tolist() for name, values in means.items()}
            yield from ({"loops": loops, **row} for row in self.batch.rows(**averages))
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
    """The columns `STATE_MEASURES` of a loop step, (...) each; NaN where one is undefined."""
    assert step.update is not None
    start = direction(step.state)
    of_direction = LoopStep(start, direction(step.state + step.update) - start, None, None, step.distance_to_final)
    undefined = torch.full_like(step.state_norm, torch.nan)
    measures = [LOOP_MEASURES[name] for name in STATE_MEASURES]
    read = [(each, of_direction if each.of_direction else step) for each in measures]
    return {each.name: each.compute(found) if each.defined(found) else undefined for each, found in read}


def _medians(values: Tensor) -> list[float]:
    """Medians over the tokens of each sequence, without NaN: (B, T) -> B numbers."""
    return values.double().nanquantile(0.5, dim=-1).tolist()
