"""Wrong config, wrong input, failed jobs and full disks: one sentence, before or instead of a
result.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.small import ROOT
from tests.workflow.conftest import environment

# Arguments of a dry run -> the end of what it says; other mistakes are in
# tests/unit/test_config_loading.py.
PLANNED = {
    (
        "--config",
        "runs={a: {model: {widht: 32}}}",
    ): "run a (runs.a): config key model: unknown key widht",
    (
        "snapshot",
        "--config",
        "preset=ouro-1.4b",
    ): "results/snapshot: run ouro-1.4b has a published model, expected one",
    (
        "--software-deployment-method",
        "apptainer",
    ): "envs/twoscale.sif: found no image, expected that of",
}


@pytest.mark.parametrize("arguments", PLANNED, ids=" ".join)
def test_a_mistake_of_a_user_is_one_sentence_in_a_dry_run(fresh, arguments):
    """Snakemake's own message has its place in the Snakefiles, and the last line is the sentence
    alone.
    """
    done = fresh.run("-n", *arguments)
    assert done.returncode != 0
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .removeprefix(f"{fresh.root}/")
        .startswith(PLANNED[arguments])
    )


def test_the_line_of_broken_yaml_is_named(fresh):
    (fresh.root / "config.yaml").write_text("preset: tiny\ntrain: {iterations: 20\nseed: 1\n")
    fresh.refused("config.yaml, line 3: cannot be read as YAML (", "-n")


def test_a_plan_that_cannot_succeed_here_is_one_sentence_before_the_first_job(fresh):
    """tests/unit/test_workflow.py has the other plans that are refused."""
    fresh.configure(train={"nodes": 2, "processes": 2})
    checkpoint = "results/tiny/checkpoints/iteration_000010.safetensors"
    fresh.refused(
        "config key train.nodes: found 2, expected 1 for jobs that do not run on SLURM", checkpoint
    )
    assert not list((fresh.root / "results").rglob("*.parquet"))
    assert "prepare_text" in fresh.plan("text")


def test_a_dry_run_says_what_this_machine_lacks_for_jobs_that_would_run_on_it(fresh):
    fresh.configure(compute={"device": "cuda"})
    sentence = "config key compute.device: found cuda, expected cpu, because"
    no_device = {"CUDA_VISIBLE_DEVICES": ""}
    assert sentence in fresh.run("-n", **no_device).stderr
    assert sentence not in fresh.run("-n", "text", **no_device).stderr
    on_cluster = fresh.run("-n", "--profile", "profiles/slurm", **no_device)
    assert on_cluster.returncode == 0, on_cluster.stderr
    assert sentence not in on_cluster.stderr
    fresh.configure(train={"nodes": 2, "processes": 2})
    assert "config key train.nodes: found 2, expected 1" in fresh.run("-n").stderr


@pytest.mark.parametrize(
    ("option", "sentence"),
    [("ro", "results: is not writable."), ("size=200k", "'No space left on device'")],
)
def test_a_disk_that_is_full_or_read_only_is_a_sentence_at_the_end(fresh, option, sentence):
    results = fresh.root / "results"
    results.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", option, "tmpfs", results], capture_output=True
    ).returncode:
        pytest.skip("file systems cannot be mounted here (needs root)")
    try:
        done = fresh.run("results/tiny/data/text/shard_000.parquet")
    finally:
        subprocess.run(["umount", results], check=True)
    assert done.returncode == 1
    # after the sentence, Snakemake names its log and says that a job failed
    assert any(sentence in line for line in done.stderr.strip().splitlines()[-6:])
    assert "Traceback" not in done.stderr


# --- the last lines of a call with failed jobs ----------------------------------------------------

SNAKEFILE = """
import sys
from twoscale.workflow.snakefile import say_causes

onerror:
    say_causes(workflow)

rule all:
    input: "wrong", "silent"

rule wrong:
    output: "wrong"
    log: "wrong.log"
    shell: "echo progress > {log}; echo 'error: file x: found é.' >> {log}; exit 1"

rule silent:
    output: "silent"
    log: "silent.log"
    shell: "exit 3"

rule ended:
    output: "ended_{signal}"
    log: "ended_{signal}.log"
    shell: sys.executable + " ended.py {wildcards.signal} 2> {log}"

rule slow:
    output: "slow"
    log: "slow.log"
    shell: "touch begun; sleep 60"
"""


# ends by a signal between two updates of its progress bar
ENDED = """
import os, sys, time
from twoscale.base import meter
with meter("train 0 -> 30", 30, "it") as bar:
    bar.update(6)
    bar.refresh()
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)
"""


def start(folder, *arguments):
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "ended.py").write_text(ENDED)
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--keep-going", *arguments]
    # a background job of a shell ignores SIGINT, and its children inherit that
    heed = {
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        "start_new_session": True,
    }
    return subprocess.Popen(
        command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True, **heed
    )


def test_the_last_lines_say_why_each_job_failed(tmp_path):
    run = start(tmp_path)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 1
    last = error.strip().splitlines()[-6:]
    assert {"wrong: error: file x: found é.", "silent: the job wrote no message."} <= {*last}


def test_a_job_that_a_signal_has_ended_is_not_explained_by_its_progress_bar(tmp_path):
    kinds = [signal.SIGTERM, signal.SIGKILL]
    run = start(tmp_path, *(f"ended_{int(kind)}" for kind in kinds))
    _, error = run.communicate(timeout=120)
    last = error.strip().splitlines()[-6:]
    assert [line for line in last if line.startswith("ended: ")] == 2 * [
        "ended: ended by a signal, as at a limit of time or memory; repeat the command to continue."
    ]


def test_an_interrupted_run_blames_no_job(tmp_path):
    run = start(tmp_path, "slow")
    while not (tmp_path / "begun").exists():
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    _, error = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "wrote no message" not in error
    assert "Repeat the command to continue" in error


def test_a_locale_of_ascii_breaks_no_text(finished):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": "src"}
    command = [
        sys.executable,
        "scripts/generate.py",
        "--run",
        "tiny",
        "--prompt",
        "löp",
        "--tokens",
        "2",
    ]
    done = subprocess.run(
        command, cwd=finished.root, env=environment() | ascii_only, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"l?p")
