"""The worker of a session: jobs in one process, which end as they do in their own."""

import os
import subprocess
import sys
import time

import pytest

from tests.segment import TIMEOUT, Run
from tests.small import ROOT
from twoscale.jobs import worker

SERVE = (
    "import sys; from pathlib import Path; from twoscale.jobs import worker;"
    " worker.serve(Path(sys.argv[1]))"
)
FORWARD = [sys.executable, str(ROOT / "scripts/with_gpus.py"), "1", "python"]


@pytest.fixture
def address(tmp_path):
    path = tmp_path / "worker"
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(path)])
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.05)
    yield path
    process.kill()
    process.wait()


def forward(address, *command: str) -> subprocess.CompletedProcess:
    variables = os.environ | {worker.ADDRESS: str(address)}
    return subprocess.run(
        [*FORWARD, *command],
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_segments_in_a_worker_continue_in_memory_and_have_the_bits_of_segments_in_their_own_processes(
    address, tmp_path
):
    plain, served = Run(tmp_path / "plain"), Run(tmp_path / "served")
    plain.succeed(0, 2)
    plain.succeed(2, 4)
    for start, until in ((0, 2), (2, 4)):
        _, *command = served.command(start, until)
        done = forward(address, *command)
        assert done.returncode == 0, done.stderr
        if start == 0:
            served.optimizer(2).write_bytes(b"")  # a segment that reads it is refused
    for path in (plain.checkpoint(4), plain.optimizer(4)):
        assert (served.folder / path.name).read_bytes() == path.read_bytes()


def test_what_a_job_prints_and_its_exit_status_are_those_of_the_caller(address, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit('error: no file')\n")
    done = forward(address, str(script), "--a", "b c")
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "['--a', 'b c']\n",
        "error: no file\n",
    )
    script.write_text("import os\nraise ValueError(os.getpid())\n")
    said = {forward(address, str(script)).stderr.splitlines()[-1] for _ in range(2)}
    assert len(said) == 1  # one process
    assert said.pop().startswith("ValueError")


def test_a_worker_that_is_gone_is_one_sentence(tmp_path):
    done = forward(tmp_path / "worker", "job.py")
    assert done.returncode == 1
    assert (
        done.stderr == f"error: {tmp_path}/worker: the worker has ended; start the session again.\n"
    )
