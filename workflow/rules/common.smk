# What all rules share. The work is done in src/twoscale/workflow/.

import os
import sys
import tempfile
from pathlib import Path

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
sys.path.insert(0, SOURCE)

from twoscale.config import read_yaml
from twoscale.base import check_writable, study_files
from twoscale.workflow import snakefile
from twoscale.workflow.params import JOB_FILES, table_columns, untracked
from twoscale.workflow.resources import per_attempt
from twoscale.workflow.runs import Runs, alternatives

snakefile.prepare(SOURCE)

CONFIG = PROJECT / "config.yaml"
IMAGE = PROJECT / "envs" / "twoscale.sif"  # built from a lock file: docs/release.md

last_lines = snakefile.LastLines.install(workflow)

with snakefile.one_sentence():
    snakefile.check_import(workflow)
    IN_CONTAINER = snakefile.in_container(workflow, IMAGE)
    for file in [CONFIG] * CONFIG.exists() + workflow.overwrite_configfiles:
        read_yaml(file)  # Snakemake does not say which line of a broken file is wrong


configfile: CONFIG


with snakefile.one_sentence():
    runs = Runs(config, SCRIPTS)

last_lines.runs.append(runs)


# All jobs in one image (of rules that follow), with `--software-deployment-method apptainer` and not otherwise: Snakemake refuses a path with
# blanks even where no container is wanted.
if IN_CONTAINER:

    container: str(IMAGE)


# two jobs that need the GPU of one machine take turns; a cluster gives each job its own GPU
resource_scopes:
    gpu_slot="local",


onstart:
    snakefile.check_plan(workflow, runs)
    with snakefile.one_sentence():
        for folder in (Path("results"), Path("resources"), JOB_FILES):
            check_writable(folder)


onerror:
    snakefile.say_causes(workflow)


onsuccess:
    snakefile.say_ending(workflow, runs)


# The shell line of most jobs: the file `job` has the config, `files` are the named inputs and outputs as options.
JOB = "{params.command} --job {params.job} {params.files} > {log:q} 2>&1"
CHECKPOINT = "results/{run}/checkpoints/iteration_{iteration}.safetensors"
TABLE = runs.table_file("{}")  # of the selected run
SHOWN = runs.figures.drawn("{}")  # figures and pages of the selected run
LOG = f"{runs.table_root}/{runs.selected}/logs/{{}}.log"  # of jobs that write these two
