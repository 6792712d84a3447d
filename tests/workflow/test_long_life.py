"""A run over weeks in a minute of each: kills at random moments, two runs side by side, a disk that fills up."""

import errno
import hashlib
import os
import random
import re
import shutil
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

KILLS = 200
SECONDS = 3  # a kill comes at most this long after a start, a finished job or another kill
STARTED, FINISHED = b"    jobid: ", b"Finished jobid: "  # in Snakemake's output
RETRIES = 5  # kills of jobs that a start of Snakemake survives
PATIENCE = 600  # seconds
# Files with measured times, or with what depends on them: benchmarks, logs, Fig. 4, the claims.
TIMED = ("benchmarks/", "logs/", ".result_cache/", "fig4", "claims", "latency", "metrics.csv", "check_cost")
TIMED_COLUMNS = ["tokens_per_s", "tflops", "utilisation"]  # of the training log
# Kinds of jobs that some kill must hit.
SCRIPTS = {"prepare_text", "tokenize_text", "train_segment", "measure", "compare", "draw"}


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


def changed(project: Project, expected: dict[str, str]) -> list[str]:
    """Results that are there, but with other bits than in an undisturbed run."""
    return [name for name, found in results(project).items() if found != expected.get(name, found)]


def wait_until(condition, snakemake: subprocess.Popen) -> None:
    """Wait until a condition holds or Snakemake has ended."""
    end = time.monotonic() + PATIENCE
    while snakemake.poll() is None and not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def scripts_of(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        try:
            arguments = process.cmdline()
        except psutil.Error:  # it has ended
            continue
        found |= set(re.findall(r"scripts/(\w+)\.py", " ".join(arguments)))  # also of the shell of a job
    return found


def family(snakemake: subprocess.Popen) -> list[psutil.Process]:
    try:
        parent = psutil.Process(snakemake.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def started_in(project: Project) -> list[psutil.Process]:
    """All processes in the project's folder, also those of a killed Snakemake."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()) == project.root:
                found.append(process)
    return found


def kill(victims: list[psutil.Process]) -> set[str]:
    """SIGKILL to all of them at once; the scripts among them."""
    scripts = scripts_of(victims)
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    return scripts


def await_moment(project: Project, snakemake: subprocess.Popen, chance: random.Random, event: bytes) -> None:
    """Wait up to some seconds, or as long after an event, so that runs come to an end on machines of any speed."""
    log, event = project.root / "snakemake.log", chance.choice([b"", event])
    before = log.stat().st_size
    wait_until(lambda: event in log.read_bytes()[before:], snakemake)
    time.sleep(chance.uniform(0, SECONDS))


def disturb(project: Project, chance: random.Random) -> list[set[str]]:
    """Start Snakemake, kill processes of its jobs at random moments, and then all of it or itself alone.

    Snakemake starts a killed job again. Returns the scripts that each kill hit.
    """
    snakemake, hits, kills = project.start("--retries", str(RETRIES)), [], chance.randint(0, RETRIES)
    for number in range(kills + 1):
        await_moment(project, snakemake, chance, FINISHED if number else STARTED)
        everyone = family(snakemake)
        if snakemake.poll() is not None or not everyone:
            return hits
        jobs = [[process] for process in everyone[1:]]
        if jobs or number == kills:
            hits.append(kill(chance.choice([everyone, everyone[:1]] if number == kills else jobs)))
    snakemake.wait(PATIENCE)
    return hits


def unlock(project: Project) -> None:
    """What `snakemake --unlock` does, without its start."""
    shutil.rmtree(project.root / ".snakemake/locks", ignore_errors=True)


@pytest.mark.long
def test_after_200_kills_nothing_is_lost_and_the_bits_are_those_of_an_undisturbed_run(finished, tmp_path):
    expected = results(finished)
    project, chance = checkout(tmp_path / "killed"), random.Random(16)
    hits, rounds = [], 0
    while len(hits) < KILLS:
        hits += disturb(project, chance)
        assert changed(project, expected) == [], f"after kill {len(hits)}"
        unlock(project)
        if expected.keys() <= results(project).keys():  # it was done: once more from the start
            rounds += 1
            kill(started_in(project))
            shutil.rmtree(project.root / "results")
        print(f"{len(hits)} kills, {rounds} finished runs, hit {dict(Counter(chain(*hits)))}", flush=True)
    project.succeed()
    assert results(project) == expected
    assert set().union(*hits) >= SCRIPTS


@pytest.mark.long
def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(editable, undisturbed):
    editable.configure(**SEGMENT)
    first = editable.start(TARGET)
    wait_until((editable.root / PARTIAL).exists, first)
    second = editable.run(TARGET)
    assert second.returncode == 1
    assert "Traceback" not in second.stderr
    assert "LockException" in second.stderr
    assert first.wait(PATIENCE) == 0
    assert (editable.root / TARGET).read_bytes() == undisturbed


@pytest.mark.long
def test_two_runs_in_two_folders_share_nothing(finished, tmp_path):
    projects = [checkout(tmp_path / name) for name in ("one", "two")]
    for snakemake in [project.start() for project in projects]:
        assert snakemake.wait(PATIENCE) == 0
    expected = results(finished)
    for project in projects:
        assert results(project) == expected


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
    with path.open("wb", buffering=0) as file:
        while write_page(file):
            pass


def write_page(file) -> bool:
    try:
        return bool(file.write(bytes(4096)))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


@pytest.mark.long
def test_a_disk_that_fills_up_is_one_sentence_and_the_run_continues_once_there_is_space(small_disk, undisturbed):
    small_disk.configure(**SEGMENT)
    snakemake = small_disk.start(TARGET)
    partial, filler = small_disk.root / PARTIAL, small_disk.root / "results/filler"
    wait_until(partial.exists, snakemake)
    fill(filler)
    assert snakemake.wait(PATIENCE) == 1
    said = (small_disk.root / "snakemake.log").read_text()
    assert said.count("found the error 'No space left on device', expected free space on its disk") >= 1
    assert "Traceback" not in said
    assert partial.stat().st_size
    filler.unlink()
    small_disk.succeed(TARGET)
    assert (small_disk.root / TARGET).read_bytes() == undisturbed
    assert os.path.ismount(small_disk.root / "results")
