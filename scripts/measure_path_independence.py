"""Rule measure_path_independence: the same held-out text under several draws of the noise, at one checkpoint."""

import torch

from twoscale import command
from twoscale.data.batches import open_held_out
from twoscale.model.checkpoints import open_checkpoint
from twoscale.studies.path_independence import measure as independence


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.trajectories.dtype)
    held_out = open_held_out(arguments.val, arguments.metadata, config.model, config.independence_sequences)
    draws = config.path_independence.draws
    independence.measure(checkpoint, held_out, config.trajectories, draws, arguments.independence)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("checkpoint", "val", "metadata", "independence")))
