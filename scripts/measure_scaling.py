"""Rule measure_scaling: cross-entropy and perplexity of one checkpoint at fixed loop counts."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.exits.fixed_loops import measure_scaling
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.scaling.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, config.scaling_sequences)
    rows = measure_scaling(checkpoint, text, config.scaling)
    tables.write("scaling_quality", pd.DataFrame(rows), arguments.quality)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("checkpoint", "val", "metadata", "quality")))
