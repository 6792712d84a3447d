"""Where the rules touch Snakemake itself: its errors, its plan, its storage, and the environment of its jobs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile, update_wildcard_constraints
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod, ExecMode

from twoscale.base import InputError
from twoscale.jobs import launch
from twoscale.jobs.job_errors import JobErrors
from twoscale.workflow import preflight
from twoscale.workflow.ending import ending
from twoscale.workflow.runs import Runs


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


def check_project(folder: Path) -> None:
    """Refuse a path of the workflow that Snakemake cannot format. Raises InputError."""
    if {"{", "}"} & {*str(folder)}:
        raise InputError(f"{folder}: found a brace in the path of the workflow, expected a path without braces.")


def in_container(workflow: Any, image: Path) -> bool:
    """Whether jobs run in the image. Raises InputError where there is none."""
    asked = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
    if asked and not image.exists():
        raise InputError(
            f"{image}: found no image, expected the one that envs/apptainer.def or envs/Dockerfile builds."
        )
    return asked


def check_plan(workflow: Any, runs: Runs) -> None:
    """Refuse a plan that this machine cannot carry out: before the first job, and in a dry run."""
    # no scheduler: Snakemake is still planning
    if workflow.scheduler is None or workflow.touch or workflow.exec_mode != ExecMode.DEFAULT:
        return
    runs.resources.before_jobs = lambda: None
    # In a dry run the executor is that of dry runs. That jobs will be submitted shows in use_threads.
    here = workflow.local_exec and not workflow.execution_settings.use_threads
    slurm = not here and workflow.executor_plugin.name in ("slurm", "dryrun")
    methods = workflow.deployment_settings.deployment_method
    container = DeploymentMethod.APPTAINER in methods
    installed = not container and DeploymentMethod.CONDA not in methods
    jobs = [
        preflight.PlannedJob(job.rule.name, job.wildcards, "gpu" in job.rule.resources)
        for job in workflow.dag.needrun_jobs()
    ]
    with one_sentence():
        preflight.check(runs, jobs, here, installed, slurm, container)
    if here and (warning := preflight.slow_training(runs, jobs, len(os.sched_getaffinity(0)))):
        logger.warning(warning)


def say_ending(workflow: Any, runs: Runs) -> None:
    """After a call that made everything: what was found, and what can be asked for next."""
    if any(job.rule.name == "all" for job in workflow.dag.jobs):
        logger.info(ending(runs))


def explain_missing(runs: Runs) -> None:
    """Let Snakemake say which figures, targets and runs there are, in place of "No rule to produce"."""
    JobErrors.install(logger).missing = runs.report.missing


def describe(workflow: Any, runs: Runs) -> None:
    """Give the rules that follow from rows of figures and jobs a docstring for `snakemake --list-rules`."""
    described = runs.report.descriptions
    for rule in workflow.rules:
        rule.docstring = rule.docstring or described.get(rule.name)


def constrain_stored_outputs(workflow: Any) -> None:
    """Apply the wildcard constraints of all rules to outputs in a storage.

    Snakemake adds them to the query of an output, but a plugin may have derived the local path from it before, as that
    for S3 does. Every iteration would then match `train_segment_last`, whose optimizer state is not temporary.
    """
    for rule in workflow.rules:
        for position, output in enumerate(rule.output):
            if output.is_storage:
                path = str(output.storage_object.local_path())
                constraints = rule.wildcard_constraints, workflow.modifier.wildcard_constraints
                constrained = IOFile(update_wildcard_constraints(path, *constraints), rule=rule)
                constrained.clone_flags(output, skip_storage_object=True)
                constrained.flags["storage_object"] = output.storage_object
                rule.output[position] = constrained
