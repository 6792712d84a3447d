"""Rule benchmark_throughput: tokens per second of sequences that are decoded together, on the last checkpoint."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.exits.probe import open_probe
from twoscale.model.checkpoints import open_checkpoint
from twoscale.studies.throughput.measure import measure_throughput


def main(arguments) -> None:
    config = arguments.config
    torch.set_num_threads(config.throughput.cpu_threads)
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.exits.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, config.throughput.sequences[-1])
    measured = measure_throughput(checkpoint, text, config, open_probe(arguments.probe, checkpoint))
    for name, rows in zip(("throughput", "throughput_loops"), measured, strict=True):
        frame = pd.DataFrame(rows, columns=list(tables.columns(name))).assign(run=config.run)
        tables.write(name, frame, getattr(arguments, name))


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "throughput", "throughput_loops")
    command.run(main, command.parser(__doc__, files, optional=("probe",)))
