"""Evaluations of an oracle over uniform loop counts."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from twoscale import progress
from twoscale.config import ExitsConfig
from twoscale.data.batches import HeldOut
from twoscale.exits.benchmark import Row, TextEvaluator
from twoscale.exits.criteria import Fixed
from twoscale.exits.oracle import converged_from
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.loss import cross_entropies

if TYPE_CHECKING:
    from twoscale.model.checkpoint_job import CheckpointJob


def run(job: "CheckpointJob") -> None:
    """Write the table "uniform_loops"."""
    torch.set_num_threads(job.threads)
    exits = job.config.exits
    text = job.held_out(job.config.sequences)
    job.write("uniform_loops", measure_uniform_loops(job.checkpoint(exits.dtype), text, exits))


def measure_uniform_loops(checkpoint: LoadedCheckpoint, text: HeldOut, exits: ExitsConfig) -> Iterator[Row]:
    """Rows of the table "uniform_loops": the reference of the Pareto figure, on held-out sequences.

    The text is evaluated at each loop count of the criterion `fixed`, ascending, the same for all tokens and
    groups. A token then counts at the least of them from which on its most likely next token is the one of the
    last count, `max_loops`. No criterion can know that, so it bounds what exits per token can save without
    changing a prediction.
    """
    counts = exits.criteria["fixed"].thresholds
    evaluator = TextEvaluator(checkpoint, exits)
    criteria = [Fixed(count) for count in counts]
    size = evaluator.batch_size(criteria[0])
    with progress.meter("uniform loops", len(counts) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(size):
            predictions, losses = [], []
            for criterion in criteria:
                logits, _ = evaluator.evaluate(criterion, batch)
                predictions.append(logits.argmax(-1))
                losses.append(cross_entropies(logits, batch.targets))
                bar.update(batch.inputs.numel())
            least = converged_from(torch.stack(predictions))  # (B, T), index into counts
            ce = torch.stack(losses).gather(0, least[None])[0].mean(1).tolist()
            loops = torch.tensor(counts, dtype=torch.float64, device=least.device)[least].mean(1).tolist()
            at_max = (least == len(counts) - 1).double().mean(1).tolist()
            yield from batch.rows(loops=loops, ce=ce, ppl=list(map(math.exp, ce)), share_at_max_loops=at_max)
