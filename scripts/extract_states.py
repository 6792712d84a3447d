"""Rule extract_states: every hidden state of one held-out sequence, for Fig. 1."""

import torch

from twoscale.data.batches import open_held_out
from twoscale.data.tokenizer import load_tokenizer
from twoscale.dynamics.states import save_states
from twoscale.jobs import command
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)
    config, place = arguments.config, arguments.config.trajectories.states_sequence
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.trajectories.dtype)
    # the sequences of extract_trajectories
    held_out = open_held_out(arguments.val, arguments.metadata, config.model, config.trajectory_sequences)
    sequence = held_out[place : place + 1]
    tokenizer = load_tokenizer(config.tokenizer, arguments.tokenizer)
    words = [tokenizer.decode([token]) for token in sequence.inputs[0].tolist()]
    save_states(checkpoint, sequence, words, config.trajectories.loops, arguments.states)


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "states")
    command.run(main, command.parser(__doc__, files, optional=("tokenizer",)))
