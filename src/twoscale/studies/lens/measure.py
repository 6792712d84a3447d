"""The lens: predictions from the state after every loop step, also far beyond the loops of training.

A state x^k of a group is decoded as the model would continue with it: all tokens of a sequence leave the group with
their x^k and pass the stages after it. Groups before and after it run the same number of loop steps whatever k is.
At k equal to that number, a state of any group predicts what the model predicts with that many loops in all groups.

The logit lens (nostalgebraist 2020) applies the head alone. Here the remaining layers come first, as in Geiping et al.,
`predict_from_latents`, because the head has been trained on their output only.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twoscale.base import meter
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.exits.sequence_pass import Pass, measure_tokens
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.studies.lens.steps import other_loops, steps_of

if TYPE_CHECKING:
    from twoscale.model.checkpoint_job import CheckpointJob

Row = dict[str, object]


def run(job: "CheckpointJob") -> None:
    """Write the table "lens"."""
    config = job.config
    text = job.held_out(config.sequences)
    job.write("lens", measure_lens(job.checkpoint(config.lens.dtype), text, config))


@torch.no_grad()
def measure_lens(checkpoint: LoadedCheckpoint, text: HeldOut, config: ConfigSlice) -> Iterator[Row]:
    """Rows of the table "lens" without its column `run`, with one batch in memory at a time.

    Args:
        checkpoint: The model, its iteration and the seed of its noise.
        text: Held-out sequences.
        config: Its sections `model` and `lens`.
    """
    labels, steps = checkpoint.model.config.group_labels, steps_of(config)
    with meter("lens", len(labels) * len(steps) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(config.lens.batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, other_loops(config))
            for group, entered in passing.entering(tokens):
                measured = _measure_group(passing, group, entered, batch.targets, steps)
                point = {"iteration": checkpoint.iteration, "group": labels[group]}
                yield from (point | row for row in _rows(measured, batch, steps))
                bar.update(len(steps) * batch.inputs.numel())


def _measure_group(
    passing: Pass, group: int, entered: Tensor, targets: Tensor, steps: Sequence[int]
) -> dict[str, Tensor]:
    """Columns of the table "lens" per token, (S, B, T) each for S loop steps; NaN where one is undefined."""
    states = enumerate(passing.states(group, entered, steps[-1]))
    decoded = [measure_tokens(passing.model, passing.behind(group, x), targets) for k, x in states if k in steps]
    measured = {name: torch.stack([columns[name] for columns in decoded]) for name in ("ce", "entropy", "rank")}
    trained = steps.index(passing.model.config.typical_loops)
    right = measured["rank"] == 1
    measured["log_rank"] = measured.pop("rank").double().log()
    # no loop step precedes x^0, so nothing is lost by more of them
    lost = _from(1, lost_again(right[1:]))
    since = _from(trained + 1, right[trained] & ~right[trained + 1 :])
    return measured | {"right": right.double(), "lost": lost, "lost_since_mean": since}


def lost_again(right: Tensor) -> Tensor:
    """Where a prediction is wrong now and was right at an earlier loop step: bool (S, ...) -> bool (S, ...)."""
    return right.int().cummax(0).values.bool() & ~right


def _from(first: int, values: Tensor) -> Tensor:
    """Values of later loop steps (S - first, ...) as floats (S, ...), NaN before the first."""
    return torch.cat([torch.full((first, *values.shape[1:]), torch.nan, device=values.device), values.double()])


def _rows(measured: dict[str, Tensor], batch: HeldOut, steps: Sequence[int]) -> Iterator[Row]:
    """One row per (loop step, sequence): means over the tokens of the sequence."""
    means = {name: values.double().mean(-1).tolist() for name, values in measured.items()}  # (S, B)
    for place, k in enumerate(steps):
        of_step = {name: values[place] for name, values in means.items()}
        yield from ({"k": k, **row} for row in batch.rows(**of_step))
