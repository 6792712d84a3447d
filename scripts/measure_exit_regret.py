"""Rule measure_exit_regret: exit criteria beside oracles that know every loop step, on the last checkpoint."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.exits.probe import open_probe
from twoscale.model.checkpoints import open_checkpoint
from twoscale.studies.arena.regret import measure_regret


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs the jobs of criteria beside it
    config, exits = arguments.config, arguments.config.exits
    checkpoint = open_checkpoint(arguments.checkpoint, config, exits.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, config.oracle_sequences)
    probe = open_probe(arguments.probe, checkpoint)
    for table, rows in measure_regret(checkpoint, text, exits, config.oracle, probe).items():
        frame = pd.DataFrame(rows).assign(run=config.run)
        tables.write(table, frame, getattr(arguments, table))


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "exit_regret", "oracle_frontier")
    command.run(main, command.parser(__doc__, files, optional=("probe",)))
