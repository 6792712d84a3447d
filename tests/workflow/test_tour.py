"""docs/tour.ipynb runs on a tiny run, and its outputs are complete, small and free of paths of a
machine.

After a change, with a tiny run in results/: jupyter nbconvert --to notebook --execute --inplace
docs/tour.ipynb
"""

import json
import os
import subprocess
import sys

import pytest

import twoscale
from tests.small import ROOT

TOUR = ROOT / "docs" / "tour.ipynb"
CELLS = [
    cell
    for cell in json.loads(TOUR.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]
# a cell of code after the other, in one namespace and one process
RUNNER = (
    "import json, sys\nnames = {}\nfor code in json.load(sys.stdin): exec(compile(code, 'cell',"
    " 'exec'), names)"
)


@pytest.mark.runs
def test_every_cell_runs_on_a_tiny_run(finished, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "docs" / "demo-release").symlink_to(ROOT / "docs" / "demo-release")
    (tmp_path / "results" / "tiny").symlink_to(finished.root / "results" / "tiny")
    shell = os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", RUNNER]
    cells = json.dumps(["".join(cell["source"]) for cell in CELLS])
    done = subprocess.run(
        command,
        input=cells,
        cwd=tmp_path / "docs",
        env=shell,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "iteration 20, looped groups of layers: 2, 3" in done.stdout
    assert (tmp_path / "results" / "tour" / "trajectories" / "iteration_000000.parquet").is_file()


def test_all_public_names_are_used():
    code = "\n".join("".join(cell["source"]) for cell in CELLS)
    assert [name for name in twoscale.__all__ if f"twoscale.{name}" not in code] == []


def test_the_notebook_has_the_outputs_of_one_run_is_small_and_names_no_place_of_a_machine():
    assert [cell["execution_count"] for cell in CELLS] == [*range(1, len(CELLS) + 1)]
    text = TOUR.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert [
        place
        for place in ("/home/", "/tmp/", "/root", "site-packages", "Traceback")
        if place in text
    ] == []
