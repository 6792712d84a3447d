"""The GPU check: tests, a comparison with the CPU, and measurements, in one call of at most eight minutes."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from twoscale.errors import InputError
from twoscale.exits.criteria import CRITERIA
from twoscale.gpu.compare import Comparison
from twoscale.gpu.latency import Latency
from twoscale.gpu.limits import Clock
from twoscale.gpu.report import FAILED, PASSED, SKIPPED, Report, Row, device_name
from twoscale.gpu.throughput import Throughput

PROJECT = Path(__file__).parents[3]
SECONDS = 450.0  # of all sections together; the rest of eight minutes is for imports and the last write
TESTS, COMPARISON, EAGER, COMPILED, PRODUCTS, CRITERION = 100.0, 90.0, 30.0, 75.0, 30.0, 20.0  # seconds each at most


@dataclass(frozen=True)
class Options:
    """What to check: the measured model is that of a preset, in training at these micro-batches.

    `slowdown` multiplies all limits of time, for a slow machine.
    """

    device: str = "cuda"
    model: str = "paper"
    micro_batches: tuple[int, ...] = (10, 20, 40, 2)
    iterations: int = 8
    criteria: tuple[str, ...] = tuple(name for name, criterion in CRITERIA.items() if not criterion.needs_gate)
    slowdown: float = 1.0


def check(options: Options, folder: Path) -> Report:
    """Run all sections and write `gpu-check.md` and `gpu-check.parquet` to `folder`, section by section.

    Raises:
        InputError: if the device is "cuda" and there is none.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device cuda: found no CUDA device on this machine, expected one; --device cpu --model tiny tries the "
            "check itself."
        )
    clock, name = Clock(SECONDS, options.slowdown), device_name(options.device)
    report = Report(folder, name)
    report.add("tests", clock.measure(("tests that need a GPU", "pytest -m gpu"), TESTS, gpu_tests))
    against = f"{options.device} against cpu"
    comparison = Comparison(options.device)
    for measure in (comparison.gradients, comparison.states, comparison.mixed_precision, comparison.exits):
        report.add("comparison", clock.measure((measure.__name__, against), COMPARISON, measure))
    training = Throughput.of(options.model, options.device, name, options.iterations)
    _measure_training(report, clock, training, options.micro_batches, compiled=False)
    _measure_decoding(report, clock, options)
    _measure_training(report, clock, training, options.micro_batches, compiled=True)
    report.add("time", [Row("all sections", f"at most {SECONDS:.0f} s", clock.spent, "s")])
    return report


def gpu_tests() -> list[Row]:
    """Run the test files with the mark `gpu`; tests are skipped where there is no GPU."""
    files = [str(path) for path in (PROJECT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    summary = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    verdict = FAILED if done.returncode else PASSED if " passed" in summary else SKIPPED
    return [Row("tests that need a GPU", "pytest -m gpu", None, "", verdict, summary.strip("= "))]


def _measure_training(
    report: Report, clock: Clock, training: Throughput, micro_batches: tuple[int, ...], compiled: bool
) -> None:
    limit = COMPILED if compiled else EAGER
    for sequences in micro_batches:
        name = ("training", f"micro-batch {sequences}, {'compiled' if compiled else 'eager'}")
        report.add("training", clock.measure(name, limit, lambda size=sequences: training.rows(size, compiled)))


def _measure_decoding(report: Report, clock: Clock, options: Options) -> None:
    latency = Latency(options.model, options.device)
    report.add("decoding", clock.measure(("bare matrix products", ""), PRODUCTS, latency.products))
    for criterion in options.criteria:
        name = (criterion, "captured and eager steps")
        report.add("decoding", clock.measure(name, CRITERION, lambda criterion=criterion: latency.rows(criterion)))
