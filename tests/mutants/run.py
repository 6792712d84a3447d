"""Plant faults in the core of the library and see whether the tests of each module notice them.

    python tests/mutants/run.py                         # a sample of every module
    python tests/mutants/run.py --count 30 dynamics/measures model/noise

Every mutant is written into a copy of the checkout, and only the tests that `tests_of_modules.py` names for the module
run on it. The packages are imported once, and each mutant is a fork of that process, which saves most of its time.
"""

import argparse
import ctypes
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from mutation import Mutant, equivalent, sample
from tests_of_modules import MODULES, SELECTED, files_of

ROOT = Path(__file__).parents[2]
EQUIVALENT = ROOT / "docs" / "mutants.md"
PACKAGES = ["pytest", "torch", "pandas", "pyarrow.parquet", "pyarrow.compute", "pydantic", "hypothesis", "tokenizers"]
SLOWER = 4  # times the duration of the tests of a module that a mutant may take, and
STARTUP = 20  # seconds more
MEMORY = 6 << 30  # bytes that a mutant may allocate
REQUIRED = 0.95  # share of mutants that are not equivalent
PR_SET_PDEATHSIG = 1  # of prctl on Linux, see prctl(2)
COLUMNS = ("drawn", "killed", "timeout", "equivalent", "survived")


@dataclass(frozen=True)
class Outcome:
    module: str
    mutant: Mutant
    status: str  # one of COLUMNS[1:]


def copy_checkout(folder: Path) -> Path:
    """The files that git knows or would add, without the folders that it ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            shutil.copymode(ROOT / name, target)
    return folder


def end_with(parent: int) -> None:
    """Let this process, a fork of `parent`, be killed when that one ends, also by SIGKILL; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)


def workers(number: int) -> ProcessPoolExecutor:
    """Forked processes that end with this one."""
    return ProcessPoolExecutor(number, get_context("fork"), end_with, (os.getpid(),))


def run_tests(tree: Path, tests: list[str], limit: float | None) -> str:
    """Run tests of a tree, as for pytest, in a forked process: "survived" if they pass, "killed", or "timeout"."""
    parent, child = os.getpid(), os.fork()
    if not child:
        end_with(parent)
        _test_and_exit(tree, tests, limit)
    end = time.monotonic() + (limit or float("inf"))
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "killed" if status else "survived"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _test_and_exit(tree: Path, tests: list[str], limit: float | None) -> None:
    """The body of a forked process; the first run of a tree, which has no limit, leaves compiled modules."""
    import pytest

    os.setsid()
    with (tree / "output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.path.insert(0, str(tree / "src"))
    os.environ["PYTHONPATH"] = str(tree / "src")
    if limit is not None:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    code = 1
    try:
        folder = str(tree / "files")
        code = pytest.main(["-x", "-q", "--tb=short", "-p", "no:cacheprovider", f"--basetemp={folder}", *tests])
    finally:
        os._exit(int(code))


def check_module(module: str, count: int, seed: int) -> list[Outcome]:
    """Plant `count` faults in a module, in a new copy of the checkout."""
    tests, known = files_of(module), equivalent(EQUIVALENT, module)
    tests += ["-k", SELECTED[module]] if module in SELECTED else []
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_checkout(Path(folder))
        path = tree / "src" / "twoscale" / f"{module}.py"
        original = path.read_text()
        started = time.monotonic()
        if run_tests(tree, tests, None) != "survived":
            output = (tree / "output.txt").read_text()[-2000:]
            sys.exit(f"error: {module}: found tests that fail without a mutant, expected tests that pass.\n{output}")
        limit = SLOWER * (time.monotonic() - started) + STARTUP
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        for mutant in sample(original, count, f"{seed} {module}"):
            path.write_text(mutant.source)
            status = "equivalent" if mutant.key in known else run_tests(tree, tests, limit)
            outcomes.append(Outcome(module, mutant, status))
            if status == "survived":
                print_survivor(outcomes[-1])
    print_row(module, outcomes)
    return outcomes


def rate(outcomes: list[Outcome]) -> float:
    """The share of mutants that the tests notice, of those that are not equivalent; an endless loop is noticed."""
    statuses = Counter(outcome.status for outcome in outcomes)
    relevant = len(outcomes) - statuses["equivalent"]
    return 1 - statuses["survived"] / relevant if relevant else 1.0


def print_row(name: str, outcomes: list[Outcome]) -> None:
    statuses = Counter(outcome.status for outcome in outcomes)
    numbers = (len(outcomes), *(statuses[column] for column in COLUMNS[1:]))
    print(f"{name:24}" + "".join(f"{number:11}" for number in numbers) + f"{rate(outcomes):8.0%}", flush=True)


def print_survivor(outcome: Outcome) -> None:
    mutant = outcome.mutant
    print(f"survived: src/twoscale/{outcome.module}.py:{mutant.line}", flush=True)
    print(f"- `{mutant.function}`: `{mutant.before}` → `{mutant.after}`: ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as in tests_of_modules.py; default: all")
    parser.add_argument("--count", type=int, default=8, help="mutants of a module (default: 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="modules at the same time (default: 2)")
    options = parser.parse_args()
    modules = options.modules or MODULES
    if unknown := set(modules) - set(MODULES):
        parser.error(f"MODULE: found {sorted(unknown)}, expected some of {', '.join(MODULES)}")
    for package in PACKAGES:
        importlib.import_module(package)
    print(f"{'module':24}" + "".join(f"{column:>11}" for column in COLUMNS) + f"{'rate':>8}", flush=True)
    with workers(options.jobs) as pool:
        waiting = [pool.submit(check_module, module, options.count, options.seed) for module in modules]
        outcomes = [outcome for done in waiting for outcome in done.result()]
    print_row("all", outcomes)
    sys.exit(rate(outcomes) < REQUIRED)


if __name__ == "__main__":
    main()
