"""Rule extract_trajectories: the loops of one checkpoint on held-out text, measured for each token."""

import torch

from twoscale.data.batches import open_held_out
from twoscale.dynamics.trajectories import extract
from twoscale.jobs import command
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.trajectories.dtype)
    held_out = open_held_out(arguments.val, arguments.metadata, config.model, config.trajectory_sequences)
    outputs = {
        "trajectories": arguments.trajectories,
        "token_paths": arguments.paths,
        "token_drift": arguments.drift,
    }
    extract(checkpoint, held_out, config.trajectories, config.path_types, outputs)


if __name__ == "__main__":
    inputs, outputs = ("checkpoint", "val", "metadata"), ("trajectories", "paths", "drift")
    command.run(main, command.parser(__doc__, files=(*inputs, *outputs)))
