"""Rule measure_calibration: paths of thresholds of one exit criterion, and what they cost held-out documents.

A criterion from a user's file is first tried on a few tokens.
"""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.data.shards import read_end_of_text
from twoscale.exits.probe import open_probe
from twoscale.exits.trial import try_criteria
from twoscale.model.checkpoints import open_checkpoint
from twoscale.studies.calibration.measure import measure_calibration


def main(arguments) -> None:
    config = arguments.config
    torch.set_num_threads(arguments.threads)
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.exits.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, config.sequences)
    if config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], config.exits)
    probe = open_probe(arguments.probe, checkpoint)
    measured = measure_calibration(checkpoint, text, config, read_end_of_text(arguments.metadata), probe)
    for name, rows in zip(("runs", "paths"), measured, strict=True):
        tables.write(f"calibration_{name}", pd.DataFrame(rows).assign(run=config.run), getattr(arguments, name))


if __name__ == "__main__":
    parser = command.parser(__doc__, ("checkpoint", "val", "metadata", "runs", "paths"), optional=("probe",))
    parser.add_argument("--threads", type=int, required=True, help="threads of torch")
    command.run(main, parser)
