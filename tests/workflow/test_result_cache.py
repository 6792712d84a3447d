"""What a copy, a touch or a fault costs: no training, and nothing that is still valid. A forced job
computes again.
"""

import json
import os
import shutil

import pytest

pytestmark = pytest.mark.runs

TRAIN = "results/tiny/data/train.bin"
CHECKPOINTS = "results/tiny/checkpoints"
TRAINING = ("init_model", "train_segment", "train_segment_last")


def files(project, *folders):
    """Path -> content of the results in these folders of the run, which do not depend on time."""
    root = project.root / "results/tiny"
    return {
        path: path.read_bytes()
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


def test_a_copy_without_times_and_touched_or_identical_new_files_plan_nothing(finished, tmp_path):
    shutil.copytree(finished.root, tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    copy = type(finished)(tmp_path)
    newest_first = sorted((tmp_path / "results").rglob("*"), reverse=True)
    for number, path in enumerate(path for path in newest_first if path.is_file()):
        os.utime(path, (1.7e9 + number, 1.7e9 + number))
    # with checksums of no file, as for files that are larger than Snakemake's limit, the times
    # decide
    assert "train_segment" in copy.plan("--max-checksum-file-size", "1")
    assert copy.plan() == {}
    for name in (
        TRAIN,
        f"{CHECKPOINTS}/iteration_000000.safetensors",
        "results/tiny/tables/exit_quality.parquet",
    ):
        (tmp_path / name).touch()
    shard = tmp_path / "results/tiny/data/text/shard_000.parquet"
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content)
    assert copy.plan() == {}


def test_a_changed_byte_of_the_tokens_is_one_sentence_and_the_checkpoints_come_back(editable):
    before = files(editable, "checkpoints", "trajectories", "exits")
    train = editable.root / TRAIN
    whole = train.read_bytes()
    train.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    editable.refused(f"error: {TRAIN}: found ")
    train.write_bytes(whole)
    editable.succeed()
    assert files(editable, "checkpoints", "trajectories", "exits") == before
    for iteration in (10, 20):
        assert "restored the cached result" in log(editable, f"train_segment_{iteration:06d}")
    assert editable.plan() == {}


def test_a_forced_training_computes_and_what_depends_on_equal_weights_is_restored(editable):
    before = files(editable, "checkpoints", "trajectories", "exits", "tables")
    editable.succeed("--quiet", "all", "--forcerun", *TRAINING)
    assert "train 0 -> 10" in log(editable, "train_segment_000010")
    assert files(editable, "checkpoints", "trajectories", "exits", "tables") == before
    assert "restored the cached result" in log(editable, "benchmark_exits")
    assert editable.plan() == {}


def test_a_forced_timing_is_measured_again(editable):
    before = files(editable, "tables")
    latency = "results/tiny/tables/exit_latency.parquet"
    editable.succeed(latency, "--forcerun", "benchmark_exits")
    assert "restored" not in log(editable, "benchmark_exits")
    assert files(editable, "tables")[editable.root / latency] != before[editable.root / latency]


def test_the_seconds_of_a_restored_job_are_those_of_its_computation(editable):
    """Also for a job of the same call, the snapshot, whose manifest sums them."""
    tables = ("exit_latency", "loop_tokens")
    benchmarks = [
        editable.root / f"results/tiny/benchmarks/{name}.tsv"
        for name in ("benchmark_exits", "measure_loop_tokens")
    ]
    header, seconds = benchmarks[0].read_text().splitlines()
    benchmarks[0].write_text(f"{header}\n7777{seconds[seconds.index('.') :]}\n")
    before = benchmarks[0].read_bytes()
    benchmarks[1].unlink()  # unknown seconds stay unknown
    for _ in range(2):
        for table in tables:
            (editable.root / f"results/tiny/tables/{table}.parquet").unlink()
        shutil.rmtree(editable.root / "results/snapshot", ignore_errors=True)
        editable.succeed("snapshot", *(f"results/tiny/tables/{table}.parquet" for table in tables))
        assert "restored the cached result" in log(editable, "benchmark_exits")
        assert benchmarks[0].read_bytes() == before
        assert not benchmarks[1].exists()
    jobs = json.loads((editable.root / "results/snapshot/manifest.json").read_text())["jobs"]
    assert {job["rule"]: job["total_s"] for job in jobs}["benchmark_exits"] > 7000
    assert editable.plan() == {}


def log(project, name):
    return (project.root / f"results/tiny/logs/{name}.log").read_text()
