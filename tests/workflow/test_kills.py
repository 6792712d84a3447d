"""Real kills: an interrupted run that is called again gives the bits of an uninterrupted one."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.workflow.conftest import PARTIAL, SEGMENT, TARGET

PATIENCE = 120  # seconds


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def trainers(snakemake: psutil.Process) -> list[psutil.Process]:
    return [child for child in snakemake.children(recursive=True) if "scripts/train_segment.py" in child.cmdline()]


@pytest.mark.runs
def test_a_killed_trainer_resumes_from_its_partial_state(editable, undisturbed):
    editable.configure(**SEGMENT)
    snakemake = editable.start(TARGET)
    wait_for(editable.root / PARTIAL)
    for trainer in trainers(psutil.Process(snakemake.pid)):
        trainer.kill()
    assert snakemake.wait(PATIENCE) != 0
    assert not (editable.root / TARGET).exists()
    assert (editable.root / PARTIAL).exists()

    editable.succeed(TARGET)
    assert (editable.root / TARGET).read_bytes() == undisturbed
    assert not (editable.root / PARTIAL).exists()
    assert "train 0 -> 160" in (editable.root / "results/tiny/logs/train_segment_000160.log").read_text()


@pytest.mark.runs
def test_a_killed_snakemake_is_unlocked_and_repeated_beside_its_orphan(editable, undisturbed):
    editable.configure(**SEGMENT)
    snakemake = editable.start(TARGET)
    wait_for(editable.root / PARTIAL)
    orphans = trainers(psutil.Process(snakemake.pid))
    os.kill(snakemake.pid, signal.SIGKILL)
    snakemake.wait(PATIENCE)
    assert any(orphan.is_running() for orphan in orphans)

    assert "--unlock" in editable.run(TARGET).stderr
    editable.succeed("--unlock")
    editable.succeed(TARGET)
    psutil.wait_procs(orphans, timeout=PATIENCE)
    assert (editable.root / TARGET).read_bytes() == undisturbed
    assert editable.plan(TARGET) == {}
