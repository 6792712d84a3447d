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

# Seconds. TRIAL is for each row of the trial, at most; ANALYSES for all that follows training.
TRIAL, ANALYSES = 90.0, 150.0
EXPECTED_TRIAL, START, CHECKPOINT = (
    60.0,
    20.0,
    6.0,
)  # of the trial; from there to iteration 1; between segments
PROFILE, LEAST_CHECK = 60.0, 45.0  # of the profile at most; of time left for the check
RESERVE = 0.95  # of the time of training for iterations; the rest is for held-out losses and saves
EXPECTED = {
    "cuda": 100_000.0,
    "cpu": 2_000.0,
}  # tokens/s, for the plan that is printed before anything is measured
TIMES = (2, 8, 10)  # minutes that the plan names, besides the last one
WORTH = 1.5  # times the tokens per second for which a larger batch than the config's is taken
NEAR_END = 0.9  # share of the iterations after which there is no checkpoint but the last
JOBS_ON_GPU = 5  # analyses at a time
FIGURES = " ".join(f"{RESULTS}/{name}.pdf" for name in ("fig1", "fig2", "fig3", "fig5", "training"))
STAGES = ("training", "analyses", "latency", "profile", "check")
MOST_BYTES = 15_000_000  # of an archive
SHOWN = ("snapshot/**/*", "claims.md", "*.pdf", "*.svg")  # of the archive, the most important first
OF_RUN = ("gpu/*.*", "tables/*.parquet", "training/*.*", "benchmarks/*.tsv", "logs/*.log")


class Session:
    """The session of a pack, in the folder of its checkout. Raises InputError for a folder without
    a pack.
    """

    def __init__(self, folder: Path) -> None:
        self.pack, self._packed = folder, folder / pack.CONFIG
        self.run = Runs(configs.read_yaml(self._packed), Path("scripts")).selected
        self.folder = Path(RESULTS, self.run, "gpu")
        self.config, self.log, self._file = (
            self.folder / name for name in ("config.yaml", "log.txt", "session.json")
        )
        self.trial, self.address = self.folder / "trial.json", self.folder / "worker"

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
    start; its plan.

    With `wait` it returns when the session has ended. Raises InputError where there is no CUDA
    device to start on.
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
    state = session.state
    expected = plan(session.runs.config, state["minutes"], EXPECTED[state["device"]])
    command = [sys.executable, "scripts/gpu_pack.py", "--folder", str(session.pack), "work"]
    with session.log.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    if wait:
        return f"{session.folder}: the session has ended with exit status {process.wait()}."
    return "\n".join(
        [f"{session.folder}: the session of {state['minutes']:g} minutes is running.", *expected]
    )


def work(session: Session) -> str:
    """Continue the session to its end; a sentence. Raises InputError if training could not be
    measured.
    """
    if (lock := session.lock()) is None:
        return f"{session.folder}: a session is running already."
    session.note(pid=os.getpid(), stage="trial")
    pack.unpack(session.pack)
    # without Snakemake's lock, which a killed one leaves behind: that of the session is held
    snakemake = (
        f"-m snakemake --nolock --cores all --scheduler greedy --configfile {session.config}"
    )
    with _training_worker(session, lock):
        last = session.runs.last_checkpoint(None)
        _stage(
            session,
            "training",
            f"{snakemake} -- {last}",
            lock,
            {worker.ADDRESS: str(session.address)},
        )
    snakemake += f" --resources gpu_slot={JOBS_ON_GPU} --keep-going --"
    _stage(
        session,
        "analyses",
        f"{snakemake} {FIGURES} {session.runs.table_file('exit_quality')}",
        lock,
    )
    _stage(session, "latency", f"{snakemake} all snapshot", lock)
    measured = f"{session.folder}/profile.md"
    _stage(
        session,
        "profile",
        f"-m tests.benchmarks.profile_token {session.config} --page {measured}",
        lock,
        limit=PROFILE,
    )
    if (seconds := session.left() - START) > LEAST_CHECK:
        options = (
            f"--device={session.state['device']} --model={session.config} --folder={session.folder}"
        )
        check = f"-m pytest -q -m gpu -p no:cacheprovider tests/gpu {options} --seconds={seconds:g}"
        _stage(session, "check", check, lock, limit=seconds + START)
    return f"{session.folder}: the session has ended."


def _stage(
    session: Session,
    name: str,
    arguments: str,
    lock: int,
    environment: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> None:
    """Run Python with arguments; note its exit status, null if it took longer than the limit, and
    its seconds.
    """
    session.note(stage=name)
    command, began, status = [sys.executable, *arguments.split()], time.time(), None
    variables = os.environ | (environment or {})
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
    """
    chosen = "choice" in session.state
    session.address.unlink(missing_ok=True)
    process = _start_worker(session, lock, with_trial=not chosen)
    if not chosen:
        has_hung = outlasts_its_time(session, process)
        if has_hung:
            process.kill()  # a compiler that hangs may not answer to less
            process.wait()
        rows = [row for row in trial_rows(session) if row]
        best, sentence = choose(rows, session.runs.config, has_hung)
        keys = {key: best[key] for key in ("batch_size", "micro_batches", "compile")}
        train = schedule(session.runs.config, keys, best["tokens_per_s"], session.left() - ANALYSES)
        session.configure(train=train)
        session.note(choice=sentence, trial=rows, iterations=train["iterations"])
        if process.poll() is not None:
            process = _start_worker(session, lock, with_trial=False)
    while not session.address.exists() and process.poll() is None:
        time.sleep(0.1)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _start_worker(session: Session, lock: int, with_trial: bool) -> subprocess.Popen:
    trial = ["--trial", str(session.trial)] if with_trial else []
    command = [
        sys.executable,
        "scripts/train_worker.py",
        str(session.address),
        str(session.config),
        *trial,
    ]
    return subprocess.Popen(command, pass_fds=[lock])


def outlasts_its_time(session: Session, process: subprocess.Popen) -> bool:
    """Wait for the end of the trial; whether it took too long for one of its rows."""
    count, began = 0, time.monotonic()
    while (rows := trial_rows(session))[-1:] != [None] and process.poll() is None:
        if len(rows) > count:
            count, began = len(rows), time.monotonic()
        if time.monotonic() - began > TRIAL:
            return True
        time.sleep(0.2)
    return False


def trial_rows(session: Session) -> list[dict[str, Any] | None]:
    """The rows of the trial so far; the last one is None once it has ended."""
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
        failures = (
            "; ".join(f"{row['setting']}: {row['failed']}" for row in rows)
            or "its process has ended"
        )
        raise InputError(
            f"trial of training: found no speed ({failures}), expected one to choose the schedule."
        )
    of_recipe = [row for row in measured if row["batch_size"] == config.train.batch_size]
    best = max(of_recipe or measured, key=lambda row: row["tokens_per_s"])
    larger = [row for row in measured if row["tokens_per_s"] > WORTH * best["tokens_per_s"]]
    best = larger[0] if larger else best
    said = "; ".join(f"{row['setting']}: {row['tokens_per_s']:,.0f} tokens/s" for row in measured)
    sentence = f"{best['setting']} ({said})"
    if config.train.compiles(config.compute.device) and not best["compile"]:
        compiled = next((row for row in rows if row["compile"]), None)
        reason = f"was not finished after {TRIAL:g} seconds" if hangs else "ended its process"
        if compiled is not None:
            reason = f"failed ({compiled['failed']})" if "failed" in compiled else "is slower"
        sentence += f", because compilation {reason}"
    return best, sentence


# --- the schedule and the plan --------------------------------------------------------------------


def schedule(
    config: Config, keys: Mapping[str, Any], tokens_per_s: float, seconds: float
) -> dict[str, Any]:
    """Keys of `train` for a schedule that ends in `seconds`: as many iterations as fit, with one
    whole cosine.

    Checkpoints are at the iterations of `config` and the last one. `keys` are the chosen ones of
    the trial.
    """
    train = config.train.model_copy(update=keys)
    smaller = (
        config.train.batch_size / train.batch_size
    )  # so that all is at the same number of tokens
    early = [
        max(1, round(smaller * iteration)) for iteration in checkpoint_iterations(config.train)
    ]
    tokens = RESERVE * tokens_per_s * (seconds - START - CHECKPOINT * (len(early) + 1))
    iterations = max(
        1, min(999_999, int(tokens / (train.batch_size * config.model.context_length)))
    )
    iterations -= iterations % 10 ** max(0, len(str(iterations)) - 3)  # three digits
    return {
        **keys,
        "iterations": iterations,
        "checkpoint_every": iterations,
        "early_checkpoints": sorted(
            {iteration for iteration in early if iteration < NEAR_END * iterations}
        ),
        "held_out_every": max(1, round(smaller * train.held_out_every)),
        "warmup_iterations": min(round(smaller * train.warmup_iterations), iterations // 10),
        "lr_decay_iterations": None if train.lr_decay_iterations is None else iterations,
    }


def plan(config: Config, minutes: float, tokens_per_s: float) -> list[str]:
    """Lines that say what is finished after some minutes if training has this speed."""
    end = 60 * minutes - ANALYSES
    train = config.train.model_copy(update=schedule(config, {}, tokens_per_s, end - EXPECTED_TRIAL))
    batch = train.batch_size * config.model.context_length
    last = train.iterations
    lines = [f"plan at {tokens_per_s:,.0f} tokens/s, {last} iterations of {batch} tokens:"]
    for minute in (*(early for early in TIMES if early < minutes), minutes):
        trained = RESERVE * tokens_per_s * (60 * minute - EXPECTED_TRIAL - START) / batch
        done = max(0, min(last, int(trained)))
        written = [n for n in checkpoint_iterations(train) if n <= done]
        found = (
            f"iteration {done}, {done * batch / 1e6:.1f} M tokens, checkpoints"
            f" {', '.join(map(str, written)) or 'none'}"
        )
        lines.append(
            f"  minute {minute:g}:"
            f" {found if minute < minutes else 'figures, claims and all tables'}"
        )
    return lines


# --- what is shown and taken along ----------------------------------------------------------------


def status(session: Session) -> str:
    """A few lines: stage, choice, iteration, jobs, and the last errors. Raises InputError before
    the first start.
    """
    if not (state := session.state):
        raise InputError(f"{session.folder}: found no session; start one with `run`.")
    stage, finished = state.get("stage", "start"), state.get("latency", {}).get("status") == 0
    where = "finished" if finished else f"stopped in stage {stage}; `run` continues it"
    if (lock := session.lock()) is None:
        where = f"stage {stage} is running"
    else:
        os.close(lock)
    minute = (time.time() - state["started"]) / 60
    lines = [
        f"{session.run} on {state['device']}: {where}; minute {minute:.1f} of {state['minutes']:g}"
    ]
    if "choice" in state:
        lines.append(f"training: {state['choice']}; {state['iterations']} iterations")
    for name in STAGES:
        if name in state:
            ended = {0: "done", None: "not finished in its time"}.get(
                state[name]["status"], "FAILED"
            )
            lines.append(f"{name}: {ended}, {state[name]['seconds']:g} s")
    log = session.log.read_text(encoding="utf-8", errors="replace")
    lines += (
        re.findall(r"(?m)^.*: iteration \d+ of .+$", log)[-1:]
        + re.findall(r"(?m)^\d+ of \d+ steps.*$", log)[-1:]
    )
    return "\n".join(lines + list(dict.fromkeys(re.findall(r"(?mi)^.*error: .+$", log)))[-3:])


def collect(session: Session, folder: Path) -> str:
    """Write the present results into `{run}.zip` in a folder, about `MOST_BYTES` at most; a
    sentence.

    Files have their paths below `results/`, without figures of earlier runs and tables with a row
    per token.
    """
    results, run = Path(RESULTS), Path(RESULTS, session.run)
    shown = (path for pattern in SHOWN for path in sorted(results.glob(pattern)))
    files = [
        path
        for path in shown
        if path.is_file() and path.stat().st_mtime >= session.state["started"]
    ]
    files += [path for pattern in OF_RUN for path in sorted(run.glob(pattern))]
    target = folder / f"{session.run}.zip"
    with replacing(target) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(session.pack / pack.MANIFEST, pack.MANIFEST)
        for path in files:
            if new.stat().st_size + path.stat().st_size <= MOST_BYTES:
                archive.write(path, path.relative_to(results))
        left_out = len(files) + 1 - len(archive.namelist())
    return f"{target}: {len(files)} files, without {left_out} for which there was no space"
