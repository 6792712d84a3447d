"""The worker of a session (docs/gpu.md): measures how fast this machine trains a run, then runs its
training jobs.
"""

import argparse
import json
from pathlib import Path

from twoscale.config import read_yaml
from twoscale.jobs import command, worker
from twoscale.training.trial import trial
from twoscale.workflow.runs import Runs


def main(arguments: argparse.Namespace) -> None:
    if arguments.trial is not None:
        with arguments.trial.open("w", encoding="utf-8", buffering=1) as file:  # line by line
            for row in trial(Runs(read_yaml(arguments.config), Path("scripts")).config):
                file.write(json.dumps(row) + "\n")
            file.write("null\n")
    worker.serve(arguments.address)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", type=Path, help="path of the socket")
    parser.add_argument("config", type=Path, help="config of the run, a YAML file")
    parser.add_argument(
        "--trial", type=Path, help="file for the rows of the trial, one JSON object a line"
    )
    command.run(main, parser)
