"""What the function of a measurement gets besides files and tables: the checkpoint, held-out text and the probe."""

from dataclasses import dataclass

from twoscale.data.batches import HeldOut, open_held_out
from twoscale.exits.probe import Probe, open_probe
from twoscale.jobs.study_job import StudyJob
from twoscale.model.checkpoints import LoadedCheckpoint, open_checkpoint


@dataclass(frozen=True)
class CheckpointJob(StudyJob):
    """A job on a checkpoint. `threads`: those that it may use; torch has one unless the function sets more."""

    threads: int = 1

    def checkpoint(self, dtype: str) -> LoadedCheckpoint:
        """The checkpoint in `dtype`, on the device of the config."""
        return open_checkpoint(self.file("checkpoint"), self.config, dtype)

    def held_out(self, sequences: int) -> HeldOut:
        """So many sequences of held-out text."""
        return open_held_out(self.file("val"), self.file("metadata"), self.config.model, sequences)

    def probe(self, checkpoint: LoadedCheckpoint) -> Probe | None:
        """The fitted probe for the criterion `probe`, if the job has one."""
        return open_probe(self.file("probe") if self.files.get("probe") else None, checkpoint)
