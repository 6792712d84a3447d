"""Run a script in processes on all nodes of a SLURM job: `with_nodes.py NODES PROCESSES CPUS GPUS SCRIPT ...`.

Processes, CPUs and GPUs are those of each node.
"""

import sys

from twoscale.errors import InputError
from twoscale.jobs.launch import NodeResources, run_on_nodes

if __name__ == "__main__":
    # no parser, because the options of the script must pass unchanged
    try:
        run_on_nodes(NodeResources(*map(int, sys.argv[1:5])), sys.argv[5:])
    except InputError as error:
        sys.exit(f"error: {error}")
