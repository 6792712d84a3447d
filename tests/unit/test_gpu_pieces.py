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
from twoscale.gpu.pieces import train_preset

HOUR = 3600.0
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
    said = [train_preset("tiny", 0) for _ in range(20)]
    reached = [int(re.search(r"iteration (\d+) of 20 is saved", sentence).group(1)) for sentence in said[:-1]]
    assert reached == list(range(1, 20))
    assert said[-1] == train_preset("tiny", 0) == "results/tiny: all 20 iterations are trained."
    pieces, pieces_log = files_of_training(), log()
    (tmp_path / "whole/results/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "whole")
    Path("results/tiny/data").symlink_to(tokens)
    assert train_preset("tiny", HOUR) == said[-1]
    assert files_of_training() == pieces
    assert log() == pieces_log


def test_it_leaves_the_files_that_the_workflow_keeps(tokens):
    train_preset("tiny", HOUR)
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
        train_preset("tiny", HOUR)


def test_a_preset_for_cuda_needs_a_cuda_device(monkeypatch, tokens):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="preset paper: found no CUDA device"):
        train_preset("paper", HOUR)


def test_the_script_says_where_it_stopped_and_needs_no_snakemake(tokens):
    hidden = "import sys, runpy; sys.modules['snakemake'] = None; sys.argv = sys.argv[1:]; "
    code = hidden + "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, ROOT / "scripts/gpu_paper.py", "--preset", "tiny", "--minutes", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "results/tiny: iteration 1 of 20 is saved; the same command continues from it.\n"
