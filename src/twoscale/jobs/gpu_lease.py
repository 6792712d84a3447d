"""Exclusive per-job GPU leases on multi-GPU machines.

Snakemake counts GPUs (the resource `gpu_slot`) but does not assign them to jobs. A lease is a lock on a file in the
machine's temporary folder, which the kernel releases however the holder ends. Under SLURM the scheduler assigns GPUs,
and there are no leases.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from twoscale.base import InputError, private_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.5


def run(count: int, command: Sequence[str]) -> None:
    """Wait for `count` free GPUs, then replace this process by `command`, to which only these GPUs are visible.

    On a machine with one GPU there are no leases, because `gpu_slot` lets only one job run at a time.

    Raises:
        InputError: if the machine has several GPUs, but fewer than `count`.
    """
    gpus = [] if "SLURM_JOB_ID" in os.environ else visible_gpus(os.environ)
    if len(gpus) > 1:
        os.environ[VISIBLE] = ",".join(wait_for(count, gpus, leases_folder()))
    os.execvp(command[0], [*command])


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that a process may use, in the form that CUDA_VISIBLE_DEVICES takes."""
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    try:
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):  # no GPU: torch reports it
        return []


def leases_folder() -> Path:
    """Folder of this user's locks on this machine. It is local, because locks on shared file systems are unreliable."""
    return private_folder(Path(tempfile.gettempdir()) / f"twoscale-gpus-{os.getuid()}", "TMPDIR")


def wait_for(count: int, gpus: Sequence[str], folder: Path) -> list[str]:
    """Wait until `count` of the GPUs are free at the same time, and lease them."""
    if count > len(gpus):
        raise InputError(f"{VISIBLE}: found {len(gpus)} GPUs, expected at least {count}, one per training process.")
    first = True
    while (names := lease(count, gpus, folder)) is None:
        if first:
            print(f"waiting for {count} of {len(gpus)} GPUs; the others are in use", file=sys.stderr, flush=True)
            first = False
        time.sleep(POLL_SECONDS)
    return names


def lease(count: int, gpus: Sequence[str], folder: Path) -> list[str] | None:
    """Lease the first `count` free GPUs, or none and return None if fewer are free.

    The locks survive `exec` and end with the process.
    """
    locks: dict[str, int] = {}  # GPU -> descriptor of its locked file
    for gpu in gpus:
        descriptor = os.open(folder / gpu.replace("/", "_"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        os.set_inheritable(descriptor, True)
        locks[gpu] = descriptor
        if len(locks) == count:
            return list(locks)
    for descriptor in locks.values():
        os.close(descriptor)
    return None
