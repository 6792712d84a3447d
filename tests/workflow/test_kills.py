"""Real kills: an interrupted run that is called again gives the bits of an uninterrupted one."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.workflow.conftest import PARTIAL, SEGMENT, TARGET, Project, checkout

PATIENCE = 600  # seconds


def wait_until(condition, snakemake: subprocess.Popen) -> None:
    """Wait until a condition holds or Snakemake has ended."""
    end = time.monotonic() + PATIENCE
    while snakemake.poll() is None and not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def trainers(snakemake: subprocess.Popen) -> list[psutil.Process]:
    """The running training jobs; a child that ends while it is looked at is none."""
    found = []
    for child in psutil.Process(snakemake.pid).children(recursive=True):
        with suppress(
            psutil.NoSuchProcess
        ):  # also raised, as ZombieProcess, before its parent waits for it
            found += [child] * ("scripts/train_segment.py" in child.cmdline())
    return found


@pytest.mark.runs
def test_a_killed_trainer_and_then_a_killed_snakemake_with_an_orphan_cost_no_bit(
    editable, undisturbed
):
    editable.configure(**SEGMENT)
    partial, target = editable.root / PARTIAL, editable.root / TARGET
    snakemake = editable.start(TARGET)
    wait_until(partial.exists, snakemake)
    for trainer in trainers(snakemake):
        trainer.kill()
    assert snakemake.wait(PATIENCE) != 0
    assert (target.exists(), partial.exists()) == (False, True)

    snakemake = editable.start(TARGET)
    wait_until(lambda: trainers(snakemake), snakemake)
    orphans = trainers(snakemake)
    os.kill(snakemake.pid, signal.SIGKILL)
    snakemake.wait(PATIENCE)
    assert any(orphan.is_running() for orphan in orphans)

    assert "--unlock" in editable.run(TARGET).stderr
    editable.succeed("--unlock")
    editable.succeed(TARGET)
    psutil.wait_procs(orphans, timeout=PATIENCE)
    assert target.read_bytes() == undisturbed
    assert not partial.exists()
    assert editable.plan(TARGET) == {}


# --- kills at random moments ----------------------------------------------------------------------

KILLS = 200
SECONDS = 8  # a kill comes at most this long after a start or another kill
RETRIES = 5  # kills of jobs that a start of Snakemake survives
# Files with measured times, or with what depends on them: benchmarks, logs, Fig. 4, the claims.
TIMED = (
    "benchmarks/",
    "logs/",
    "fig4",
    "claims",
    "latency",
    "metrics.csv",
    "exit_costs",
)
TIMED_COLUMNS = ["tokens_per_s", "tflops", "utilisation"]  # of the training log


def results(project: Project) -> dict[str, str]:
    """Path -> digest of the content of all finished results that hold no times."""
    files = (
        path
        for path in (project.root / "results").rglob("*")
        if path.is_file() and path.name[0] != "."
    )
    names = {
        str(path.relative_to(project.root)): path for path in files if ".partial." not in path.name
    }
    return {
        name: digest(path)
        for name, path in names.items()
        if not any(part in name for part in TIMED)
    }


def digest(path: Path) -> str:
    content = path.read_bytes()
    if path.parent.name == "training":
        content = (
            pd.read_parquet(path).drop(columns=TIMED_COLUMNS, errors="ignore").to_json().encode()
        )
    return hashlib.sha256(content).hexdigest()


def disturb(project: Project, chance: random.Random) -> int:
    """Start Snakemake, kill processes of its jobs at random moments, and then all of it or itself
    alone; the kills.
    """
    snakemake, kills, last = project.start("--retries", str(RETRIES)), 0, chance.randint(0, RETRIES)
    for number in range(last + 1):
        time.sleep(chance.uniform(0, SECONDS))
        with suppress(psutil.Error):  # processes may end meanwhile
            parent = psutil.Process(snakemake.pid)
            jobs = parent.children(recursive=True)
            victims = chance.choice(
                [[parent, *jobs], [parent]] if number == last else [[job] for job in jobs] or [[]]
            )
            for victim in victims:
                victim.kill()
                kills += 1
    snakemake.wait(PATIENCE)
    return kills


@pytest.mark.long
def test_after_200_kills_nothing_is_lost_and_the_bits_are_those_of_an_undisturbed_run(
    finished, tmp_path
):
    expected = results(finished)
    project, chance, kills = checkout(tmp_path / "killed"), random.Random(16), 0
    while kills < KILLS:
        kills += disturb(project, chance)
        found = results(project)
        assert [name for name in found if found[name] != expected.get(name, found[name])] == [], (
            f"after kill {kills}"
        )
        shutil.rmtree(project.root / ".snakemake/locks", ignore_errors=True)  # what --unlock does
        if expected.keys() <= found.keys():  # it was done: once more from the start
            shutil.rmtree(project.root / "results", ignore_errors=True)  # an orphan may still write
    project.succeed()
    assert results(project) == expected
