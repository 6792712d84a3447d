"""Run the benchmarks, and write docs/benchmarks.tsv and from it the tables of docs/benchmarks.md.

    python tests/benchmarks/run.py [--smoke] [--page] [bench_decode.py ...]

Each script runs in a process of its own. Its rows replace those of the same name; what it did not measure, because a
peer is missing or because it failed, keeps its numbers and their commit. After a failure the others run, and the exit
status is 1. `--smoke` tries every script in seconds and writes nothing; `--page` only writes the page.
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
COLUMNS = ("script", "name", "unit", "median", "quartile_1", "quartile_3", "aim", "commit", "date", "machine", "torch")
MARKED = re.compile(r"(<!-- tables: make bench -->\n).*(<!-- end of tables -->)", re.DOTALL)
# ours and peers alike: as the workflow prepares its jobs (twoscale.workflow.snakefile.prepare)
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
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
        "machine": f"{machine['processor']}, {machine['cpus']} cores",
        "torch": version("torch"),
    }


def run(script: Path, smoke: bool) -> tuple[list[dict[str, object]], bool]:
    """What a script wrote, and whether it ended without an error."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        rows.touch()
        environment = os.environ | ALLOCATOR | {"BENCHMARK_ROWS": str(rows)}
        command = [sys.executable, script, *(["--smoke"] if smoke else [])]
        try:
            ended = subprocess.run(command, cwd=PROJECT, env=environment, timeout=MOST_SECONDS).returncode == 0
        except subprocess.TimeoutExpired as error:
            print(error, flush=True)
            ended = False
        return [json.loads(line) for line in rows.read_text().splitlines()], ended


def merged(table: Iterable[Row], script: str, found: Iterable[dict[str, object]], here: Row) -> list[Row]:
    """The table with the new rows of a script in place of those of the same names."""
    new = [{"script": script} | {key: text(value) for key, value in row.items()} | here for row in found]
    names = {(script, row["name"]) for row in new}
    kept = [row for row in table if (row["script"], row["name"]) not in names]
    return sorted([*new, *kept], key=lambda row: row["script"])


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
    """Lines of the page: one table, and below it each script's docstring without the command line."""
    newest = max(table, key=lambda row: row["date"], default=None)
    if newest:
        yield "Commit {commit}, {date:.10}, {machine}, torch {torch}; a row from another commit names it.\n".format(
            **newest
        )
    yield "| script | measurement | median | aim |\n|---|---|---|---|"
    notes = []
    for script, rows in groupby(table, key=lambda row: row["script"]):
        title, _, *rest = ast.get_docstring(ast.parse((folder / script).read_text(encoding="utf-8"))).split("\n\n")
        notes.append("\n".join(["", f"### {title} (`{script}`)", "", *rest]))
        for row in rows:
            name = row["name"] if row["commit"] == newest["commit"] else f"{row['name']} (at {row['commit']})"
            median = f"{row['median']} {row['unit']}".removesuffix(" ratio").strip()
            yield f"| {script.removeprefix('bench_')[:-3]} | {name.replace('|', '&#124;')} | {median} | {row['aim']} |"
    yield from notes
    yield ""


def page(written: str, table: list[Row], folder: Path = FOLDER) -> str:
    """The page with the tables between its two marks."""
    return MARKED.sub(lambda marks: "\n".join([marks[1], *sections(table, folder), marks[2]]), written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", type=Path, help="default: all")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--into", type=Path, default=TABLE, help="the table; the page is the Markdown file of its name")
    arguments = parser.parse_args()
    table, failed, here = read(arguments.into), [], where()
    for script in [] if arguments.page else arguments.scripts or sorted(FOLDER.glob("bench_*.py")):
        print(f"== {script.name}", flush=True)
        started = time.perf_counter()
        found, ended = run(script.resolve(), arguments.smoke)
        print(f"== {script.name}: {time.perf_counter() - started:.0f} s{'' if ended else ', failed'}", flush=True)
        failed += [] if ended else [script.name]
        table = merged(table, script.name, found, here)
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
