"""Rules with torch: call the function with this dotted path on a checkpoint and held-out text."""

import torch

from twoscale.jobs import command
from twoscale.jobs.table_job import CHECKPOINT_FILES
from twoscale.model.checkpoints import CheckpointJob

if __name__ == "__main__":
    measure, further = command.called_job()
    names = (*CHECKPOINT_FILES, *further)
    parser = command.parser(__doc__, job_files=names)
    parser.add_argument("--threads", type=int, default=1, help="threads that the job may use")

    def main(arguments):
        torch.set_num_threads(1)  # Snakemake runs such jobs side by side
        measure(CheckpointJob(arguments.config, command.files(arguments, names), arguments.threads))

    command.run(main, parser)
