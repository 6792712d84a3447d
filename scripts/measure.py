"""Rules of measurements: call the function with this dotted path on a checkpoint and held-out text."""

import torch

from twoscale.jobs import command
from twoscale.model.checkpoints import CheckpointJob

if __name__ == "__main__":
    measure = command.function_argument()
    parser, names = command.parser_of_options(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads that the job may use")

    def main(arguments):
        torch.set_num_threads(1)  # Snakemake runs such jobs side by side
        measure(CheckpointJob(arguments.config, command.files(arguments, names), arguments.threads))

    command.run(main, parser)
