"""Leases of fictitious GPUs, held by real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twoscale.jobs import gpu_lease

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "scripts/with_gpus.py"
PRINT_GPUS = "import os, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); sys.stdin.read()"
SOURCE = {"PYTHONPATH": str(PROJECT / "src")}
PATIENCE = 30  # seconds


@pytest.fixture
def start(tmp_path):
    """Start a command that prints its GPUs and holds them until it ends."""
    processes = []

    def begin(count: int, gpus: str = "a,b", **environment: str) -> subprocess.Popen:
        clean = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"} | SOURCE
        process = subprocess.Popen(
            [sys.executable, SCRIPT, str(count), sys.executable, "-c", PRINT_GPUS],
            env=clean | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": gpus} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def gpus_of(process: subprocess.Popen) -> str:
    return process.stdout.readline().strip()


def waits(process: subprocess.Popen) -> bool:
    return process.stderr.readline().startswith("waiting for ")


def test_each_job_gets_another_gpu(start):
    assert [gpus_of(start(1)), gpus_of(start(1))] == ["a", "b"]


def test_a_job_waits_until_a_gpu_is_free(start):
    first = start(1)
    assert gpus_of(first) == "a"
    second = start(1)
    assert gpus_of(second) == "b"
    third = start(1)
    assert waits(third)
    first.terminate()
    assert gpus_of(third) == "a"


def test_a_killed_job_releases_its_gpus(start):
    first = start(2)
    assert gpus_of(first) == "a,b"
    second = start(1)
    assert waits(second)
    first.kill()
    assert gpus_of(second) == "a"


def test_several_gpus_are_leased_together_or_not_at_all(start):
    first = start(1)
    assert gpus_of(first) == "a"
    pair = start(2)
    assert waits(pair)
    assert gpus_of(start(1)) == "b"  # the waiting job does not hold the free GPU


@pytest.mark.parametrize(
    ("gpus", "environment"), [("a,b", {"SLURM_JOB_ID": "1"}), ("a", {})], ids=["under SLURM", "one GPU"]
)
def test_without_a_choice_nothing_is_leased(start, gpus, environment):
    assert [gpus_of(start(1, gpus, **environment)) for _ in range(2)] == [gpus, gpus]


def test_too_few_gpus_is_one_sentence(start):
    process = start(3)
    assert process.wait(PATIENCE) == 1
    assert process.stderr.read().startswith("error: CUDA_VISIBLE_DEVICES: found 2 GPUs, expected at least 3")


def test_a_folder_of_locks_that_is_a_link_is_one_sentence(start, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"twoscale-gpus-{os.getuid()}").symlink_to(elsewhere)
    process = start(1)
    assert process.wait(PATIENCE) == 1
    assert "expected a folder owned by user" in process.stderr.read()
    assert list(elsewhere.iterdir()) == []


def test_a_lock_that_is_a_link_creates_no_file_elsewhere(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        gpu_lease.lease(1, ["a", "b"], tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_arguments_of_the_command_are_unchanged():
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--start", "--", "--help"]
    environment = os.environ | SOURCE | {"CUDA_VISIBLE_DEVICES": "a"}
    done = subprocess.run([sys.executable, SCRIPT, "1", *command], env=environment, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().strip() == "['--start', '--', '--help']"
