"""From per-token tables to a figure

    python tests/benchmarks/bench_tables.py [--rows 10000000]

The rule `aggregate_metrics` runs on checkpoints of 8192 tokens, with 10 million rows in total. Its time is compared
with the time of a process that reads the same columns. Peak memory is measured in the process of the rule.
"""

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
from common import options, record

from twoscale import tables
from twoscale.config import Config
from twoscale.dynamics import trajectories

ROOT = Path(__file__).resolve().parents[2]
SEQUENCES, CONTEXT_LENGTH, LOOPS = 16, 512, 30
REFERENCE_STATES = ("first_state", "projected", "final", "initial")
MODEL = Config().model
READ_ONLY = """
import sys
import pyarrow.parquet as pq
for path in sys.argv[1:]:
    file = pq.ParquetFile(path)
    for column in file.schema_arrow.names:
        file.read([column])
"""


def random_table(name: str, iteration: int, keys: dict[str, Sequence], generator: np.random.Generator) -> pd.DataFrame:
    """A table of every combination of the keys, with random measures."""
    rows = pd.MultiIndex.from_product(keys.values(), names=keys.keys()).to_frame(index=False)
    rows = rows.assign(iteration=iteration, document=rows["sequence"])
    measures = [column for column in (*tables.columns(name), *trajectories.units()[name]) if column not in rows]
    return rows.assign(**{column: generator.random(len(rows), dtype=np.float32) for column in measures})


def write_checkpoint(folder: Path, iteration: int) -> int:
    """Files of one checkpoint; returns the rows of its trajectories."""
    generator = np.random.default_rng(iteration)
    tokens = {"sequence": range(SEQUENCES), "position": range(CONTEXT_LENGTH)}
    states = {**tokens, "group": MODEL.group_labels, "k": range(LOOPS + 1)}
    jumps = {**tokens, "boundary": MODEL.boundary_labels, "reference_state": REFERENCE_STATES}
    frames = {
        "trajectories": random_table("trajectories", iteration, states, generator),
        "token_drift": random_table("token_drift", iteration, jumps, generator),
    }
    for table, frame in frames.items():
        tables.write(table, frame, folder / f"{table}.{iteration}.parquet")
    return len(frames["trajectories"])


def measured(command: Sequence[object]) -> tuple[float, float]:
    """Wall-clock seconds and peak memory in MB of a process."""
    started = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[1]} ended with {process.returncode}")
    return time.perf_counter() - started, used.ru_maxrss * 1024 / 1e6


def aggregation(rows: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, total, files = Path(name), 0, 0
        while total < rows:
            files += 1
            total += write_checkpoint(folder, files)
        options = {"trajectories": "trajectories", "token-drift": "token_drift"}
        inputs = {option: sorted(folder.glob(f"{table}.*.parquet")) for option, table in options.items()}
        command = [sys.executable, "scripts/call.py", "twoscale.dynamics.aggregate.metrics"]
        command += ["--config", json.dumps({"run": "trial"})]
        for option, paths in inputs.items():
            command += [f"--{option}", *paths]
        for output in ("loop-metrics", "drift", "loop-sequences", "drift-sequences"):
            command += [f"--{output}", folder / f"{output}.out"]
        reading = [sys.executable, "-c", READ_ONLY, *inputs["trajectories"], *inputs["token-drift"]]
        found = [(measured(command), measured(reading)) for _ in range(repeats)]
    record("aggregation against reading", [ours / peer for (ours, _), (peer, _) in found])
    record("aggregation", [seconds for (seconds, _), _ in found], "s", "≤ 20 s")
    record("peak memory of the aggregation", [memory / 1e3 for (_, memory), _ in found], "GB", "≤ 1 GB")


def main() -> None:
    arguments = options(__doc__, {"rows": 1, "repeats": 1}, rows=10_000_000, repeats=3)
    aggregation(arguments.rows, arguments.repeats)


if __name__ == "__main__":
    main()
