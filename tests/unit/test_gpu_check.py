"""The GPU check: its path on a CPU with a small model, its refusals and its limits of time."""

import itertools
import subprocess
import sys
import time

import pytest
import torch

from tests.small import ROOT
from twoscale import tables
from twoscale.errors import InputError
from twoscale.gpu.check import Options, check
from twoscale.gpu.compare import Comparison
from twoscale.gpu.limits import Clock
from twoscale.gpu.packages import CHECK, missing_packages
from twoscale.gpu.report import FAILED, PASSED, SKIPPED, Report, Row, peak_tflops

ON_CPU = Options(
    "cpu", "tiny", micro_batches=(1, 3), iterations=1, criteria=("step_norm", "kl", "argmax_stability"), slowdown=10
)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Report:
    """All sections on the CPU, without the compiler, which takes a minute there."""
    folder = tmp_path_factory.mktemp("report")
    with torch.compiler.set_stance("force_eager"):
        return check(ON_CPU, folder)


@pytest.mark.runs
def test_the_check_of_a_cpu_against_itself_passes(report):
    verdicts = [row["verdict"] for row in report.rows if row["section"] == "comparison"]
    assert verdicts == [PASSED] * 11
    assert not report.failed


@pytest.mark.runs
def test_every_setting_has_a_value(report):
    frame = tables.read("gpu_check", report.folder / "gpu-check.parquet")
    training = frame[(frame["section"] == "training") & (frame["unit"] == "tokens/s")]
    settings = [f"micro-batch {size}, {kind}" for kind in ("eager", "compiled") for size in (1, 3)]
    assert training["setting"].tolist() == settings
    assert (training["value"] > 0).all()
    decoding = frame[frame["section"] == "decoding"]
    measured = {"bare matrix products"} | {name + part for name in ON_CPU.criteria for part in ("", ", loops alone")}
    assert set(decoding["quantity"]) == measured
    assert (decoding["value"] > 0).all()
    assert frame["torch"].unique().tolist() == [torch.__version__]


@pytest.mark.runs
def test_the_utilisation_of_an_unknown_device_is_empty(report):
    utilisation = [row for row in report.rows if row["quantity"] == "utilisation"]
    assert len(utilisation) == 4
    assert {row["value"] for row in utilisation} == {None}


@pytest.mark.runs
def test_the_page_has_every_row(report):
    page = (report.folder / "gpu-check.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| quantity")]
    assert len(lines) == len(report.rows)
    assert "0 FAILED" in page


def test_what_is_not_a_gpu_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="device cuda: found no CUDA device on this machine, expected one"):
        check(Options(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_script_ends_in_one_sentence_without_a_gpu(tmp_path):
    command = [sys.executable, ROOT / "scripts/gpu_check.py", "--folder", tmp_path]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 1
    *warned, sentence = done.stderr.splitlines()
    assert sentence.startswith("error: device cuda: found no CUDA device")
    assert all("] No CUDA runtime is found" in line for line in warned)  # by torch, if it is a build for CUDA


def test_missing_packages_are_named_before_anything_is_imported():
    code = "import sys; from twoscale.gpu import packages; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    assert missing_packages(CHECK) is None
    sentence = missing_packages({"no_such_module": "absent", "torch": "torch"})
    assert sentence == ("error: Python packages: found no absent, expected absent, torch (versions: requirements.txt).")


def out_of_memory() -> list[Row]:
    raise torch.OutOfMemoryError("CUDA out of memory")


def interrupted() -> list[Row]:
    raise ValueError("first line.\nsecond line")


@pytest.mark.parametrize(
    ("seconds", "call", "note"),
    [
        (9.0, out_of_memory, "out of memory"),
        (9.0, interrupted, "ValueError: first line"),
        (9.0, lambda: time.sleep(5), "not finished after 0 s"),
        (0.0, interrupted, "no time left"),
    ],
    ids=["out of memory", "another error", "too slow", "no time"],
)
def test_what_cannot_be_measured_is_a_row_that_says_why(seconds, call, note):
    rows = Clock(seconds).measure(("quantity", "setting"), 0.2, call)
    assert rows == [Row("quantity", "setting", None, "", SKIPPED, note)]


def test_a_killed_check_keeps_what_it_measured(tmp_path):
    report = Report(tmp_path, "a device")

    def rows():
        yield Row("first", "", 1.0, "s")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.add("section", rows())
    assert tables.read("gpu_check", tmp_path / "gpu-check.parquet")["quantity"].tolist() == ["first"]


@pytest.mark.parametrize("error", [1.5, float("nan")])
def test_a_device_that_computes_something_else_fails(error):
    turns = itertools.cycle([error, 1.0])  # the device comes before the CPU

    class Wrong(Comparison):
        def of(self, device: str, dtype: torch.dtype):
            model = super().of(device, dtype)
            with torch.no_grad():
                model.token_embedding.weight *= next(turns)
            return model

    comparison = Wrong("cpu")
    rows = [*comparison.gradients(), *comparison.states()]
    assert {row.verdict for row in rows} == {FAILED}


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989.0), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA X1", None)],
)
def test_utilisation_refers_to_the_peak_of_the_device(name, peak):
    assert peak_tflops(name) == peak
