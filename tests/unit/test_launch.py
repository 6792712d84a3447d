"""How processes start: those of one torchrun, whatever else the shell exports, on one node,
several, and free GPUs.
"""

import getpass
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.segment import Run
from twoscale.jobs.machine import Launch, clear_launch_variables, launch

SCRIPTS = Path(__file__).parents[2] / "scripts"
WITH_NODES = SCRIPTS / "with_nodes.py"
OPERATOR = {
    "WORLD_SIZE": "4",
    "RANK": "3",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "23456",
}
TORCHRUN = OPERATOR | {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "ROLE_NAME": "default"}


@pytest.fixture
def export(monkeypatch):
    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def test_torchrun_gives_a_process_its_team(export):
    export(OPERATOR)
    assert launch() == Launch(0, 1, nodes=1)
    export(TORCHRUN)
    assert launch() == Launch(3, 4)
    export({"GROUP_WORLD_SIZE": "2"})
    assert launch() == Launch(3, 4, nodes=2)


SRUN = """#!/bin/sh
printf '%s\\n' "$@"
"""


def with_nodes(folder, *arguments, **variables):
    """What scripts/with_nodes.py hands to srun, which here prints its arguments."""
    srun = folder / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"} | variables
    command = [sys.executable, str(WITH_NODES), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_srun_starts_one_launcher_on_each_node_and_all_end_with_the_first_that_fails(tmp_path):
    done = with_nodes(tmp_path, "2", "4", "16", "4", "x.py", "--nnodes", "a b", SLURM_JOB_ID="77")
    assert done.returncode == 0, done.stderr
    srun, _, torchrun = done.stdout.partition("torchrun\n")
    srun, _, numbered = srun.partition("sh\n")
    assert srun.split() == [
        *(
            "--nodes=2",
            "--ntasks=2",
            "--ntasks-per-node=1",
            "--gpus-per-node=4",
            "--cpus-per-task=16",
        ),
        *("--kill-on-bad-exit=1", "--input=none"),
    ]
    assert numbered.splitlines() == ["-c", 'PET_NODE_RANK=$SLURM_NODEID exec "$@"', "sh"]
    options, _, command = torchrun.partition("\n--\n")
    *options, port = options.split()
    assert options[:4] == ["--nnodes", "2", "--nproc-per-node", "4"]
    assert options[4:] == ["--master-addr", socket.gethostname(), "--master-port"]
    assert int(port) > 1023  # a free one
    assert command.splitlines() == ["x.py", "--nnodes", "a b"]


@pytest.mark.parametrize(
    ("variables", "missing"),
    [({}, "variable SLURM_JOB_ID"), ({"SLURM_JOB_ID": "77"}, "command srun")],
)
def test_nodes_without_slurm_or_in_a_container_are_one_sentence(tmp_path, variables, missing):
    command = [sys.executable, str(WITH_NODES), "2", "1", "1", "0", "x.py"]
    environment = os.environ | {"PATH": str(tmp_path)} | variables
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {missing}: found none")
    assert len(done.stderr.splitlines()) == 1


def listening_addresses(process):
    """The addresses at which this process listens; none where it has ended in the meantime."""
    with suppress(psutil.NoSuchProcess):
        sockets = process.net_connections("inet")
        return [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
    return []


@pytest.mark.runs
def test_the_processes_of_one_node_listen_on_loopback_and_leave_no_file(tmp_path, monkeypatch):
    """Whatever interface the shell names for jobs on several nodes."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    run = Run(tmp_path / "run", {}, lr_decay_iterations=60)
    _, *script = run.command(0, 60, processes=2)
    command = [sys.executable, *script]  # its processes are to be children of this one
    launcher = psutil.Popen(command, stderr=subprocess.PIPE, text=True)
    listening, members = set(), {launcher}
    while launcher.poll() is None:
        with suppress(psutil.NoSuchProcess):  # the launcher itself has ended
            members.update(launcher.children(recursive=True))
        for process in members:
            listening.update(listening_addresses(process))
        time.sleep(0.02)
    assert launcher.returncode == 0, launcher.communicate()[1]
    assert len(members) >= 3  # the launcher and two trainers
    assert len(listening) >= 2  # their connections over gloo were seen
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1"}
    assert {path.name for path in folder.iterdir()} <= {
        f"torchinductor_{getpass.getuser()}"
    }  # compiled code


def test_leaving_a_team_removes_its_variables_and_no_other():
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "PETS": "2", "CUDA_VISIBLE_DEVICES": "0"}
    environment = TORCHRUN | {"PET_NNODES": "2", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "4"} | others
    clear_launch_variables(environment)
    assert environment == others


# --- leases of fictitious GPUs, held by real processes

PRINT_GPUS = (
    "import os, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); sys.stdin.read()"
)


@pytest.fixture
def start(tmp_path):
    """Start a command that prints its GPUs and holds them until it ends."""
    processes = []

    def begin(count: int, gpus: str = "a,b", **environment: str) -> subprocess.Popen:
        shell = {
            name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"
        } | environment
        shell |= {
            "PYTHONPATH": str(SCRIPTS.parent / "src"),
            "TMPDIR": str(tmp_path),
            "CUDA_VISIBLE_DEVICES": gpus,
        }
        command = [
            sys.executable,
            SCRIPTS / "with_gpus.py",
            str(count),
            sys.executable,
            "-c",
            PRINT_GPUS,
        ]
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


@pytest.mark.parametrize(
    ("gpus", "more"), [("a,b", {"SLURM_JOB_ID": "1"}), ("a", {})], ids=["SLURM", "one GPU"]
)
def test_without_a_choice_nothing_is_leased(start, gpus, more):
    assert [gpus_of(start(1, gpus, **more)) for _ in range(2)] == [gpus, gpus]


def refusal(process: subprocess.Popen) -> str:
    """The only line of a process that fails."""
    assert process.wait(30) == 1
    (line,) = process.stderr.read().splitlines()
    return line


def test_too_few_gpus_is_one_sentence(start):
    assert refusal(start(3)).startswith(
        "error: CUDA_VISIBLE_DEVICES: found 2 GPUs, expected at least 3"
    )


@pytest.mark.parametrize(
    ("name", "found"), [("", "[Errno 17] File exists"), ("a", "[Errno 40] Too many levels")]
)
def test_a_folder_of_leases_that_another_user_made_is_one_sentence(start, tmp_path, name, found):
    """A file in its place, or a link in place of a lease; a folder without permission is the same
    to a user.
    """
    folder = tmp_path / f"twoscale-gpus-{os.getuid()}"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to("/dev/null")
    assert refusal(start(1)).startswith(f"error: {folder}: cannot be used ({found}")
