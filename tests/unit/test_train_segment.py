"""train_segment: what the script leaves on disk when training cannot go on."""

import re

import pytest

from tests.segment import Run
from twoscale.model import checkpoints


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Run, bytes, str]:
    """A run whose weights blow up, its first checkpoint before that, and what it said."""
    run = Run(tmp_path_factory.mktemp("stopped"), learning_rate=1e30, warmup_iterations=0)
    before = run.checkpoint(0).read_bytes()
    done = run.train(0, 6, save_seconds=1e-9)
    assert done.returncode == 1
    return run, before, done.stderr


def test_a_loss_that_is_not_finite_ends_the_job_in_one_sentence(stopped):
    said = stopped[2].splitlines()
    assert "Traceback" not in stopped[2]
    assert re.match(r"error: training: iteration \d gave the loss \S+ and the gradient norm \S+, expected", said[-1])


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


def test_the_empty_file_of_a_restored_segment_is_no_optimizer_state(tmp_path):
    run = Run(tmp_path).succeed(0, 2)
    run.optimizer(2).write_bytes(b"")
    done = run.train(2, 4)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"error: {run.optimizer(2)}: found an empty file, which stands for the optimizer state" in done.stderr
