"""A copy of the project in a temporary folder, and Snakemake runs in it."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from tests import forked_python
from tests.workflow.forked import snakemake

ROOT = Path(__file__).parents[2]
# What Snakemake needs to plan and run, and what `export` reads.
PARTS = (
    *(
        "Snakefile",
        "config.yaml",
        "workflow",
        "scripts",
        "src",
        "envs",
        "profiles",
        "config",
        "pyproject.toml",
    ),
    *("requirements.txt", "CITATION.cff", "LICENSE", "README.md", ".test"),
)
NOT_CODE = ("__pycache__", "*.egg-info", "*.sif")
COPIES = {"show_figure", "show_page"}
# Rules without a job, and those that only copy.
TARGETS = {
    *COPIES,
    "all",
    "supplementary",
    "text",
    "report_pages",
    "snapshot",
    "export",
    *("seeds", "variants", "adapter_init", "baselines"),  # of studies
}

# One long segment with partial states every few iterations, its checkpoint and its partial state.
SEGMENT = {
    "train": {
        "iterations": 160,
        "checkpoint_every": 160,
        "lr_decay_iterations": 160,
        "save_seconds": 0.1,
    }
}
TARGET = "results/tiny/checkpoints/iteration_000160.safetensors"
PARTIAL = "results/tiny/checkpoints/iteration_000160.partial.safetensors"


class Project:
    """A checkout that a test may edit and run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def configure(self, **config) -> None:
        """Write config.yaml: the tiny preset with this config on top."""
        (self.root / "config.yaml").write_text(yaml.safe_dump({"preset": "tiny"} | config))

    def options(self, *arguments: str) -> list[str]:
        return ["--cores", "2", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen:
        """Snakemake in the background, in a new process group."""
        log = (self.root / "snakemake.log").open("a")
        command = [sys.executable, "-m", "snakemake", *self.options(*arguments)]
        return subprocess.Popen(
            command,
            cwd=self.root,
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Snakemake; the scripts of its jobs are forked from a process with their libraries."""
        python = str(forked_python.folder() / "python")
        return snakemake(self.options(*arguments), self.root, environment() | variables, python)

    def succeed(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        done = self.run(*arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def plan(self, *arguments: str, hidden: Iterable[str] = frozenset(TARGETS)) -> dict[str, int]:
        """Rule -> number of jobs that Snakemake would run, without the target rules and copies."""
        text = self.succeed("-n", *arguments).stdout
        stats = re.search(r"^Job stats:\n.*?\n-.*?\n(.*?)\ntotal", text, re.MULTILINE | re.DOTALL)
        if stats is None:
            assert "Nothing to be done" in text, text
            return {}
        jobs = {line.split()[0]: int(line.split()[1]) for line in stats.group(1).splitlines()}
        return {rule: count for rule, count in jobs.items() if rule not in hidden}

    def copy(self, root: Path) -> "Project":
        """This project with its results and Snakemake's records; times of files stay."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        return Project(root)

    def refused(self, sentence: str, *arguments: str) -> None:
        """A call fails without a traceback; its last line, or one of six after a failed job, has
        this sentence.
        """
        done = self.run(*arguments)
        said = done.stdout + done.stderr
        assert done.returncode != 0
        last = done.stderr.strip().splitlines()[-6 if "Error in rule" in said else -1 :]
        assert any(sentence in line for line in last), said
        assert "Traceback (most recent call last)" not in said

    def python(self, *arguments: str) -> subprocess.CompletedProcess:
        """Python with the library of this project."""
        shell = environment() | {"PYTHONPATH": "src"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self.root, env=shell, capture_output=True, text=True, check=False
        )

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path
        text = file.read_text()
        assert old in text, f"{path} does not contain {old!r}"
        file.write_text(text.replace(old, new, 1))


def environment() -> dict[str, str]:
    """One thread per library, so that two jobs on two cores do not fight."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def checkout(root: Path) -> Project:
    root.mkdir(exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            ignore = shutil.ignore_patterns(*NOT_CODE)
            shutil.copytree(source, root / part, ignore=ignore, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, root / part)
    project = Project(root)
    project.configure()
    return project


def publish(project, hub: Path) -> dict[str, str]:
    """Commit a checkout, tag it v1, and return variables with which Git reads https://github.com/
    from the folder hub.

    The repository is someone/twoscale. Snakemake's cache, to which it clones, is in the same
    folder.
    """
    repository = hub / "someone" / "twoscale"
    project.copy(repository)
    git = [
        "git",
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    for command in (["init"], ["add", "."], ["commit", "--message", "Release"], ["tag", "v1"]):
        subprocess.run([*git, *command], cwd=repository, check=True, capture_output=True)
    rewrite = {
        "GIT_CONFIG_KEY_0": f"url.{hub.as_uri()}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    return rewrite | {"GIT_CONFIG_COUNT": "1", "XDG_CACHE_HOME": str(hub / "cache")}


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A checkout without results."""
    return checkout(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny workflow after a full run; tests only look at it. All workers of pytest-xdist share
    one.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        project = Project(shared / "finished")
        if not (shared / "finished.done").exists():
            project = checkout(shared / "finished")
            (shared / "finished.done").write_text(project.succeed().stderr)
    return project


@pytest.fixture
def editable(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project that a test may change."""
    return finished.copy(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of one long segment that nothing interrupts."""
    project = finished.copy(tmp_path_factory.mktemp("undisturbed"))
    project.configure(**SEGMENT)
    project.succeed(TARGET)
    return (project.root / TARGET).read_bytes()
