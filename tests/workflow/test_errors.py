"""Wrong config, wrong input, failed jobs and full disks: one sentence, before or instead of a result."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.small import ROOT
from tests.workflow.conftest import environment

# What users tried, and the sentence that they see before any job; others of the config are in
# tests/unit/test_config_loading.py.
PLANNED = {
    "unknown key": ({"runs": {"a": {"model": {"widht": 32}}}}, "run a (runs.a): config key model: unknown key widht"),
    "missing class of a criterion": (
        {"exits": {"criteria": {"mine": {"thresholds": [1], "file": "Snakefile.py", "class": "Nope"}}}},
        "exit criterion file Snakefile.py: found no class 'Nope', expected one",
    ),
    "missing file of a criterion": (
        {"exits": {"criteria": {"mine": {"thresholds": [1], "file": "nowhere.py", "class": "Nope"}}}},
        "exit criterion file nowhere.py: cannot be read",
    ),
    "no groups": ({"model": {"groups": []}}, "run tiny: found no looped groups (model.groups: []), expected at least"),
}


@pytest.mark.parametrize("attempt", PLANNED)
def test_a_mistake_of_a_user_is_one_sentence_in_a_dry_run(fresh, attempt):
    config, sentence = PLANNED[attempt]
    (fresh.root / "Snakefile.py").write_text("class Mine: pass\n")
    fresh.configure(**config)
    done = fresh.run("-n")
    assert done.returncode != 0
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


STARTED = {
    "several nodes without SLURM": (
        {"train": {"nodes": 2, "processes": 2}},
        "config key train.nodes: found 2, expected 1 for jobs that do not run on SLURM",
    ),
    "too little disk": ({"model": {"hidden_size": 1_000_000, "num_heads": 2}}, "GB of free disk space, expected"),
    "no CUDA": ({"compute": {"device": "cuda"}}, "found cuda, expected cpu, because"),
}


@pytest.mark.parametrize("attempt", STARTED)
def test_a_plan_that_cannot_succeed_here_is_one_sentence_before_the_first_job(fresh, monkeypatch, attempt):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config, sentence = STARTED[attempt]
    fresh.configure(**config)
    done = fresh.run("results/tiny/checkpoints/iteration_000010.safetensors")
    assert done.returncode != 0
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list((fresh.root / "results").rglob("*.parquet"))
    assert "prepare_text" in fresh.plan("text")


def test_the_line_of_broken_yaml_is_named(fresh):
    (fresh.root / "config.yaml").write_text("preset: tiny\ntrain: {iterations: 20\nseed: 1\n")
    done = fresh.run("-n")
    assert "config.yaml, line 3: cannot be read as YAML (" in done.stdout + done.stderr


def test_a_figure_or_snapshot_that_the_run_does_not_have_is_refused_with_the_reason(fresh):
    said = fresh.run("-n", "results/seeds.pdf").stdout
    assert "results/seeds.pdf: run tiny has one seed, expected further ones" in said
    assert "Traceback" not in said
    said = fresh.run("-n", "snapshot", "--config", "preset=ouro-1.4b").stdout
    assert "results/snapshot: run ouro-1.4b has a published model, expected one trained here." in said
    done = fresh.run("-n", "--software-deployment-method", "apptainer")
    assert "envs/twoscale.sif: found no image, expected the one that" in done.stdout + done.stderr


@pytest.mark.runs
def test_a_checkpoint_of_another_config_is_refused(editable):
    """Files brought from elsewhere have no record; only the identity inside them can tell."""
    stranger = (editable.root / "results/tiny/checkpoints/iteration_000000.safetensors").read_bytes()
    editable.configure(run="other", seed=7)
    editable.succeed("results/other/checkpoints/iteration_000000.safetensors")
    (editable.root / "results/other/checkpoints/iteration_000000.safetensors").write_bytes(stranger)
    done = editable.run("results/other/checkpoints/iteration_000010.safetensors", "--rerun-triggers", "input")
    assert done.returncode != 0
    assert "belongs to another configuration: seed is 1337 there, expected 7" in done.stdout + done.stderr


@contextmanager
def mounted(folder, *options):
    """A file system at `folder`; the test is skipped where it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *options, folder], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here (needs root)")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("option", "sentence"), [("ro", "results: is not writable."), ("size=200k", "'No space left on device'")]
)
def test_a_disk_that_is_full_or_read_only_is_a_sentence_at_the_end(fresh, option, sentence):
    with mounted(fresh.root / "results", "-t", "tmpfs", "-o", option, "tmpfs"):
        fresh.succeed("-n")
        done = fresh.run("results/tiny/data/text/shard_000.parquet")
    assert done.returncode == 1
    assert sentence in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


# --- the last lines of a call with failed jobs -----------------------------------------------------------------------

SNAKEFILE = """
from twoscale.workflow.snakefile import JobErrors

JobErrors.install()

rule all:
    input: "wrong", "killed", "silent"

rule wrong:
    output: "wrong"
    log: "wrong.log"
    shell: "echo progress > {log}; echo 'error: file x: found é.' >> {log}; exit 1"

rule killed:
    output: "killed"
    log: "killed.log"
    shell: "echo progress > {log}; kill -9 $$"

rule silent:
    output: "silent"
    log: "silent.log"
    shell: "exit 3"

rule slow:
    output: "slow"
    log: "slow.log"
    shell: "touch begun; sleep 60"
"""


def start(folder, *arguments):
    (folder / "Snakefile").write_text(SNAKEFILE)
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--keep-going", *arguments]
    # a background job of a shell ignores SIGINT, and its children inherit that
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler), "start_new_session": True}
    return subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True, **heed)


def test_the_last_lines_say_why_each_job_failed(tmp_path):
    run = start(tmp_path)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 1
    last = [
        next(line for line in reversed(error.splitlines()) if rule in line) for rule in ("wrong", "killed", "silent")
    ]
    assert "error: file x: found é." in last[0]
    assert "SIGKILL" in last[1] or "killed" in last[1]
    assert {*last} <= {*error.strip().splitlines()[-4:]}


def test_an_interrupted_run_blames_no_job(tmp_path):
    run = start(tmp_path, "slow")
    while not (tmp_path / "begun").exists():
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    _, error = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "wrote no message" not in error


# --- generated text --------------------------------------------------------------------------------------------------

CRITERION = """from twoscale.exits.criteria import ExitCriterion


class Mine(ExitCriterion):
    def start(self, x0):
        return {}['x']

    def update(self, state, x_new, readout):
        return None, state
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--results", "elsewhere"], "elsewhere: no such folder, expected the folder of the runs"),
        (["--device", "cuda"], "option --device: found cuda, expected cpu, because "),
        (["--temperature", "-1"], "temperature: found -1.0"),
        (
            ["--criterion-file", "raises.py", "--criterion", "Mine", "--tau", "1"],
            "exit criterion file raises.py, line 6: Mine.start raised KeyError",
        ),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistakes_with_generated_text(finished, tmp_path, monkeypatch, arguments, sentence):
    from twoscale.exits.generate import main, parser
    from twoscale.jobs import command

    if "cuda" in arguments and os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has CUDA")
    (tmp_path / "raises.py").write_text(CRITERION)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(finished.root / "results")
    monkeypatch.setattr("sys.argv", ["generate.py", "--run", "tiny", "--prompt", "loop", *arguments])
    with pytest.raises(SystemExit) as end:
        command.run(main, parser())
    assert str(end.value).startswith(f"error: {sentence}")
    assert "\n" not in str(end.value)


def test_a_locale_of_ascii_breaks_no_text(finished):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "scripts/generate.py", "--run", "tiny", "--prompt", "löp", "--tokens", "2"]
    variables = environment() | ascii_only | {"PYTHONPATH": "src"}
    done = subprocess.run(command, cwd=finished.root, env=variables, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"l?p")
