"""A run on a machine that may end at any time: started in the background from a pack, continued by
the next start.

Training comes first: a trial of a minute chooses between eager and compiled training and, from the
measured speed, the number of iterations; then one process, the worker, trains all segments. What
follows must not take time from training: analyses of all checkpoints with their figures, then
latencies, which need the machine for themselves, with Fig. 4 and the claims, a profile of one
token, and in the time that is left the GPU check. Notes are in `results/{run}/gpu`. The lock on the
file `lock` is held while a process of the session runs, and released by the system however it ends.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from twoscale import config as configs
from twoscale.base import InputError, replacing
from twoscale.config import PROJECT, Config, checkpoint_iterations
from twoscale.jobs import machine, worker
from twoscale.workflow import pack
from twoscale.workflow.runs import RESULTS, Runs

# Seconds.
TRIAL = 90.0  # for each row of the trial, at most
START = 20.0  # from the trial to iteration 1
CHECKPOINT = 6.0  # between two segments
_ANALYSES = 210.0  # for everything after training
_PROFILE = 60.0  # of the profile, at most
_LEAST_CHECK = 45.0  # of time left for the check
_RESERVE = 0.95  # of the time of training for iterations; the rest is for held-out losses and saves
_WORTH = 1.5  # times the tokens per second for which a larger batch than the config's is taken
_NEAR_END = 0.9  # share of the iterations after which there is no checkpoint but the last
_JOBS_ON_GPU = 5  # analyses at a time
_NAMES = ("fig1", "fig2", "fig3", "fig5", "training")
_FIGURES = " ".join(f"{RESULTS}/{name}.pdf" for name in _NAMES)
_STAGES = ("training", "analyses", "latency", "profile", "check")
MOST_BYTES = 15_000_000  # of an archive
_SHOWN = (
    "snapshot/**/*",
    "claims.md",
    "*.pdf",
    "*.svg",
)  # of the archive, the most important first
_OF_RUN = ("gpu/*.*", "tables/*.parquet", "training/*.*", "benchmarks/*.tsv", "logs/*.log")


class Session:
    """The session of a pack, in the folder of its checkout. Raises InputError for a folder without
    a pack.
    """

    def __init__(self, folder: Path) -> None:
        self.pack = folder
        self._packed = folder / pack.CONFIG
        self.run = Runs(configs.read_yaml(self._packed), Path("scripts")).selected
        self.folder = Path(RESULTS, self.run, "gpu")
        self.config = self.folder / "config.yaml"
        self.log = self.folder / "log.txt"
        self.trial = self.folder / "trial.json"
        self.address = self.folder / "worker"
        self._file = self.folder / "session.json"

    @property
    def values(self) -> dict[str, Any]:
        """The user's layers of the config, with the device and, once it is chosen, the schedule."""
        return configs.read_yaml(self.config if self.config.exists() else self._packed)

    def configure(self, **sections: Any) -> None:
        changed = configs.merge(self.values, sections)
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

    def left(self) -> float:
        """Seconds to the end of the session."""
        return self.state["started"] + 60 * self.state["minutes"] - time.time()

    def lock(self) -> int | None:
        """The descriptor of the lock, which child processes keep; None if a process of the session
        holds it.
        """
        descriptor = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def start(session: Session, minutes: float, device: str | None, wait: bool = False) -> str:
    """Start the session in the background, or continue it with the time and device of the first
    start; a sentence.

    With `wait` it returns when the session has ended. Raises InputError where there is no CUDA
    device to start on.
    """
    session.folder.mkdir(parents=True, exist_ok=True)
    if (lock := session.lock()) is None:
        return f"{session.folder}: a session is running already."
    os.close(lock)  # the background process takes it
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
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    if wait:
        return f"{session.folder}: the session has ended with exit status {process.wait()}."
    return f"{session.folder}: the session of {session.state['minutes']:g} minutes is running."


def work(session: Session) -> str:
    """Continue the session to its end; a sentence. Raises InputError if training could not be
    measured.
    """
    if (lock := session.lock()) is None:
        return f"{session.folder}: a session is running already."
    session.note(pid=os.getpid(), stage="trial")
    pack.unpack(session.pack)
    # without Snakemake's lock, which a killed one leaves behind: that of the session is held
    options = f"--nolock --cores all --scheduler greedy --configfile {session.config}"
    snakemake = f"-m snakemake {options}"
    with _training_worker(session, lock):
        last = session.runs.last_checkpoint(None)
        _stage(session, lock, "training", f"{snakemake} -- {last}", address=session.address)
    # several jobs share the GPU, and one that fails does not stop the others
    snakemake += f" --resources gpu_slot={_JOBS_ON_GPU} --keep-going --"
    quality = session.runs.table_file("exit_quality")
    _stage(session, lock, "analyses", f"{snakemake} {_FIGURES} {quality}")
    _stage(session, lock, "latency", f"{snakemake} all snapshot")
    profile = f"-m tests.benchmarks.profile_token {session.config}"
    page = session.folder / "profile.md"
    _stage(session, lock, "profile", f"{profile} --page {page}", limit=_PROFILE)
    if (seconds := session.left() - START) > _LEAST_CHECK:
        run = f"--device={session.state['device']} --model={session.config}"
        options = f"{run} --folder={session.folder} --seconds={seconds:g}"
        check = f"-m pytest -q -m gpu -p no:cacheprovider tests/gpu {options}"
        _stage(session, lock, "check", check, limit=seconds + START)
    return f"{session.folder}: the session has ended."


def _stage(
    session: Session,
    lock: int,
    name: str,
    arguments: str,
    limit: float | None = None,
    address: Path | None = None,
) -> None:
    """Run Python with arguments; note its seconds and its exit status, null if it took longer than
    the limit. `address` is that of the worker.
    """
    session.note(stage=name)
    variables = dict(os.environ)
    if address is not None:
        variables[worker.ADDRESS] = str(address)
    command = [sys.executable, *arguments.split()]
    began = time.time()
    status = None
    # beyond the limit `run` kills the process
    with suppress(subprocess.TimeoutExpired):
        status = subprocess.run(
            command, timeout=limit, pass_fds=[lock], env=variables, check=False
        ).returncode
    session.note(**{name: {"status": status, "seconds": round(time.time() - began, 1)}})


# --- the trial and the worker ---------------------------------------------------------------------


@contextmanager
def _training_worker(session: Session, lock: int) -> Iterator[None]:
    """A block in which the worker runs; before, unless an earlier start has done so, the trial
    chooses the schedule.

    The process of the trial goes on as the worker, unless it hangs or ends.
    """
    session.address.unlink(missing_ok=True)
    if "choice" in session.state:
        process = _start_worker(session, lock)
    else:
        process = _start_worker(session, lock, "--trial", str(session.trial))
        has_hung = outlasts_its_time(session, process)
        if has_hung:
            process.kill()  # a compiler that hangs may not answer to less
            process.wait()
        rows = [row for row in trial_rows(session) if row]  # without the None at its end
        best, sentence = choose(rows, session.runs.config, has_hung)
        keys = {key: best[key] for key in ("batch_size", "micro_batches", "compile")}
        seconds = session.left() - _ANALYSES
        train = schedule(session.runs.config, keys, best["tokens_per_s"], seconds)
        session.configure(train=train)
        session.note(choice=sentence, trial=rows, iterations=train["iterations"])
        if process.poll() is not None:
            process = _start_worker(session, lock)
    while not session.address.exists() and process.poll() is None:
        time.sleep(0.1)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _start_worker(session: Session, lock: int, *options: str) -> subprocess.Popen:
    script = [sys.executable, "scripts/train_worker.py"]
    paths = [str(session.address), str(session.config)]
    return subprocess.Popen([*script, *paths, *options], pass_fds=[lock])


def outlasts_its_time(session: Session, process: subprocess.Popen) -> bool:
    """Wait for the end of the trial; whether it took too long for one of its rows."""
    count = 0
    began = time.monotonic()
    while process.poll() is None:
        rows = trial_rows(session)
        # the trial has ended, and its process serves as the worker
        if rows[-1:] == [None]:
            return False
        # each row may take the whole time
        if len(rows) > count:
            count = len(rows)
            began = time.monotonic()
        if time.monotonic() - began > TRIAL:
            return True
        time.sleep(0.2)
    return False


def trial_rows(session: Session) -> list[dict[str, Any] | None]:
    """The rows of the trial so far; the last one is None once it has ended."""
    # without the last part: empty after a whole line, and otherwise a line that is being written
    lines = (
        session.trial.read_text(encoding="utf-8").split("\n")[:-1] if session.trial.exists() else []
    )
    return [json.loads(line) for line in lines]


def choose(
    rows: list[dict[str, Any]], config: Config, hangs: bool = False
) -> tuple[dict[str, Any], str]:
    """The row of the fastest setting of a trial, and why, in one sentence.

    `hangs`: whether the trial was ended before its next row. Raises InputError where nothing was
    measured.
    """
    measured = [row for row in rows if "tokens_per_s" in row]
    if not measured:
        failures = [f"{row['setting']}: {row['failed']}" for row in rows]
        found = "; ".join(failures) or "its process has ended"
        raise InputError(
            f"trial of training: found no speed ({found}), expected one to choose the schedule."
        )
    of_recipe = [row for row in measured if row["batch_size"] == config.train.batch_size]
    best = max(of_recipe or measured, key=lambda row: row["tokens_per_s"])
    for row in measured:
        if row["tokens_per_s"] > _WORTH * best["tokens_per_s"]:  # a larger batch
            best = row
            break
    speeds = [f"{row['setting']}: {row['tokens_per_s']:,.0f} tokens/s" for row in measured]
    sentence = f"{best['setting']} ({'; '.join(speeds)})"
    if config.train.compiles(config.compute.device) and not best["compile"]:
        sentence += f", because compilation {_why_not_compiled(rows, hangs)}"
    return best, sentence


def _why_not_compiled(rows: list[dict[str, Any]], hangs: bool) -> str:
    for row in rows:
        if row["compile"]:
            return f"failed ({row['failed']})" if "failed" in row else "is slower"
    return f"was not finished after {TRIAL:g} seconds" if hangs else "ended its process"


# --- the schedule ---------------------------------------------------------------------------------


def schedule(
    config: Config, keys: Mapping[str, Any], tokens_per_s: float, seconds: float
) -> dict[str, Any]:
    """Keys of `train` for a schedule that ends in `seconds`: as many iterations as fit, with one
    whole cosine.

    Checkpoints are at the iterations of `config` and the last one. `keys` are the chosen ones of
    the trial.
    """
    train = config.train.model_copy(update=keys)
    # checkpoints are at the same numbers of tokens, whatever the batch
    smaller = config.train.batch_size / train.batch_size
    points = [max(1, round(smaller * point)) for point in checkpoint_iterations(config.train)]
    seconds -= START + CHECKPOINT * (len(points) + 1)
    tokens = _RESERVE * tokens_per_s * seconds
    iterations = int(tokens / (train.batch_size * config.model.context_length))
    iterations = max(1, min(999_999, iterations))
    iterations -= iterations % 10 ** max(0, len(str(iterations)) - 3)  # three digits
    early = {point for point in points if point < _NEAR_END * iterations}
    warmup = min(round(smaller * train.warmup_iterations), iterations // 10)
    return {
        **keys,
        "iterations": iterations,
        "checkpoint_every": iterations,
        "early_checkpoints": sorted(early),
        "held_out_every": max(1, round(smaller * train.held_out_every)),
        "warmup_iterations": warmup,
        "lr_decay_iterations": None if train.lr_decay_iterations is None else iterations,
    }


# --- what is shown and taken along ----------------------------------------------------------------


def status(session: Session) -> str:
    """A few lines: stage, choice, iteration, jobs, and the last errors. Raises InputError before
    the first start.
    """
    if not (state := session.state):
        raise InputError(f"{session.folder}: found no session; start one with `run`.")
    stage = state.get("stage", "start")
    if (lock := session.lock()) is None:
        where = f"stage {stage} is running"
    else:
        os.close(lock)  # it was free
        is_finished = state.get("latency", {}).get("status") == 0
        where = "finished" if is_finished else f"stopped in stage {stage}; `run` continues it"
    minute = (time.time() - state["started"]) / 60
    at = f"minute {minute:.1f} of {state['minutes']:g}"
    lines = [f"{session.run} on {state['device']}: {where}; {at}"]
    if "choice" in state:
        lines.append(f"training: {state['choice']}; {state['iterations']} iterations")
    words = {0: "done", None: "not finished in its time"}
    for name in _STAGES:
        if name in state:
            ended = words.get(state[name]["status"], "FAILED")
            lines.append(f"{name}: {ended}, {state[name]['seconds']:g} s")
    log = session.log.read_text(encoding="utf-8", errors="replace")
    for pattern in (r"(?m)^.*: iteration \d+ of .+$", r"(?m)^\d+ of \d+ steps.*$"):
        lines += re.findall(pattern, log)[-1:]
    errors = dict.fromkeys(re.findall(r"(?mi)^.*error: .+$", log))
    return "\n".join([*lines, *list(errors)[-3:]])


def collect(session: Session, folder: Path) -> str:
    """Write the present results into `{run}.zip` in a folder, about `MOST_BYTES` at most; a
    sentence.

    Files have their paths below `results/`, without figures of earlier runs and tables with a row
    per token.
    """
    results, run = Path(RESULTS), Path(RESULTS, session.run)
    files = []
    for pattern in _SHOWN:
        for path in sorted(results.glob(pattern)):
            if path.is_file() and path.stat().st_mtime >= session.state["started"]:
                files.append(path)
    for pattern in _OF_RUN:
        files += sorted(run.glob(pattern))
    target = folder / f"{session.run}.zip"
    left_out = 0
    with replacing(target) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(session.pack / pack.MANIFEST, pack.MANIFEST)
        for path in files:
            # the size before compression, so the archive stays below the limit
            if new.stat().st_size + path.stat().st_size <= MOST_BYTES:
                archive.write(path, path.relative_to(results))
            else:
                left_out += 1
    return f"{target}: {len(files)} files, without {left_out} for which there was no space"
