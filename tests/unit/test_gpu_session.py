"""A session on a machine that may end at any time: its lock, what it says of itself, and its results in one archive."""

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
import yaml

from tests.small import ROOT
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.config import DownloadConfig
from twoscale.gpu import archive, pack
from twoscale.gpu.session import Session, start
from twoscale.gpu.status import status
from twoscale.report.release import Release

RUN = Path("results/tiny")
STATE = {"minutes": 25.0, "device": "cpu", "stage": "workflow"}
CHECKED = {"check": {"status": 0, "seconds": 210.4}}
METRICS = "iteration,loss,tokens_per_s,run_left_s\n10,5.5,256,90.5\n"


@pytest.fixture
def session(tmp_path, monkeypatch) -> Session:
    """A session ten minutes after its start, in a folder without results; no process of it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu-pack").mkdir()
    Path("gpu-pack", pack.CONFIG).write_text(yaml.safe_dump({"preset": "tiny", "run": "tiny"}))
    facts = {"commit": "0" * 40, "modified": False, "python": "3.12", "code": pack.code_digest(ROOT)}
    Path("gpu-pack", pack.MANIFEST).write_text(json.dumps(facts))
    session = Session(Path("gpu-pack"))
    session.folder.mkdir(parents=True)
    session.log.touch()
    session.note(started=time.time() - 600, **STATE)
    return session


def add(path: str, content: bytes | str = b"content") -> None:
    """A file of the run."""
    file = RUN / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


WORKER = """
from pathlib import Path
from twoscale.gpu.session import Session, _stage
session = Session(Path("gpu-pack"))
with session.locked() as lock:
    _stage(session, "workflow", ["sleep", "600"], lock)
"""


def wait_until(happened) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_session_runs_until_the_last_of_its_processes_is_killed(session):
    assert not session.is_running
    worker = psutil.Popen([sys.executable, "-c", WORKER])
    wait_until(worker.children)
    (child,) = worker.children()
    assert start(session, 25, None) == "results/tiny/gpu: a session is running already."
    assert "stage workflow is running" in status(session)
    worker.kill()
    worker.wait()
    assert session.is_running
    child.kill()
    wait_until(lambda: not session.is_running)
    assert "stopped in stage workflow" in status(session)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_starts_nothing(session):
    (session.folder / "session.json").unlink()
    with pytest.raises(InputError, match=r"config key compute\.device: found cuda, expected cpu"):
        start(session, 25, "cuda")
    assert not session.state
    assert not session.config.exists()


def test_the_schedule_and_the_device_are_kept_for_the_next_start(session):
    session.configure(compute={"device": "cpu"})
    session.configure(train={"iterations": 7, "checkpoint_every": 7, "lr_decay_iterations": 7})
    again = Session(Path("gpu-pack"))
    train = again.runs.config.train
    assert (train.iterations, train.batch_size) == (7, 4)
    assert config.read_yaml(again.config)["compute"] == {"device": "cpu"}
    assert config.read_yaml(Path("gpu-pack", pack.CONFIG)) == {"preset": "tiny", "run": "tiny"}


def test_before_the_first_start_there_is_nothing_to_say_or_to_collect(session):
    (session.folder / "session.json").unlink()
    for action in (status, archive.collect):
        with pytest.raises(InputError, match="results/tiny/gpu: found no session"):
            action(session)


def test_the_status_has_the_stage_the_check_the_iteration_the_jobs_and_the_last_errors(session):
    session.note(**CHECKED)
    add("training/metrics.csv", METRICS + "20,5.")  # the last line is being written
    lines = ["1 of 26 steps (4%) done", "error: a", "3 of 26 steps (12%) done", "RuntimeError: b", "error: a", "x.y"]
    session.log.write_text("\n".join(lines))
    assert status(session).splitlines() == [
        "tiny on cpu: stopped in stage workflow; `run` continues it; minute 10 of 25",
        "GPU check: passed after 210 s, see results/tiny/gpu/gpu-check.md",
        "training: iteration 10 of 20, loss 5.5, 2 iterations/s, 01:30 left",
        "jobs: 3 of 26 are done",
        "error: a",
        "RuntimeError: b",
    ]


@pytest.mark.parametrize(("exit_status", "said"), [(1, "FAILED after 9 s"), (None, "did not end after 9 s")])
def test_a_check_that_failed_or_did_not_end_has_not_passed(session, exit_status, said):
    session.note(check={"status": exit_status, "seconds": 9})
    assert f"GPU check: {said}" in status(session)


def test_a_session_has_finished_only_if_the_workflow_succeeded(session):
    session.note(workflow={"status": 1, "seconds": 60})
    assert "`run` continues it" in status(session)
    session.note(workflow={"status": 0, "seconds": 60})
    assert "tiny on cpu: finished; minute 10" in status(session)


def collected(session: Session) -> dict[str, bytes]:
    with zipfile.ZipFile(archive.collect(session)) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_an_archive_of_a_session_that_has_only_started_says_what_it_is(session):
    content = collected(session)
    assert content.keys() == {"tiny/gpu/session.json", "manifest.json"}
    manifest = json.loads(content["manifest.json"])
    assert (manifest["run"], manifest["commit"], manifest["modified"]) == ("tiny", "0" * 40, False)
    assert manifest["versions"]["torch"]
    assert manifest["hours"] == pytest.approx(1 / 6, abs=0.01)
    assert manifest["session"] == session.state


def test_a_checkout_of_other_code_is_modified(session):
    Path("gpu-pack", pack.MANIFEST).write_text(json.dumps({"commit": "0" * 40, "modified": False, "code": "other"}))
    assert json.loads(collected(session)["manifest.json"])["modified"] is True


def test_figures_tables_and_logs_are_collected_and_what_is_large_or_of_another_run_is_not(session):
    mine = ["tables/drift.parquet", "training/metrics.csv", "logs/train_segment_000010.log", "gpu/gpu-check.md"]
    for name in [*mine, "trajectories/iteration_000000.parquet", "checkpoints/a.safetensors", "data/train.bin"]:
        add(name, METRICS if name.endswith(".csv") else b"content")
    for name in ("fig1.pdf", "fig2.svg", "claims.md", "fig3.pdf"):
        Path("results", name).write_bytes(b"shown")
    os.utime("results/fig3.pdf", (0, session.state["started"] - 1))
    add("tables/loop_metrics.parquet")  # aggregated, so nothing is read of trajectories
    content = collected(session)
    names = {"fig1.pdf", "fig2.svg", "claims.md", "tiny/gpu/session.json", "tiny/tables/loop_metrics.parquet"}
    assert content.keys() == {f"tiny/{name}" for name in mine} | names | {"manifest.json"}


def test_an_archive_over_the_limit_leaves_out_the_least_important_files(session, monkeypatch):
    monkeypatch.setattr(archive, "OVERHEAD", 100)
    monkeypatch.setattr(archive, "MOST_BYTES", 60_000)
    Path("results/claims.md").write_bytes(b"# Claims\n")
    for name in ("tables/a.parquet", "tables/b.parquet", "tables/c.parquet"):
        add(name, os.urandom(20_000))
    add("logs/a.log", "line\n" * 50_000)  # compressed it is small
    path = archive.collect(session)
    assert path.stat().st_size <= 60_000
    manifest = json.loads(collected(session)["manifest.json"])
    assert manifest["left_out"] == ["tiny/tables/c.parquet"]
    assert {"claims.md", "tiny/tables/a.parquet", "tiny/logs/a.log"} <= manifest["files"].keys()


def test_an_archive_is_a_release_with_the_config_of_the_schedule(session, tmp_path):
    session.configure(train={"iterations": 7, "checkpoint_every": 7, "lr_decay_iterations": 7})
    loops = pd.DataFrame({"iteration": [1, 1], "group": ["2", "3"], "loops": [3, 4]})
    tables.write("training_loops", loops, RUN / "tables/training_loops.parquet")
    zipfile.ZipFile(archive.collect(session)).extractall(tmp_path / "release")
    release = Release.open(str(tmp_path / "release"), DownloadConfig())
    assert release.runs({})["tiny"].train.iterations == 7
    assert release.table("tiny", "training_loops", tmp_path / "fetched")["loops"].tolist() == [3, 4]


def test_statistics_of_the_checkpoints_so_far_are_collected_until_those_of_all_are_there(session):
    measures = {"state_norm": [2.0, 4.0]}
    for iteration in (0, 10):
        keys = {"iteration": iteration, "group": "2", "k": 0, "sequence": 0, "document": 0, "position": [0, 1]}
        frame = pd.DataFrame(keys | measures).astype(dict.fromkeys(measures, "float32"))
        frame = frame[[*tables.columns("trajectories"), *measures]]
        tables.write("trajectories", frame, RUN / f"trajectories/iteration_{iteration:06d}.parquet")
    assert "tiny/gpu/loop_metrics.parquet" in collected(session)
    rows = tables.read("loop_metrics", session.folder / "loop_metrics.parquet")
    assert rows[["iteration", "mean"]].to_dict("list") == {"iteration": [0, 10], "mean": [3.0, 3.0]}
    add("tables/loop_metrics.parquet")
    content = collected(session)
    assert "tiny/gpu/loop_metrics.parquet" not in content
    assert "tiny/tables/loop_metrics.parquet" in content


def test_a_second_archive_replaces_the_first_and_a_failure_leaves_it(session):
    path = archive.collect(session)
    first = path.read_bytes()
    add("tables/drift.parquet")
    assert archive.collect(session).read_bytes() != first
    second = path.read_bytes()
    add("data/tokens.json", "{")
    with pytest.raises(InputError, match=r"tokens\.json: found no token metadata"):
        archive.collect(session)
    assert path.read_bytes() == second
    assert [file.name for file in Path("gpu-pack").iterdir() if file.name.endswith(".tmp")] == []
