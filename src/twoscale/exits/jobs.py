"""The jobs that measure exit criteria on the last checkpoint, on any grid of thresholds."""

from typing import TYPE_CHECKING

import torch

from twoscale.exits.benchmark import measure_quality
from twoscale.exits.probe import open_probe
from twoscale.exits.trial import try_criteria

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob


def measure_exit_quality(job: "CheckpointJob") -> None:
    """Quality and loops of a criterion and its cost-matched exits; a user's criterion is first tried on few tokens."""
    exits = job.config.exits
    torch.set_num_threads(job.threads)
    checkpoint = job.checkpoint(exits.dtype)
    text = job.held_out(job.config.sequences)
    if job.config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], exits)
    for table, rows in measure_quality(checkpoint, text, exits, open_probe(job.optional("probe"), checkpoint)).items():
        job.write(table, rows, table.removeprefix("exit_"))
