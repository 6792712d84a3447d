"""Run a script in processes on this node, or on all nodes of a SLURM job.

`with_nodes.py NODES PROCESSES CPUS GPUS SCRIPT ...`, with the processes, CPUs and GPUs of each node.
"""

import sys

from twoscale.base import InputError
from twoscale.jobs.machine import NodeResources, run_on_nodes, run_on_one_node

if __name__ == "__main__":
    # no parser, because the options of the script must pass unchanged
    share, command = NodeResources(*map(int, sys.argv[1:5])), sys.argv[5:]
    try:
        if share.nodes > 1:
            run_on_nodes(share, command)
        run_on_one_node(share.processes, command)
    except InputError as error:
        sys.exit(f"error: {error}")
