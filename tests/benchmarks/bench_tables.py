"""What it takes from per-token tables to a figure.

    python tests/benchmarks/bench_tables.py [--rows 10000000] [--redraw]

1. Rule aggregate_metrics on checkpoints of 8192 tokens, with the rows asked for in all: seconds and peak memory of its
   process (aims: below 20 s and 1 GB), against a process that only reads the same columns.
2. With --redraw, in a project folder whose figures are made: each figure drawn anew by `snakemake --force`, all of it
   (aim: below 6 s), against importing what figures are drawn with.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale import config, tables

ROOT = Path(__file__).resolve().parents[2]
SEQUENCES, BLOCK, BUDGET = 16, 512, 30
READINGS = ("first_state", "projected", "final", "initial")
MODEL = config.checked(config.preset("paper")).model
READ_ONLY = """
import sys
import pyarrow.parquet as pq
for path in sys.argv[1:]:
    file = pq.ParquetFile(path)
    for column in file.schema_arrow.names:
        file.read([column])
"""


def random_table(name: str, step: int, keys: dict[str, Sequence], generator: np.random.Generator) -> pd.DataFrame:
    """A table of every combination of the keys, with random measures."""
    rows = pd.MultiIndex.from_product(keys.values(), names=keys.keys()).to_frame(index=False)
    rows.insert(0, "iteration", step)
    measures = [column for column in tables.columns(name) if column not in rows]
    return rows.assign(**{column: generator.random(len(rows), dtype=np.float32) for column in measures})


def write_checkpoint(folder: Path, step: int) -> int:
    """Files of one checkpoint; returns the rows of its trajectories."""
    generator = np.random.default_rng(step)
    tokens = {"sequence": range(SEQUENCES), "position": range(BLOCK)}
    loops = {**tokens, "group": MODEL.group_labels, "k": range(BUDGET + 1)}
    trajectories = random_table("trajectories", step, loops, generator)
    jumps = {**tokens, "boundary": MODEL.boundary_labels, "reading": READINGS}
    log = {column: [1.0] for column in tables.columns("training", MODEL.group_labels)} | {"iteration": [step]}
    tables.write("trajectories", trajectories, folder / f"trajectories_{iteration}.parquet")
    tables.write("token_drift", random_table("token_drift", step, jumps, generator), folder / f"drift_{iteration}.parquet")
    tables.write("training", pd.DataFrame(log), folder / f"training_{iteration}.parquet", MODEL.group_labels)
    return len(trajectories)


def measured(command: Sequence[object]) -> tuple[float, float]:
    """Wall-clock seconds and peak memory in MB of a process."""
    started = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[1]} ended with {process.returncode}")
    return time.perf_counter() - started, used.ru_maxrss / 1024


def aggregation(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, made, step = Path(name), 0, 0
        while made < rows:
            step += 1
            made += write_checkpoint(folder, step)
        inputs = {kind: sorted(folder.glob(f"{kind}_*.parquet")) for kind in ("trajectories", "drift", "training")}
        command = [sys.executable, "scripts/aggregate_metrics.py", "--config", json.dumps({"run": "trial"})]
        for kind, paths in inputs.items():
            command += [f"--{kind}", *paths]
        for output in ("loops", "drift", "loop-sequences", "drift-sequences", "training"):
            command += [f"--output-{output}", folder / f"{output}.out.parquet"]
        seconds, memory = measured(command)
        floor, _ = measured([sys.executable, "-c", READ_ONLY, *inputs["trajectories"], *inputs["drift"]])
    print(
        f"aggregation of {made / 1e6:.1f} million rows in {iteration} files: {seconds:.1f} s, peak {memory:.0f} MB; "
        f"{seconds / floor:.2f} times reading them ({floor:.1f} s); aims 20 s, 1000 MB",
        flush=True,
    )


def redraw() -> None:
    floor, _ = measured([sys.executable, "-c", "import seaborn, pyarrow.parquet"])
    snakemake = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all", "--force"]
    print(f"imports: {floor:.1f} s")
    for number in range(1, 6):
        seconds, _ = measured([*snakemake, f"results/fig{number}.pdf"])
        print(f"fig{number}: {seconds:.1f} s with Snakemake, {seconds / floor:.2f} of the imports; aim 6 s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--redraw", action="store_true", help="draw the figures of this project folder anew")
    arguments = parser.parse_args()
    aggregation(arguments.rows)
    if arguments.redraw:
        redraw()


if __name__ == "__main__":
    main()
