"""Leases of fictitious GPUs, held by real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PRINT_GPUS = "import os, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); sys.stdin.read()"


@pytest.fixture
def start(tmp_path):
    """Start a command that prints its GPUs and holds them until it ends."""
    processes = []

    def begin(count: int, gpus: str = "a,b", **environment: str) -> subprocess.Popen:
        shell = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"} | environment
        shell |= {"PYTHONPATH": str(PROJECT / "src"), "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": gpus}
        command = [sys.executable, PROJECT / "scripts/with_gpus.py", str(count), sys.executable, "-c", PRINT_GPUS]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        processes.append(subprocess.Popen(command, env=shell, text=True, **pipes))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def gpus_of(process: subprocess.Popen) -> str:
    return process.stdout.readline().strip()


def test_each_job_gets_other_gpus_and_waits_for_one_that_ends_or_is_killed(start):
    first, second = start(1), start(1)
    assert {gpus_of(first), gpus_of(second)} == {"a", "b"}
    pair = start(2)
    first.kill()
    first.wait()
    assert gpus_of(start(1)) in ("a", "b")  # the pair, which waits, does not hold the free one
    for process in (first, second):
        process.kill()
    assert pair.poll() is None


@pytest.mark.parametrize(("gpus", "more"), [("a,b", {"SLURM_JOB_ID": "1"}), ("a", {})], ids=["SLURM", "one GPU"])
def test_without_a_choice_nothing_is_leased(start, gpus, more):
    assert [gpus_of(start(1, gpus, **more)) for _ in range(2)] == [gpus, gpus]


def test_too_few_gpus_is_one_sentence(start):
    process = start(3)
    assert process.wait(30) == 1
    assert process.stderr.read().startswith("error: CUDA_VISIBLE_DEVICES: found 2 GPUs, expected at least 3")
