"""Rule measure_uniform_loops: the reference of the Pareto figure, the same loops for all tokens."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.shards import open_shard
from twoscale.exits.benchmark import held_out_text
from twoscale.exits.scaling import measure_uniform_loops
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config, exits = arguments.config, arguments.config.exits
    torch.set_num_threads(arguments.threads)
    checkpoint = open_checkpoint(arguments.checkpoint, config, exits.dtype)
    shard = open_shard(arguments.val, arguments.metadata)
    text, _ = held_out_text(shard, config.model.context_length, exits)
    rows = pd.DataFrame(measure_uniform_loops(checkpoint, *text, exits))
    tables.write("uniform_loops", rows.assign(run=config.run), arguments.uniform_loops)


if __name__ == "__main__":
    parser = command.parser(__doc__, files=("checkpoint", "val", "metadata", "uniform_loops"))
    parser.add_argument("--threads", type=int, required=True, help="threads of torch")
    command.run(main, parser)
