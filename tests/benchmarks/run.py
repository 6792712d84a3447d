"""Run the benchmarks, and write docs/benchmarks.tsv and from it the tables of docs/benchmarks.md.

    python tests/benchmarks/run.py [--smoke] [--page] [tests/benchmarks/bench_decode.py ...]

Each script runs in a process of its own. Its rows replace those of the same name; what it did not
measure, because a peer is missing or because it failed, keeps its numbers and their commit. After a
failure the others run, and the exit status is 1. `--smoke` tries every script in seconds and writes
nothing; `--page` only writes the page.

A number is of the instruction set of the processor. Scripts that depend on it run once more, with
AVX2 only.
"""

import argparse
import ast
import csv
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROJECT = FOLDER.parents[1]
TABLE, PAGE = PROJECT / "docs/benchmarks.tsv", PROJECT / "docs/benchmarks.md"
COLUMNS = ("script", "name", "instructions", "unit", "median", "quartile_1", "quartile_3", "aim")
COLUMNS += ("commit", "date", "machine", "torch")
MARKED = re.compile(r"(<!-- tables: make bench -->\n).*(<!-- end of tables -->)", re.DOTALL)
# ours and peers alike: as the workflow prepares its jobs (twoscale.workflow.snakefile.prepare)
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
# a processor without AVX-512, on any processor, for the scripts whose numbers depend on it
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
DEPENDENT = ("bench_decode.py", "bench_kernels.py", "bench_training.py")
GENERATIONS = {"23": "Zen 2 or older", "26": "Zen 5"}  # of AMD's processors, by family
MOST_SECONDS = 900  # of a script, which has failed after them

Row = dict[str, str]


def where() -> Row:
    """Commit, with `-dirty` after a change, date, processor and torch of this run."""
    from twoscale.jobs.machine import description
    from twoscale.report.release import checkout

    git, machine = checkout(PROJECT), description()
    return {
        "commit": (git["commit"] or "unknown")[:7] + ("-dirty" if git["modified"] else ""),
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "machine": f"{machine['processor']}{generation()}, {machine['cpus']} cores",
        "torch": version("torch"),
    }


def generation() -> str:
    """Of AMD's server processors in virtual machines, which may not say more than "AMD EPYC"."""
    from twoscale.base import processor

    if processor("vendor_id") != "AuthenticAMD":
        return ""
    family = str(processor("cpu family"))
    third = "Zen 4" if "avx512f" in str(processor("flags")) else "Zen 3"
    return f" ({third if family == '25' else GENERATIONS.get(family, f'family {family}')})"


def instruction_sets(script: str) -> dict[str, dict[str, str]]:
    """The instruction sets with which a script runs, and the variables that restrict it to them."""
    from twoscale.base import cpu_capability

    name = cpu_capability()
    sets: dict[str, dict[str, str]] = {name: {}}
    if script in DEPENDENT and name.startswith("AVX512"):
        sets[name.replace("AVX512", "AVX2")] = AVX2  # "AVX512 of Intel": a column per maker
    return sets


def run(
    script: Path, smoke: bool, variables: dict[str, str]
) -> tuple[list[dict[str, object]], bool]:
    """What a script wrote, and whether it ended without an error."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        rows.touch()
        environment = os.environ | ALLOCATOR | variables | {"BENCHMARK_ROWS": str(rows)}
        command = [sys.executable, script, *(["--smoke"] if smoke else [])]
        try:
            ended = (
                subprocess.run(
                    command, cwd=PROJECT, env=environment, timeout=MOST_SECONDS
                ).returncode
                == 0
            )
        except subprocess.TimeoutExpired as error:
            print(error, flush=True)
            ended = False
        return [json.loads(line) for line in rows.read_text().splitlines()], ended


def merged(
    table: Iterable[Row], script: str, found: Iterable[dict[str, object]], here: Row
) -> list[Row]:
    """The table with the new rows of a script in place of those of the same names."""
    new = [
        {"script": script} | {key: text(value) for key, value in row.items()} | here
        for row in found
    ]
    names = {key(row) for row in new}
    kept = [row for row in table if key(row) not in names]
    return sorted([*new, *kept], key=lambda row: row["script"])


def key(row: Row) -> tuple[str, ...]:
    return row["script"], row["name"], row["instructions"]


def text(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def write(path: Path, table: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def sections(table: list[Row], folder: Path = FOLDER) -> Iterator[str]:
    """Lines of the page: one table, and below it each script's docstring without the command
    line.
    """
    newest: dict[str, Row] = {}  # of each instruction set
    for row in sorted(table, key=lambda row: row["date"]):
        newest[row["instructions"]] = row
    columns = sorted(newest, reverse=True)
    for name in columns:
        yield "- {instructions}: {machine}, commit {commit}, {date:.10}, torch {torch}".format(
            **newest[name]
        )
    yield (
        f"\n| script | measurement | {' | '.join(columns)} | aim"
        f" |\n|---|---|{'---|' * len(columns)}---|"
    )
    notes = []
    for script, rows in groupby(table, key=lambda row: row["script"]):
        title, _, *rest = ast.get_docstring(
            ast.parse((folder / script).read_text(encoding="utf-8"))
        ).split("\n\n")
        notes.append("\n".join(["", f"### {title} (`{script}`)", "", *rest]))
        by_name: dict[str, dict[str, Row]] = {}
        for row in rows:
            by_name.setdefault(row["name"], {})[row["instructions"]] = row
        for name, cells in by_name.items():
            shown = [
                median(cells[column], newest[column]) if column in cells else ""
                for column in columns
            ]
            aim = max(cells.values(), key=lambda row: row["date"])["aim"]
            label = [script.removeprefix("bench_")[:-3], name.replace("|", "&#124;")]
            yield f"| {' | '.join([*label, *shown, aim])} |"
    yield from notes
    yield ""


def median(row: Row, newest: Row) -> str:
    """The number of a cell, and its commit where that is not the one of its column."""
    number = f"{row['median']} {row['unit']}".removesuffix(" ratio").strip()
    return number if row["commit"] == newest["commit"] else f"{number} (at {row['commit']})"


def page(written: str, table: list[Row], folder: Path = FOLDER) -> str:
    """The page with the tables between its two marks."""
    return MARKED.sub(
        lambda marks: "\n".join([marks[1], *sections(table, folder), marks[2]]), written
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", type=Path, help="default: all")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument(
        "--into",
        type=Path,
        default=TABLE,
        help="the table; the page is the Markdown file of its name",
    )
    arguments = parser.parse_args()
    table, failed, here = read(arguments.into), [], where()
    for script in [] if arguments.page else arguments.scripts or sorted(FOLDER.glob("bench_*.py")):
        for instructions, variables in instruction_sets(script.name).items():
            print(f"== {script.name}, {instructions}", flush=True)
            started = time.perf_counter()
            found, ended = run(script.resolve(), arguments.smoke, variables)
            print(
                f"== {script.name}: {time.perf_counter() - started:.0f}"
                f" s{'' if ended else ', failed'}",
                flush=True,
            )
            failed += [] if ended else [script.name]
            table = merged(table, script.name, found, here | {"instructions": instructions})
        if not arguments.smoke:
            write(arguments.into, table)
    if not arguments.smoke:
        path = arguments.into.with_suffix(".md")
        folder = arguments.scripts[0].resolve().parent if arguments.scripts else FOLDER
        path.write_text(page(path.read_text(encoding="utf-8"), table, folder), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the table keeps their earlier rows")


if __name__ == "__main__":
    main()
