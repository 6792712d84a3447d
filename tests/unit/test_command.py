"""Scripts: one sentence for what the input or the machine lacks, a traceback for faults of the
code.
"""

import errno
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from tests.rules import call_of, rules
from tests.small import ROOT
from twoscale.base import InputError, canonical_json, check_writable, replacing, sentence
from twoscale.config import ConfigSlice
from twoscale.jobs import command
from twoscale.jobs.machine import cuda_devices
from twoscale.jobs.table_job import CHECKPOINT_FILES, FILES

SCRIPT = """
import argparse, sys
from twoscale.jobs import command
def main(arguments):
{body}
command.run(main, argparse.ArgumentParser())
"""


def script(body, **options):
    """Run a script whose `main` has this body."""
    code = SCRIPT.format(body="\n".join(f"    {line}" for line in body.splitlines()))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        **options,
    )


def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path):
    """/dev/full refuses every byte, like a disk without space."""
    body = (
        "from twoscale.base import replacing\n"
        f"with replacing({str(tmp_path / 'table.bin')!r}) as temporary:\n"
        "    temporary.touch()\n"
        "    with open('/dev/full', 'wb', buffering=0) as file:\n"
        "        file.write(b'x')"
    )
    done = script(body)
    expected = (
        f"error: {tmp_path / 'table.bin'}: found the error 'No space left on device', expected"
        f" free space on its disk."
    )
    assert (done.returncode, done.stderr.strip()) == (1, expected)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_gone_and_an_interrupt_end_silently():
    read, write = os.pipe()
    os.close(read)
    done = script("print('text')", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
    # a shell starts background jobs with SIGINT ignored
    heeds = "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    done = script(f"{heeds}\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)")
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def refuse():
    raise PermissionError(errno.EACCES, "", "results/a")


@pytest.mark.parametrize(
    ("fail", "beginning"),
    [
        (lambda: numpy.ones(10**15), "memory: found too little"),
        (lambda: torch.ones(10**15), "memory: found too little"),
        (lambda: bytearray(10**18), "memory: found too little"),
        (refuse, "results/a: found the error 'Permission denied', expected permission to use it."),
        (lambda: Path("/gone").read_text(), None),
        (lambda: torch.ones(2) + torch.ones(3), None),
    ],
)
def test_what_the_machine_lacks_is_one_sentence_and_another_error_a_fault_of_the_code(
    fail, beginning
):
    try:
        fail()
    except Exception as error:
        found = sentence(error)
    assert found is None if beginning is None else found.startswith(beginning)


MEASURE = "measure.py twoscale.dynamics.state_paths.extract_states"
CALL = "call.py twoscale.dynamics.aggregate.metrics"
DRAW = "draw.py twoscale.figures.fig2.draw"


FILES_OF_METRICS = (
    "--trajectories a --token-drift a --loop-metrics a --drift a --loop-sequences a"
    " --drift-sequences a"
)
WRONG_USES = {
    "call.py": "error: first argument: found '' (Empty module name)",
    "call.py docs/fig1.png": "error: first argument: found 'docs/fig1.png' (No module named",
    "draw.py twoscale.figures.fig2.drow": "(module 'twoscale.figures.fig2' has no attribute",
    "measure.py twoscale.gone.run": (
        "found 'twoscale.gone.run' (No module named 'twoscale.gone'), expected the dotted path"
    ),
    f"{CALL} --job gone.json": "error: job file gone.json: cannot be read (",
    f"{CALL} --job README.md": "error: job file README.md: cannot be read (",
    "call.py twoscale.base.sha256": (
        "error: first argument: found 'twoscale.base.sha256', expected a function with the"
        " decorator job_files."
    ),
    f"{MEASURE} --config {{}} --check-point a": "unrecognized arguments: --check-point a",
    f"{MEASURE} --config {{}} --check a": "unrecognized arguments: --check a",
    f"{CALL} --config {{}} {FILES_OF_METRICS} --loop-metrix=a": "unrecognized arguments: --loop-m",
    f"{DRAW} --config {{}} --drift a": "required: --figure, --picture",
    "plan.py --pre-set tiny": "unrecognized arguments: --pre-set tiny",
    "docs_figures.py /gone": "error: /gone, docs: found no tables/",
    "export_model.py --config {} --metadata docs --training a --export b --checkpoints --segments"
    " --evidence": ("error: docs"),
    "plan.py --tflops 0": "argument --tflops: invalid positive value: '0'",
    "with_gpus.py 1": "error: with_gpus.py: found 1 GPUs for [], expected at least one",
    "with_gpus.py 1 /gone": "error: with_gpus.py: found 1 GPUs for ['/gone'], expected at least one",
    "with_gpus.py 0 true": "error: with_gpus.py: found 0 GPUs for ['true'], expected at least one",
    "with_nodes.py 1 1 1 0 docs": "error: with_nodes.py: found 1 processes of ['docs'], expected"
    " at least one",
    "with_nodes.py 1 0 1 0 Snakefile": "error: with_nodes.py: found 0 processes of ['Snakefile'],"
    " expected",
}


@pytest.mark.parametrize("use", WRONG_USES)
def test_a_wrong_use_of_a_script_is_one_sentence(use, monkeypatch, capsys):
    script, *arguments = use.split()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as refusal:
        runpy.run_path(f"scripts/{script}", run_name="__main__")
    assert WRONG_USES[use] in f"{refusal.value}{capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (MEASURE, {"checkpoint", "val", "metadata", "model", "tokenizer", "states", "threads"}),
        (
            CALL,
            {
                "trajectories",
                "token-drift",
                "loop-metrics",
                "drift",
                "loop-sequences",
                "drift-sequences",
            },
        ),
        (DRAW, {"drift", "figure", "picture"}),
    ],
)
def test_help_lists_the_files_of_the_job(script, options, monkeypatch, capsys):
    name, function = script.split()
    monkeypatch.setattr(sys, "argv", [name, function, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
    listed = re.findall(r"^  --([\w-]+)", capsys.readouterr().out, re.MULTILINE)
    assert {*listed} == options | {"config", "job"}


@pytest.mark.parametrize("preset", ["tiny", "demo", "huginn-0125"])
def test_the_options_of_a_job_are_its_inputs_and_outputs_under_every_config(preset):
    for rule in rules(preset=preset).values():
        script, *functions = call_of(rule) or [""]
        if not functions or script.endswith("draw.py"):
            continue
        names = {*dict(rule.input.items()), *dict(rule.output.items())}
        of_checkpoint = CHECKPOINT_FILES if script.endswith("measure.py") else ()
        assert names <= {*FILES[command.function(functions[0])], *of_checkpoint}, rule.name


def test_an_error_of_the_disk_names_the_file_whichever_library_wrote_it(tmp_path):
    """Libraries in Rust raise exceptions of their own, with the number of the system in the
    message.
    """
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "weights"):
        raise ValueError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "weights"))
    with pytest.raises(OSError, match="other") as caught, replacing(tmp_path / "weights"):
        raise OSError(errno.ENOSPC, "full", "other")
    assert caught.value.filename == "other"


def test_a_folder_that_cannot_be_written_is_refused_and_one_that_is_missing_is_not(tmp_path):
    check_writable(tmp_path)
    check_writable(tmp_path / "missing")
    with pytest.raises(InputError, match="is not writable"):
        check_writable(
            next(path for path in map(type(tmp_path), ("/proc/1", "/proc")) if path.exists())
        )


@pytest.mark.skipif(cuda_devices() > 0, reason="this machine has a CUDA device")
@pytest.mark.parametrize("config", [ConfigSlice.from_json, json.loads])
def test_a_job_for_cuda_where_there_is_none_is_one_sentence(config, tmp_path, monkeypatch):
    job = tmp_path / "job.json"
    job.write_text(canonical_json({"config": {"device": "cuda"}}))
    monkeypatch.setattr(sys, "argv", ["job.py", "--job", str(job)])
    with pytest.raises(
        SystemExit, match=r"^error: config key compute\.device: found cuda, expected cpu"
    ):
        command.run(lambda arguments: pytest.fail("the job ran"), command.parser("", config=config))


def test_a_script_that_downloads_needs_the_section_download(capsys):
    options = command.parser("", download=True)
    with pytest.raises(SystemExit):
        options.parse_args(["--config", "{}"])
    assert "required: --download" in capsys.readouterr().err
