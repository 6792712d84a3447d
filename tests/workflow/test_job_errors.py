"""The last lines of a failed workflow: why each job failed; and its shell line once."""

import os
import signal
import subprocess
import sys
import time

from tests.small import ROOT

SNAKEFILE = """
from snakemake.logging import logger
from twoscale.jobs.job_errors import JobErrors

JobErrors.install(logger)
JobErrors.install(logger)

rule all:
    input: "wrong", "killed", "silent"

rule wrong:
    output: "wrong"
    log: "wrong.log"
    shell: "echo progress > {log}; echo 'error: file x: found é.' >> {log}; exit 1 # of wrong"

rule killed:
    output: "killed"
    log: "killed.log"
    shell: "echo progress > {log}; kill -9 $$ # of killed"

rule silent:
    output: "silent"
    log: "silent.log"
    shell: "exit 3 # of silent"

rule repeated:
    output: "repeated"
    log: "repeated.log"
    retries: 1
    shell: "echo > {output}; echo 'error: too early.' > {log}; test -e marker || {{ touch marker; exit 1; }}"
"""


def snakemake(folder, *arguments):
    (folder / "Snakefile").write_text(SNAKEFILE)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--keep-going", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, timeout=120)


def test_the_last_lines_say_why_each_job_failed_and_shell_lines_are_printed_once(tmp_path):
    done = snakemake(tmp_path)
    assert done.returncode == 1
    assert set(done.stderr.strip().splitlines()[-3:]) == {
        "wrong: error: file x: found é.",
        "killed: the job was killed (SIGKILL), as happens when memory runs out.",
        "silent: the job wrote no message.",
    }
    for rule in ("wrong", "killed", "silent"):
        assert done.stderr.count(f"# of {rule}") == 1


def test_a_job_that_succeeds_at_its_second_attempt_is_not_among_the_failures(tmp_path):
    done = snakemake(tmp_path, "repeated", "silent")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "silent: the job wrote no message."
    assert "repeated: " not in done.stderr.partition("At least one job did not")[2]


def test_an_interrupted_run_says_so_and_blames_no_job(tmp_path):
    (tmp_path / "Snakefile").write_text(
        SNAKEFILE + 'rule slow:\n    output: "slow"\n    log: "slow.log"\n    shell: "touch begun; sleep 60"\n'
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "slow"]
    # a background job of a shell ignores SIGINT, and its children inherit that
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler), "start_new_session": True}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, **heed)
    while not (tmp_path / "begun").exists():
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    _, error = run.communicate(timeout=60)
    assert run.returncode != 0
    assert error.strip().splitlines()[-1].startswith("Interrupted. Repeat the command to continue")
    assert "wrote no message" not in error
