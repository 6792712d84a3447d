"""Rules benchmark_exits and benchmark_pareto: latency of exit criteria on the last checkpoint.

The second has a dense grid of thresholds and does not time a check.
"""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.exits.benchmark import measure_check_cost, measure_latency
from twoscale.exits.probe import open_probe
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config, exits = arguments.config, arguments.config.exits
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(arguments.checkpoint, config, exits.dtype)
    prompts = open_held_out(arguments.val, arguments.metadata, config.model, exits.latency_repeats)

    probe = open_probe(arguments.probe, checkpoint)
    latency, loops = measure_latency(checkpoint, prompts, exits, probe)
    measured = {"exit_latency": latency, "exit_latency_loops": loops}
    if arguments.check_cost is not None:
        measured["check_cost"] = list(measure_check_cost(checkpoint, prompts, exits))
    for name, rows in measured.items():
        frame = pd.DataFrame(rows, columns=list(tables.columns(name))).assign(run=config.run)
        tables.write(name, frame, getattr(arguments, name.removeprefix("exit_")))


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "latency", "latency_loops")
    command.run(main, command.parser(__doc__, files, optional=("check_cost", "probe")))
