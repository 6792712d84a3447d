"""Quality at fixed loop counts: what loops gain, and what an oracle over uniform loop counts would spend."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from twoscale.base import meter
from twoscale.config import ScalingConfig
from twoscale.data.batches import HeldOut
from twoscale.exits.cost_matched import Row
from twoscale.exits.criteria import Fixed
from twoscale.exits.evaluation import evaluate_parallel
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.loss import cross_entropies

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob


def run(job: "CheckpointJob") -> None:
    """Write the table "scaling_quality"."""
    scaling = job.config.scaling
    text = job.held_out(job.config.sequences)
    job.write("scaling_quality", measure_scaling(job.checkpoint(scaling.dtype), text, scaling), "quality")


def measure_scaling(checkpoint: LoadedCheckpoint, text: HeldOut, scaling: ScalingConfig) -> Iterator[Row]:
    """Rows of the table "scaling_quality": held-out sequences with every group at each loop count."""
    label = f"scaling of iteration {checkpoint.iteration}"
    with meter(label, len(scaling.loops) * text.inputs.numel(), "tokens") as bar:
        for loops in scaling.loops:
            for batch in text.batches(scaling.batch_size):
                logits, _ = evaluate_parallel(checkpoint, Fixed(loops), batch, loops)
                losses = cross_entropies(logits, batch.targets).mean(1).tolist()
                for row in batch.rows(ce=losses, ppl=list(map(math.exp, losses))):
                    yield {"iteration": checkpoint.iteration, "loops": loops, **row}
                bar.update(batch.inputs.numel())
