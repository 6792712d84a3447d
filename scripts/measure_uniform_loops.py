"""Rule measure_uniform_loops: the reference of the Pareto figure, the same loops for all tokens."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.config import whole_sequences
from twoscale.data.batches import open_held_out
from twoscale.exits.fixed_loops import measure_uniform_loops
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config, exits = arguments.config, arguments.config.exits
    torch.set_num_threads(arguments.threads)
    checkpoint = open_checkpoint(arguments.checkpoint, config, exits.dtype)
    sequences = whole_sequences(exits.quality_tokens, config.model.context_length)
    text = open_held_out(arguments.val, arguments.metadata, config.model, sequences)
    rows = pd.DataFrame(measure_uniform_loops(checkpoint, text, exits))
    tables.write("uniform_loops", rows.assign(run=config.run), arguments.uniform_loops)


if __name__ == "__main__":
    parser = command.parser(__doc__, files=("checkpoint", "val", "metadata", "uniform_loops"))
    parser.add_argument("--threads", type=int, required=True, help="threads of torch")
    command.run(main, parser)
