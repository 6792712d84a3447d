"""Means of every number in the tables of `tiny`: a change that no formula's test covers shows here.

python -m tests.workflow.test_golden_tables results/tiny     # after a change that is meant
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "tables_of_tiny.json"
# Times of this machine, and what follows from them.
TIMED = {"claims", "exit_costs", "exit_latency"}
TIMED_COLUMNS = {"seconds", "tokens_per_second", "tflops"}
# Kernels of other processors change the last digits of training: by at most 1e-5 of the mean size under
# ATEN_CPU_CAPABILITY=avx2 and =default against AVX-512.
TOLERANCE = 1e-4


def summaries(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Table -> column -> rows, mean, mean of sizes, and a mean with weights that follow the order.

    In long tables every measure is a column.
    """
    found = {}
    for path in sorted((folder / "tables").glob("*.parquet")):
        if path.stem in TIMED:
            continue
        table = pd.read_parquet(path)
        columns = {}
        parts = table.groupby("measure", sort=True) if "measure" in table else [("", table)]
        for measure, rows in parts:
            for name in rows.select_dtypes("number").columns.difference(TIMED_COLUMNS):
                columns[f"{measure} {name}".strip()] = _summary(rows[name].to_numpy(float))
        found[path.stem] = columns
    return found


def _summary(values: np.ndarray) -> list[float]:
    weights = np.cos(np.arange(len(values)))  # another order is another number
    finite = np.where(np.isfinite(values), values, 0.0)
    numbers = [finite.mean(), np.abs(finite).mean(), (weights * finite).mean()]
    return [len(values), *(float(f"{number:.6g}") for number in numbers)]


def test_the_tables_of_the_tiny_run_have_their_golden_means(finished):
    golden = json.loads(GOLDEN.read_text())
    found = summaries(finished.root / "results" / "tiny")
    assert {name: set(columns) for name, columns in found.items()} == {
        name: set(columns) for name, columns in golden.items()
    }
    for table, columns in golden.items():
        for name, (rows, *numbers) in columns.items():
            count, *means = found[table][name]
            where = f"{table}, {name}"
            assert count == rows, where
            assert means == pytest.approx(numbers, abs=TOLERANCE * numbers[1] + 1e-12), where


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(summaries(Path(sys.argv[1])), indent=1) + "\n")
