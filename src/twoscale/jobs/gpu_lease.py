"""Exclusive GPUs for each job of a machine with several, which Snakemake counts (`gpu_slot`) but does not assign.

A GPU is leased by a lock on a file, which the kernel releases however its holder ends. SLURM assigns GPUs itself.
"""

import fcntl
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from twoscale.base import InputError, private_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"


def run(count: int, command: list[str]) -> None:
    """Wait for `count` free GPUs, then replace this process by a command to which only these are visible."""
    query = ["sh", "-c", "nvidia-smi --query-gpu=uuid --format=csv,noheader"]
    names = os.environ.get(VISIBLE, subprocess.run(query, capture_output=True, text=True, check=False).stdout)
    gpus = [] if "SLURM_JOB_ID" in os.environ else names.replace(",", " ").split()
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
