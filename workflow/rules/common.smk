# What all rules share. The work is done in src/twoscale/workflow.py.

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile, update_wildcard_constraints
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod, ExecMode
from snakemake.sourcecache import HostingProviderFile, LocalGitFile


def project_folder():
    """The folder of this workflow, also where another Snakefile imports it as a module.

    Snakemake reads a module from a Git repository file by file and without a work tree, but jobs need `scripts` and
    `src`: such a module is cloned into .snakemake of the caller's folder, which the nodes of a cluster share.
    """
    source = workflow.current_basedir
    if not isinstance(source, HostingProviderFile | LocalGitFile):
        return Path(os.path.normpath(str(source))).parents[1]  # without the ".." of workflow/Snakefile
    import git

    repository = git.Repo(source.repo_path) if isinstance(source, LocalGitFile) else source.hosted_repo.repo
    commit = repository.commit(source.ref).hexsha
    folder = Path.cwd() / ".snakemake" / "twoscale" / commit
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            clone = Path(temporary, "clone")
            git.Repo.clone_from(repository.git_dir, clone, no_checkout=True).git.checkout("--detach", commit)
            try:
                clone.rename(folder)
            except OSError:  # another call was faster
                if not folder.exists():
                    raise
    return folder


# Jobs run in the caller's folder.
PROJECT = project_folder()
SCRIPTS = Path("scripts") if PROJECT == Path.cwd() else PROJECT / "scripts"
SOURCE = str(PROJECT / "src")


def prepend(variable, folder):
    """Put a folder first in a search path of this process and of its jobs."""
    folders = [part for part in os.environ.get(variable, "").split(os.pathsep) if part and part != folder]
    os.environ[variable] = os.pathsep.join([folder, *folders])


sys.path.insert(0, SOURCE)
prepend("PYTHONPATH", SOURCE)
# jobs call `python`: the one that runs Snakemake, unless a conda environment comes first
prepend("PATH", str(Path(sys.executable).parent))
# torch frees and allocates the same large tensors again and again; glibc keeps them instead of returning their pages
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
os.environ.update(PYTHONUTF8="1")  # jobs read and write UTF-8, whatever the locale
# Snakemake follows the chain of segments by recursion, and takes a RecursionError for an ambiguous rule
sys.setrecursionlimit(max(sys.getrecursionlimit(), 50_000))

from twoscale import preflight
from twoscale.jobs import launch
from twoscale.config import read_yaml
from twoscale.errors import InputError
from twoscale.files import check_writable
from twoscale.jobs.job_errors import JobErrors
from twoscale.workflow import TRAINING_TABLES, Runs, file_options, growing, table_columns, untracked

JobErrors.install(logger)
launch.leave_team(os.environ)  # no job belongs to the launch that Snakemake was started in

CONFIG = PROJECT / "config.yaml"
IMAGE = PROJECT / "envs" / "twoscale.sif"  # built from a lock file: docs/release.md
IN_CONTAINER = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method


class WrongInput(WorkflowError):
    """An InputError. Without a traceback Snakemake prints only its sentence, and not where in the Snakefiles it arose."""

    __traceback__ = property(lambda self: None, lambda self, value: None)


@contextmanager
def one_sentence():
    """Let Snakemake end with the sentence of an InputError."""
    try:
        yield
    except InputError as error:
        raise WrongInput(str(error)) from None


with one_sentence():
    if IN_CONTAINER and not IMAGE.exists():
        raise InputError(
            f"{IMAGE}: found no image, expected the one that envs/apptainer.def or envs/Dockerfile builds."
        )
    if CONFIG.exists():
        read_yaml(CONFIG)  # Snakemake does not say which line of a broken file is wrong


configfile: CONFIG


with one_sentence():
    runs = Runs(config, SCRIPTS)


def check_plan():
    """Refuse a plan that this machine cannot carry out: before the first job, and in a dry run."""
    # no scheduler: Snakemake is still planning
    if workflow.scheduler is None or workflow.touch or workflow.exec_mode != ExecMode.DEFAULT:
        return
    runs.before_jobs = lambda: None
    # In a dry run the executor is that of dry runs. That jobs will be submitted shows in use_threads.
    here = workflow.local_exec and not workflow.execution_settings.use_threads
    slurm = not here and workflow.executor_plugin.name in ("slurm", "dryrun")
    installed = not IN_CONTAINER and DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method
    jobs = [
        preflight.PlannedJob(job.rule.name, job.wildcards, "gpu" in job.rule.resources)
        for job in workflow.dag.needrun_jobs()
    ]
    with one_sentence():
        preflight.check(runs, jobs, here, installed, slurm, IN_CONTAINER)


runs.before_jobs = check_plan


onstart:
    check_plan()
    with one_sentence():
        check_writable(Path("results"))


def constrain_stored_outputs():
    """Apply the wildcard constraints of all rules to outputs in a storage.

    Snakemake adds them to the query of an output, but a plugin may have derived the local path from it before, as that
    for S3 does. Every iteration would then match `train_segment_last`, whose optimizer state is not temporary.
    """
    for each in workflow.rules:
        for position, output in enumerate(each.output):
            if output.is_storage:
                path = str(output.storage_object.local_path())
                constraints = each.wildcard_constraints, workflow.modifier.wildcard_constraints
                constrained = IOFile(update_wildcard_constraints(path, *constraints), rule=each)
                constrained.clone_flags(output, skip_storage_object=True)
                constrained.flags["storage_object"] = output.storage_object
                each.output[position] = constrained


def script(name, function=None):
    """Params of a job of scripts/<name>.py: the command, its files, and the code that is tracked.

    function: dotted path of the function that the script calls.
    """
    return dict(
        command=runs.command(name, *filter(None, [function])), files=file_options, code=runs.code(name, *module_of(function))
    )


def module_of(function):
    """The module of a function with this dotted path, if there is one."""
    return [] if function is None else [function.rpartition(".")[0]]


def torch_script(name, function=None):
    """Like `script`, with the GPUs of the config and the code of the run's architecture."""
    return dict(
        command=runs.torch_command(name, *filter(None, [function])),
        files=file_options,
        code=runs.torch_code(name, *module_of(function)),
    )


def kept_script(name, config, *tables, function=None, later=lambda wildcards: []):
    """Like `torch_script`, for an expensive job: a rerun restores its result. With all tracked params of the job.

    name: the script. config: param function of its slice. tables: those that it writes. later: see `runs.kept_files`.
    """
    columns = table_columns(*tables)
    of_script = torch_script(name, function)
    files = runs.kept_files(of_script["code"], config, columns, later)
    return of_script | dict(files=files, config=config, tables=columns)


def outputs_of(job):
    """The outputs of a row, of which the report shows the page."""
    if not job.report:
        return job.outputs
    category, label = job.report
    page = report(
        job.outputs["page"],
        caption=str(PROJECT.joinpath("src", *job.module.split(".")).with_name("caption.rst")),
        category=category,
        labels={"page": label},
    )
    return job.outputs | {"page": page}


# The shell line of every job; those of train_segment and a few others have further options.
JOB = "{params.command} --config {params.config:q} {params.files} > {log:q} 2>&1"
# Held-out tokens, an input of all jobs that open a checkpoint.
HELD_OUT = dict(val=runs.data_file("val.bin"), metadata=runs.data_file("tokens.json"))
CHECKPOINT = "results/{run}/checkpoints/iteration_{iteration}.safetensors"
TABLE = runs.table_file("{}")
