"""Rules benchmark_exits and benchmark_pareto: quality and latency of exit criteria on the last checkpoint.

The second has a dense grid, and the reference of uniform loops in place of the cost of a check.
"""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.exits.benchmark import held_out_text, measure_check_cost, measure_latency, measure_quality
from twoscale.exits.scaling import measure_uniform_loops
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config, exits = arguments.config, arguments.config.exits
    torch.set_num_threads(arguments.threads)
    checkpoint = open_checkpoint(arguments.checkpoint, config, exits.dtype)
    text, prompts = held_out_text(arguments.val, arguments.metadata, config.model.context_length, exits)

    measured = {}
    measured["exit_quality"], measured["exit_loops"] = measure_quality(checkpoint, text, exits)
    if arguments.uniform_loops is not None:
        measured["uniform_loops"] = list(measure_uniform_loops(checkpoint, text, exits))
    torch.set_num_threads(1)
    measured["exit_latency"], measured["exit_latency_loops"] = measure_latency(checkpoint, prompts, exits)
    if arguments.check_cost is not None:
        measured["check_cost"] = list(measure_check_cost(checkpoint, prompts, exits))
    for name, rows in measured.items():
        frame = pd.DataFrame(rows, columns=list(tables.columns(name))).assign(run=config.run)
        tables.write(name, frame, getattr(arguments, name.removeprefix("exit_")))


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "quality", "loops", "latency", "latency_loops")
    parser = command.parser(__doc__, files, optional=("check_cost", "uniform_loops"))
    parser.add_argument("--threads", type=int, required=True, help="torch threads for quality; latency takes one")
    command.run(main, parser)
