"""Training on several nodes: each is a launcher with its own processes, here all on this machine over gloo."""

import shutil
import time

import pandas as pd
import psutil
import pytest

from tests.ports import free_port
from tests.segment import TIMEOUT, Run, start_process
from twoscale.model import checkpoints

pytestmark = pytest.mark.runs

ITERATIONS = 200
KILLED = 70  # a node is lost after this iteration
COMPARED = 50
SAVE_SECONDS = 0.5
NODES = {"processes": 2, "nodes": 2, "log_every": 1}


def run_in(folder) -> Run:
    recipe = {"learning_rate": 6e-4, "min_learning_rate": 6e-5, "lr_decay_iterations": ITERATIONS}
    return Run(folder, {"loop_noise": 0.1}, **recipe)


def iterations_on_disk(run: Run) -> int:
    try:
        return int(run.metrics()["iteration"].max())
    except (OSError, ValueError, KeyError):  # nothing is written yet
        return 0


def kill(node) -> None:
    """End a node as a loss of power does: the launcher and its processes, all at once."""
    launcher = psutil.Process(node.pid)
    for process in [launcher, *launcher.children(recursive=True)]:
        process.kill()
    node.communicate()


class Lost:
    """A segment whose second node is lost: what the first one said, and what is left on disk."""

    def __init__(self, folder) -> None:
        self.run = run_in(folder)
        nodes = self.run.start_nodes(0, ITERATIONS, save_seconds=SAVE_SECONDS, **NODES)
        end = time.monotonic() + TIMEOUT
        while iterations_on_disk(self.run) < KILLED or not self.run.partial(ITERATIONS).exists():
            assert all(node.poll() is None for node in nodes), [node.communicate()[1] for node in nodes]
            assert time.monotonic() < end, "no partial state"
            time.sleep(0.02)
        kill(nodes[1])
        self.said = nodes[0].communicate(timeout=TIMEOUT)[1]
        self.status = nodes[0].returncode
        self.metrics = self.run.metrics()
        self.partial = shutil.copy(self.run.partial(ITERATIONS), folder / "partial of the first attempt")
        self.saved = checkpoints.read_header(self.partial).iteration


@pytest.fixture(scope="module")
def lost(tmp_path_factory) -> Lost:
    return Lost(tmp_path_factory.mktemp("lost"))


@pytest.fixture(scope="module")
def resumed(lost) -> pd.DataFrame:
    """The log of the segment after the next attempt."""
    nodes = lost.run.start_nodes(0, ITERATIONS, **NODES)
    said = [node.communicate(timeout=TIMEOUT)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    return lost.run.log(ITERATIONS)


def test_a_lost_node_ends_the_others_in_one_sentence(lost):
    assert lost.status == 1
    assert "error: training: lost the connection to another process" in lost.said


def test_a_lost_node_costs_at_most_save_seconds(lost):
    repeated = lost.metrics[lost.metrics["iteration"] > lost.saved]
    seconds = 4 * lost.run.model.context_length / repeated["tokens_per_s"]
    assert 0 < lost.saved < ITERATIONS
    # without the last iteration, at the end of which the state would have been saved
    assert seconds.iloc[:-1].sum() <= SAVE_SECONDS


def test_the_next_attempt_resumes_and_the_losses_are_those_of_one_process(resumed, tmp_path):
    assert resumed["iteration"].tolist() == list(range(1, ITERATIONS + 1))
    expected = run_in(tmp_path).succeed(0, COMPARED).log(COMPARED)["loss"]
    assert resumed["loss"].iloc[:COMPARED].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.usefixtures("resumed")
def test_two_nodes_train_the_bits_of_one_node_with_as_many_processes(lost, tmp_path):
    one = run_in(tmp_path).succeed(0, ITERATIONS, processes=2)
    assert lost.run.checkpoint(ITERATIONS).read_bytes() == one.checkpoint(ITERATIONS).read_bytes()


def test_nodes_that_see_different_files_are_one_sentence(lost, tmp_path):
    """As on a shared file system that shows the partial state on one node, and not yet on the other."""
    command = lost.run.command(0, ITERATIONS, f"localhost:{free_port()}", **NODES)
    place = command.index("--partial") + 1
    paths = [str(lost.partial), str(tmp_path / "not yet")]
    nodes = [start_process([*command[:place], path, *command[place + 1 :]]) for path in paths]
    said = [node.communicate(timeout=TIMEOUT)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1]
    for text, path in zip(said, paths, strict=True):
        assert f"error: {path}: found states after iterations 0, {lost.saved} on the nodes, expected the same" in text
