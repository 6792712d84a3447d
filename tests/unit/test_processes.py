"""Data-parallel training with real processes over gloo: a run does not depend on their number."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.ports import free_port
from tests.segment import Run
from twoscale.base import InputError
from twoscale.jobs import machine
from twoscale.model import checkpoints
from twoscale.training import processes
from twoscale.training.processes import World, connected, init_distributed

ITERATIONS = 6
NOISY = {
    "loop_noise": 0.1
}  # noise at every loop step, which each process must draw for its samples


def weights(run: Run) -> dict[str, torch.Tensor]:
    return checkpoints.load(run.checkpoint(ITERATIONS), "weights", {})[0]


def assert_same_run(one: Run, other: Run) -> None:
    """The loss curve, the loop counts and the weights are equal, except for the order of sums."""
    ours, theirs = (run.log(ITERATIONS).set_index("iteration") for run in (one, other))
    counts, other_counts = (
        run.loops(ITERATIONS).set_index(["iteration", "group"])["loops"] for run in (one, other)
    )
    assert counts.loc[:, "2"].tolist() == other_counts.loc[:, "2"].loc[ours.index].tolist()
    for measure in ("loss", "gradient_norm", "learning_rate"):
        assert ours[measure].tolist() == pytest.approx(
            theirs.loc[ours.index, measure].tolist(), rel=1e-4
        ), measure
    assert ours["held_out_loss"].iloc[-1] == pytest.approx(
        theirs["held_out_loss"].iloc[-1], rel=1e-4
    )
    # AdamW divides a gradient near zero by its own size, so rounding may move a weight by part of a
    # step (1e-2)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=1e-4, atol=1e-3, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("alone"), NOISY).succeed(0, ITERATIONS)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("two"), NOISY).succeed(
        0, ITERATIONS, processes=2, log_every=1
    )


def test_two_processes_train_the_model_of_one(alone, two):
    assert_same_run(two, alone)


@pytest.mark.parametrize("samples", range(1, 14))
def test_the_parts_of_a_batch_are_each_sample_once_in_order_and_of_nearly_one_size(samples):
    for size in range(1, samples + 1):
        for micro_batches in range(1, samples + 1):
            worlds = [World(rank, size) for rank in range(size)]
            turns = zip(*(world.parts(samples, micro_batches) for world in worlds), strict=True)
            parts = [range(samples)[part] for turn in turns for part in turn]
            assert [sample for part in parts for sample in part] == list(range(samples))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert [*map(len, parts)] == sorted(map(len, parts), reverse=True)


@pytest.mark.runs
def test_two_processes_divide_each_micro_batch_and_are_continued_by_one(alone, tmp_path):
    run = Run(tmp_path, NOISY).succeed(0, 3, processes=2, micro_batches=2)
    assert_same_run(run.succeed(3, ITERATIONS), alone)


@pytest.mark.runs
def test_a_divided_model_trains_like_a_whole_one_and_is_continued_by_one_process(alone, tmp_path):
    run = Run(tmp_path, NOISY).succeed(0, 3, processes=2, shard=True, save_seconds=1e-9)
    assert not run.partial(3).exists()
    assert_same_run(run.succeed(3, ITERATIONS), alone)


@pytest.fixture
def two_alike():
    """A process group of two whose sums are those of one."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield World(0, 2)
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_tensors_are_averaged_together(backend, two_alike, monkeypatch):
    sent = []
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(
        dist, "all_reduce", lambda values, op=dist.ReduceOp.SUM: sent.append((values.clone(), op))
    )
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0)]
    tensors.append(torch.arange(8.0).reshape(2, 4).T)  # not contiguous
    before = [tensor.clone() for tensor in tensors]
    two_alike.average(tensors)
    assert [len(values) for values, _ in sent] == [15]
    assert {op for _, op in sent} == {dist.ReduceOp.AVG if backend == "nccl" else dist.ReduceOp.SUM}
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old if backend == "nccl" else old / 2)


@pytest.mark.parametrize("nodes", ["one", "several"])
def test_a_process_whose_team_does_not_answer_ends_in_one_sentence(nodes, monkeypatch, tmp_path):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if nodes == "one":
        address = {machine.STORE: str(tmp_path / "processes")}
    for name, value in {
        "TORCHELASTIC_RUN_ID": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        **address,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "TIMEOUT", timedelta(seconds=1))
    with (
        pytest.raises(InputError, match=r"^training: lost the connection to another process"),
        connected(2),
    ):
        init_distributed("cpu", 2)


@pytest.mark.runs
def test_a_loss_that_is_not_finite_stops_every_process(tmp_path):
    run = Run(tmp_path, learning_rate=1e30, warmup_iterations=0)
    finished = run.train(0, ITERATIONS, processes=2)
    assert finished.returncode != 0
    assert "error: training: found the loss" in finished.stderr
    assert not run.checkpoint(ITERATIONS).exists()
