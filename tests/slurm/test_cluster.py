"""The tiny workflow on a real scheduler: what jobs ask for, and what survives when they are
killed.
"""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.slurm.conftest import PATIENCE, SlurmProject, command, trainers, wait_until
from tests.small import ROOT, of, project
from twoscale import tables
from twoscale.model import checkpoints

# one segment, long enough to be killed in; partial states every few iterations
ITERATIONS = 400
SEGMENT = {"train": {"iterations": ITERATIONS, "checkpoint_every": ITERATIONS, "save_seconds": 0.2}}
TARGET = f"results/tiny/checkpoints/iteration_{ITERATIONS:06d}.safetensors"
PARTIAL = f"results/tiny/checkpoints/iteration_{ITERATIONS:06d}.partial.safetensors"
LOG = f"results/tiny/training/iteration_{ITERATIONS:06d}.parquet"
RULE = f"rule_train_segment_last_wildcards_tiny_{ITERATIONS:06d}"  # SLURM's comment of its job


@pytest.fixture(scope="module")
def without_slurm(finished_on_slurm, tmp_path_factory) -> Path:
    """The folder of a project that trained the segment without SLURM and without a kill."""
    project = finished_on_slurm.copy(tmp_path_factory.mktemp("uninterrupted")).local()
    project.configure(**SEGMENT)
    project.succeed(TARGET)
    return project.root


@pytest.fixture
def segment(project, slurm):
    """Snakemake with the segment as a cluster job, and the jobs submitted since."""
    project.configure(**SEGMENT)
    first = slurm.newest()

    def jobs() -> list[dict[str, str]]:
        return [job for job in slurm.jobs() if int(job["JobId"]) > first]

    return project, jobs


def wait_for_partial_state(project: SlurmProject) -> None:
    wait_until("a partial state", (project.root / PARTIAL).exists, project.started[-1])


def iterations(project: SlurmProject) -> list[int]:
    return tables.read("training", project.root / LOG)["iteration"].tolist()


def test_every_slow_rule_is_a_job_with_what_it_asks_for(finished_on_slurm, slurm):
    asked = {
        job["Comment"]: {
            "state": job["JobState"],
            "cpus": job["CPUs/Task"],
            "memory": job["MinMemoryNode"],
            "minutes": job["TimeLimit"],
            "gpu": job.get("JOB_GRES", "(null)"),
        }
        for job in slurm.jobs()
        if job["WorkDir"] == str(finished_on_slurm.root)
    }

    def need(cpus: int, memory: str, minutes: str, gpu: str = "(null)") -> dict[str, str]:
        return {
            "state": "COMPLETED",
            "cpus": str(cpus),
            "memory": memory,
            "minutes": minutes,
            "gpu": gpu,
        }

    training = f"{project().resources.training_mb(of(), 1)}M"
    groups = [
        asked.pop(comment) for comment in list(asked) if comment.startswith("rule_analyses_tiny_")
    ]
    assert asked == {
        "rule_tokenize_text_wildcards_tiny_shard_000": need(1, "1000M", "04:00:00"),
        "rule_tokenize_text_wildcards_tiny_shard_001": need(1, "1000M", "04:00:00"),
        "rule_join_tokens_wildcards_tiny": need(1, "1000M", "01:00:00"),
        "rule_init_model_wildcards_tiny": need(1, "4000M", "00:30:00"),
        "rule_train_segment_wildcards_tiny_000010": need(1, training, "1-00:00:00"),
        "rule_train_segment_last_wildcards_tiny_000020": need(
            1, training, "01:17:00", gpu="gpu:pretended:1"
        ),
        "rule_benchmark_exits_wildcards_tiny": need(4, "4000M", "04:00:00"),
        **{
            f"rule_measure_exit_quality_wildcards_tiny_exit_{criterion}": need(
                4, "4000M", "02:00:00"
            )
            for criterion in ("fixed", "step_norm", "kl", "acceleration")
        },
    }
    # one job a checkpoint, the last one with two analyses side by side and the loops page's tokens
    # after them
    one, two = need(1, "4000M", "01:00:00"), need(2, "8000M", "01:30:00")
    assert sorted(groups, key=lambda group: group["cpus"]) == [one, one, two]


def test_the_run_on_the_cluster_is_complete_and_nothing_is_left_to_do(finished_on_slurm):
    for number in range(1, 6):
        assert (
            (finished_on_slurm.root / f"results/fig{number}.pdf").read_bytes().startswith(b"%PDF")
        )
    assert finished_on_slurm.plan() == {}
    assert finished_on_slurm.local().plan() == {}


def test_a_segment_that_is_cancelled_and_then_outlives_its_wall_time_ends_with_the_same_bits(
    segment, slurm, without_slurm
):
    """At its second attempt the trainer stands still, as in front of a hung file system, until its
    minute is over.
    """
    project, jobs = segment
    snakemake = project.start(TARGET)
    wait_for_partial_state(project)
    slurm.cancel(jobs()[0])
    wait_until(
        "the second attempt",
        lambda: len(jobs()) == 2 and len(trainers(project.root)) > 0,
        snakemake,
    )
    for trainer in trainers(project.root):
        trainer.suspend()
    slurm.limit(jobs()[1], minutes=1)
    assert snakemake.wait(PATIENCE) == 0
    states = ["CANCELLED", "TIMEOUT", "COMPLETED"]
    assert [(job["Comment"], job["JobState"]) for job in jobs()] == [
        (RULE, state) for state in states
    ]
    assert (project.root / TARGET).read_bytes() == (without_slurm / TARGET).read_bytes()
    assert iterations(project) == list(range(1, ITERATIONS + 1))
    assert not (project.root / PARTIAL).exists()


def test_a_killed_snakemake_is_unlocked_and_repeated_while_its_job_runs(segment, without_slurm):
    project, jobs = segment
    snakemake = project.start(TARGET)
    wait_for_partial_state(project)
    orphans = trainers(project.root)
    os.kill(snakemake.pid, signal.SIGKILL)
    snakemake.wait(PATIENCE)
    for orphan in orphans:
        orphan.suspend()  # still running when the same command comes
    assert "--unlock" in project.run(TARGET).stderr
    project.succeed("--unlock")

    again = project.start(TARGET)
    wait_until("the second job", lambda: len(trainers(project.root)) > len(orphans), again)
    for orphan in orphans:
        orphan.resume()
    assert again.wait(PATIENCE) == 0
    wait_until("the end of both jobs", lambda: {job["JobState"] for job in jobs()} == {"COMPLETED"})
    assert len(jobs()) == 2
    assert (project.root / TARGET).read_bytes() == (without_slurm / TARGET).read_bytes()
    assert iterations(project) == list(range(1, ITERATIONS + 1))
    assert project.plan(TARGET) == {}


def start_run(project: SlurmProject, run: str) -> None:
    """Let a run begin with the tokens and the weights of the finished one."""
    for name in ("data", "checkpoints/iteration_000000.safetensors"):
        target = project.root / "results" / run / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (project.root / "results/tiny" / name).rename(target)


def test_training_on_two_nodes_resumes_after_one_of_them_is_lost(segment, without_slurm):
    """All processes on the second node end at once; the first attempt fails by itself, the second
    one goes on.
    """
    project, jobs = segment
    start_run(project, "nodes")
    project.configure(run="nodes", train=SEGMENT["train"] | {"processes": 2, "nodes": 2})
    results = project.root / "results/nodes"
    partial, log = (results / path.removeprefix("results/tiny/") for path in (PARTIAL, LOG))
    snakemake = project.start(f"results/nodes/{TARGET.removeprefix('results/tiny/')}")
    wait_until("a partial state", partial.exists, snakemake)
    lost = [
        process
        for process in trainers(project.root)
        if process.environ().get("SLURMD_NODENAME") == "n2"
    ]
    assert len(lost) == 2  # a launcher and its trainer
    before = checkpoints.read_header(partial).extra["log"]
    for process in lost:
        process.kill()
    assert snakemake.wait(PATIENCE) == 0
    rule = RULE.replace("tiny", "nodes")
    assert [
        (job["Comment"], job["JobState"], job["NumNodes"], job["NumTasks"]) for job in jobs()
    ] == [
        (rule, "FAILED", "2", "2"),
        (rule, "COMPLETED", "2", "2"),
    ]
    nodes, alone = (tables.read("training", path) for path in (log, without_slurm / LOG))
    assert nodes["iteration"].tolist() == list(range(1, ITERATIONS + 1))
    assert len(alone) >= 50
    np.testing.assert_allclose(nodes["loss"][:50], alone["loss"][:50], rtol=1e-5)
    # the speeds are those of the first attempt; one that begins again has its own
    speeds = [row["tokens_per_s"] for row in before]
    np.testing.assert_allclose(nodes["tokens_per_s"][: len(speeds)], speeds, rtol=1e-6)
    assert not partial.exists()


def test_a_job_on_two_nodes_has_a_process_and_a_gpu_on_each(slurm, tmp_path):
    """What the rule requests for CUDA, where GPUs are pretended: nothing computes on them."""
    probe, printed = tmp_path / "probe.py", tmp_path / "job.log"
    names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME", "SLURM_GPUS_ON_NODE")
    probe.write_text(
        f"import os\nprint('found', *(os.environ[name] for name in {names}), flush=True)\n"
    )
    job = shlex.join(
        [sys.executable, str(ROOT / "scripts" / "with_nodes.py"), "2", "1", "1", "1", str(probe)]
    )
    command(
        *(
            "sbatch",
            "--wait",
            "--nodes=2",
            "--ntasks=2",
            "--gres=gpu:pretended:1",
            "--output",
            str(printed),
        ),
        *("--export", f"ALL,PATH={Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"),
        *("--wrap", job),
    )
    found = re.findall(r"^found (\d) 2 (n\d) 1$", printed.read_text(), re.MULTILINE)
    # torchrun numbers the nodes in the order in which they join
    ranks, nodes = zip(*sorted(found), strict=True)
    assert (ranks, {*nodes}) == (("0", "1"), {"n1", "n2"}), printed.read_text()
