"""Where the rules touch Snakemake itself: its errors, the check of its plan, the last lines of a call."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod, ExecMode

from twoscale import tables
from twoscale.base import InputError
from twoscale.jobs import launch
from twoscale.jobs.job_errors import JobErrors
from twoscale.jobs.machine import check_cuda, check_disk
from twoscale.model.flops import BYTES, parameters
from twoscale.workflow.figures import in_results
from twoscale.workflow.plan import PUBLISHED_BYTES, SEGMENT_STATES, states_bytes
from twoscale.workflow.runs import Runs, repository_name

TRAINING = ("train_segment", "train_segment_last")
NEXT = """\
next: make report                         figures, verdicts and tables on one page
      snakemake --cores all supplementary   further figures
      python scripts/generate.py --run {run} --prompt "Return the" --show-loops
      Without `make`: activate the environment first, `. .venv/bin/activate`."""


class WrongInput(WorkflowError):
    """An InputError. Without a traceback Snakemake prints only its sentence, and no place in the Snakefiles."""

    __traceback__ = property(lambda self: None, lambda self, value: None)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Let Snakemake end with the sentence of an InputError."""
    try:
        yield
    except InputError as error:
        raise WrongInput(str(error)) from None


# --- before planning --------------------------------------------------------------------------------------------------


def prepare(source: str) -> None:
    """Prepare this process and the environment of its jobs, which import the library from the folder `source`."""
    JobErrors.install(logger)
    launch.leave_team(os.environ)  # no job belongs to the launch that Snakemake was started in
    _prepend("PYTHONPATH", source)
    # jobs call `python`: the one that runs Snakemake, unless a conda environment comes first
    _prepend("PATH", str(Path(sys.executable).parent))
    # torch frees and allocates the same large tensors again and again; glibc keeps their pages and does not return them
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
    os.environ.update(PYTHONUTF8="1")  # jobs read and write UTF-8, whatever the locale
    # Snakemake follows the chain of segments by recursion, and takes a RecursionError for an ambiguous rule
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 50_000))


def _prepend(variable: str, folder: str) -> None:
    folders = [part for part in os.environ.get(variable, "").split(os.pathsep) if part and part != folder]
    os.environ[variable] = os.pathsep.join([folder, *folders])


def in_container(workflow: Any, image: Path) -> bool:
    """Whether jobs run in the image. Raises InputError where there is none."""
    asked = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
    if asked and not image.exists():
        raise InputError(
            f"{image}: found no image, expected the one that envs/apptainer.def or envs/Dockerfile builds."
        )
    return asked


def describe(workflow: Any, runs: Runs) -> None:
    """Give the rules that follow from rows of figures and jobs a docstring for `snakemake --list-rules`."""
    outputs = {job.name: job.outputs.values() for job in runs.jobs}
    for rule in workflow.rules:
        kind, files = ("Job", outputs.get(rule.name, rule.output)) if rule.output else ("Target", rule.input)
        rule.docstring = rule.docstring or f"{kind}: {', '.join(map(str, files))}"


# --- before the first job ---------------------------------------------------------------------------------------------


class PlannedJob(NamedTuple):
    """A job that Snakemake is about to run."""

    rule: str
    wildcards: Any
    uses_torch: bool


def check_plan(workflow: Any, runs: Runs) -> None:
    """Refuse a plan that this machine cannot carry out."""
    if workflow.touch or workflow.exec_mode != ExecMode.DEFAULT:
        return
    methods = workflow.deployment_settings.deployment_method
    jobs = [
        PlannedJob(job.rule.name, job.wildcards, "gpu" in job.rule.resources) for job in workflow.dag.needrun_jobs()
    ]
    srun = workflow.executor_plugin.name == "slurm" and DeploymentMethod.APPTAINER not in methods
    with one_sentence():
        check(runs, jobs, here=workflow.local_exec, installed=not methods, srun=srun)


def check(
    runs: Runs, jobs: Iterable[PlannedJob], here: bool = True, installed: bool = True, srun: bool = False
) -> None:
    """Refuse planned jobs that would fail after hours: for want of CUDA devices, nodes or disk. Raises InputError.

    Args:
        runs: The runs of the config.
        jobs: Those that will run; jobs whose results exist need nothing.
        here: Whether jobs run on this machine, and not on a cluster.
        installed: Whether jobs run in this environment, and not in one of conda or in a container.
        srun: Whether jobs can start processes on other nodes: on SLURM and not in a container.
    """
    jobs = list(jobs)
    nodes = max((runs[_run(runs, job)].train.nodes for job in jobs if job.rule in TRAINING), default=1)
    if nodes > 1 and not srun:
        raise InputError(
            f"config key train.nodes: found {nodes}, expected 1 for jobs that do not run on SLURM (--profile "
            "profiles/slurm) or that run in a container."
        )
    params = runs.params
    needed = [
        params.training_gpus(job.wildcards) if job.rule in TRAINING else params.gpus(job.wildcards)
        for job in jobs
        if job.uses_torch
    ]
    if here and any(needed):
        check_cuda("config key compute.device", max(needed), installed)
    check_disk(Path("results"), disk_bytes(runs, jobs), "the checkpoints and optimizer states of this plan")


def disk_bytes(runs: Runs, jobs: Iterable[PlannedJob]) -> int:
    """Bytes that the jobs are certain to put on disk: weights, moments, partial states; not text, tokens and tables."""
    total, trained = 0, set()
    for job in jobs:
        run = _run(runs, job)
        count = parameters(runs[run].model)
        match job.rule:
            case "init_model":
                total += count * BYTES["float32"]
            case "train_segment" | "train_segment_last":
                total += count * BYTES["float32"] * (1 if run in trained else 1 + SEGMENT_STATES)
                trained.add(run)
            case "extract_states":
                total += states_bytes(runs[run])
            case "fetch_model":
                total += count * PUBLISHED_BYTES
    return total


def _run(runs: Runs, job: PlannedJob) -> str:
    """The run that a job belongs to; for the download of a model, one that measures it."""
    model = getattr(job.wildcards, "model", None)
    published = (run for run in runs if runs[run].model.repository and repository_name(runs[run].model) == model)
    return getattr(job.wildcards, "run", None) or next(published, runs.selected)


# --- after the last job -----------------------------------------------------------------------------------------------


def say_ending(workflow: Any, runs: Runs) -> None:
    """After a call that made everything: what was found, and what can be asked for next."""
    if any(job.rule.name == "all" for job in workflow.dag.jobs):
        logger.info(ending(runs))


def ending(runs: Runs) -> str:
    """The verdicts in short, the figures, and the next useful commands; empty without verdicts."""
    from twoscale.claims.findings import FAILS, HOLDS, NOT_ASKED, OPEN
    from twoscale.claims.verdicts import ALL

    if not runs.figures.claims:
        return ""
    (page,) = map(in_results, runs.figures.claims)
    table = tables.read("claims", runs.table_file("claims"))
    whole = table[table["scope"] == ALL]
    counts = Counter(whole["verdict"])
    found = ((counts[verdict], verdict) for verdict in (HOLDS, FAILS, OPEN, NOT_ASKED) if counts[verdict])
    verdicts = ", ".join(f"{count} {verdict if count == 1 else plural(verdict)}" for count, verdict in found)
    scale = "".join(f", {mark}" for mark in set(whole["scale"]) if mark)
    return "\n".join(
        [
            f"run {runs.selected}{scale}: of the paper's {len(whole)} claims {verdicts} ({page})",
            f"figures: {', '.join(runs.figures.of_target('all'))}",
            NEXT.format(run=runs.selected),
        ]
    )


def plural(verdict: str) -> str:
    """The verdict on several claims, such as "hold"."""
    return verdict.replace("holds", "hold").replace("does not", "do not")
