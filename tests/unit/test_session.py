"""A session on a machine that may end at any time: its pack, lock, schedule, status and archive."""

import json
import lzma
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.small import ROOT
from twoscale import config
from twoscale.base import InputError
from twoscale.training.trainer import learning_rate
from twoscale.training.trial import speed_of_log, trial
from twoscale.workflow import pack
from twoscale.workflow import session as session_module
from twoscale.workflow.session import (
    CHECKPOINT,
    START,
    Session,
    choose,
    collect,
    schedule,
    start,
    status,
)

RUN = Path("results/tiny")
TEN_MINUTES, TINY = (config.checked(config.preset(name)) for name in ("ten-minutes", "tiny"))


@pytest.fixture
def session(tmp_path, monkeypatch) -> Session:
    """A session ten minutes after its start, in a folder without results; no process of it runs."""
    monkeypatch.chdir(tmp_path)
    Path("gpu-pack").mkdir()
    Path("gpu-pack", pack.CONFIG).write_text(yaml.safe_dump({"preset": "tiny", "run": "tiny"}))
    Path("gpu-pack", pack.MANIFEST).write_text(
        json.dumps({"commit": "0" * 40, "code": pack.code_digest(ROOT)})
    )
    session = Session(Path("gpu-pack"))
    session.folder.mkdir(parents=True)
    session.log.touch()
    session.note(started=time.time() - 600, minutes=24.0, device="cpu", stage="workflow")
    return session


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"preset": "ouro-1.4b"}, "run ouro-1.4b: found a published model"),
        (
            {"preset": "tiny", "run": "tiny", "train": {"processes": 2}},
            "train.processes: found 2, expected 1",
        ),
        ({"preset": "tiny", "run": "tiny"}, "found files that are no pack"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, values, sentence):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=sentence):
        pack.make(tmp_path, values, "3.12")
    assert (tmp_path / "thesis.tex").exists()


def test_unpacked_files_have_the_bytes_of_the_packed_ones_and_files_that_are_there_stay(
    tmp_path, monkeypatch
):
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
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[lock := session.lock()]
    )
    os.close(lock)
    child.stdout.read(1)
    assert start(session, 24, None) == "results/tiny/gpu: a session is running already."
    assert "stage workflow is running" in status(session)
    child.kill()
    child.wait()
    assert "stopped in stage workflow; `run` continues it; minute 10.0 of 24" in status(session)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_starts_nothing(session):
    (session.folder / "session.json").unlink()
    with pytest.raises(InputError, match=r"config key compute\.device: found cuda, expected cpu"):
        start(session, 24, "cuda")
    assert not session.config.exists()


def test_the_status_has_the_choice_the_stages_the_iteration_the_jobs_and_the_last_errors(session):
    session.note(choice="eager, 4 sequences", iterations=20, training={"status": 0, "seconds": 9.5})
    session.note(latency={"status": 0, "seconds": 8}, check={"status": None, "seconds": 7})
    at = [f"tiny: iteration {n} of 20, loss 5.5, 01:30 left" for n in (10, 12)]
    session.log.write_text(
        "\n".join([*at, "1 of 26 steps (4%) done", "error: a", "RuntimeError: b", "error: a", "x"])
    )
    assert status(session).splitlines() == [
        "tiny on cpu: finished; minute 10.0 of 24",
        "training: eager, 4 sequences; 20 iterations",
        "training: done, 9.5 s",
        "latency: done, 8 s",
        "check: not finished in its time, 7 s",
        at[1],
        "1 of 26 steps (4%) done",
        "error: a",
        "RuntimeError: b",
    ]


def test_the_archive_has_results_so_far_but_nothing_large_or_of_an_earlier_run(session):
    mine = ["tables/exit_quality.parquet", "logs/a.log", "gpu/gpu-check.md", "training/metrics.csv"]
    for name in [*mine, "checkpoints/a.safetensors", "data/train.bin"]:
        (RUN / name).parent.mkdir(parents=True, exist_ok=True)
        (RUN / name).write_bytes(b"content")
    for name in ("fig1.pdf", "claims.md", "fig3.pdf"):
        Path("results", name).write_bytes(b"shown")
    os.utime("results/fig3.pdf", (0, session.state["started"] - 1))
    assert "8 files, without 0" in collect(session, Path("gpu-pack"))
    with zipfile.ZipFile("gpu-pack/tiny.zip") as file:
        names = set(file.namelist())
    shown = {"pack.json", "fig1.pdf", "claims.md", "tiny/gpu/session.json"}
    assert names - {"tiny/gpu/log.txt"} == shown | {f"tiny/{name}" for name in mine}


# --- the trial: what it finds decides how the run is trained --------------------------------------


def compiling(**train) -> config.Config:
    """The tiny run, compiled."""
    values = config.preset("tiny")
    return config.checked(config.merge(values, {"train": {"compile": True, **train}}))


def slowly(module):
    """In place of `torch.nn.Module.compile`: the module waits before each call."""
    module.register_forward_pre_hook(lambda *arguments: time.sleep(0.02))


def refused(module, **options):
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("stand_in", "reason"),
    [
        (lambda module, **options: slowly(module), "because compilation is slower"),
        (refused, "because compilation failed (no compiler)"),
    ],
    ids=["slower", "raises"],
)
def test_a_compilation_that_is_slower_or_raises_ends_in_eager_training(
    stand_in, reason, monkeypatch
):
    monkeypatch.setattr(torch.nn.Module, "compile", stand_in)
    run = compiling()
    best, sentence = choose(list(trial(run)), run)
    assert (best["compile"], best["batch_size"], best["micro_batches"]) == (
        False,
        run.train.batch_size,
        1,
    )
    assert sentence.startswith("eager, 4 sequences (eager, 4 sequences: ")
    assert sentence.endswith(reason)


HANGS = """
import runpy, sys, time, torch
torch.nn.Module.compile = lambda module, **options: time.sleep(600)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_compilation_that_hangs_is_ended_and_the_eager_row_decides(session, monkeypatch):
    monkeypatch.setattr(session_module, "TRIAL", 5.0)
    session.configure(train={"compile": True})
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    command = [sys.executable, "-c", HANGS, str(ROOT / "scripts/train_worker.py")]
    command += [str(session.address), str(session.config), "--trial", str(session.trial)]
    process = subprocess.Popen(command)
    while (
        not session.trial.exists() or not session.trial.read_text()
    ):  # libraries are loaded, the eager row is there
        assert process.poll() is None
        time.sleep(0.1)
    assert session_module.outlasts_its_time(session, process)
    process.kill()
    process.wait()
    best, sentence = choose(session_module.trial_rows(session), session.runs.config, hangs=True)
    assert not best["compile"]
    assert sentence.endswith("because compilation was not finished after 5 seconds")


def row(tokens_per_s: float | None, compile: bool, batch_size: int = 10) -> dict:
    setting = f"{'compiled' if compile else 'eager'}, {batch_size} sequences"
    keys = {"setting": setting, "batch_size": batch_size, "micro_batches": 1, "compile": compile}
    return keys | (
        {"failed": "out of memory"} if tokens_per_s is None else {"tokens_per_s": tokens_per_s}
    )


@pytest.mark.parametrize(
    ("rows", "setting"),
    [
        ([row(39e3, False), row(92e3, True)], "compiled, 10 sequences"),
        ([row(39e3, False), row(60e3, True), row(95e3, True, 40)], "compiled, 40 sequences"),
        ([row(39e3, False), row(60e3, True), row(None, True, 40)], "compiled, 10 sequences"),
        ([row(39e3, False), row(60e3, True), row(65e3, True, 40)], "compiled, 10 sequences"),
        ([row(None, False), row(None, True), row(65e3, False, 40)], "eager, 40 sequences"),
    ],
)
def test_the_fastest_setting_is_chosen(rows, setting):
    best, sentence = choose(rows, TEN_MINUTES)
    assert best["setting"] == setting
    assert sentence.startswith(f"{setting} (")
    assert ("because compilation failed (out of memory)" in sentence) == (not best["compile"])


def test_the_speed_of_a_trial_is_that_after_its_first_iterations_which_take_longer():
    """Two iterations of 10 and 4 s, then ten of 1 and 3 s in turns, all at 2e12 FLOPs a second of
    the later ones.
    """
    seconds = np.array([10.0, 4.0, *[1.0, 3.0] * 5])
    flops = np.array([2e12, 4e12, *[2e12, 6e12] * 5])
    log = pd.DataFrame({"tokens_per_s": 640 / seconds, "tflops": flops / seconds / 1e12})
    rate, extra = speed_of_log(log, tokens=640)
    assert rate == pytest.approx(2e12)
    assert extra == pytest.approx((10 - 1) + (4 - 2))


def test_a_trial_without_any_speed_is_an_error_that_says_why():
    with pytest.raises(
        InputError, match=r"found no speed \(eager, 10 sequences: out of memory\), expected one"
    ):
        choose([row(None, False)], TEN_MINUTES)


# --- the schedule ---------------------------------------------------------------------------------


@given(st.sampled_from([TEN_MINUTES, TINY]), st.floats(1e2, 1e7), st.floats(-100, 1e5))
def test_a_schedule_fits_its_time_and_ends_with_a_checkpoint_at_the_end_of_the_cosine(
    run, speed, seconds
):
    keys = schedule(run, {"compile": True}, speed, seconds)
    chosen = config.checked(config.merge(config.user_values(run), {"train": keys})).train
    points = config.checkpoint_iterations(chosen)
    assert chosen.compile is True
    tokens = chosen.iterations * run.train.batch_size * run.model.context_length
    assert (
        tokens / speed + START + CHECKPOINT * len(points) <= max(seconds, 0)
        or chosen.iterations == 1
    )
    assert points[-1] == chosen.iterations == chosen.lr_decay_iterations
    assert set(points[:-1]) <= set(config.checkpoint_iterations(run.train))
    assert learning_rate(chosen, chosen.iterations) == run.train.min_learning_rate
    assert chosen.warmup_iterations <= chosen.iterations / 10
