"""Training in pieces of time: the files of the workflow, with the same bits however often it stops."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small import ROOT, learnable_tokens, shard_part
from twoscale import tables
from twoscale.errors import InputError
from twoscale.gpu.pieces import train_run

HOUR = 3600.0
TINY = {"preset": "tiny"}
TIMED = ["tokens_per_s", "tflops", "utilisation"]


@pytest.fixture
def tokens(tmp_path, monkeypatch) -> Path:
    """results/tiny/data of the working folder, as it is brought along to another machine."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "results/tiny/data"
    data.mkdir(parents=True)
    parts = {"train.bin": learnable_tokens(900), "val.bin": learnable_tokens(400)}
    for name, ids in parts.items():
        ids.tofile(data / name)
    counts = {name: shard_part(ids) for name, ids in parts.items()}
    metadata = {"dtype": "uint16", "end_of_text": 256, "parts": counts, "digest": "of no text"}
    (data / "tokens.json").write_text(json.dumps(metadata))
    return data


def files_of_training() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("results/tiny/checkpoints").iterdir()}


def log() -> str:
    """The rows of both logs, without what depends on the machine."""
    frame = tables.read("training", "results/tiny/training/iteration_000020.parquet").drop(columns=TIMED)
    return frame.to_csv() + Path("results/tiny/training/iteration_000020.loops.parquet").read_bytes().hex()


def test_a_run_that_stops_after_every_iteration_has_the_bits_of_one_that_never_does(tokens, tmp_path, monkeypatch):
    said = [train_run(TINY, 0) for _ in range(20)]
    reached = [int(re.search(r"iteration (\d+) of 20 is saved", sentence).group(1)) for sentence in said[:-1]]
    assert reached == list(range(1, 20))
    assert said[-1] == train_run(TINY, 0) == "results/tiny: all 20 iterations are trained."
    pieces, pieces_log = files_of_training(), log()
    (tmp_path / "whole/results/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "whole")
    Path("results/tiny/data").symlink_to(tokens)
    assert train_run(TINY, HOUR) == said[-1]
    assert files_of_training() == pieces
    assert log() == pieces_log


def test_it_leaves_the_files_that_the_workflow_keeps(tokens):
    train_run(TINY, HOUR)
    assert sorted(files_of_training()) == [
        "iteration_000000.safetensors",
        "iteration_000010.safetensors",
        "iteration_000020.optimizer.safetensors",
        "iteration_000020.safetensors",
    ]


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "tokens.json"])
def test_a_missing_file_of_tokens_is_named(tokens, name):
    (tokens / name).unlink()
    with pytest.raises(InputError, match=rf"results/tiny/data/{name}: found no"):
        train_run(TINY, HOUR)


def test_a_run_on_cuda_needs_a_cuda_device(monkeypatch, tokens):
    monkeypatch.setattr("twoscale.machine.cuda_devices", lambda: 0)
    with pytest.raises(InputError, match=r"config key compute\.device: found cuda, expected cpu"):
        train_run({}, HOUR)


def test_the_script_says_where_it_stopped_and_needs_no_snakemake(tokens):
    hidden = "import sys, runpy; sys.modules['snakemake'] = None; sys.argv = sys.argv[1:]; "
    code = hidden + "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, ROOT / "scripts/gpu_paper.py", "--preset", "tiny", "--minutes", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "results/tiny: iteration 1 of 20 is saved; the same command continues from it.\n"


def make(target: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run make in the working folder, which gets the parts of this checkout that a target for a GPU reads."""
    for part in ("Makefile", "scripts", "src", "workflow"):
        Path(part).symlink_to(ROOT / part)
    command = ["make", target, f"PYTHON={sys.executable}", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=variables)


def test_a_schedule_that_fits_the_time_is_trained_under_its_own_name(tokens, tmp_path):
    (tmp_path / "results/tiny").rename(tmp_path / "results/fitted")
    schedule = "{iterations: 6, checkpoint_every: 3, warmup_iterations: 2, lr_decay_iterations: 6}"
    Path("my.yaml").write_text(f"preset: tiny\nrun: fitted\ntrain: {schedule}\n")
    done = make("gpu-paper", "CONFIG=my.yaml", "MINUTES=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("results/fitted: all 6 iterations are trained.\n")
    log = tables.read("training", "results/fitted/training/iteration_000006.parquet")
    assert log["learning_rate"].iloc[-1] < log["learning_rate"].max() / 2  # a whole cosine


@pytest.mark.parametrize("target", ["gpu-check", "gpu-paper"])
def test_a_package_that_the_caller_carries_is_imported(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "carried/tqdm/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise SystemExit(f'imported {__file__}')\n")
    done = make(target, "MICRO_BATCHES=none", "PRESET=none", PYTHONPATH=str(package.parents[1]))
    assert done.returncode != 0
    assert f"imported {package}" in done.stderr
