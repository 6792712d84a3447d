"""GPUs of its own for each job where a machine has several: leases that end with their holder.

Snakemake counts GPUs (the resource `gpu_slot`) but does not say which is whose. A lease is a lock on a file in
the machine's temporary folder, so the kernel gives it back however the holder ends. Under SLURM nothing is
leased: there the scheduler hands out GPUs.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from twoscale.errors import InputError

VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.5


def run(count: int, command: Sequence[str]) -> None:
    """Become `command`, with `count` leased GPUs the only ones that CUDA shows it; waits until they are free.

    On a machine with one GPU jobs take turns by `gpu_slot`, so there is nothing to lease.

    Raises:
        InputError: the machine has several GPUs, but fewer than `count`.
    """
    gpus = [] if "SLURM_JOB_ID" in os.environ else visible(os.environ)
    if len(gpus) > 1:
        os.environ[VISIBLE] = ",".join(wait_for(count, gpus, leases_folder()))
    os.execvp(command[0], command)


def visible(environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that a process may use, as CUDA_VISIBLE_DEVICES takes them."""
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    try:
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):  # no GPU: torch will say so
        return []


def leases_folder() -> Path:
    """Where this user's processes on this machine meet; locks on shared file systems are not to be trusted."""
    folder = Path(tempfile.gettempdir()) / f"twoscale-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def wait_for(count: int, gpus: Sequence[str], folder: Path) -> list[str]:
    """Lease `count` of the GPUs as soon as so many are free at once."""
    if count > len(gpus):
        raise InputError(f"{VISIBLE}: found {len(gpus)} GPUs, expected at least {count}, one a training process.")
    told = False
    while (leased := lease(count, gpus, folder)) is None:
        if not told:
            print(f"waiting for {count} of {len(gpus)} GPUs, the others are leased", file=sys.stderr, flush=True)
            told = True
        time.sleep(POLL_SECONDS)
    return leased


def lease(count: int, gpus: Sequence[str], folder: Path) -> list[str] | None:
    """The first `count` GPUs that nobody holds, or None and nothing held.

    The locks survive `exec` and end with the process.
    """
    held: dict[str, int] = {}  # GPU -> descriptor of its locked file
    for gpu in gpus:
        descriptor = os.open(folder / gpu.replace("/", "_"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        os.set_inheritable(descriptor, True)
        held[gpu] = descriptor
        if len(held) == count:
            return list(held)
    for descriptor in held.values():
        os.close(descriptor)
    return None
