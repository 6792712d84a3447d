"""A SLURM of two nodes, and Snakemake runs that hand their jobs to it."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ports import free_port
from tests.workflow.conftest import Project, checkout

HERE = Path(__file__).parent
CANNOT = 77  # exit status of start-slurm.sh where SLURM can be neither found nor installed
PATIENCE = 300  # seconds


class Cluster:
    """The running scheduler, seen through its own commands."""

    def jobs(self) -> list[dict[str, str]]:
        """Record of every job since the start, oldest first: the fields of `scontrol show jobs`."""
        text = command("scontrol", "--oneliner", "--details", "show", "jobs")
        records = [
            dict(re.findall(r"(\S+?)=(\S*)", line))
            for line in text.splitlines()
            if line.startswith("JobId=")
        ]
        return sorted(records, key=lambda record: int(record["JobId"]))

    def newest(self) -> int:
        """Number of the last job submitted, 0 before the first."""
        return max((int(record["JobId"]) for record in self.jobs()), default=0)

    def cancel(self, record: dict[str, str]) -> None:
        command("scancel", record["JobId"])

    def limit(self, record: dict[str, str], minutes: int) -> None:
        """Another wall-time limit for a job that runs."""
        command("scontrol", "update", f"JobId={record['JobId']}", f"TimeLimit={minutes}")


class SlurmProject(Project):
    """A checkout whose jobs go to SLURM."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.started: list[subprocess.Popen] = []

    def start(self, *arguments: str) -> subprocess.Popen:
        self.started.append(super().start(*arguments))
        return self.started[-1]

    def options(self, *arguments: str) -> list[str]:
        # default: 40 seconds
        return [
            "--profile",
            "profiles/slurm",
            "--slurm-init-seconds-before-status-checks",
            "3",
            *arguments,
        ]

    def local(self) -> Project:
        """The same folder, with jobs on this machine."""
        return Project(self.root)

    def copy(self, root: Path) -> "SlurmProject":
        return SlurmProject(super().copy(root).root)


def command(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout


def wait_until(
    what: str, found: Callable[[], bool], snakemake: subprocess.Popen | None = None
) -> None:
    """Wait for what a `snakemake` that still runs, if one is named, is about to bring about."""
    end = time.monotonic() + PATIENCE
    while not found():
        assert snakemake is None or snakemake.poll() is None, f"Snakemake ended before {what} came"
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.1)


def trainers(root: Path) -> list[psutil.Process]:
    """Processes of train_segment.py that work in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "scripts/train_segment.py" in (process.info["cmdline"] or []) and process.info[
            "cwd"
        ] == str(root):
            found.append(process)
    return found


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Started for the session and stopped by pid after it; jobs find it through the environment."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    ports = {name: str(free_port()) for name in ("CTLD_PORT", "SLURMD_PORT_1", "SLURMD_PORT_2")}
    started = subprocess.run(
        [HERE / "start-slurm.sh", folder],
        env=os.environ | ports,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if started.returncode == CANNOT:
        shutil.rmtree(folder)
        pytest.skip(started.stderr.strip().splitlines()[-1])
    environment = pytest.MonkeyPatch()
    try:
        assert started.returncode == 0, started.stderr
        environment.setenv("SLURM_CONF", str(folder / "etc/slurm.conf"))
        environment.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
        yield Cluster()
    finally:
        environment.undo()
        subprocess.run([HERE / "stop-slurm.sh", folder], check=True)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def finished_on_slurm(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> SlurmProject:
    """The tiny workflow after a full run as cluster jobs; tests only look at it.

    One rule asks for the GPU, which a CPU run would not.
    """
    project = SlurmProject(checkout(tmp_path_factory.mktemp("slurm-finished")).root)
    rule = "train_segment_last"
    project.succeed(
        "--set-resources", f"{rule}:gpu=1", f"{rule}:gpu_model=pretended", f"{rule}:runtime=77"
    )
    return project


@pytest.fixture
def project(finished_on_slurm: SlurmProject, tmp_path: Path) -> Iterator[SlurmProject]:
    """A copy of the finished project that a test may change; nothing that works in it outlives the
    test.
    """
    copied = finished_on_slurm.copy(tmp_path)
    yield copied
    for (
        process
    ) in psutil.process_iter():  # also the one that SLURM's signal has left with a suspended child
        with suppress(psutil.Error):
            if process.cwd() == str(copied.root):
                process.kill()
    for snakemake in copied.started:
        snakemake.wait()
