"""Rule extract_trajectories: the loops of one checkpoint on held-out text, measured for each token."""

import torch

from twoscale import command
from twoscale.data.batches import held_out_sequences
from twoscale.data.shards import open_shard
from twoscale.dynamics.trajectories import extract
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.trajectories.dtype)
    shard = open_shard(arguments.val, arguments.metadata)
    tokens, _ = held_out_sequences(shard, config.model.context_length, config.trajectory_sequences)
    outputs = {
        "trajectories": arguments.trajectories,
        "token_paths": arguments.paths,
        "token_drift": arguments.drift,
    }
    extract(checkpoint, tokens, config.trajectories, config.path_types, outputs)


if __name__ == "__main__":
    inputs, outputs = ("checkpoint", "val", "metadata"), ("trajectories", "paths", "drift")
    command.run(main, command.parser(__doc__, files=(*inputs, *outputs)))
