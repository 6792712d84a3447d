"""Which processes train together: those of one torchrun, whatever else the shell exports."""

import pytest

from twoscale.errors import InputError
from twoscale.launch import Team, checked_team, leave_team, team

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


def test_leaving_a_team_removes_its_variables_and_no_other():
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "PETS": "2", "CUDA_VISIBLE_DEVICES": "0"}
    environment = TORCHRUN | {"PET_NNODES": "2", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "4"} | others
    leave_team(environment)
    assert environment == others
