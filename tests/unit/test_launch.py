"""Which processes train together: those of one torchrun, whatever else the shell exports."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from twoscale.errors import InputError
from twoscale.jobs.launch import NodeResources, Team, checked_team, leave_team, team, torchrun_line

WITH_NODES = Path(__file__).parents[2] / "scripts" / "with_nodes.py"
OPERATOR = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456"}
TORCHRUN = OPERATOR | {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "ROLE_NAME": "default"}


@pytest.fixture
def export(monkeypatch):
    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def test_without_torchrun_a_process_is_alone(export):
    export(OPERATOR)
    assert team() == checked_team(1) == Team(0, 1)


def test_torchrun_gives_a_process_its_team(export):
    export(TORCHRUN)
    assert checked_team(4) == Team(3, 4)
    export({"GROUP_WORLD_SIZE": "2"})
    assert team() == Team(3, 4, nodes=2)


def test_a_launch_that_sets_no_numbers_has_one_process(export):
    export({"TORCHELASTIC_RUN_ID": "none"})
    assert team() == Team(0, 1, nodes=1)


@pytest.mark.parametrize(("variables", "processes", "size"), [(TORCHRUN, 1, 4), (TORCHRUN, 8, 4), (OPERATOR, 2, 1)])
def test_a_team_of_another_size_is_refused(variables, processes, size, export):
    export(variables)
    with pytest.raises(InputError, match=rf"train.processes: found {processes}, expected {size}, the number"):
        checked_team(processes)


@pytest.mark.parametrize("value", ["", "two", "-1", "1.5"])
def test_a_size_that_is_no_number_is_refused(value, export):
    export(TORCHRUN | {"WORLD_SIZE": value})
    with pytest.raises(InputError, match="variable WORLD_SIZE: found"):
        team()


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
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_srun_starts_one_launcher_on_each_node_and_all_end_with_the_first_that_fails(tmp_path):
    done = with_nodes(tmp_path, "2", "4", "16", "4", "x.py", "--nnodes", "a b", SLURM_JOB_ID="77")
    assert done.returncode == 0, done.stderr
    srun, _, torchrun = done.stdout.partition("torchrun\n")
    assert srun.split() == [
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--gpus-per-node=4"),
        *("--kill-on-bad-exit=1", "--input=none"),
    ]
    options, _, command = torchrun.partition("\n--\n")
    *options, endpoint, id_option, run = options.split()
    sizes = ["--nnodes", "2", "--nproc-per-node", "4"]
    assert options == [*sizes, "--rdzv-backend", "c10d", "--rdzv-endpoint"]
    assert (id_option, run) == ("--rdzv-id", "77")
    host, _, port = endpoint.rpartition(":")
    assert host == socket.gethostname()
    assert int(port) > 1023  # a free one
    assert command.splitlines() == ["x.py", "--nnodes", "a b"]


def test_nodes_without_slurm_are_one_sentence(tmp_path):
    done = with_nodes(tmp_path, "2", "1", "1", "0", "x.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: variable SLURM_JOB_ID: not set; training on")
    assert len(done.stderr.splitlines()) == 1


def test_nodes_without_srun_are_one_sentence(tmp_path):
    """As in a container, in which a job has SLURM's variables and none of its commands."""
    command = [sys.executable, str(WITH_NODES), "2", "1", "1", "0", "x.py"]
    environment = os.environ | {"PATH": str(tmp_path), "SLURM_JOB_ID": "77"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: command srun: not found in the PATH of this job")
    assert len(done.stderr.splitlines()) == 1


def test_the_processes_of_one_node_meet_by_themselves_and_those_of_several_at_an_endpoint():
    one, two = (NodeResources(nodes, processes=4, cpus=4, gpus=0) for nodes in (1, 2))
    assert torchrun_line(one) == ["torchrun", "--standalone", "--nproc-per-node", "4", "--"]
    assert " ".join(torchrun_line(two, "n1:9", "77")) == (
        "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint n1:9 --rdzv-id 77 --"
    )


def test_leaving_a_team_removes_its_variables_and_no_other():
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "PETS": "2", "CUDA_VISIBLE_DEVICES": "0"}
    environment = TORCHRUN | {"PET_NNODES": "2", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "4"} | others
    leave_team(environment)
    assert environment == others
