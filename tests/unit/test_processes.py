"""processes: a run does not depend on how many processes share its batches; real ones, over gloo."""

import pytest
import torch
from segment import Run

from twoscale.model import checkpoints

STEPS = 6
NOISY = {"loop_noise": 0.1}  # noise at every step, so that each has to find that of its own samples


def weights(run: Run) -> dict[str, torch.Tensor]:
    return checkpoints.load(run.checkpoint(STEPS), "weights", {})[0]


def assert_same_run(one: Run, other: Run) -> None:
    """Equal but for the order of sums: the loss curve, the loop counts and the weights."""
    ours, theirs = (run.log(STEPS).set_index("iteration") for run in (one, other))
    assert ours["loops_g2"].tolist() == theirs.loc[ours.index, "loops_g2"].tolist()
    for measure in ("loss", "gradient_norm", "learning_rate"):
        assert ours[measure].tolist() == pytest.approx(theirs.loc[ours.index, measure].tolist(), rel=1e-4), measure
    assert ours["held_out_loss"].iloc[-1] == pytest.approx(theirs["held_out_loss"].iloc[-1], rel=1e-4)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("alone"), NOISY).succeed(0, STEPS)


def test_two_processes_train_the_model_of_one(alone, tmp_path):
    assert_same_run(Run(tmp_path, NOISY).succeed(0, STEPS, processes=2), alone)


def test_two_processes_share_out_each_micro_batch(alone, tmp_path):
    assert_same_run(Run(tmp_path, NOISY).succeed(0, STEPS, processes=2, micro_batches=2), alone)


def test_a_run_of_two_processes_is_continued_by_one(alone, tmp_path):
    run = Run(tmp_path, NOISY).succeed(0, 3, processes=2)
    assert_same_run(run.succeed(3, STEPS), alone)


def test_a_loss_that_is_not_finite_stops_every_process(tmp_path):
    run = Run(tmp_path, learning_rate=1e30, warmup_iterations=0)
    done = run.train(0, STEPS, processes=2)
    assert done.returncode != 0
    assert "error: training: iteration" in done.stderr
    assert not run.checkpoint(STEPS).exists()
