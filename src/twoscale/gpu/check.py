"""The GPU check: tests and measurements in one call of at most eight minutes."""

import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from twoscale.exits.criteria import CRITERIA
from twoscale.gpu.latency import KINDS, PRODUCTS, Latency
from twoscale.gpu.limits import Clock, Measurement, Worker
from twoscale.gpu.report import FAILED, PASSED, SKIPPED, Report, Row, device_name
from twoscale.gpu.throughput import Throughput, setting_name
from twoscale.jobs.machine import check_cuda

PROJECT = Path(__file__).parents[3]
SECONDS = 450.0  # of all sections together; the rest of eight minutes is for imports and the last write
# Seconds of one measurement at most, with the start of its process.
TESTS, EAGER, COMPILED, DECODING = 120.0, 45.0, 120.0, 60.0
SLOWDOWN = {"cuda": 1.0, "cpu": 10.0}  # all limits are times this: a CPU may be slow and busy
SECTIONS = ("tests", "training", "decoding")
# Device -> the tests that run there: marks, and a pattern of files. On a CPU those that have a twin with the mark gpu.
TESTS_OF = {"cuda": ("gpu", "test_*.py"), "cpu": ("not gpu", "test_devices.py")}


@dataclass(frozen=True)
class Options:
    """Options of the check: the preset of the measured model, and the micro-batches of its training."""

    device: str = "cuda"
    model: str = "paper"
    micro_batches: tuple[int, ...] = (10, 20, 2)
    iterations: int = 8
    criteria: tuple[str, ...] = tuple(name for name, criterion in CRITERIA.items() if not criterion.needs_gate)
    sections: tuple[str, ...] = SECTIONS


def check(options: Options, folder: Path) -> Report:
    """Measure the sections and write `gpu-check.md` and `gpu-check.parquet` to `folder`, row by row.

    Raises:
        InputError: if the device is "cuda" and there is none.
    """
    if options.device == "cuda":
        check_cuda("option --device")
    return _Check(options, folder).run()


class _Check:
    """One call of `check`. The most telling settings come first, and among the others the cheap ones."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options, self.device = options, options.device
        self.clock = Clock(SECONDS, SLOWDOWN[options.device])
        self.report = Report(folder, device_name(options.device))
        self.seconds: defaultdict[str, float] = defaultdict(float)  # waited for each section

    def run(self) -> Report:
        options = self.options
        with Worker(partial(DeviceTests, self.device)) as tests:
            self._measure("tests", tests, ("tests", "pytest"), TESTS, DeviceTests.rows)
        make = partial(Throughput.of, options.model, self.device, self.report.device, options.iterations)
        first, *others = options.micro_batches
        with Worker(make) as training:
            self._train(training, [(first, True), (first, False)])
            self._decode()
            self._train(training, [(size, compiled) for compiled in (False, True) for size in others])
        times = [Row(section, "", seconds, "s") for section, seconds in self.seconds.items()]
        self.report.add("time", [*times, Row("all sections", "", self.clock.spent, "s")])
        return self.report

    def _measure(
        self, section: str, worker: Worker, name: tuple[str, str], limit: float, measurement: Measurement, *given: Any
    ) -> list[Row]:
        """Measure one setting of a section, unless the options leave that out."""
        if section not in self.options.sections:
            return []
        before = self.clock.spent
        rows = self.clock.measure(worker, name, limit, measurement, *given)
        self.seconds[section] += self.clock.spent - before
        self.report.add(section, rows)
        return rows

    def _train(self, worker: Worker, settings: Sequence[tuple[int, bool]]) -> None:
        for sequences, compiled in settings:
            name, limit = ("training", setting_name(sequences, compiled)), COMPILED if compiled else EAGER
            self._measure("training", worker, name, limit, Throughput.rows, sequences, compiled)

    def _decode(self) -> None:
        with Worker(partial(Latency, self.options.model, self.device)) as worker:
            measure = partial(self._measure, "decoding", worker)
            called = ("captured", "eager") if self.device == "cuda" else ("eager",)
            products = [measure((PRODUCTS, kind), DECODING, Latency.products, kind) for kind in called]
            floor = min((row.value for rows in products for row in rows if row.value is not None), default=None)
            for kind, criterion in itertools.product(KINDS, self.options.criteria):
                measure((criterion, f"{kind} steps"), DECODING, Latency.rows, criterion, kind, floor)


@dataclass(frozen=True)
class DeviceTests:
    """The tests of this checkout that run on `device`."""

    device: str

    @property
    def marks(self) -> str:
        return TESTS_OF[self.device][0]

    @property
    def command(self) -> list[str]:
        paths = (PROJECT / "tests").rglob(TESTS_OF[self.device][1])
        files = [str(path) for path in paths if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]
        return [sys.executable, "-m", "pytest", "-q", "-m", self.marks, "-p", "no:cacheprovider", *files]

    def rows(self) -> list[Row]:
        done = subprocess.run(self.command, cwd=PROJECT, capture_output=True, text=True, check=False)
        summary = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1].strip("= ")
        passed = re.search(r"(\d+) passed", summary)
        verdict = FAILED if done.returncode else PASSED if passed else SKIPPED
        if verdict == FAILED:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        count = float(passed[1]) if passed else None
        return [Row("tests", f"pytest -m '{self.marks}'", count, "tests", verdict, summary)]
