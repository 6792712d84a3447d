"""What users of generate.py, criteria, results folders and locales do wrong: what they see, and what is lost.

Each row ends in one sentence, at exit status 1, and nothing is lost. Wrong options are in tests/unit/test_generate.py,
those of config and planning in test_errors.py.
"""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.workflow.conftest import Project, environment

CRITERION = """from twoscale.exits.criteria import ExitCriterion


class Mine(ExitCriterion):
    def start(self, x0):
        return {}['x']

    def update(self, state, x_new, readout):
        return None, state
"""
MINE = ["--criterion-file", "raises.py", "--criterion", "Mine", "--tau", "1"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--results", "elsewhere"], "elsewhere: no such folder, expected the folder of the runs"),
        (["--model", "nowhere"], "nowhere/config.json"),
        (["--device", "cuda"], "option --device: found cuda, expected cpu, because "),
        (["--temperature", "-1"], "temperature: found -1.0"),
        (["--top-p", "2"], "top_p: found 2.0"),
        (MINE, "exit criterion file raises.py, line 6: Mine.start raised KeyError"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistakes_with_generated_text(finished, tmp_path, monkeypatch, capsys, arguments, sentence):
    from twoscale.exits.generate import main, parser
    from twoscale.jobs import command

    if "cuda" in arguments and os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has CUDA")
    (tmp_path / "raises.py").write_text(CRITERION)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(finished.root / "results")
    model = [] if "--model" in arguments else ["--run", "tiny"]
    monkeypatch.setattr("sys.argv", ["generate.py", *model, "--prompt", "loop", *arguments])
    with pytest.raises(SystemExit) as end:
        command.run(main, parser())
    assert str(end.value).startswith(f"error: {sentence}")
    assert "\n" not in str(end.value)
    assert capsys.readouterr().out in ("", "loop\n")  # a criterion fails after the prompt


def test_a_locale_of_ascii_breaks_neither_text_nor_messages(finished):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "scripts/generate.py", "--run", "tiny", "--prompt", "löp", "--tokens", "2"]
    variables = environment() | ascii_only | {"PYTHONPATH": "src"}
    done = subprocess.run(command, cwd=finished.root, env=variables, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"l?p")


def test_a_path_in_another_script_is_named_under_a_locale_of_ascii(fresh):
    fresh.configure(data={"source": "parquet", "path": "dätä"})
    variables = environment() | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = fresh.command("results/tiny/data/text/shard_000.parquet")
    done = subprocess.run(command, cwd=fresh.root, env=variables, capture_output=True, timeout=300)
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 1
    assert "config key data.path: found nothing at " in output.strip().splitlines()[-1]
    assert "UnicodeEncodeError" not in output


def test_a_python_without_its_help_topics_is_named(monkeypatch):
    from twoscale.base import InputError
    from twoscale.data.text import python_docs

    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)  # as import finds a module that is not installed
    with pytest.raises(InputError, match=r"config key data.source: found python_docs, but this Python .* has no help"):
        next(python_docs())


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


def test_a_checkout_with_a_brace_in_its_path_is_one_sentence(fresh):
    moved = fresh.root.rename(fresh.root.with_name("un{balanced"))
    done = Project(moved).run("-n")
    assert done.returncode == 1
    assert f"{moved}: found a brace in the path of the workflow, expected a path without braces." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_read_only_results_are_refused_before_any_job_and_can_be_planned(fresh):
    with mounted(fresh.root / "results", "-t", "tmpfs", "-o", "ro", "tmpfs"):
        fresh.succeed("-n")
        done = fresh.run("results/tiny/data/text/shard_000.parquet")
    assert done.returncode == 1
    assert "results: is not writable." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_the_last_line_of_the_terminal(fresh):
    with mounted(fresh.root / "results", "-t", "tmpfs", "-o", "size=200k", "tmpfs"):
        done = fresh.run("results/tiny/data/text/shard_000.parquet")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("prepare_text: error: results/tiny/data/parts/")
    assert last.endswith("found the error 'No space left on device', expected free space on its disk.")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("--parts results/tiny/data/parts") == 1  # the shell line
