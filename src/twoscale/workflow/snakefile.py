"""Where the rules touch Snakemake itself: its errors, the check of its plan, the last lines of a
call.
"""

import ast
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from filecmp import cmp
from pathlib import Path
from typing import Any

from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod, ExecMode

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, one_line
from twoscale.claims.words import by_word
from twoscale.jobs.machine import check_cuda, check_disk, clear_launch_variables
from twoscale.model.flops import BYTES, parameters
from twoscale.workflow.data_files import repository_name
from twoscale.workflow.figures import in_results
from twoscale.workflow.memory import PUBLISHED_BYTES, SEGMENT_STATES, states_bytes
from twoscale.workflow.runs import Runs

# the sentence of our error, a line in Snakemake's report on the function that raised it
_REFUSED = re.compile(r"^\s*InputError: (.+)$", re.MULTILINE)
_INTERRUPTED = "Repeat the command to continue: finished jobs are kept, and training resumes."
_ENDED = "ended by a signal, as at a limit of time or memory; repeat the command to continue."
_LITTLE_SPACE = 2**16  # bytes; a disk with less is full
_MOST_HEADER = 2**24  # bytes of a checkpoint's header that are read
_TRAINING = ("train_segment", "train_segment_last")


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
    """Acts on some of Snakemake's messages, for which it has no hook.

    After an error it prints the sentence of an InputError; after a dry run, why a call would be
    refused, what the jobs would replace and why they would run.
    """

    def __init__(self, workflow: Any) -> None:
        super().__init__()
        self.workflow = workflow
        self.runs: list[Runs] = []  # of each Snakefile that includes this workflow

    @classmethod
    def install(cls, workflow: Any) -> Any:
        """The one handler in Snakemake's logger, which is that of `workflow`; added if needed."""
        for handler in list(logger.handlers):
            # an imported module may have another copy of this class
            if type(handler).__name__ != cls.__name__:
                continue
            if handler.workflow is workflow:
                return handler
            logger.removeHandler(handler)  # of an earlier plan of this process
        logger.addHandler(handler := cls(workflow))
        return handler

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        event = str(getattr(record, "event", None))
        if event == "error" and (refused := _REFUSED.search(message)):
            print(refused[1], file=sys.stderr)
        elif message.startswith("This was a dry-run"):
            for runs in self.runs:
                try:
                    check_jobs(self.workflow, runs)
                except InputError as error:
                    print(error, file=sys.stderr)
            say_changed(self.workflow)
            for runs in self.runs:
                warn_of_overwritten_weights(self.workflow, runs)


def _plans_only(workflow: Any) -> bool:
    """Whether this process only touches files, or belongs to a job: Snakemake plans there too."""
    return workflow.touch or workflow.exec_mode != ExecMode.DEFAULT


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
    # without universal newlines, which would end the lines of a progress bar
    text = log.read_bytes().decode(errors="replace").strip("\n")
    if text:
        line = text.split("\n")[-1]
        # a job that ends by itself writes a message after its progress bar
        return _ENDED if "\r" in line else one_line(line.strip())
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


def check_import(workflow: Any) -> None:
    """Refuse another workflow's `use rule NAME from`, unless it imported all rules before: rules
    are derived from others. Raises InputError.
    """
    modifier = workflow.modifier
    wanted = sorted(modifier.rule_whitelist or ())
    known = {rule.name for rule in workflow.rules}
    if not known.issuperset(map(modifier.modify_rulename, wanted)):
        raise InputError(
            f"use rule {', '.join(wanted)} from this module: expected `use rule * from MODULE as"
            " MODULE_*` first, because rules are derived from others."
        )


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
    if _plans_only(workflow):
        return
    with one_sentence():
        check_jobs(workflow, runs)
    say_changed(workflow)
    warn_of_overwritten_weights(workflow, runs)


def check_jobs(workflow: Any, runs: Runs) -> None:
    """`check` the jobs that Snakemake plans, also after a dry run. Raises InputError."""
    methods = workflow.deployment_settings.deployment_method
    # after a dry run all are finished
    planned = workflow.dag.needrun_jobs(exclude_finished=not workflow.dryrun)
    # rules of jobs with torch have the resource `gpu`
    jobs = [
        PlannedJob(job.rule.name, job.wildcards, "gpu" in job.rule.resources) for job in planned
    ]
    # another workflow that imports this one has further jobs
    jobs = [job for job in jobs if _run(runs, job) in runs.configs]
    here = workflow.local_exec
    on_slurm = workflow.executor_plugin.name == "slurm"
    if workflow.dryrun:
        # the executor is that of dry runs; only other ones than the local one have a number of jobs
        here = workflow.resource_settings.nodes is None
        on_slurm = not here
    srun = on_slurm and DeploymentMethod.APPTAINER not in methods
    check(runs, jobs, here=here, installed=not methods, srun=srun)


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
    """Warn of planned trainings over weights, with the keys of the config that have changed, as by
    another preset under the same run name.
    """
    planned = workflow.dag.needrun_jobs(exclude_finished=False)  # after a dry run all are finished
    training = [job for job in planned if job.rule.name in ("init_model", *_TRAINING)]
    overwriting = {job.wildcards.run for job in training if Path(job.output[0]).is_file()}
    for run in sorted(overwriting):
        recorded = _recorded_identity(Path(runs.checkpoint(run, 0)))
        identity = configs.training_identity(runs[run])
        both = ("seed", "model", "train") if recorded else ()
        before, now = ({key: values[key] for key in both} for values in (recorded, identity))
        found = changed_keys(before, now)
        # a key that an earlier version did not have is no change
        changes = [change for change in found.values() if "not there" not in change]
        what = f"the weights in results/{run}/checkpoints by another training"
        if changes:
            what = f"results of another config in results/{run}: {_first_of(changes)}"
        print(
            f"run {run}: replaces {what}; choose another `run` name to keep them.", file=sys.stderr
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
    """After a call that made everything: what was found, and what can be asked for next.

    After each call: which run the files in results/ are of, if they are of several.
    """
    if any(job.rule.name == "all" for job in workflow.dag.jobs):
        logger.info(ending(runs, config_options(workflow)))
    shown = shown_files(Path(runs.figures.drawn("")))
    if len(shown) > 1:
        parts = [f"{', '.join(files)} of {run}" for run, files in shown.items()]
        logger.info(f"results/ shows several runs: {'; '.join(parts)}")


def shown_files(selected: Path) -> dict[str, list[str]]:
    """Run -> the names of its figures and pages that are copied to results/, without pictures.

    `selected` is the folder of the selected run's figures, to which equal files are counted.
    """
    results = Path("results")
    folders = [selected, *results.glob("*/figures"), *results.glob("*/*/figures")]
    shown: dict[str, list[str]] = {}
    for path in sorted(results.glob("*.*")):
        copied = [folder for folder in folders if (folder / path.name).is_file()]
        equal = [folder for folder in copied if cmp(path, folder / path.name, shallow=False)]
        if equal and path.suffix != ".svg":
            run = str(equal[0].parent.relative_to(results))
            shown.setdefault(run, []).append(path.name)
    return shown


def config_options(workflow: Any) -> list[str]:
    """The options of this call that change its config, without those of the Snakefile."""
    settings = workflow.config_settings
    options = []
    if settings.configfiles:
        options += ["--configfile", *map(str, settings.configfiles)]
    if settings.config_args:
        options += ["--config", *settings.config_args]
    return options


def ending(runs: Runs, options: Sequence[str] = ()) -> str:
    """The verdicts in short, the figures, and the next useful commands with the `options` of this
    call; empty without verdicts.
    """
    from twoscale.claims.verdicts import ALL

    if not runs.figures.claims:
        return ""
    (page,) = map(in_results, runs.figures.claims)
    table = tables.read("claims", runs.table_file("claims"))
    whole = table[table["scope"] == ALL]
    scale = f", {min(whole['scale'])}" if whole["scale"].all() else ""
    claims = by_word(whole[["claim", "verdict", "scale"]].itertuples(index=False))
    figures = ", ".join(runs.figures.of_target("all"))
    return (
        f"run {runs.selected}: the paper's claims in this run, one seed{scale}: {claims} ({page})\n"
        f"figures: {figures}\nnext: {_next(runs, options)}"
    )


def _next(runs: Runs, options: Sequence[str]) -> str:
    words = "".join(f" {shlex.quote(option)}" for option in options)
    commands = [f"snakemake --cores all supplementary{words}   # further figures"]
    if runs.release is None:
        # a word of the shell in which make doubles a dollar
        quoted = f" OPTIONS={shlex.quote(words.strip())}".replace("$", "$$") if options else ""
        commands = [
            f"make report{quoted}   # figures, verdicts and tables on one page",
            *commands,
            f'python scripts/generate.py --run {runs.selected} --prompt "Return the" --show-loops',
        ]
    return "\n      ".join(
        [*commands, "Without `make`: activate the environment first, `. .venv/bin/activate`."]
    )
