"""The benchmarks: each runs, one that fails loses no rows, and docs/benchmarks.md is their
table.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import run
from twoscale.base import cpu_capability
from twoscale.config import PROJECT

SCRIPTS = sorted((PROJECT / "tests/benchmarks").glob("bench_*.py"))
WORKS = '''"""A title

    usage

A text.
"""
import os
from common import record
record("kept keys", [1.0, 2.0, 4.0], aim="≤ 2")
record("allocator", [float(os.environ["MALLOC_TRIM_THRESHOLD_"])])
'''
FAILS = (
    '"""B\n\n    usage"""\nfrom common import record\nrecord("first", [3.0])\nraise SystemExit(1)\n'
)
OLD = (
    ("median", "1"),
    ("commit", "0000000"),
    ("date", "2020-01-01"),
    ("instructions", cpu_capability()),
)


@pytest.mark.runs
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_each_benchmark_runs(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--smoke"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("BENCHMARK_ROWS", str(tmp_path / "rows"))
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [row for row in rows if "name" in row]


def old_row(script, name):
    return dict.fromkeys(run.COLUMNS, "") | {"script": script, "name": name} | dict(OLD)


def test_a_run_replaces_what_it_measures_and_keeps_the_rest(tmp_path):
    for name, source in (("bench_a.py", FAILS), ("bench_b.py", WORKS)):
        (tmp_path / name).write_text(source)
    names = [("bench_a.py", "first"), ("bench_a.py", "second"), ("bench_b.py", "against peer")]
    run.write(tmp_path / "table.tsv", [old_row(*name) for name in names])
    (tmp_path / "table.md").write_text(
        "Before.\n<!-- tables: make bench -->\nold\n<!-- end of tables -->\nAfter.\n"
    )
    command = [
        sys.executable,
        run.__file__,
        *sorted(tmp_path.glob("bench_*.py")),
        "--into",
        tmp_path / "table.tsv",
    ]
    environment = {"PYTHONPATH": str(Path(run.__file__).parent), "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "failed: bench_a.py" in done.stderr
    rows = {(row["script"], row["name"]): row for row in run.read(tmp_path / "table.tsv")}
    medians = {key: (row["median"], row["commit"] == "0000000") for key, row in rows.items()}
    assert medians == {
        ("bench_a.py", "first"): ("3", False),
        ("bench_a.py", "second"): ("1", True),
        ("bench_b.py", "kept keys"): ("2", False),
        ("bench_b.py", "allocator"): (f"{2.0**30:.4g}", False),
        ("bench_b.py", "against peer"): ("1", True),
    }
    kept = rows["bench_b.py", "kept keys"]
    assert [kept[column] for column in ("quartile_1", "quartile_3", "aim")] == ["1.5", "3", "≤ 2"]
    page = (tmp_path / "table.md").read_text()
    assert page.startswith("Before.\n")
    assert page.endswith("After.\n")
    assert "| b | against peer | 1 (at 0000000) |" in page
    assert "| b | kept keys | 2 | ≤ 2 |" in page
    assert "\nA text.\n" in page


def test_the_page_is_up_to_date():
    page = run.PAGE.read_text(encoding="utf-8")
    assert run.page(page, run.read(run.TABLE)) == page, "run python tests/benchmarks/run.py --page"


def test_the_profile_names_the_costliest_operators_of_a_token_and_of_an_iteration(tmp_path):
    page = tmp_path / "profile.md"
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.profile_token",
        "tiny",
        "--device",
        "cpu",
        "--page",
        str(page),
    ]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    _, *sections = page.read_text().split("\n## ")
    titles = [section.partition("\n")[0] for section in sections]
    assert titles == [
        "one token, 6 loop steps, float32",
        "one token, 6 loop steps, bfloat16",
        "one training iteration, eager, 4 sequences",
    ]
    for section in sections:
        assert "Attention: aten::_scaled_dot_product_flash_attention_for_cpu" in section
        times = [
            float(line.split(" | ")[3]) for line in section.splitlines() if line.startswith("| `")
        ]
        assert len(times) == 20
        assert times == sorted(times, reverse=True)
