"""Quality of each model at the loop count of the held-out loss; a model without loops has the same at any."""

from typing import TYPE_CHECKING

from twoscale.exits.fixed_loops import measure_scaling

if TYPE_CHECKING:
    from twoscale.model.checkpoint_job import CheckpointJob


def run(job: "CheckpointJob") -> None:
    """Write the table "scaling_quality"."""
    scaling = job.config.scaling
    text = job.held_out(job.config.sequences)
    job.write("scaling_quality", measure_scaling(job.checkpoint(scaling.dtype), text, scaling), "quality")
