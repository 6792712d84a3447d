"""Run a command on GPUs that no other job of this machine uses.

`with_gpus.py COUNT COMMAND ...`
"""

import argparse
import shutil
import sys

from twoscale.base import InputError
from twoscale.jobs.machine import run_on_gpus


def main(count: int, command: list[str]) -> None:
    if count < 1 or not command or shutil.which(command[0]) is None:
        raise InputError(
            f"with_gpus.py: found {count} GPUs for {command[:1]}, expected at least one for a"
            f" program."
        )
    run_on_gpus(count, command)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER
    )  # with its options, which pass unchanged
    try:
        main(**vars(parser.parse_args()))
    except InputError as error:
        sys.exit(f"error: {error}")
