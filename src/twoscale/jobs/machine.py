"""The machine of a job, its environment, and how processes start: on free GPUs, on one node or
several.

Each segment of training records its environments, on which bits depend besides config and code, in
the metadata of its log, and a partial state in its header. Weights and optimizer states leave them
out: equal states give equal files, so that later jobs are not repeated because of a variable that
changed no bit on this machine.
"""

import ctypes
import fcntl
import json
import os
import platform
import runpy
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from twoscale import tables
from twoscale.base import InputError, cpu_capability, first_line, processor

# --- what the machine has; without torch, whose import takes seconds


def description() -> dict[str, Any]:
    """Name of the processor, number of CPUs, and memory in GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor("model name") or platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
    }


def cuda_devices() -> int:
    """Number of CUDA devices that the driver offers to this process, which CUDA_VISIBLE_DEVICES can
    limit.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no driver
        return 0
    count = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))  # 0 is success
    return 0 if failed else count.value


def torch_build() -> dict[str, Any]:
    """The constants of torch's version.py, such as __version__, cuda and hip; empty where torch is
    not installed.
    """
    spec = find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    return runpy.run_path(str(path)) if path is not None and path.is_file() else {}


def check_cuda(origin: str, processes: int = 1, installed: bool = True) -> None:
    """Refuse CUDA for `processes` training processes, one per device, on a machine that cannot
    offer it: InputError.

    `origin` asks for it, such as "config key compute.device". `installed`: whether the torch that
    will run is the one of this environment. Builds of torch for ROCm are not examined.
    """
    build = torch_build() if installed else {}
    if build.get("hip"):
        return
    devices = cuda_devices()
    if build and build.get("cuda") is None:
        version = build.get("__version__")
        raise InputError(
            f"{origin}: found cuda, expected cpu, because PyTorch {version} is built without CUDA."
        )
    if not devices:
        raise InputError(
            f"{origin}: found cuda, expected cpu, because this machine has no CUDA device."
        )
    if processes > devices:
        expected = f"at most {devices}, the number of CUDA devices of this machine"
        raise InputError(f"config key train.processes: found {processes}, expected {expected}.")


def check_disk(folder: Path, needed: int, purpose: str) -> None:
    """Refuse to put `needed` bytes into a folder, which need not exist yet, where less is free."""
    # the nearest folder that exists
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    free = shutil.disk_usage(existing).free
    if free < needed:
        expected = f"at least {needed / 1e9:.3f} GB for {purpose}"
        raise InputError(
            f"folder {folder}: found {free / 1e9:.3f} GB of free disk space, expected {expected}."
        )


# --- environments: what bits depend on besides config and code ---

ENVIRONMENTS = "twoscale.environments"  # key of the metadata of a log
# Variables that choose other kernels, another order of sums or another precision of products.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY CUBLAS_WORKSPACE_CONFIG DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA"
    " MKL_CBWR MKL_DYNAMIC "
    "MKL_ENABLE_INSTRUCTIONS NVIDIA_TF32_OVERRIDE OMP_DYNAMIC OMP_THREAD_LIMIT"
    " ONEDNN_DEFAULT_FPMATH_MODE "
    "ONEDNN_MAX_CPU_ISA TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
).split()
FIRST = "first_iteration"
# version of the operations in model/kernels.py and model/loss.py: raised where their bits change
_OPERATIONS = 2

Environment = Mapping[str, Any]


def kernels(device: str) -> dict[str, Any]:
    """What selects the kernels of this process: names of variables and facts -> values, without
    unset variables.
    """
    import torch

    cuda = (
        {"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}
        if device == "cuda"
        else {}
    )
    facts = {
        "torch": torch.__version__,
        "cpu_capability": cpu_capability(),
        "operations": _OPERATIONS,
    } | cuda
    return facts | {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def environment(device: str, processes: int, nodes: int = 1, shard: bool = False) -> dict[str, Any]:
    """The environment of this process: its `kernels`, threads and processes; one node and a whole
    model go unsaid.
    """
    import torch

    several = ({"nodes": nodes} if nodes > 1 else {}) | ({"shard": shard} if shard else {})
    return kernels(device) | {"threads": torch.get_num_threads(), "processes": processes} | several


def differences(
    before: Environment, now: Environment, labels: tuple[str, str] = ("before", "now")
) -> list[str]:
    """One line per differing variable, in alphabetical order. `labels` are those of both sides."""
    lines = []
    for name in sorted((before.keys() | now.keys()) - {FIRST}):
        if before.get(name) != now.get(name):
            old, new = (
                repr(values[name]) if values.get(name) is not None else "unset"
                for values in (before, now)
            )
            lines.append(f"{name}: {old} {labels[0]}, {new} {labels[1]}")
    return lines


def distinct_environments(logs: Iterable[Path]) -> list[Environment]:
    """The environments of segments in order, each that differs from the one before."""
    found: list[Environment] = []
    for entry in (entry for log in logs for entry in recorded_environments(log)):
        if not found or differences(found[-1], entry):
            found.append(entry)
    return found


def recorded_environments(log: Path) -> list[Environment]:
    """The environments of the segment with this log; none where it is missing or does not say."""
    try:
        return json.loads(tables.metadata(log).get(ENVIRONMENTS, "[]"))
    except (OSError, ValueError):
        return []


# --- processes that torchrun started together
#
# Operators of clusters and shells inside another launch export the same variables to processes that
# train nothing together. So these count only beside the one that torchrun alone sets, and the
# workflow removes all of them from the environment of its jobs, in which a torchrun of a rule sets
# them anew.

_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_SLURM_JOB = "SLURM_JOB_ID"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
STORE = "TWOSCALE_STORE"  # the file in which the processes of one node find each other
# torchrun's options have defaults in variables PET_*, for example PET_NNODES. Source:
# torch.distributed.argparse_util.
PREFIXES = ("TORCHELASTIC_", "PET_")
NODE_NUMBER = "PET_NODE_RANK"
NAMES = frozenset(
    f"{scope}{what}"
    for scope in ("", "LOCAL_", "GROUP_", "ROLE_", "NODE_")
    for what in ("RANK", "WORLD_SIZE")
) | {"ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", STORE}


class Launch(NamedTuple):
    """The number `rank` of this process, and the numbers of processes and of nodes of its
    launch.
    """

    rank: int = 0
    size: int = 1
    nodes: int = 1


def launch() -> Launch:
    """The launch of this process; one process unless torchrun started it."""
    if _STARTED_BY_TORCHRUN not in os.environ:
        return Launch()
    numbers = (("RANK", 0), ("WORLD_SIZE", 1), ("GROUP_WORLD_SIZE", 1))  # the last: nodes
    return Launch(*(int(os.environ.get(name, default)) for name, default in numbers))


def clear_launch_variables(environment: MutableMapping[str, str]) -> None:
    """Remove the variables of every launch from an environment."""
    for name in [name for name in environment if name in NAMES or name.startswith(PREFIXES)]:
        del environment[name]


# --- start of processes


class NodeResources(NamedTuple):
    """What a job uses of each of its `nodes`: processes, CPUs and GPUs."""

    nodes: int
    processes: int
    cpus: int
    gpus: int


def run_on_one_node(processes: int, command: Sequence[str]) -> None:
    """Run a script in several processes of this machine, which listen on no network interface
    except loopback.

    They find each other through files in a folder that only this user can open, because torchrun
    unpickles its store.
    """
    from torch.distributed.run import main  # planning imports this module without torch

    loopback = next(
        name for _, name in socket.if_nameindex() if name.startswith("lo")
    )  # lo on Linux, lo0 on macOS
    with tempfile.TemporaryDirectory(prefix="twoscale-") as folder:
        os.environ |= {
            STORE: f"{folder}/processes",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
        }
        # the launcher would add a sign of life to the file every 5 seconds
        store = [
            "--rdzv-conf",
            "store_type=file,keep_alive_interval=86400",
            "--rdzv-endpoint",
            f"{folder}/launcher",
        ]
        sizes = ["--nnodes", "1", "--nproc-per-node", str(processes), "--local-addr", "127.0.0.1"]
        main(
            [
                *sizes,
                "--rdzv-backend",
                "c10d",
                *store,
                "--log-dir",
                f"{folder}/logs",
                "--",
                *command,
            ]
        )


def run_on_nodes(share: NodeResources, command: Sequence[str]) -> NoReturn:
    """Replace this process, the first of a SLURM job, by srun, which runs `command` on all nodes of
    the job.

    One launcher starts on each node, and when one of them fails, the others end too. They meet at a
    free port of this machine, the first node, and exchange JSON; torchrun's other rendezvous, c10d,
    unpickles what anyone who reaches its port sends.
    """
    for found, what in (
        (_SLURM_JOB in os.environ, f"variable {_SLURM_JOB}"),
        (shutil.which("srun"), "command srun"),
    ):
        if not found:
            expected = "that of a SLURM job (--profile profiles/slurm) outside of a container"
            raise InputError(
                f"{what}: found none, expected {expected}, for training on {share.nodes} nodes."
            )
    # a free port, which the first launcher binds next
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    gpus = [f"--gpus-per-node={share.gpus}"] if share.gpus else []
    tasks = [f"--nodes={share.nodes}", f"--ntasks={share.nodes}", "--ntasks-per-node=1", *gpus]
    srun = ["srun", *tasks, f"--cpus-per-task={share.cpus}", "--kill-on-bad-exit=1", "--input=none"]
    # srun sets SLURM_NODEID in the processes that it starts, not here
    numbered = ["sh", "-c", f'{NODE_NUMBER}=$SLURM_NODEID exec "$@"', "sh"]
    os.execvp(
        "srun", [*srun, *numbered, *torchrun_line(share, socket.gethostname(), port), *command]
    )


def torchrun_line(share: NodeResources, host: str, port: int) -> list[str]:
    """torchrun for the processes of one of several nodes, which has its number from the variable
    `NODE_NUMBER`.
    """
    sizes = ["--nnodes", str(share.nodes), "--nproc-per-node", str(share.processes)]
    # after "--" torchrun does not mistake an option of the script for an abbreviated option of
    # torchrun
    return ["torchrun", *sizes, "--master-addr", host, "--master-port", str(port), "--"]


def run_on_gpus(count: int, command: list[str]) -> None:
    """Wait for `count` free GPUs, then replace this process by a command to which only these are
    visible.

    Snakemake counts the GPUs of a machine but does not assign them; SLURM does. A GPU is leased by
    a lock on a file, which the kernel releases however its holder ends.
    """
    # none where SLURM assigns them; of a single one there is nothing to choose
    gpus = [] if _SLURM_JOB in os.environ else _visible_gpus()
    if 1 < len(gpus) < count:
        expected = f"at least {count}, one per training process"
        raise InputError(f"{_VISIBLE}: found {len(gpus)} GPUs, expected {expected}.")
    if len(gpus) > 1:
        while not (leased := _lease(gpus, count)):
            time.sleep(0.5)
        os.environ[_VISIBLE] = ",".join(leased)
    os.execvp(command[0], command)


def _visible_gpus() -> list[str]:
    """Numbers or UUIDs of the GPUs that this process may use."""
    names = os.environ.get(_VISIBLE)
    if names is None:
        # by a shell, in which a missing nvidia-smi is no exception
        query = ["sh", "-c", "nvidia-smi --query-gpu=uuid --format=csv,noheader"]
        names = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return names.replace(",", " ").split()


def _lease(gpus: Sequence[str], count: int) -> list[str]:
    """Lock `count` of the GPUs until this process and those that it becomes have ended; none if
    fewer are free.
    """
    folder = Path(tempfile.gettempdir()) / f"twoscale-gpus-{os.getuid()}"
    files = {}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for gpu in gpus:
            path = folder / gpu.replace("/", "_")
            # a link at this place, which another user may have made, is not followed
            files[gpu] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        expected = "a folder of this user; set TMPDIR to another one"
        raise InputError(
            f"{folder}: cannot be used ({first_line(error)}), expected {expected}."
        ) from error
    free = []
    for gpu, file in files.items():
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(gpu)
    # all or none: a job that holds a part of its GPUs would keep others waiting
    leased = free[:count] if len(free) >= count else []
    for gpu, file in files.items():
        # files that are not inheritable close at `exec`, and their locks end
        if gpu in leased:
            os.set_inheritable(file, True)  # the lock survives `exec`
        elif not leased:
            os.close(file)
    return leased
