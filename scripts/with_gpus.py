"""Run a command on GPUs that no other job of this machine has: `with_gpus.py COUNT COMMAND ...`."""

import argparse
import sys

from twoscale import gpu_lease
from twoscale.errors import InputError

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="GPUs that the command needs")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    try:
        gpu_lease.run(arguments.count, arguments.command)
    except InputError as error:
        sys.exit(f"error: {error}")
