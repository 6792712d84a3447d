"""train_segment: what the script leaves on disk when training cannot go on."""

import re
import shutil
import subprocess

import pytest

from tests.segment import TIMEOUT, Run
from twoscale.jobs import machine
from twoscale.model import checkpoints


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Run, bytes, str]:
    """A run whose weights blow up, its first checkpoint before that, and what it said."""
    run = Run(tmp_path_factory.mktemp("stopped"), learning_rate=1e30, warmup_iterations=0)
    before = run.checkpoint(0).read_bytes()
    done = run.train(0, 6, save_seconds=1e-9)
    assert done.returncode == 1
    return run, before, done.stderr


def test_a_loss_that_is_not_finite_leaves_the_last_checkpoint_and_the_partial_state(stopped):
    run, before, said = stopped
    assert run.checkpoint(0).read_bytes() == before
    failed = int(re.search(r"iteration (\d)", said).group(1))
    assert checkpoints.read_header(run.partial(6)).iteration == failed - 1
    assert {path.name for path in run.folder.iterdir()} == {
        "train.bin",
        "val.bin",
        "tokens.json",
        "metrics.csv",
        run.checkpoint(0).name,
        run.partial(6).name,
    }


NOBODY = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "9",
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> tuple[Run, Run]:
    """A run in a plain shell, and one whose second segment is trained in a shell with a launch and
    other kernels.
    """
    plain, changed = (Run(tmp_path_factory.mktemp(name)) for name in ("plain", "changed"))
    plain.succeed(0, 2)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NOBODY.items():
            patch.setenv(name, value)
        changed.succeed(0, 2)
        patch.setenv("MKL_CBWR", "COMPATIBLE")
        patch.setenv("OMP_THREAD_LIMIT", "1\x1b")
        changed.said = changed.train(2, 4).stderr
    return plain, changed


def test_a_launch_that_the_shell_exports_changes_no_bit(shell):
    plain, changed = shell
    assert changed.checkpoint(2).read_bytes() == plain.checkpoint(2).read_bytes()
    assert changed.optimizer(2).read_bytes() == plain.optimizer(2).read_bytes()


def test_an_empty_file_is_no_optimizer_state(shell, tmp_path):
    run = Run(tmp_path)
    shutil.copy(shell[0].checkpoint(2), run.checkpoint(2))
    run.optimizer(2).write_bytes(b"")
    done = run.train(2, 4)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"error: {run.optimizer(2)}: " in done.stderr


def test_each_log_has_the_environment_of_its_segment(shell):
    first, second = (
        machine.recorded_environments(shell[1].checkpoint(until).with_suffix(".parquet"))
        for until in (2, 4)
    )
    assert [entry["first_iteration"] for entry in (*first, *second)] == [1, 3]
    assert {"torch", "cpu_capability", "operations", "threads", "processes"} <= first[0].keys()
    assert "MKL_CBWR" not in first[0]
    assert second[0]["MKL_CBWR"] == "COMPATIBLE"


def test_a_segment_in_another_environment_says_what_differs_in_one_line(shell):
    said = [line for line in shell[1].said.splitlines() if line.startswith("warning: ")]
    assert said == [
        "warning: training continues in another environment (MKL_CBWR: unset before, 'COMPATIBLE'"
        " now; "
        r"OMP_THREAD_LIMIT: unset before, '1\x1b' now), so the weights may not be bit-identical to those "
        "of an uninterrupted run"
    ]


def test_a_team_of_another_size_than_the_config_says_is_one_sentence(tmp_path):
    run = Run(tmp_path)
    launch = run.command(0, 2, processes=3)
    assert launch[2:4] == ["1", "3"]  # nodes, and processes of each
    launch[3] = "2"
    done = subprocess.run(launch, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode != 0
    assert (
        "error: config key train.processes: found 3, expected 2, the number of processes"
        in done.stderr
    )
    assert not run.checkpoint(2).exists()
