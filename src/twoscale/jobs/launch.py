"""How processes start: on free GPUs, on one node or several, and which ones torchrun started together.

Operators of clusters and shells inside another launch export the same variables to processes that train nothing
together. So these count only beside the one that torchrun alone sets, and the workflow removes all of them from the
environment of its jobs, in which a torchrun of a rule sets them anew.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from twoscale.base import InputError, private_folder

STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
SLURM_JOB = "SLURM_JOB_ID"
VISIBLE = "CUDA_VISIBLE_DEVICES"
STORE = "TWOSCALE_STORE"  # the file in which the processes of one node find each other
# torchrun's options have defaults in variables PET_*, for example PET_NNODES. Source: torch.distributed.argparse_util.
PREFIXES = ("TORCHELASTIC_", "PET_")
NODE_NUMBER = "PET_NODE_RANK"
NAMES = frozenset(
    f"{scope}{what}" for scope in ("", "LOCAL_", "GROUP_", "ROLE_", "NODE_") for what in ("RANK", "WORLD_SIZE")
) | {"ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", STORE}


class Team(NamedTuple):
    """The number `rank` of this process, and the numbers of processes and of nodes of its launch."""

    rank: int = 0
    size: int = 1
    nodes: int = 1


def team() -> Team:
    """The team of this process; of one process unless torchrun started it."""
    if STARTED_BY_TORCHRUN not in os.environ:
        return Team()
    numbers = (("RANK", 0), ("WORLD_SIZE", 1), ("GROUP_WORLD_SIZE", 1))
    return Team(*(int(os.environ.get(name, default)) for name, default in numbers))


def checked_team(processes: int) -> Team:
    """The team of this process, which must have the size train.processes of the config. Raises InputError."""
    found = team()
    if found.size != processes:
        raise InputError(
            f"config key train.processes: found {processes}, expected {found.size}, the number of processes that "
            f"started together ({STARTED_BY_TORCHRUN} and WORLD_SIZE in the environment, which torchrun sets)."
        )
    return found


def leave_team(environment: MutableMapping[str, str]) -> None:
    """Remove the variables of every launch from an environment."""
    for name in [name for name in environment if name in NAMES or name.startswith(PREFIXES)]:
        del environment[name]


class NodeResources(NamedTuple):
    """What a job uses of each of its `nodes`: processes, CPUs and GPUs."""

    nodes: int
    processes: int
    cpus: int
    gpus: int


def run_on_one_node(processes: int, command: Sequence[str]) -> None:
    """Run a script in several processes of this machine, which listen on no network interface except loopback.

    They find each other through files in a folder that only this user can open, because torchrun unpickles its store.
    """
    from torch.distributed.run import main  # planning imports this module without torch

    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))  # lo on Linux, lo0 on macOS
    with tempfile.TemporaryDirectory(prefix="twoscale-") as folder:
        os.environ |= {
            STORE: f"{folder}/processes",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
        }
        # the launcher would add a sign of life to the file every 5 seconds
        store = ["--rdzv-conf", "store_type=file,keep_alive_interval=86400", "--rdzv-endpoint", f"{folder}/launcher"]
        sizes = ["--nnodes", "1", "--nproc-per-node", str(processes), "--local-addr", "127.0.0.1"]
        main([*sizes, "--rdzv-backend", "c10d", *store, "--log-dir", f"{folder}/logs", "--", *command])


def run_on_nodes(share: NodeResources, command: Sequence[str]) -> NoReturn:
    """Replace this process, the first of a SLURM job, by srun, which runs `command` on all nodes of the job.

    One launcher starts on each node, and when one of them fails, the others end too. They meet at a free port of this
    machine, the first node, and exchange JSON; torchrun's other rendezvous, c10d, unpickles what anyone who reaches its
    port sends. Raises InputError outside of a SLURM job.
    """
    for found, what in ((SLURM_JOB in os.environ, f"variable {SLURM_JOB}"), (shutil.which("srun"), "command srun")):
        if not found:
            raise InputError(
                f"{what}: found none, expected the one of a SLURM job (--profile profiles/slurm) outside of a "
                f"container, because training is on {share.nodes} nodes."
            )
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    gpus = [f"--gpus-per-node={share.gpus}"] if share.gpus else []
    tasks = [f"--nodes={share.nodes}", f"--ntasks={share.nodes}", "--ntasks-per-node=1", *gpus]
    srun = ["srun", *tasks, f"--cpus-per-task={share.cpus}", "--kill-on-bad-exit=1", "--input=none"]
    numbered = ["sh", "-c", f'{NODE_NUMBER}=$SLURM_NODEID exec "$@"', "sh"]
    os.execvp("srun", [*srun, *numbered, *torchrun_line(share, socket.gethostname(), port), *command])


def torchrun_line(share: NodeResources, host: str, port: int) -> list[str]:
    """torchrun for the processes of one of several nodes, which has its number from the variable `NODE_NUMBER`."""
    sizes = ["--nnodes", str(share.nodes), "--nproc-per-node", str(share.processes)]
    # after "--" torchrun does not mistake an option of the script for an abbreviated option of torchrun
    return ["torchrun", *sizes, "--master-addr", host, "--master-port", str(port), "--"]


def run_on_gpus(count: int, command: list[str]) -> None:
    """Wait for `count` free GPUs, then replace this process by a command to which only these are visible.

    Snakemake counts the GPUs of a machine but does not assign them; SLURM does. A GPU is leased by a lock on a file,
    which the kernel releases however its holder ends.
    """
    query = ["sh", "-c", "nvidia-smi --query-gpu=uuid --format=csv,noheader"]
    names = os.environ.get(VISIBLE, subprocess.run(query, capture_output=True, text=True, check=False).stdout)
    gpus = [] if SLURM_JOB in os.environ else names.replace(",", " ").split()
    if 1 < len(gpus) < count:
        raise InputError(f"{VISIBLE}: found {len(gpus)} GPUs, expected at least {count}, one per training process.")
    while len(gpus) > 1:
        folder = private_folder(Path(tempfile.gettempdir()) / f"twoscale-gpus-{os.getuid()}", "TMPDIR")
        files = [os.open(folder / name.replace("/", "_"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW) for name in gpus]
        held = [(name, file) for name, file in zip(gpus, files, strict=True) if _locked(file)][:count]
        if len(held) == count:  # the locks survive `exec` and end with the process
            for _, file in held:
                os.set_inheritable(file, True)
            os.environ[VISIBLE] = ",".join(name for name, _ in held)
            break
        for file in files:
            os.close(file)
        time.sleep(0.5)
    os.execvp(command[0], command)


def _locked(file: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
