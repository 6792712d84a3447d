"""Training on several nodes: each is a launcher with its own processes, here all on this machine
over gloo.
"""

import shutil
import time

import numpy as np
import pytest

from tests.ports import free_port
from tests.segment import TIMEOUT, Run, kill, launchers
from twoscale.model import checkpoints

pytestmark = pytest.mark.runs

ITERATIONS = 400
KILLED = 70  # a node is lost after this iteration
COMPARED = 50
SAVE_SECONDS = 0.1
WRITING = 3.0  # seconds that a busy machine may take to write the state
NODES = {"processes": 2, "nodes": 2, "log_every": 1}
FEW = 6


def run_in(folder) -> Run:
    recipe = {"learning_rate": 6e-4, "min_learning_rate": 6e-5, "lr_decay_iterations": ITERATIONS}
    return Run(folder, {"loop_noise": 0.1}, **recipe)


def iterations_on_disk(run: Run) -> int:
    try:
        return int(run.metrics()["iteration"].max())
    except (OSError, ValueError, KeyError):  # nothing is written yet
        return 0


def test_a_lost_node_ends_the_job_and_the_next_attempt_resumes_from_the_last_saved_state(tmp_path):
    run = run_in(tmp_path)
    partial = run.partial(ITERATIONS)
    with run.on_nodes(0, ITERATIONS, save_seconds=SAVE_SECONDS, **NODES) as nodes:
        end = time.monotonic() + TIMEOUT
        while iterations_on_disk(run) < KILLED or not partial.exists():
            assert all(node.poll() is None for node in nodes), [
                node.communicate()[1] for node in nodes
            ]
            assert time.monotonic() < end, "no partial state"
            time.sleep(0.01)
        kill(nodes[1])
        killed = time.time()
        said = nodes[0].communicate(timeout=TIMEOUT)[1]
    assert nodes[0].returncode == 1
    assert "error: training: lost the connection to another process" in said

    # what is lost: at most save_seconds, an iteration and the writing
    lost, saved = run.metrics(), checkpoints.read_header(partial)
    repeated = lost[lost["iteration"] > saved.iteration]
    seconds = 4 * run.model.context_length / lost["tokens_per_s"]
    assert 0 < saved.iteration < ITERATIONS
    assert (
        seconds[repeated.index[:-1]].sum() <= SAVE_SECONDS
    )  # it is saved at the end of an iteration
    assert killed - partial.stat().st_mtime <= SAVE_SECONDS + seconds.max() + WRITING

    resumed = run.succeed_on_nodes(0, ITERATIONS, **NODES).log(ITERATIONS)
    assert resumed["iteration"].tolist() == list(range(1, ITERATIONS + 1))
    # the speeds are those of the lost attempt; one that begins again has its own
    speeds = [row["tokens_per_s"] for row in saved.extra["log"]]
    np.testing.assert_allclose(resumed["tokens_per_s"][: saved.iteration], speeds, rtol=1e-6)
    expected = run_in(tmp_path / "one").succeed(0, COMPARED).log(COMPARED)["loss"]
    assert len(expected) == COMPARED
    np.testing.assert_allclose(resumed["loss"][:COMPARED], expected, rtol=1e-5)


@pytest.mark.parametrize("shard", [False, True])
def test_two_nodes_train_the_bits_of_one_node_with_as_many_processes(shard, tmp_path):
    two = run_in(tmp_path / "two").succeed_on_nodes(0, FEW, shard=shard, **NODES)
    one = run_in(tmp_path / "one").succeed(0, FEW, processes=2, shard=shard)
    assert two.checkpoint(FEW).read_bytes() == one.checkpoint(FEW).read_bytes()
    if shard:
        whole = run_in(tmp_path / "whole").succeed(0, FEW)
        np.testing.assert_allclose(two.log(FEW)["loss"], whole.log(FEW)["loss"], rtol=1e-5)


def test_nodes_that_see_different_files_are_one_sentence(tmp_path):
    """As on a shared file system that shows the partial state on one node, and not yet on the
    other.
    """
    run = run_in(tmp_path)
    run.pause(FEW)
    partial = shutil.move(run.partial(FEW), tmp_path / "seen")
    port = free_port()
    command = run.command(0, FEW, port, **NODES)
    place = command.index("--partial") + 1
    paths = [str(partial), str(tmp_path / "not yet")]
    with launchers(
        [[*command[:place], path, *command[place + 1 :]] for path in paths], port
    ) as nodes:
        said = [node.communicate(timeout=TIMEOUT)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1]
    for text, path in zip(said, paths, strict=True):
        assert (
            f"error: {path}: found states after iterations 0, 1 on the nodes, expected the same"
            in text
        )
