"""A session on a machine that may end at any time: its pack, lock, schedule, status and archive."""

import json
import lzma
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.small import ROOT
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.model.flops import mean_flops_per_token
from twoscale.training.trainer import learning_rate
from twoscale.workflow import pack
from twoscale.workflow.session import Session, collect, schedule, start, status

RUN = Path("results/tiny")
HALF_HOUR, TINY = (config.checked(config.preset(name)) for name in ("half-hour", "tiny"))


@pytest.fixture
def session(tmp_path, monkeypatch) -> Session:
    """A session ten minutes after its start, in a folder without results; no process of it runs."""
    monkeypatch.chdir(tmp_path)
    Path("gpu-pack").mkdir()
    Path("gpu-pack", pack.CONFIG).write_text(yaml.safe_dump({"preset": "tiny", "run": "tiny"}))
    Path("gpu-pack", pack.MANIFEST).write_text(json.dumps({"commit": "0" * 40, "code": pack.code_digest(ROOT)}))
    session = Session(Path("gpu-pack"))
    session.folder.mkdir(parents=True)
    session.log.touch()
    session.note(started=time.time() - 600, minutes=24.0, device="cpu", stage="workflow")
    return session


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"preset": "ouro-1.4b"}, "run ouro-1.4b: found a published model"),
        ({"preset": "tiny", "run": "tiny", "train": {"processes": 2}}, "train.processes: found 2, expected 1"),
        ({"preset": "tiny", "run": "tiny"}, "found files that are no pack"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, values, sentence):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=sentence):
        pack.make(tmp_path, values, "3.12")
    assert (tmp_path / "thesis.tex").exists()


def test_unpacked_files_have_the_bytes_of_the_packed_ones_and_files_that_are_there_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("results/tiny/data/train.bin", "results/gpt2.tiktoken"):
        packed = Path("pack", pack.FILES, f"{name}.xz")
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(name.encode()))
    Path("pack", pack.MANIFEST).touch()
    Path("results").mkdir()
    Path("results/gpt2.tiktoken").write_bytes(b"mine")
    pack.unpack(Path("pack"))
    assert Path("results/tiny/data/train.bin").read_bytes() == b"results/tiny/data/train.bin"
    assert Path("results/gpt2.tiktoken").read_bytes() == b"mine"


def test_a_session_runs_until_its_last_process_is_killed_and_another_start_says_so(session):
    code = "import os, sys, time; os.write(1, b'x'); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[lock := session.lock()])
    os.close(lock)
    child.stdout.read(1)
    assert start(session, 24, None) == "results/tiny/gpu: a session is running already."
    assert "stage workflow is running" in status(session)
    child.kill()
    child.wait()
    assert "stopped in stage workflow; `run` continues it; minute 10 of 24" in status(session)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_starts_nothing(session):
    (session.folder / "session.json").unlink()
    with pytest.raises(InputError, match=r"config key compute\.device: found cuda, expected cpu"):
        start(session, 24, "cuda")
    assert not session.config.exists()


def test_the_status_has_the_check_the_iteration_the_jobs_and_the_last_errors(session):
    session.note(check={"status": 1, "seconds": 9}, workflow={"status": 0})
    at = [f"tiny: iteration {n} of 20, loss 5.5, 00:10 left in this segment, 01:30 in the run" for n in (10, 12)]
    session.log.write_text("\n".join([*at, "1 of 26 steps (4%) done", "error: a", "RuntimeError: b", "error: a", "x"]))
    assert status(session).splitlines() == [
        "tiny on cpu: finished; minute 10 of 24",
        "GPU check: FAILED or not complete, see results/tiny/gpu/gpu-check.md",
        at[1],
        "1 of 26 steps (4%) done",
        "error: a",
        "RuntimeError: b",
    ]


def test_the_archive_has_results_and_statistics_so_far_but_nothing_large_or_of_an_earlier_run(session, monkeypatch):
    mine = ["tables/exit_quality.parquet", "logs/a.log", "gpu/gpu-check.md", "training/metrics.csv"]
    for name in [*mine, "checkpoints/a.safetensors", "data/train.bin"]:
        (RUN / name).parent.mkdir(parents=True, exist_ok=True)
        (RUN / name).write_bytes(b"content")
    for name in ("fig1.pdf", "claims.md", "fig3.pdf"):
        Path("results", name).write_bytes(b"shown")
    os.utime("results/fig3.pdf", (0, session.state["started"] - 1))
    frame = pd.DataFrame({"iteration": 10, "group": "2", "k": 0, "sequence": 0, "document": 0, "position": [0, 1]})
    measures = frame.assign(state_norm=[2.0, 4.0]).astype({"state_norm": "float32"})
    tables.write("trajectories", measures, RUN / "trajectories/iteration_000010.parquet")
    assert "9 files, without 0" in collect(session, Path("gpu-pack"))
    with zipfile.ZipFile("gpu-pack/tiny.zip") as file:
        names = set(file.namelist())
    shown = {"pack.json", "fig1.pdf", "claims.md", "tiny/gpu/session.json", "tiny/gpu/loop_metrics.parquet"}
    assert names - {"tiny/gpu/log.txt"} == shown | {f"tiny/{name}" for name in mine}
    assert tables.read("loop_metrics", session.folder / "loop_metrics.parquet")["mean"].tolist() == [3.0]


@given(st.sampled_from([HALF_HOUR, TINY]), st.floats(1e9, 1e16), st.floats(0.1, 100.0), st.floats(-100, 1e5))
def test_a_schedule_fits_its_time_and_ends_with_a_checkpoint_at_the_end_of_the_cosine(run, rate, startup, seconds):
    keys = schedule(run, rate, startup, seconds)
    chosen = config.checked(config.merge(config.user_values(run), {"train": keys})).train
    points = config.checkpoint_iterations(chosen)
    flops = mean_flops_per_token(run.model, run.train).total * run.train.batch_size * run.model.context_length
    assert chosen.iterations * flops / rate + startup * len(points) <= max(seconds, 0) or chosen.iterations == 1
    assert points[-1] == chosen.iterations == chosen.lr_decay_iterations
    assert set(points[:-1]) <= set(config.checkpoint_iterations(run.train))
    assert learning_rate(chosen, chosen.iterations) == run.train.min_learning_rate
    assert chosen.warmup_iterations <= chosen.iterations / 10
