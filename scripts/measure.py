"""Rules of measurements: call the function with this dotted path on a checkpoint and held-out text."""

import torch

from twoscale.jobs import command
from twoscale.model.checkpoints import CheckpointJob
from twoscale.workflow.runs import files_of

if __name__ == "__main__":
    path = command.function_argument()
    measure = command.function(path)
    names = files_of(path)
    parser = command.parser(__doc__)
    command.add_files(parser, names)
    parser.add_argument("--threads", type=int, default=1, help="threads that the job may use")

    def main(arguments):
        torch.set_num_threads(1)  # Snakemake runs such jobs side by side
        measure(CheckpointJob(arguments.config, command.files(arguments, names), arguments.threads))

    command.run(main, parser)
