"""Result cache: a rerun restores the result of the same job, and nothing else."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twoscale.jobs import result_cache
from twoscale.jobs.result_cache import MANIFEST, Job

SOURCE = Path(__file__).parents[2] / "src"


class Project:
    """A job with one input and two outputs in a folder, and the number of times that it was
    computed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.computed = folder, 0
        self.input, self.outputs = folder / "input", [folder / "a", folder / "b"]
        self.input.write_text("text")

    def job(self, version: str = "1") -> Job:
        outputs = list(map(str, self.outputs))
        return Job(
            self.folder / ".result_cache" / "job", version, [str(self.input)], outputs, [], []
        )

    def rerun(self, version: str = "1") -> list[str]:
        """Remove the outputs, as Snakemake does, and run the job; the content of the outputs."""
        for path in self.outputs:
            path.unlink(missing_ok=True)
        result_cache.run(self.job(version), lambda: self.compute(version))
        return [path.read_text() for path in self.outputs]

    def compute(self, version: str) -> None:
        self.computed += 1
        for path in self.outputs:
            path.write_text(f"{path.name} {version} {self.input.read_text()}")


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_a_rerun_restores_the_outputs_with_a_new_time_and_says_so(project, capsys):
    first = project.rerun()
    os.utime(project.outputs[0], (1, 1))
    before = time.time()
    assert project.rerun() == first
    assert project.computed == 1
    assert project.outputs[0].stat().st_mtime >= before - 1
    assert (
        "restored the cached result; to compute it again, force the job" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("nodes", "computed"), [(1, 1), (2, 2)])
def test_several_nodes_compute_again_because_each_would_decide_alone(
    project, monkeypatch, nodes, computed
):
    team = {
        "TORCHELASTIC_RUN_ID": "1",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": str(nodes),
    }
    for name, value in team.items():
        monkeypatch.setenv(name, value)
    assert project.rerun() == project.rerun()
    assert project.computed == computed


def test_a_touched_input_restores_and_a_changed_one_computes(project):
    project.rerun()
    project.input.touch()
    project.rerun()
    assert project.computed == 1
    project.input.write_text("Text")
    assert project.rerun() == ["a 1 Text", "b 1 Text"]
    assert project.computed == 2


def test_another_code_or_config_computes_and_only_the_latest_result_is_kept(project):
    project.rerun("1")
    assert project.rerun("2") == ["a 2 text", "b 2 text"]
    files = {path.name for path in project.job().folder.iterdir()}
    assert len(files) == len(project.outputs) + 1
    project.rerun("1")
    assert project.computed == 3


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_a_result_that_cannot_be_linked_is_copied(project, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    first = project.rerun()
    monkeypatch.setattr(os, "link", refuse)
    assert project.rerun() == first
    assert project.computed == 1
    assert project.outputs[0].stat().st_nlink == 1


def kept_b(project):
    """The kept second output."""
    files = (path for path in project.job().folder.iterdir() if path.name != MANIFEST)
    return next(path for path in files if path.read_text().startswith("b"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda project: kept_b(project).write_text("b 1 tex_"),
        lambda project: kept_b(project).unlink(),
        lambda project: project.outputs[0].write_text("through the hard link"),
        *(
            lambda project, content=content: (project.job().folder / MANIFEST).write_text(content)
            for content in ("", "{}", "[]", '{"version": 1}')
        ),
    ],
)
def test_a_damaged_result_is_computed_again(project, damage):
    first = project.rerun()
    damage(project)
    assert project.rerun() == first
    assert project.computed == 2


def test_where_nothing_can_be_kept_the_job_succeeds_and_says_so(project, capsys):
    project.job().folder.parent.write_text("a file where the folder should be")
    assert project.rerun() == ["a 1 text", "b 1 text"]
    assert "the result is not cached" in capsys.readouterr().err


def test_only_the_main_process_of_a_job_keeps_and_restores(project, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of torchrun")
    monkeypatch.setenv("RANK", "1")
    project.rerun()
    assert not project.job().folder.exists()
    monkeypatch.setenv("RANK", "0")
    project.rerun()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(FileNotFoundError):
        project.rerun()
    assert project.computed == 2  # it did not compute either


ENDLESS = """
import sys
from pathlib import Path
from tests.unit.test_result_cache import Project
project = Project(Path(sys.argv[1]))
print("started", flush=True)
while True:
    for version in "1122":  # computed and kept, then restored
        project.rerun(version)
"""


def test_after_a_kill_at_any_moment_a_result_is_whole_or_computed_again(project):
    chance = random.Random(0)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)])}
    for _ in range(3):
        command = [sys.executable, "-c", ENDLESS, str(project.folder)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with process:
            assert process.stdout.readline() == "started\n"
            time.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        for version in ("1", "2"):
            assert project.rerun(version) == [f"a {version} text", f"b {version} text"]
    project.rerun("1")
    leftover = {path.name for path in project.job().folder.iterdir()} - {MANIFEST}
    assert len(leftover) == len(project.outputs)


class Chain:
    """Segments of a training: each reads the weights before it, and leaves a temporary optimizer
    state but the last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.computed = folder, []
        (folder / "weights0").write_text("0")

    def train(self, schedule: list[int]) -> None:
        """Run all segments again, as `snakemake --forcerun` does."""
        for number, until in enumerate(schedule):
            start, later = ([0, *schedule])[number], schedule[number + 1 :]
            weights, optimizer = self.folder / f"weights{until}", self.folder / f"optimizer{until}"
            job = Job(
                self.kept(until),
                "1",
                [str(self.folder / f"weights{start}")],
                [str(weights)] + ([] if later else [str(optimizer)]),
                [str(optimizer)] if later else [],
                [self.kept(iteration) for iteration in later],
            )
            for path in (weights, optimizer):
                path.unlink(missing_ok=True)
            result_cache.run(job, lambda start=start, until=until: self.compute(start, until))
            if start:
                (self.folder / f"optimizer{start}").unlink()  # temporary

    def compute(self, start: int, until: int) -> None:
        if start:
            assert (self.folder / f"optimizer{start}").read_text() == f"state {start}"
        self.computed.append(until)
        previous = (self.folder / f"weights{start}").read_text()
        (self.folder / f"weights{until}").write_text(f"{previous} {until}")
        (self.folder / f"optimizer{until}").write_text(f"state {until}")

    def kept(self, until: int) -> Path:
        return self.folder / ".result_cache" / str(until)


@pytest.fixture
def chain(tmp_path):
    chain = Chain(tmp_path)
    chain.train([1, 2, 3])
    assert chain.computed == [1, 2, 3]
    chain.computed.clear()
    return chain


def test_a_chain_of_segments_is_restored_without_the_temporary_states(chain):
    assert not any(path.read_text().startswith("state 1") for path in chain.kept(1).iterdir())
    chain.train([1, 2, 3])
    assert chain.computed == []
    assert (chain.folder / "weights3").read_text() == "0 1 2 3"
    assert (chain.folder / "optimizer3").read_text() == "state 3"


@pytest.mark.parametrize(
    ("schedule", "computed"),
    [([1, 2], [1, 2]), ([2, 3], [2, 3]), ([1, 4], [1, 4]), ([1, 2, 4], [1, 2, 4])],
    ids=["shorter", "a segment less at the start", "another end", "another end later"],
)
def test_a_segment_without_a_way_to_an_optimizer_state_is_computed(chain, schedule, computed):
    chain.train(schedule)
    assert chain.computed == computed
