"""Where the rules touch Snakemake itself: its errors, the check of its plan, the last lines of a
call.
"""

import ast
import json
import logging
import os
import re
import shutil
import sys
from collections import Counter, namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod, ExecMode

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, one_line
from twoscale.jobs.machine import check_cuda, check_disk, clear_launch_variables
from twoscale.model.flops import BYTES, parameters
from twoscale.workflow.data_files import repository_name
from twoscale.workflow.figures import in_results
from twoscale.workflow.memory import PUBLISHED_BYTES, SEGMENT_STATES, states_bytes
from twoscale.workflow.runs import Runs

# the sentence of our error, a line in Snakemake's report on the function that raised it
_REFUSED = re.compile(r"^\s*InputError: (.+)$", re.MULTILINE)
_INTERRUPTED = "Repeat the command to continue: finished jobs are kept, and training resumes."
_LITTLE_SPACE = 2**16  # bytes; a disk with less is full
_MOST_HEADER = 2**24  # bytes of a checkpoint's header that are read
_TRAINING = ("train_segment", "train_segment_last")
_NEXT = """\
next: make report                         figures, verdicts and tables on one page
      snakemake --cores all supplementary   further figures
      python scripts/generate.py --run {run} --prompt "Return the" --show-loops
      Without `make`: activate the environment first, `. .venv/bin/activate`."""


@contextmanager
def one_sentence() -> Iterator[None]:
    """End Snakemake with the sentence of an InputError.

    A WorkflowError would be printed with a place in the Snakefiles, where nothing is wrong.
    """
    try:
        yield
    except InputError as error:
        sys.exit(str(error))


# --- the last lines of a call ---------------------------------------------------------------------


class LastLines(logging.Handler):
    """Prints lines after some of Snakemake's messages, for which it has no hook.

    After an error, the sentence of an InputError; after a dry run, what the jobs would replace and
    why they would run.
    """

    def __init__(self, workflow: Any) -> None:
        super().__init__()
        self._workflow = workflow
        self.runs: list[Runs] = []  # of each Snakefile that includes this workflow

    @classmethod
    def install(cls, workflow: Any) -> Any:
        """The one handler in Snakemake's logger, which is added if it is not there."""
        # an imported module may have another copy of this class
        known = [handler for handler in logger.handlers if type(handler).__name__ == cls.__name__]
        if not known:
            known = [cls(workflow)]
            logger.addHandler(known[0])
        return known[0]

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if str(getattr(record, "event", None)) == "error" and (refused := _REFUSED.search(message)):
            print(refused[1], file=sys.stderr)
        elif message.startswith("This was a dry-run"):
            say_changed(self._workflow)
            for runs in self.runs:
                warn_of_overwritten_weights(self._workflow, runs)


def say_causes(workflow: Any) -> None:
    """After a failed call: one sentence per failed job, the last line of its log."""
    causes = []
    for failed in workflow.scheduler.failed:
        for job in failed.jobs if failed.is_group() else [failed]:
            line = next(filter(None, map(last_line, job.log)), "the job wrote no message.")
            # other jobs of a group have not failed
            if not failed.is_group() or line.startswith("error: "):
                causes.append(f"{job.rule.name}: {line}")
    print("\n".join(causes or [_INTERRUPTED]), file=sys.stderr)


def last_line(path: str) -> str | None:
    """The last line of a log, or why it has none; None if it is missing or empty."""
    log = Path(path)
    if not log.is_file():
        return None
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    if text:
        return one_line(text.split("\n")[-1].strip())
    if shutil.disk_usage(log).free < _LITTLE_SPACE:
        found = "found the error 'No space left on device'"
        return f"error: {log}: {found}, expected free space on its disk."
    return None


# --- before planning ------------------------------------------------------------------------------


def prepare(source: str) -> None:
    """Prepare this process and the environment of its jobs, which import the library from the
    folder `source`.
    """
    clear_launch_variables(os.environ)  # no job belongs to the launch that Snakemake was started in
    _prepend("PYTHONPATH", source)
    # jobs call `python`: the one that runs Snakemake, unless a conda environment comes first
    _prepend("PATH", str(Path(sys.executable).parent))
    # torch frees and allocates the same large tensors again and again; glibc keeps their pages and
    # does not return them
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
    os.environ.update(PYTHONUTF8="1")  # jobs read and write UTF-8, whatever the locale
    # Snakemake follows the chain of segments by recursion, and takes a RecursionError for an
    # ambiguous rule
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 50_000))


def _prepend(variable: str, folder: str) -> None:
    # the folder comes first, and only once
    folders = [
        part for part in os.environ.get(variable, "").split(os.pathsep) if part and part != folder
    ]
    os.environ[variable] = os.pathsep.join([folder, *folders])


def in_container(workflow: Any, image: Path) -> bool:
    """Whether jobs run in the image. Raises InputError where there is none."""
    asked = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
    if asked and not image.exists():
        raise InputError(
            f"{image}: found no image, expected that of envs/apptainer.def or envs/Dockerfile."
        )
    return asked


# --- before the first job -------------------------------------------------------------------------


PlannedJob = namedtuple("PlannedJob", "rule wildcards uses_torch")


def check_plan(workflow: Any, runs: Runs) -> None:
    # Snakemake plans in the processes of its jobs too, which need no check
    if workflow.touch or workflow.exec_mode != ExecMode.DEFAULT:
        return
    methods, planned = workflow.deployment_settings.deployment_method, workflow.dag.needrun_jobs()
    # rules of jobs with torch have the resource `gpu`
    jobs = [
        PlannedJob(job.rule.name, job.wildcards, "gpu" in job.rule.resources) for job in planned
    ]
    srun = workflow.executor_plugin.name == "slurm" and DeploymentMethod.APPTAINER not in methods
    with one_sentence():
        check(runs, jobs, here=workflow.local_exec, installed=not methods, srun=srun)
    say_changed(workflow)
    warn_of_overwritten_weights(workflow, runs)


def check(
    runs: Runs,
    jobs: Iterable[PlannedJob],
    here: bool = True,
    installed: bool = True,
    srun: bool = False,
) -> None:
    """Refuse planned jobs that would fail after hours: for want of CUDA devices, nodes or disk.
    Raises InputError.

    Args:
        runs: The runs of the config.
        jobs: Those that will run; jobs whose results exist need nothing.
        here: Whether jobs run on this machine, and not on a cluster.
        installed: Whether jobs run in this environment, and not in one of conda or in a container.
        srun: Whether jobs can start processes on other nodes: on SLURM and not in a container.
    """
    jobs = list(jobs)
    nodes = max(
        (runs[_run(runs, job)].train.nodes for job in jobs if job.rule in _TRAINING), default=1
    )
    if nodes > 1 and not srun:
        expected = (
            "1 for jobs that do not run on SLURM (--profile profiles/slurm) or that run in a"
            " container"
        )
        raise InputError(f"config key train.nodes: found {nodes}, expected {expected}.")
    on_gpus = [0]
    for job in jobs:
        config = runs[_run(runs, job)]
        if job.uses_torch and config.compute.device == "cuda":
            on_gpus.append(config.train.processes if job.rule in _TRAINING else 1)
    if here and max(on_gpus):
        check_cuda("config key compute.device", max(on_gpus), installed)
    check_disk(
        Path("results"), disk_bytes(runs, jobs), "the checkpoints and optimizer states of this plan"
    )


def say_changed(workflow: Any) -> None:
    """Name the keys that changed in params, which Snakemake shows as two whole JSON texts; a line
    per rule.
    """
    changed: dict[str, dict[str, str]] = {}
    for job in workflow.dag.needrun_jobs(exclude_finished=False):
        change = workflow.dag.reason(job).params_changed
        found = changed_keys(_recorded_values(change.only_old), _recorded_values(change.only_new))
        changed.setdefault(job.rule.name, {}).update(found)
    for rule, keys in changed.items():
        if keys:
            print(f"rule {rule}: {_first_of(list(keys.values()))}", file=sys.stderr)


def _recorded_values(params: Iterable[str]) -> dict[str, Any]:
    """The content of those recorded params that are JSON objects."""
    found: dict[str, Any] = {}
    for param in params:
        with suppress(ValueError, SyntaxError, TypeError):
            # Snakemake records the `repr` of a param
            found |= json.loads(ast.literal_eval(param))
    return found


def changed_keys(
    before: Mapping[str, Any], now: Mapping[str, Any], place: str = ""
) -> dict[str, str]:
    """Dotted key -> its change in words, for the keys that differ between nested mappings."""
    found: dict[str, str] = {}
    for key in sorted(before.keys() | now.keys()):
        name = f"{place}{key}"
        old, new = (values.get(key, "not there") for values in (before, now))
        if isinstance(old, dict) and isinstance(new, dict):
            found |= changed_keys(old, new, f"{name}.")
        elif old != new:
            found[name] = one_line(f"{name} was {old} and is {new} now")
    return found


def _first_of(sentences: Sequence[str]) -> str:
    others = len(sentences) - 1
    if not others:
        return sentences[0]
    return f"{sentences[0]}, and {others} other key{'s' * (others > 1)}"


def warn_of_overwritten_weights(workflow: Any, runs: Runs) -> None:
    """Warn of planned trainings over weights of another config, as of another preset under the same
    run name.
    """
    planned = workflow.dag.needrun_jobs(exclude_finished=False)  # after a dry run all are finished
    for run in sorted(job.wildcards.run for job in planned if job.rule.name == "init_model"):
        recorded = _recorded_identity(Path(runs.checkpoint(run, 0)))
        identity = configs.training_identity(runs[run])
        both = ("seed", "model", "train") if recorded else ()
        before, now = ({key: values[key] for key in both} for values in (recorded, identity))
        found = changed_keys(before, now)
        # a key that an earlier version did not have is no change
        changes = [change for change in found.values() if "not there" not in change]
        if changes:
            print(
                f"run {run}: replaces results of another config in results/{run}:"
                f" {_first_of(changes)}; choose another `run` name to keep them.",
                file=sys.stderr,
            )


def _recorded_identity(weights: Path) -> dict[str, Any]:
    """The training identity in the header of a checkpoint, read without safetensors; empty without
    such a file.
    """
    with suppress(OSError, ValueError, KeyError), weights.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")  # of the header
        header = json.loads(file.read(min(size, _MOST_HEADER)))
        return json.loads(header["__metadata__"]["twoscale"])["identity"]
    return {}


def disk_bytes(runs: Runs, jobs: Iterable[PlannedJob]) -> int:
    """Bytes that the jobs are certain to put on disk: weights, moments, partial states; not text,
    tokens and tables.
    """
    total, trained = 0, set()
    for job in jobs:
        run = _run(runs, job)
        count = parameters(runs[run].model)
        match job.rule:
            case "init_model":
                total += count * BYTES["float32"]
            case "train_segment" | "train_segment_last":
                # a checkpoint for each job; other states are there once for the whole run
                total += count * BYTES["float32"] * (1 if run in trained else 1 + SEGMENT_STATES)
                trained.add(run)
            case "extract_states":
                total += states_bytes(runs[run])
            case "fetch_model":
                total += count * PUBLISHED_BYTES
    return total


def _run(runs: Runs, job: PlannedJob) -> str:
    """The run that a job belongs to; for the download of a model, one that measures it."""
    if (model := getattr(job.wildcards, "model", None)) is not None:
        for run, config in runs.configs.items():
            if config.model.repository and repository_name(config.model) == model:
                return run
    return getattr(job.wildcards, "run", runs.selected)


# --- after the last job ---------------------------------------------------------------------------


def say_ending(workflow: Any, runs: Runs) -> None:
    """After a call that made everything: what was found, and what can be asked for next."""
    if any(job.rule.name == "all" for job in workflow.dag.jobs):
        logger.info(ending(runs))


def ending(runs: Runs) -> str:
    """The verdicts in short, the figures, and the next useful commands; empty without verdicts."""
    from twoscale.claims.evidence import FAILS, HOLDS, NOT_ASKED, OPEN
    from twoscale.claims.verdicts import ALL

    if not runs.figures.claims:
        return ""
    (page,) = map(in_results, runs.figures.claims)
    table = tables.read("claims", runs.table_file("claims"))
    whole = table[table["scope"] == ALL]  # the verdict on each claim
    counts = Counter(whole["verdict"])
    plural = {HOLDS: "hold", FAILS: "do not hold"}
    found = []
    for verdict in (HOLDS, FAILS, OPEN, NOT_ASKED):
        if number := counts[verdict]:
            found.append(f"{number} {verdict if number == 1 else plural.get(verdict, verdict)}")
    scale = "".join(f", {mark}" for mark in set(whole["scale"]) if mark)
    verdicts = f"of the paper's {len(whole)} claims {', '.join(found)} ({page})"
    figures = ", ".join(runs.figures.of_target("all"))
    return (
        f"run {runs.selected}{scale}: {verdicts}\nfigures: {figures}\n"
        f"{_NEXT.format(run=runs.selected)}"
    )
