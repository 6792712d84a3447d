"""Rule measure_exit_quality: quality and loops of one exit criterion and of its controls on the last checkpoint.

A criterion from a user's file is first tried on a few tokens.
"""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.exits.benchmark import measure_quality
from twoscale.exits.probe import open_probe
from twoscale.exits.trial import try_criteria
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config, exits = arguments.config, arguments.config.exits
    torch.set_num_threads(arguments.threads)
    checkpoint = open_checkpoint(arguments.checkpoint, config, exits.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, config.sequences)
    if config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], exits)
    measured = measure_quality(checkpoint, text, exits, open_probe(arguments.probe, checkpoint))
    for table, rows in measured.items():
        frame = pd.DataFrame(rows, columns=list(tables.columns(table))).assign(run=config.run)
        tables.write(table, frame, getattr(arguments, table.removeprefix("exit_")))


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "quality", "loops", "controls")
    parser = command.parser(__doc__, files, optional=("probe",))
    parser.add_argument("--threads", type=int, required=True, help="threads of torch")
    command.run(main, parser)
