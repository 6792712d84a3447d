"""Data-parallel training with real processes over gloo: a run does not depend on their number."""

import pytest
import torch

from tests.segment import Run
from twoscale.model import checkpoints

ITERATIONS = 6
NOISY = {"loop_noise": 0.1}  # noise at every loop step, which each process must draw for its samples


def weights(run: Run) -> dict[str, torch.Tensor]:
    return checkpoints.load(run.checkpoint(ITERATIONS), "weights", {})[0]


def assert_same_run(one: Run, other: Run) -> None:
    """The loss curve, the loop counts and the weights are equal, except for the order of sums."""
    ours, theirs = (run.log(ITERATIONS).set_index("iteration") for run in (one, other))
    counts, other_counts = (run.loops(ITERATIONS).set_index(["iteration", "group"])["loops"] for run in (one, other))
    assert counts.loc[:, "2"].tolist() == other_counts.loc[:, "2"].loc[ours.index].tolist()
    for measure in ("loss", "gradient_norm", "learning_rate"):
        assert ours[measure].tolist() == pytest.approx(theirs.loc[ours.index, measure].tolist(), rel=1e-4), measure
    assert ours["held_out_loss"].iloc[-1] == pytest.approx(theirs["held_out_loss"].iloc[-1], rel=1e-4)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("alone"), NOISY).succeed(0, ITERATIONS)


def test_two_processes_train_the_model_of_one(alone, tmp_path):
    assert_same_run(Run(tmp_path, NOISY).succeed(0, ITERATIONS, processes=2), alone)


def test_two_processes_divide_each_micro_batch(alone, tmp_path):
    assert_same_run(Run(tmp_path, NOISY).succeed(0, ITERATIONS, processes=2, micro_batches=2), alone)


def test_a_run_of_two_processes_is_continued_by_one(alone, tmp_path):
    run = Run(tmp_path, NOISY).succeed(0, 3, processes=2)
    assert_same_run(run.succeed(3, ITERATIONS), alone)


def test_a_loss_that_is_not_finite_stops_every_process(tmp_path):
    run = Run(tmp_path, learning_rate=1e30, warmup_iterations=0)
    finished = run.train(0, ITERATIONS, processes=2)
    assert finished.returncode != 0
    assert "error: training: iteration" in finished.stderr
    assert not run.checkpoint(ITERATIONS).exists()
