"""A run on a machine that may end at any time: started in the background from a pack, continued by the next start.

First the GPU check, whose speed of training decides about the schedule, then the workflow: training, the analyses of
each checkpoint as it is written, exits, figures and claims. Notes are in `results/{run}/gpu`. The lock on the file
`lock` is held while a process of the session runs, and released by the system however it ends.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import PROJECT, Config, checkpoint_iterations
from twoscale.jobs import machine
from twoscale.model.flops import mean_flops_per_token
from twoscale.workflow import pack
from twoscale.workflow.runs import RESULTS, Runs

CHECK, TRAINED = 0.2, 0.8  # shares of the time: of the check at most, and when training has ended
LAST_RESORT = 30.0  # seconds after which a check that does not keep its limit is killed
STARTUP = 15.0  # seconds from the start of a training job to its first iteration, without compilation; estimated
RESERVE = 0.9  # of the time of training for iterations; the rest is for saves and jobs that share the GPU
NEAR_END = 0.9  # share of the iterations after which there is no checkpoint but the last
JOBS_ON_GPU = 3  # training and the analyses of two checkpoints; the exit benchmark takes all cores, so it runs alone
TARGETS = f"all snapshot {RESULTS}/training.pdf"
MOST_BYTES = 15_000_000  # of an archive
SHOWN = ("snapshot/**/*", "claims.md", "*.pdf", "*.svg")  # of the archive, the most important first
OF_RUN = ("gpu/*.*", "tables/*.parquet", "training/*.*", "benchmarks/*.tsv", "logs/*.log")
PER_TOKEN = {"loop_metrics": "trajectories", "drift": "drift"}  # table -> folder of what it is aggregated from


class Session:
    """The session of a pack, in the folder of its checkout. Raises InputError for a folder without a pack."""

    def __init__(self, folder: Path) -> None:
        self.pack, self._packed = folder, folder / pack.CONFIG
        self.run = Runs(configs.read_yaml(self._packed), Path("scripts")).selected
        self.folder = Path(RESULTS, self.run, "gpu")
        self.config, self.log, self._file = (self.folder / name for name in ("config.yaml", "log.txt", "session.json"))

    @property
    def values(self) -> dict[str, Any]:
        """The user's layers of the config, with the device and, once it is chosen, the schedule."""
        return configs.read_yaml(self.config if self.config.exists() else self._packed)

    def configure(self, **sections: Any) -> None:
        changed = configs.merge(self.values, sections, keep_null=True)
        with replacing(self.config) as temporary:
            temporary.write_text(yaml.safe_dump(changed), encoding="utf-8")

    @property
    def runs(self) -> Runs:
        return Runs(self.values, Path("scripts"))

    @property
    def state(self) -> dict[str, Any]:
        """Notes of the session; empty before the first start."""
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}

    def note(self, **facts: Any) -> None:
        with replacing(self._file) as temporary:
            temporary.write_text(json.dumps(self.state | facts, indent=1) + "\n", encoding="utf-8")

    def lock(self) -> int | None:
        """The descriptor of the lock, which child processes keep; None if a process of the session holds it."""
        descriptor = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def start(session: Session, minutes: float, device: str | None, wait: bool = False) -> str:
    """Start the session in the background, or continue it with the time and device of the first start; a sentence.

    With `wait` it returns when the session has ended. Raises InputError where there is no CUDA device to start on.
    """
    session.folder.mkdir(parents=True, exist_ok=True)
    if (lock := session.lock()) is None:
        return f"{session.folder}: a session is running already."
    os.close(lock)  # the worker takes it
    if not session.state:
        device = device or session.runs.config.compute.device
        if device == "cuda":
            machine.check_cuda("config key compute.device")
        session.configure(compute={"device": device})
        packed = json.loads((session.pack / pack.MANIFEST).read_text(encoding="utf-8"))
        modified = packed["code"] != pack.code_digest(PROJECT)  # known without git
        session.note(started=time.time(), minutes=minutes, device=device, modified=modified)
    command = [sys.executable, "scripts/gpu_pack.py", "--folder", str(session.pack), "work"]
    with session.log.open("a", encoding="utf-8") as log:
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    if wait:
        return f"{session.folder}: the session has ended with exit status {worker.wait()}."
    return f"{session.folder}: the session of {session.state['minutes']:g} minutes is running."


def work(session: Session) -> str:
    """Continue the session to its end; a sentence. Raises InputError if the check did not measure training."""
    if (lock := session.lock()) is None:
        return f"{session.folder}: a session is running already."
    session.note(pid=os.getpid(), stage="unpack")
    pack.unpack(session.pack)
    if "iterations" not in session.state:
        seconds = CHECK * 60 * session.state["minutes"]
        options = f"--device={session.state['device']} --model={session.config} --folder={session.folder}"
        command = f"pytest -q -m gpu -p no:cacheprovider tests/gpu {options} --seconds={seconds:g}".split()
        _stage(session, "check", command, lock, seconds + LAST_RESORT)
        _choose_schedule(session)
    last = session.runs.last_checkpoint(None)  # training goes before analyses
    # without Snakemake's lock, which a killed one leaves behind: that of the session is held
    options = f"--nolock --cores all --scheduler greedy --resources gpu_slot={JOBS_ON_GPU} --keep-going"
    command = f"snakemake {options} --configfile {session.config} --prioritize {last} -- {TARGETS}".split()
    _stage(session, "workflow", command, lock)
    return f"{session.folder}: the session has ended."


def _stage(session: Session, name: str, command: list[str], lock: int, limit: float | None = None) -> None:
    """Run a module of Python; note its exit status, null if it took longer than the limit, and its seconds."""
    session.note(stage=name)
    command, began, status = [sys.executable, "-m", *command], time.time(), None
    with suppress(subprocess.TimeoutExpired):
        status = subprocess.run(command, timeout=limit, pass_fds=[lock], check=False).returncode
    session.note(**{name: {"status": status, "seconds": round(time.time() - began, 1)}})


def _choose_schedule(session: Session) -> None:
    """The schedule that fits what is left of the time, at the speed of training that the check measured first."""
    table = tables.read("gpu_check", session.folder / "gpu-check.parquet").dropna(subset=["value"])
    speed = table[(table["quantity"] == "training") & (table["unit"] == "TFLOP/s")].head(1)
    if speed.empty:
        page = session.folder / "gpu-check.md"
        raise InputError(f"{page}: found no speed of training, expected one to choose the schedule; see {session.log}.")
    compilation = table[(table["quantity"] == "compilation") & table["setting"].isin(speed["setting"])]["value"].sum()
    left = session.state["started"] + TRAINED * 60 * session.state["minutes"] - time.time()
    train = schedule(session.runs.config, 1e12 * speed["value"].item(), STARTUP + compilation, left)
    session.configure(train=train)
    session.note(iterations=train["iterations"])


def schedule(config: Config, flops_per_s: float, startup: float, seconds: float) -> dict[str, Any]:
    """Keys of `train` for the schedule that takes `seconds`: as many iterations as fit, with one whole cosine.

    Checkpoints are at the iterations of `config` and the last one; the job of each starts in `startup` seconds.
    """
    train, early = config.train, checkpoint_iterations(config.train)
    iteration_flops = mean_flops_per_token(config.model, train).total * train.batch_size * config.model.context_length
    possible = RESERVE * (seconds - startup * (len(early) + 1)) * flops_per_s / iteration_flops
    iterations = max(1, min(999_999, int(possible)))
    iterations -= iterations % 10 ** max(0, len(str(iterations)) - 3)  # three digits
    return {
        "iterations": iterations,
        "checkpoint_every": iterations,
        "early_checkpoints": [iteration for iteration in early if iteration < NEAR_END * iterations],
        "warmup_iterations": min(train.warmup_iterations, iterations // 10),
        "lr_decay_iterations": None if train.lr_decay_iterations is None else iterations,
    }


def status(session: Session) -> str:
    """A few lines: stage, GPU check, iteration, jobs, and the last errors. Raises InputError before the first start."""
    if not (state := session.state):
        raise InputError(f"{session.folder}: found no session; start one with `run`.")
    stage, finished = state.get("stage", "start"), state.get("workflow", {}).get("status") == 0
    where = "finished" if finished else f"stopped in stage {stage}; `run` continues it"
    if (lock := session.lock()) is None:
        where = f"stage {stage} is running"
    else:
        os.close(lock)
    minute = (time.time() - state["started"]) / 60
    lines = [f"{session.run} on {state['device']}: {where}; minute {minute:.0f} of {state['minutes']:g}"]
    if "check" in state:
        ended = "passed" if state["check"]["status"] == 0 else "FAILED or not complete"
        lines.append(f"GPU check: {ended}, see {session.folder}/gpu-check.md")
    log = session.log.read_text(encoding="utf-8", errors="replace")
    lines += re.findall(r"(?m)^.*: iteration \d+ of .+$", log)[-1:] + re.findall(r"(?m)^\d+ of \d+ steps.*$", log)[-1:]
    return "\n".join(lines + list(dict.fromkeys(re.findall(r"(?mi)^.*error: .+$", log)))[-3:])


def collect(session: Session, folder: Path) -> str:
    """Write the present results into `{run}.zip` in a folder, about `MOST_BYTES` at most; a sentence.

    Files have their paths below `results/`, without figures of earlier runs and tables with a row per token. Until the
    tables of the run are complete, statistics of the checkpoints so far are in `gpu/`.
    """
    from twoscale.dynamics import aggregate  # here, because it imports pandas

    results, run = Path(RESULTS), Path(RESULTS, session.run)
    for table, per_token in PER_TOKEN.items():
        files = sorted((run / per_token).glob("iteration_*.parquet"))
        if files and not (run / f"tables/{table}.parquet").exists():
            tables.write(table, aggregate.summarise(table, files, session.run), session.folder / f"{table}.parquet")
    shown = (path for pattern in SHOWN for path in sorted(results.glob(pattern)))
    files = [path for path in shown if path.is_file() and path.stat().st_mtime >= session.state["started"]]
    files += [path for pattern in OF_RUN for path in sorted(run.glob(pattern))]
    target = folder / f"{session.run}.zip"
    with replacing(target) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(session.pack / pack.MANIFEST, pack.MANIFEST)
        for path in files:
            if new.stat().st_size + path.stat().st_size <= MOST_BYTES:
                archive.write(path, path.relative_to(results))
        left_out = len(files) + 1 - len(archive.namelist())
    return f"{target}: {len(files)} files, without {left_out} for which there was no space"
