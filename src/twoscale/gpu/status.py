"""Status of a session: stage, GPU check, iteration, jobs, and the last errors."""

import csv
import re
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from twoscale.base import InputError
from twoscale.gpu.session import Session
from twoscale.training.metrics_log import METRICS
from twoscale.workflow.runs import RESULTS

STEPS = re.compile(r"^(\d+) of (\d+) steps", re.MULTILINE)
ERROR = re.compile(r"^.*error: .+$", re.MULTILINE | re.IGNORECASE)
SHOWN_ERRORS = 3


def status(session: Session) -> str:
    """A few lines. Raises InputError before the first start."""
    state = session.state
    if not state:
        raise InputError(f"{session.folder}: found no session; start one with `run`.")
    log = session.log.read_text(encoding="utf-8", errors="replace")
    jobs = [f"jobs: {done} of {count} are done" for done, count in STEPS.findall(log)[-1:]]
    errors = list(dict.fromkeys(ERROR.findall(log)))[-SHOWN_ERRORS:]
    return "\n".join([_stage(session, state), *_check(session, state), *_training(session), *jobs, *errors])


def _stage(session: Session, state: dict[str, Any]) -> str:
    stage = state.get("stage", "start")
    if session.is_running:
        where = f"stage {stage} is running"
    elif state.get("workflow", {}).get("status") == 0:
        where = "finished"
    else:
        where = f"stopped in stage {stage}; `run` continues it"
    minute = (time.time() - state["started"]) / 60
    return f"{session.run} on {state['device']}: {where}; minute {minute:.0f} of {state['minutes']:g}"


def _check(session: Session, state: dict[str, Any]) -> list[str]:
    if "check" not in state:
        return []
    ended = {0: "passed", None: "did not end"}.get(state["check"]["status"], "FAILED")
    return [f"GPU check: {ended} after {state['check']['seconds']:.0f} s, see {session.folder}/gpu-check.md"]


def _training(session: Session) -> list[str]:
    """A line on the last whole line of metrics.csv, which has columns of the table "training" and the time left."""
    path, config = Path(RESULTS, session.run, "training", METRICS), session.runs.config
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    return [
        f"training: iteration {row['iteration']} of {config.train.iterations}, loss {row['loss']}, "
        f"{float(row['tokens_per_s']) / (config.train.batch_size * config.model.context_length):.3g} iterations/s, "
        f"{tqdm.format_interval(float(row['run_left_s']))} left"
        for row in list(csv.DictReader(whole.splitlines()))[-1:]
    ]
