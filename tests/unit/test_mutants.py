"""The mutation check: which faults it plants, and that its list of equivalent mutants is up to date."""

import re
import subprocess
import sys
import time

import psutil
import pytest

from tests.mutants.mutation import equivalent, mutants, sample
from tests.mutants.tests_of_modules import MODULES, OF_STUDIES, files_of
from tests.small import ROOT

PAGE = ROOT / "docs" / "mutants.md"
SOURCE = '''
def clamp(value: int | None, low=1, high=2.0):
    """Not 3 > 2."""
    if value is None or value < low:
        raise ValueError(f"{value + 1}")
    for _ in range(low, high):
        break
    return -value
'''
# every mutant of SOURCE; not the annotation, the docstring and the words of the error
AFTER = [
    "def clamp(value: int | None, low=2, high=2.0):",
    "def clamp(value: int | None, low=0, high=2.0):",
    "def clamp(value: int | None, low=1, high=4.0):",
    "if (value is None and value < low):",
    "if (value is not None) or value < low:",
    "if value is None or (value <= low):",
    "pass",
    "for _ in (range(high, low)):",
    "continue",
    "return (value)",
]


def test_a_mutant_has_one_fault_and_leaves_words_and_types_alone():
    found = mutants(SOURCE)
    assert {mutant.function for mutant in found} == {"clamp"}
    assert [mutant.after for mutant in found] == AFTER
    for mutant in found:
        changed = [
            pair for pair in zip(SOURCE.splitlines(), mutant.source.splitlines(), strict=True) if len(set(pair)) > 1
        ]
        assert [tuple(map(str.strip, pair)) for pair in changed] == [(mutant.before, mutant.after)]


def test_a_sample_is_a_function_of_the_seed():
    assert sample(SOURCE, 4, "1") == sample(SOURCE, 4, "1") != sample(SOURCE, 4, "2")
    assert set(sample(SOURCE, 100, "1")) == set(mutants(SOURCE))


WORKER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:2]
import run
with run.workers(1) as pool:
    pool.submit(run.run_tests, Path(sys.argv[2]), ["test_waits.py"], 60).result()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a process with its parent")
def test_workers_and_their_tests_end_when_the_check_is_killed(tmp_path):
    waits = "import pathlib, time\ndef test():\n    pathlib.Path('started').touch()\n    time.sleep(60)\n"
    (tmp_path / "test_waits.py").write_text(waits)
    check = subprocess.Popen([sys.executable, "-c", WORKER, str(ROOT / "tests/mutants"), str(tmp_path)])
    while not (tmp_path / "started").exists():
        assert check.poll() is None
        time.sleep(0.05)
    processes = psutil.Process(check.pid).children(recursive=True)
    assert len(processes) == 2
    check.kill()
    check.wait()
    _, alive = psutil.wait_procs(processes, timeout=30)
    for process in alive:
        process.kill()
    assert alive == []


def test_every_equivalent_mutant_of_the_page_is_one_of_the_present_code():
    page = PAGE.read_text()
    modules = re.findall(r"^## `(.+)`$", page, flags=re.MULTILINE)
    listed = {module: equivalent(PAGE, module) for module in modules}
    assert sum(map(len, listed.values())) == len(re.findall("^- ", page, flags=re.MULTILINE))
    absent = OF_STUDIES.keys() - set(MODULES)
    for module, keys in ((module, keys) for module, keys in listed.items() if module not in absent):
        source = (ROOT / "src" / "twoscale" / f"{module}.py").read_text()
        assert keys <= {mutant.key for mutant in mutants(source)}, module


def test_every_module_and_test_file_of_the_table_exists():
    for module in MODULES:
        assert (ROOT / "src" / "twoscale" / f"{module}.py").is_file()
        assert all((ROOT / file).is_file() for file in files_of(module)), module
