"""Rule measure_lens: what the states of all loop steps predict through the layers behind their group."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.exits.lens import measure_lens
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config = arguments.config
    torch.set_num_threads(1)  # small tensors gain little from a second thread
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.lens.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, config.lens_sequences)
    rows = pd.DataFrame(measure_lens(checkpoint, text, config))
    tables.write("lens", rows.assign(run=config.run), arguments.lens)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("checkpoint", "val", "metadata", "lens")))
