"""Rule measure_path_independence: the same held-out text under several draws of the noise, at one checkpoint."""

import torch

from twoscale import command
from twoscale.data.batches import held_out_sequences
from twoscale.data.shards import open_shard
from twoscale.dynamics import independence
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.trajectories.dtype)
    shard = open_shard(arguments.val, arguments.metadata)
    tokens, _ = held_out_sequences(shard, config.model.context_length, config.independence_sequences)
    draws = config.path_independence.draws
    independence.measure(checkpoint, tokens, config.trajectories, draws, arguments.independence)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("checkpoint", "val", "metadata", "independence")))
