"""Run a command on GPUs that no other job of this machine uses: `with_gpus.py COUNT COMMAND ...`."""

import sys

from twoscale.base import InputError
from twoscale.jobs.machine import run_on_gpus

if __name__ == "__main__":
    # no parser, because the options of the command, and a `--` among them, must pass unchanged
    try:
        run_on_gpus(int(sys.argv[1]), sys.argv[2:])
    except InputError as error:
        sys.exit(f"error: {error}")
