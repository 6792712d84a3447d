"""A run on a machine that may end at any time: started in the background from a pack, continued by the next start.

It checks the GPU, measures the speed of training, chooses the schedule that fits the time, and runs the workflow. What
it notes is in `results/{run}/gpu`: `session.json`, `config.yaml`, the report of the GPU check, and `log.txt`. The lock
on the file `lock` is held while one of its processes runs, and released by the system however they end.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from twoscale import config as configs
from twoscale.base import InputError, replacing
from twoscale.gpu import pack
from twoscale.gpu.schedule import schedule
from twoscale.jobs.machine import check_cuda
from twoscale.workflow.runs import RESULTS, Runs

# Shares of the whole time: of the check at most, and for what follows training.
CHECK, AFTER_TRAINING = 0.2, 0.2
SPEED_SECONDS = 20.0
JOBS_ON_GPU = 3  # training and the analyses of two checkpoints; the exit benchmark takes all cores, so it runs alone
TARGETS = ("all", f"{RESULTS}/training.pdf")


class Session:
    """The session of a pack, in the folder of its checkout. Raises InputError for a folder without a pack."""

    def __init__(self, folder: Path) -> None:
        self.pack, self._packed = folder, folder / pack.CONFIG
        self.run = Runs(configs.read_yaml(self._packed), Path("scripts")).selected
        self.folder = Path(RESULTS, self.run, "gpu")
        self.config, self.log = self.folder / "config.yaml", self.folder / "log.txt"
        self._file, self._lock = self.folder / "session.json", self.folder / "lock"

    @property
    def values(self) -> dict[str, Any]:
        """The user's layers of the config, with the device and, once it is chosen, the schedule."""
        return configs.read_yaml(self.config if self.config.exists() else self._packed)

    @property
    def runs(self) -> Runs:
        return Runs(self.values, Path("scripts"))

    def configure(self, **sections: Any) -> None:
        """Replace keys of the config."""
        changed = configs.merge(self.values, sections, keep_null=True)
        with replacing(self.config) as temporary:
            temporary.write_text(yaml.safe_dump(changed), encoding="utf-8")

    @property
    def state(self) -> dict[str, Any]:
        """Notes of the session; empty before the first start."""
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}

    def note(self, **facts: Any) -> None:
        with replacing(self._file) as temporary:
            temporary.write_text(json.dumps(self.state | facts, indent=1) + "\n", encoding="utf-8")

    @contextmanager
    def locked(self, wait: bool = True) -> Iterator[int]:
        """Hold the lock; yields the descriptor that child processes keep. Raises BlockingIOError instead of waiting."""
        descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def is_running(self) -> bool:
        try:
            with self.locked(wait=False):
                return False
        except BlockingIOError:
            return True


def start(session: Session, minutes: float, device: str | None, wait: bool = False) -> str:
    """Start the session in the background, or continue it; a sentence. Time and device stay as at the first start.

    With `wait` it returns when the session has ended, for a batch job. Raises InputError where there is no CUDA device
    to start on.
    """
    session.folder.mkdir(parents=True, exist_ok=True)
    if session.is_running:
        return f"{session.folder}: a session is running already."
    if not session.state:
        device = device or session.runs.config.compute.device
        if device == "cuda":
            check_cuda("config key compute.device")
        session.configure(compute={"device": device})
        session.note(started=time.time(), minutes=minutes, device=device)
    with session.log.open("a", encoding="utf-8") as log:
        command, inputs = _own(session, "work"), subprocess.DEVNULL
        worker = subprocess.Popen(command, stdin=inputs, stdout=log, stderr=log, start_new_session=True)
    if wait:
        return f"{session.folder}: the session has ended with exit status {worker.wait()}."
    return f"{session.folder}: the session of {session.state['minutes']:g} minutes is running."


def work(session: Session) -> str:
    """Continue the session to its end; a sentence. Raises InputError if the speed of training cannot be measured."""
    with session.locked() as lock:
        session.note(pid=os.getpid(), stage="unpack")
        pack.unpack(session.pack)
        if "check" not in session.state:
            _stage(session, "check", _check(session), lock, CHECK * 60 * session.state["minutes"])
        if "iterations" not in session.state:
            _choose_schedule(session, lock)
        if any(Path(".snakemake/locks").glob("*")):  # of a Snakemake that was killed
            _stage(session, "unlock", _snakemake(session, "--unlock"), lock)
        last = session.runs.paths.last_checkpoint(None)  # training goes before analyses
        _stage(session, "workflow", _snakemake(session, "--keep-going", "--prioritize", last, "--", *TARGETS), lock)
    return f"{session.folder}: the session has ended."


def _stage(session: Session, name: str, command: list[str], lock: int, limit: float | None = None) -> dict[str, Any]:
    """Run a command; note and return its exit status, null if it took longer than the limit, and its seconds."""
    session.note(stage=name)
    began = time.time()
    try:
        status = subprocess.run(command, check=False, timeout=limit, pass_fds=[lock]).returncode
    except subprocess.TimeoutExpired:
        status = None
    ended = {"status": status, "seconds": round(time.time() - began, 1)}
    session.note(**{name: ended})
    return ended


def _choose_schedule(session: Session, lock: int) -> None:
    """Measure the speed of training, and choose the schedule that fits what is left of the time."""
    measured = _stage(session, "speed", _own(session, "measure"), lock)
    if measured["status"] != 0:
        raise InputError(f"{session.log}: the speed of training could not be measured; see the messages above.")
    state, config = session.state, session.runs.config
    left = (1 - AFTER_TRAINING) * 60 * state["minutes"] - (time.time() - state["started"])
    train = schedule(config, state["flops_per_s"], measured["seconds"] - SPEED_SECONDS, left)
    session.configure(train=train)
    session.note(iterations=train["iterations"])


def measure(session: Session) -> str:
    """Note the speed of training; a sentence on it."""
    from twoscale.gpu.speed import flops_per_s  # here, because it imports torch

    session.note(flops_per_s=flops_per_s(session.runs, SPEED_SECONDS))
    return f"training: {session.state['flops_per_s'] / 1e12:.3g} TFLOP/s"


def _own(session: Session, action: str) -> list[str]:
    return [sys.executable, "scripts/gpu_pack.py", "--folder", str(session.pack), action]


def _check(session: Session) -> list[str]:
    config = session.runs.config
    options = {"device": config.compute.device, "model": session.values["preset"], "folder": session.folder}
    options |= {"micro-batches": config.train.batch_size}
    return [sys.executable, "scripts/gpu_check.py", *(f"--{name}={value}" for name, value in options.items())]


def _snakemake(session: Session, *arguments: str) -> list[str]:
    options = ["--cores", "all", "--scheduler", "greedy", "--resources", f"gpu_slot={JOBS_ON_GPU}"]
    return [sys.executable, "-m", "snakemake", *options, "--configfile", str(session.config), *arguments]
