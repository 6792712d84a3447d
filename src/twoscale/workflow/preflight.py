"""Whether this machine can carry out the planned jobs: text, CUDA devices and disk, checked before the first job."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twoscale.base import InputError
from twoscale.config import FILE_SOURCES, Config
from twoscale.data.text import find_files
from twoscale.jobs.machine import check_cuda, check_disk
from twoscale.model.flops import BYTES, parameters
from twoscale.training.plan import PUBLISHED_BYTES, SEGMENT_STATES, states_bytes
from twoscale.workflow.paths import repository_name

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

TRAINING = ("train_segment", "train_segment_last")
TOKEN_BYTES = 2


class PlannedJob(NamedTuple):
    """A job that Snakemake is about to run."""

    rule: str
    wildcards: Any
    uses_torch: bool


def check(
    runs: "Runs",
    jobs: Iterable[PlannedJob],
    here: bool = True,
    installed: bool = True,
    slurm: bool = False,
    container: bool = False,
) -> None:
    """Refuse planned jobs that cannot succeed. Raises InputError.

    Args:
        runs: The runs of the config.
        jobs: Those that will run; jobs whose results exist need nothing.
        here: Whether jobs run on this machine, and not on a cluster.
        installed: Whether jobs run in this environment, and not in one of conda.
        slurm: Whether jobs go to SLURM, as far as is known in a dry run.
        container: Whether jobs run in a container.
    """
    jobs = list(jobs)
    _check_nodes(runs, jobs, slurm, container)
    for job in jobs:
        if job.rule == "prepare_text":
            check_text(_config(runs, job))
    if here:
        _check_devices(runs, jobs, installed)
    check_disk(Path("results"), disk_bytes(runs, jobs), "the checkpoints, optimizer states and tokens of this plan")


def check_text(config: Config) -> None:
    """Refuse a data.path without a file that data.source reads."""
    if config.data.source in FILE_SOURCES:
        assert config.data.path is not None
        find_files(Path(config.data.path), config.data.source)


def _check_nodes(runs: "Runs", jobs: list[PlannedJob], slurm: bool, container: bool) -> None:
    """Refuse training on several nodes where there is no srun to start it there: without SLURM, and in a container."""
    nodes = max((_config(runs, job).train.nodes for job in jobs if job.rule in TRAINING), default=1)
    if nodes > 1 and not slurm:
        raise InputError(
            f"config key train.nodes: found {nodes}, expected 1 for jobs that do not run on SLURM (--profile "
            "profiles/slurm)."
        )
    if nodes > 1 and container:
        raise InputError(
            f"config key train.nodes: found {nodes}, expected 1 for jobs in a container (--sdm apptainer), which has "
            "no srun."
        )


def _check_devices(runs: "Runs", jobs: list[PlannedJob], installed: bool) -> None:
    needed = [
        runs.resources.training_gpus(job.wildcards) if job.rule in TRAINING else runs.resources.gpus(job.wildcards)
        for job in jobs
        if job.uses_torch
    ]
    if any(needed):
        check_cuda("config key compute.device", max(needed), installed)


def slow_training(runs: "Runs", jobs: Iterable[PlannedJob], cores: int) -> str | None:
    """A sentence on training on this machine with more threads than it has cores, or None.

    It is no mistake: the bits of a run depend on the number of threads, and a run of another machine may be repeated.
    """
    training = [job.wildcards for job in jobs if job.rule in TRAINING]
    threads = max(map(runs.resources.training_threads, training), default=0)
    if threads <= cores:
        return None
    return (
        f"config key train.cpu_threads: found {threads} threads over all processes, expected at most {cores}, the "
        "number of cores of this machine; training will be slow."
    )


def disk_bytes(runs: "Runs", jobs: Iterable[PlannedJob]) -> int:
    """Bytes that the jobs are certain to put on disk: weights, moments, partial states, tokens.

    Text and tables are left out, whose size on disk is not known before.
    """
    counts: dict[str, Counter] = {}
    for job in jobs:
        counts.setdefault(_run(runs, job), Counter())["train_segment" if job.rule in TRAINING else job.rule] += 1
    return sum(_run_bytes(runs[run], planned) for run, planned in counts.items())


def _run_bytes(config: Config, planned: Counter) -> int:
    """Bytes of a run, from the number of its planned jobs by rule."""
    weights = parameters(config.model) * BYTES["float32"]
    tokens = 0
    if config.data.source == "fineweb" and config.tokenizer.name == "gpt2":
        tokens = 2 * TOKEN_BYTES * (config.data.train_tokens or 0)  # of the shards, and joined
    return (
        (planned["init_model"] + planned["train_segment"]) * weights
        + bool(planned["train_segment"]) * SEGMENT_STATES * weights
        + bool(planned["extract_states"]) * states_bytes(config)
        + bool(planned["join_tokens"]) * tokens
        + planned["fetch_model"] * parameters(config.model) * PUBLISHED_BYTES
    )


def _run(runs: "Runs", job: PlannedJob) -> str:
    """The run that a job belongs to; for the download of a model, one that measures it."""
    model = getattr(job.wildcards, "model", None)
    published = (run for run in runs if runs[run].model.repository and repository_name(runs[run].model) == model)
    return getattr(job.wildcards, "run", None) or next(published, runs.selected)


def _config(runs: "Runs", job: PlannedJob) -> Config:
    return runs[_run(runs, job)]
