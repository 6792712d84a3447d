"""Run a script in processes on this node, or on all nodes of a SLURM job.

`with_nodes.py NODES PROCESSES CPUS GPUS SCRIPT ...`, with the processes, CPUs and GPUs of each
node.
"""

import argparse
import sys
from pathlib import Path

from twoscale.base import InputError
from twoscale.jobs.machine import NodeResources, run_on_nodes, run_on_one_node


def main(command: list[str], **numbers: int) -> None:
    share = NodeResources(**numbers)
    if share.nodes > 1:
        run_on_nodes(share, command)
    if share.processes < 1 or not Path(*command[:1]).is_file():
        found = f"{share.processes} processes of {command[:1]}"
        raise InputError(f"with_nodes.py: found {found}, expected at least one of a script.")
    run_on_one_node(share.processes, command)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in NodeResources._fields:
        parser.add_argument(name, type=int)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER
    )  # a script with its options, which pass unchanged
    try:
        main(**vars(parser.parse_args()))
    except InputError as error:
        sys.exit(f"error: {error}")
