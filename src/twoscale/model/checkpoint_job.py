"""The argument of the function of a measurement: files and tables, the checkpoint and held-out text."""

from dataclasses import dataclass

from twoscale.data.batches import HeldOut, open_held_out
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
        """The given number of sequences of held-out text."""
        return open_held_out(self.file("val"), self.file("metadata"), self.config.model, sequences)
