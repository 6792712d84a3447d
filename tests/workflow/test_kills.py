"""Real kills and full disks: an interrupted run that is called again gives the bits of an uninterrupted one."""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
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


def trainers(snakemake: psutil.Process) -> list[psutil.Process]:
    return [child for child in snakemake.children(recursive=True) if "scripts/train_segment.py" in child.cmdline()]


@pytest.mark.runs
def test_a_killed_trainer_resumes_from_its_partial_state(editable, undisturbed):
    editable.configure(**SEGMENT)
    snakemake = editable.start(TARGET)
    wait_until((editable.root / PARTIAL).exists, snakemake)
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
def test_a_killed_snakemake_is_unlocked_and_repeated_while_its_orphan_runs(editable, undisturbed):
    editable.configure(**SEGMENT)
    snakemake = editable.start(TARGET)
    wait_until((editable.root / PARTIAL).exists, snakemake)
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


@pytest.mark.runs
def test_a_partial_state_of_other_code_is_not_continued(editable):
    editable.configure(**SEGMENT)
    snakemake = editable.start(TARGET)
    wait_until((editable.root / PARTIAL).exists, snakemake)
    os.killpg(snakemake.pid, signal.SIGKILL)  # all at once: a job that is just started would outlive a list of them
    snakemake.wait()
    editable.succeed("--unlock")
    editable.edit("src/twoscale/training/recipe.py", "(train.beta1, train.beta2)", "(train.beta1, 0.9 * train.beta2)")
    editable.succeed(TARGET)
    log = (editable.root / "results/tiny/logs/train_segment_000160.log").read_text()
    assert "restarting the segment" in log
    assert "code is" in log


# --- a disk that fills up ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(finished, tmp_path) -> Iterator[Project]:
    """The finished project, whose results are on a disk of their own with some MB of free space."""
    project = finished.copy(tmp_path)
    kept = (project.root / "results").rename(project.root / "earlier")
    (project.root / "results").mkdir()
    size = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) + 2**23
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(project.root / "results")]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a disk that may be filled: {done.stderr.strip()}")
    shutil.copytree(kept, project.root / "results", dirs_exist_ok=True)
    yield project
    subprocess.run(["umount", "--lazy", str(project.root / "results")], check=True)


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.long
def test_a_disk_that_fills_up_is_one_sentence_and_the_run_continues_once_there_is_space(small_disk, undisturbed):
    small_disk.configure(**SEGMENT)
    snakemake = small_disk.start(TARGET)
    partial, filler = small_disk.root / PARTIAL, small_disk.root / "results/filler"
    wait_until(partial.exists, snakemake)
    fill(filler)
    assert snakemake.wait(PATIENCE) == 1
    said = (small_disk.root / "snakemake.log").read_text()
    assert "found the error 'No space left on device', expected free space on its disk" in said
    assert "Traceback" not in said
    assert partial.stat().st_size
    filler.unlink()
    small_disk.succeed(TARGET)
    assert (small_disk.root / TARGET).read_bytes() == undisturbed


# --- kills at random moments ------------------------------------------------------------------------------------------

KILLS = 200
SECONDS = 3  # a kill comes at most this long after a start, a finished job or another kill
STARTED, FINISHED = b"    jobid: ", b"Finished jobid: "  # in Snakemake's output
RETRIES = 5  # kills of jobs that a start of Snakemake survives
# Files with measured times, or with what depends on them: benchmarks, logs, Fig. 4, the claims.
TIMED = ("benchmarks/", "logs/", ".result_cache/", "fig4", "claims", "latency", "metrics.csv", "check_cost")
TIMED_COLUMNS = ["tokens_per_s", "tflops", "utilisation"]  # of the training log
# Kinds of jobs that some kill must hit.
SCRIPTS = {"prepare_text", "tokenize_text", "train_segment", "measure", "call", "draw"}


def results(project: Project) -> dict[str, str]:
    """Path -> digest of the content of all finished results that hold no times."""
    files = (path for path in (project.root / "results").rglob("*") if path.is_file() and path.name[0] != ".")
    names = {str(path.relative_to(project.root)): path for path in files if ".partial." not in path.name}
    return {name: digest(path) for name, path in names.items() if not any(part in name for part in TIMED)}


def digest(path: Path) -> str:
    content = path.read_bytes()
    if path.parent.name == "training":
        content = pd.read_parquet(path).drop(columns=TIMED_COLUMNS, errors="ignore").to_json().encode()
    return hashlib.sha256(content).hexdigest()


def kill(victims: list[psutil.Process]) -> set[str]:
    """SIGKILL to all of them at once; the scripts among them, also of the shell of a job."""
    scripts: set[str] = set()
    for victim in victims:
        with suppress(psutil.Error):  # it may have ended
            scripts |= set(re.findall(r"scripts/(\w+)\.py", " ".join(victim.cmdline())))
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    return scripts


def family(snakemake: subprocess.Popen) -> list[psutil.Process]:
    with suppress(psutil.Error):
        parent = psutil.Process(snakemake.pid)
        return [parent, *parent.children(recursive=True)]
    return []


def disturb(project: Project, chance: random.Random) -> list[set[str]]:
    """Start Snakemake, kill processes of its jobs at random moments, and then all of it or itself alone.

    Snakemake starts a killed job again. Returns the scripts that each kill hit.
    """
    snakemake, hits, kills = project.start("--retries", str(RETRIES)), [], chance.randint(0, RETRIES)
    log = project.root / "snakemake.log"
    for number in range(kills + 1):
        # some seconds, or as long after an event, so that runs come to an end on machines of any speed
        before, event = log.stat().st_size, chance.choice([b"", FINISHED if number else STARTED])
        wait_until(lambda event=event, before=before: event in log.read_bytes()[before:], snakemake)
        time.sleep(chance.uniform(0, SECONDS))
        everyone = family(snakemake)
        if snakemake.poll() is not None or not everyone:
            return hits
        jobs = [[process] for process in everyone[1:]]
        if jobs or number == kills:
            hits.append(kill(chance.choice([everyone, everyone[:1]] if number == kills else jobs)))
    snakemake.wait(PATIENCE)
    return hits


@pytest.mark.long
def test_after_200_kills_nothing_is_lost_and_the_bits_are_those_of_an_undisturbed_run(finished, tmp_path):
    expected = results(finished)
    project, chance = checkout(tmp_path / "killed"), random.Random(16)
    hits, rounds = [], 0
    while len(hits) < KILLS:
        hits += disturb(project, chance)
        changed = [name for name, found in results(project).items() if found != expected.get(name, found)]
        assert changed == [], f"after kill {len(hits)}"
        shutil.rmtree(project.root / ".snakemake/locks", ignore_errors=True)  # what --unlock does
        if expected.keys() <= results(project).keys():  # it was done: once more from the start
            rounds += 1
            for process in psutil.process_iter():  # also those of a killed Snakemake
                with suppress(psutil.Error):
                    if Path(process.cwd()) == project.root:
                        process.kill()
            shutil.rmtree(project.root / "results")
        print(f"{len(hits)} kills, {rounds} finished runs, hit {dict(Counter(chain(*hits)))}", flush=True)
    project.succeed()
    assert results(project) == expected
    assert set().union(*hits) >= SCRIPTS
