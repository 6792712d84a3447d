"""Leases on pretended GPUs: names that CUDA never sees, held by real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/with_gpus.py"
TELL = "import os, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); sys.stdin.read()"
PATIENCE = 30  # seconds


@pytest.fixture
def start(tmp_path):
    """Start a command that names its GPUs and holds them until it is ended."""
    started = []

    def begin(count: int, gpus: str = "a,b", **environment: str) -> subprocess.Popen:
        clean = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
        process = subprocess.Popen(
            [sys.executable, SCRIPT, str(count), sys.executable, "-c", TELL],
            env=clean | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": gpus} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def gpus_of(process: subprocess.Popen) -> str:
    return process.stdout.readline().strip()


def waits(process: subprocess.Popen) -> bool:
    return process.stderr.readline().startswith("waiting for ")


def test_each_job_gets_a_gpu_of_its_own(start):
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


def test_a_killed_job_gives_its_gpu_back(start):
    first = start(2)
    assert gpus_of(first) == "a,b"
    second = start(1)
    assert waits(second)
    first.kill()
    assert gpus_of(second) == "a"


def test_several_gpus_are_taken_at_once_or_not_at_all(start):
    first = start(1)
    assert gpus_of(first) == "a"
    pair = start(2)
    assert waits(pair)
    assert gpus_of(start(1)) == "b"  # what the waiting job saw free it did not keep


@pytest.mark.parametrize(
    ("gpus", "environment"),
    [("a,b", {"SLURM_JOB_ID": "1"}), ("a", {})],
    ids=["under SLURM", "one GPU"],
)
def test_nothing_is_leased_where_something_else_shares_out(start, gpus, environment):
    assert [gpus_of(start(1, gpus, **environment)) for _ in range(2)] == [gpus, gpus]


def test_more_gpus_than_there_are_is_one_sentence(start):
    process = start(3)
    assert process.wait(PATIENCE) == 1
    assert process.stderr.read().startswith("error: CUDA_VISIBLE_DEVICES: found 2 GPUs, expected at least 3")


def test_the_command_gets_its_arguments_as_they_are():
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--start", "--", "--help"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "a"}
    done = subprocess.run([sys.executable, SCRIPT, "1", *command], env=environment, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().strip() == "['--start', '--', '--help']"
