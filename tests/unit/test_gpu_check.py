"""The GPU check on the CPU: its table has a row for every test, also for those that hang, crash or
fail.
"""

import os
import subprocess
import sys

import pytest

from tests.small import ROOT
from twoscale import tables

pytestmark = pytest.mark.runs

TESTS = """
import os
import signal
import time

import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.limit(1, turn=0)
def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    time.sleep(600)

@pytest.mark.limit(1)
def test_measures(record, run, device):
    record("speed", run.model.architecture, 2.0, "m/s")

@pytest.mark.limit(1)
def test_fails(record):
    record("speed", "before", 1.0, "m/s")
    raise ValueError("found it wrong")

@pytest.mark.limit(1)
def test_crashes():
    os.abort()

@pytest.mark.limit(10000)
def test_has_no_time():
    pass

@pytest.mark.limit(1, turn=2)
@pytest.mark.parametrize("name", ["a"])
def test_passes(name):
    pass
"""


def check(folder, *arguments) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    shell = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3000, env=shell
    )


def test_every_test_has_its_row_whatever_happens_to_it(tmp_path):
    path = ROOT / "tests/gpu" / f"test_tried_{os.getpid()}.py"
    path.write_text(TESTS)
    try:
        options = ("--device=cpu", "--model=tiny", "--seconds=900", f"--folder={tmp_path}")
        done = check(tmp_path, path, *options)
    finally:
        path.unlink()
    table = tables.read("gpu_check", tmp_path / "gpu-check.parquet").fillna({"value": 0.0})
    found = [
        tuple(row)
        for row in table[["quantity", "setting", "value", "verdict", "note"]].itertuples(
            index=False
        )
    ]
    assert found == [
        ("hangs", "", 0.0, "not measured", "not finished within its time limit"),
        ("speed", "transformer", 2.0, "", ""),
        ("speed", "before", 1.0, "", ""),
        ("fails", "", 0.0, "FAILED", "found it wrong"),
        ("crashes", "", 0.0, "not measured", "its process has ended"),
        ("has no time", "", 0.0, "not measured", "no time left"),
        ("passes", "a", 0.0, "passed", ""),
    ], done.stdout + done.stderr
    assert done.returncode == 1
    page = (tmp_path / "gpu-check.md").read_text()
    assert "| passes | a |  |  | passed |  |" in page
    assert "- crashes not measured its process has ended" in page


def test_a_check_of_a_cpu_has_a_value_or_a_verdict_in_every_row(tmp_path):
    files = [f"tests/gpu/test_{name}.py" for name in ("agreement", "decoding", "training")]
    some = (
        "killed or bfloat16 or same_function or float32 or (kl and not loops) or products or"
        " as_configured"
    )
    done = check(
        tmp_path, *files, "-k", some, "--device=cpu", "--model=tiny", f"--folder={tmp_path}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = tables.read("gpu_check", tmp_path / "gpu-check.parquet")
    assert set(table["section"]) == {"training", "agreement", "decoding"}
    assert set(table["verdict"][table["value"].isna()]) == {"passed", "not on a CPU"}


def test_without_a_gpu_the_check_is_refused_in_one_sentence(tmp_path):
    done = check(tmp_path, "tests/gpu", f"--folder={tmp_path}", "-k", "as_configured")
    assert (done.returncode, "error: option --device: found cuda" in done.stdout + done.stderr) == (
        1,
        True,
    )
