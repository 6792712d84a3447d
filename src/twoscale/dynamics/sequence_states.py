"""The job that saves every hidden state of one held-out sequence, for Fig. 1."""

from typing import TYPE_CHECKING

from twoscale.data.tokenizer import load_tokenizer
from twoscale.dynamics.states import save_states

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob


def run(job: "CheckpointJob") -> None:
    """The job of the workflow. The sequence is one that `extract_trajectories` measures."""
    config, place = job.config, job.config.trajectories.states_sequence
    sequence = job.held_out(config.trajectory_sequences)[place : place + 1]
    tokenizer = load_tokenizer(config.tokenizer, job.optional("tokenizer"))
    words = [tokenizer.decode([token]) for token in sequence.inputs[0].tolist()]
    checkpoint = job.checkpoint(config.trajectories.dtype)
    save_states(checkpoint, sequence, words, config.trajectories.loops, job.file("states"))
