"""Rule extract_states: every hidden state of one held-out sequence, for Fig. 1."""

import torch

from twoscale import command
from twoscale.data.batches import held_out_sequences
from twoscale.data.shards import open_shard
from twoscale.data.tokenizer import load_tokenizer
from twoscale.dynamics.trajectories import save_states
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)
    config, number = arguments.config, arguments.config.trajectories.states_sequence
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.trajectories.dtype)
    shard = open_shard(arguments.val, arguments.metadata)
    sequences, _ = held_out_sequences(shard, config.model.context_length, number + 1)
    tokenizer = load_tokenizer(config.tokenizer, arguments.tokenizer)
    words = [tokenizer.decode([token]) for token in sequences[number].tolist()]
    save_states(checkpoint, sequences[number], words, config.trajectories, arguments.states)


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "states")
    command.run(main, command.parser(__doc__, files, optional=("tokenizer",)))
