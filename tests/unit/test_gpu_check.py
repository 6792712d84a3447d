"""The GPU check: its path on a CPU with a small model, its refusals and its limits of time."""

import importlib.metadata
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import setuptools
import torch

from tests.small import ROOT
from twoscale import config, tables
from twoscale.gpu.check import DeviceTests, Options
from twoscale.gpu.limits import Clock, Worker
from twoscale.gpu.packages import CHECK, missing_packages
from twoscale.gpu.report import FAILED, PASSED, SKIPPED, TOO_LARGE, Report, Row, peak_tflops
from twoscale.gpu.throughput import Throughput
from twoscale.model.flops import flops_per_token
from twoscale.training.recipe import draw_loops

SCRIPT = ROOT / "scripts/gpu_check.py"
HIDE = """
import sys
from importlib.machinery import PathFinder

class Shown(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {hidden} else super().find_spec(name, path, target)

sys.meta_path = [Shown if finder is PathFinder else finder for finder in sys.meta_path]
"""


def requirements(package: str) -> set[str]:
    """A package and all that it requires, without extras."""
    try:
        requires = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:  # of another system
        return set()
    names = {re.match(r"[\w.-]+", line)[0] for line in requires if "extra ==" not in line}
    return {package}.union(*map(requirements, names))


@pytest.fixture(scope="module")
def on_gpu_machine(tmp_path_factory) -> dict[str, str]:
    """Variables under which Python has the packages that the check says it needs, and no others."""
    normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()  # noqa: E731
    shown = {normal(name) for package in CHECK.values() for name in requirements(package)} | {"twoscale"}
    installed = importlib.metadata.packages_distributions()
    carried = {path.name for path in Path(setuptools.__file__).with_name("_vendor").iterdir()}
    hidden = {module for module, names in installed.items() if not shown & set(map(normal, names))} - carried
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    return os.environ | {"PYTHONPATH": f"{folder}:{ROOT / 'src'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def gpu_check(folder: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, SCRIPT, "--folder", folder, "--iterations", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=2400, env=environment)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, on_gpu_machine) -> Path:
    """The folder of a whole check on the CPU. Its measurements do not compile, which takes minutes; its tests do."""
    folder = tmp_path_factory.mktemp("measured")
    options = ("--device", "cpu", "--model", "tiny", "--micro-batches", "3", "1")
    done = gpu_check(folder, on_gpu_machine | {"TORCHDYNAMO_DISABLE": "1"}, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leaked" not in done.stderr
    return folder


@pytest.fixture
def frame(measured):
    return tables.read("gpu_check", measured / "gpu-check.parquet")


@pytest.mark.runs
def test_a_check_of_a_cpu_has_a_value_in_every_row(frame):
    assert frame["value"].notna().all()
    assert set(frame["verdict"]) == {PASSED, ""}
    assert frame["torch"].unique().tolist() == [torch.__version__]


@pytest.mark.runs
def test_the_most_telling_settings_come_first(frame):
    sections = [section for section, _ in itertools.groupby(frame["section"])]
    assert sections == ["tests", "training", "decoding", "training", "time"]
    settings = frame["setting"][frame["section"] == "training"].unique().tolist()
    assert settings == [f"micro-batch {setting}" for setting in ("3, compiled", "3, eager", "1, eager", "1, compiled")]


@pytest.mark.runs
def test_every_section_has_its_quantities(frame):
    training = frame[frame["section"] == "training"].groupby("setting", sort=False)["quantity"].agg(list)
    assert training["micro-batch 3, compiled"] == ["training", "training", "compilation"]
    assert training["micro-batch 3, eager"] == ["training", "training"]
    decoding = frame[frame["section"] == "decoding"]
    criteria = Options().criteria
    assert set(decoding["quantity"]) == {"bare matrix products"} | {
        name + part for name in criteria for part in ("", ", loops alone")
    }
    assert (decoding["value"] > 0).all()
    times = frame["quantity"][frame["section"] == "time"].tolist()
    assert times == ["tests", "training", "decoding", "all sections"]


@pytest.mark.runs
def test_the_page_has_every_row(measured, frame):
    page = (measured / "gpu-check.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| quantity")]
    assert len(lines) == len(frame)
    assert "0 FAILED, 0 not measured" in page


@pytest.mark.runs
def test_the_tests_that_need_a_gpu_need_no_other_packages(on_gpu_machine):
    command = [*DeviceTests("cuda").command, "--collect-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=on_gpu_machine)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+)/\d+ tests collected", done.stdout)[1]) > 90


@pytest.mark.runs
def test_what_is_not_measured_fails_the_check_and_is_named(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    options = ("--device", "cpu", "--model", "tiny", "--sections", "training", "--micro-batches", "0")
    done = gpu_check(tmp_path, environment, *options)
    assert done.returncode == 1
    for kind in ("compiled", "eager"):
        row = (
            f"training: training, micro-batch 0, {kind}: not measured InputError: config key train.batch_size: found 0"
        )
        assert row in done.stderr
        assert f"- {row}" in (tmp_path / "gpu-check.md").read_text()


def test_a_failure_and_a_gap_fail_the_check_and_too_little_memory_does_not(tmp_path):
    report = Report(tmp_path, "a device")
    verdicts = (PASSED, FAILED, SKIPPED, TOO_LARGE, "")
    report.add("section", [Row(f"quantity {verdict}", "", None, "", verdict) for verdict in verdicts])
    assert report.failed == ["section: quantity FAILED: FAILED", "section: quantity not measured: not measured"]


class Clocked(Throughput):
    """Two iterations of warm-up take 10 s, the three that are counted 6 s."""

    def _seconds(self, trainer, state, iterations):
        return {2: 10.0, 3: 6.0}[iterations]


def test_speed_is_that_of_the_counted_iterations_and_compilation_what_the_first_ones_took_longer():
    run = config.checked(config.preset("tiny"))
    first, counted = (
        sum(
            flops_per_token(run.model, draw_loops(run.model, run.seed, i)).total * 4 * run.model.context_length
            for i in n
        )
        for n in (range(2), range(2, 5))
    )
    speed, _, compilation = Clocked.of("tiny", "cpu", "a device", 3).rows(4, compiled=True)
    assert (speed.value, speed.unit) == (pytest.approx(counted / 6 / 1e12), "TFLOP/s")
    assert (compilation.value, compilation.unit) == (pytest.approx(10 - first / (counted / 6)), "s")


class Full(Throughput):
    def _measure(self, settings):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_micro_batches_that_do_not_fit_are_a_result():
    rows = Full.of("tiny", "cpu", "a device", 1).rows(4, compiled=False)
    assert rows == [Row("training", "micro-batch 4, eager", None, "", TOO_LARGE, "out of memory")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_script_ends_in_one_sentence_without_a_gpu(tmp_path):
    command = [sys.executable, ROOT / "scripts/gpu_check.py", "--folder", tmp_path]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: option --device: found cuda, expected cpu, because ")
    assert done.stderr.count("\n") == 1


def test_missing_packages_are_named_before_anything_is_imported():
    code = "import sys; from twoscale.gpu import packages; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    assert missing_packages(CHECK) is None
    sentence = missing_packages({"no_such_module": "absent", "torch": "torch"})
    assert sentence == ("error: Python packages: found no absent, expected absent, torch (versions: requirements.txt).")


NAME = ("quantity", "setting")


def count(calls: list) -> list[Row]:
    """The number of calls on this object so far."""
    calls.append(None)
    return [Row("calls", "", len(calls), "")]


def out_of_memory(calls: list) -> list[Row]:
    raise torch.OutOfMemoryError("CUDA out of memory")


def wrong(calls: list) -> list[Row]:
    raise ValueError("first line.\nsecond line")


def another_way(calls: list) -> list[Row]:
    warnings.warn("exits.compile: loop steps are captured without compilation (no Triton).", stacklevel=1)
    return count(calls)


def crash(calls: list) -> list[Row]:
    os.abort()


def hang(calls: list, noted: Path | None = None) -> list[Row]:
    """Never ends, whatever signal arrives; starts a process that does not either and notes both in a file."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    started = subprocess.Popen(["sleep", "600"])
    if noted is not None:
        noted.write_text(f"{os.getpid()} {started.pid} ")
    time.sleep(600)


@pytest.mark.runs
def test_a_measurement_that_goes_wrong_costs_its_own_row_only():
    """One worker survives all kinds: the object of the next measurement is new."""
    kinds = {
        out_of_memory: "out of memory",
        wrong: "ValueError: first line",
        another_way: "UserWarning: exits.compile: loop steps are captured without compilation (no Triton)",
        crash: f"its process ended with exit status -{signal.SIGABRT.value}",
        hang: "not finished after 2 s",
    }
    clock = Clock(400.0)
    with Worker(list) as worker:
        assert clock.measure(worker, NAME, 90.0, count) == [Row("calls", "", 1, "")]
        assert clock.measure(worker, NAME, 90.0, count) == [Row("calls", "", 2, "")]
        for measurement, note in kinds.items():
            assert clock.measure(worker, NAME, 2.0, measurement) == [Row(*NAME, None, "", SKIPPED, note)]
            assert clock.measure(worker, NAME, 90.0, count) == [Row("calls", "", 1, "")]  # of a new object


def test_without_time_nothing_is_started():
    clock = Clock(20.0)
    with Worker(list) as worker:
        assert clock.measure(worker, NAME, 61.0, hang) == [Row(*NAME, None, "", SKIPPED, "no time left")]
        assert 0 < clock.grant(59.0) <= 20.0


def assert_ended(numbers: str) -> None:
    end = time.monotonic() + 60
    while [number for number in numbers.split() if is_running(int(number))]:
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(path: Path) -> str:
    end = time.monotonic() + 120
    while not path.exists() or not path.read_text().endswith(" "):
        assert time.monotonic() < end
        time.sleep(0.05)
    return path.read_text()


def test_what_a_killed_measurement_has_started_is_killed_with_it(tmp_path):
    with Worker(list) as worker:
        worker.start(hang, tmp_path / "noted")
        numbers = wait_for(tmp_path / "noted")
        assert worker.rows(NAME, 0.0)[0].verdict == SKIPPED
        assert_ended(numbers)


def test_a_measurement_ends_with_the_check_that_is_killed(tmp_path):
    code = f"""
import pathlib
from tests.unit.test_gpu_check import hang
from twoscale.gpu.limits import Worker
if __name__ == "__main__":
    worker = Worker(list)
    worker.start(hang, pathlib.Path({str(tmp_path / "noted")!r}))
    worker.rows(("", ""), 600)
"""
    (tmp_path / "check.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    process = subprocess.Popen([sys.executable, tmp_path / "check.py"], env=environment)
    try:
        numbers = wait_for(tmp_path / "noted")
    finally:
        process.kill()
        process.wait()
    assert_ended(numbers)


def test_a_killed_check_keeps_what_it_measured(tmp_path):
    report = Report(tmp_path, "a device")

    def rows():
        yield Row("first", "", 1.0, "s")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.add("section", rows())
    assert tables.read("gpu_check", tmp_path / "gpu-check.parquet")["quantity"].tolist() == ["first"]


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989.0), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA X1", None)],
)
def test_utilisation_refers_to_the_peak_of_the_device(name, peak):
    assert peak_tflops(name) == peak
