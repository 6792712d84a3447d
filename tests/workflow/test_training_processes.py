"""The launch of several processes by the rule's own shell line, and what the terminal shows of them."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

# What operators of clusters and torchrun give their processes; torchrun also takes PET_NNODES as an option.
LAUNCH = {"WORLD_SIZE": "4", "RANK": "3", "TORCHELASTIC_RUN_ID": "another", "PET_NNODES": "2", "MASTER_PORT": "9"}
LOG = "results/tiny/training/iteration_000010.parquet"


@pytest.mark.runs
def test_a_segment_on_two_processes_has_the_loss_curve_of_one_also_inside_another_launch(editable, monkeypatch):
    for name, value in LAUNCH.items():
        monkeypatch.setenv(name, value)
    alone = pd.read_parquet(editable.root / LOG)
    editable.configure(train={"processes": 2, "print_seconds": 0.001})
    assert editable.plan() == {}  # how a run is distributed reruns nothing
    shutil.rmtree(editable.root / "results/tiny/.result_cache")  # from which the segment would be restored
    terminal = editable.succeed(LOG, "--forcerun", "train_segment").stderr
    spread = pd.read_parquet(editable.root / LOG)
    assert spread["iteration"].tolist() == alone["iteration"].tolist()
    assert spread["loss"].tolist() == pytest.approx(alone["loss"].tolist(), rel=1e-4)
    assert spread["loss"].tolist() != alone["loss"].tolist()  # another order of sums: it was another launch
    assert_one_process_prints(terminal, editable.root / "results/tiny/logs/train_segment_000010.log")


def assert_one_process_prints(terminal: str, log: Path) -> None:
    """Lines with loss and time left are on the terminal, each once, and the log has the other lines only."""
    pattern = r"^tiny: iteration (\d+) of 10, loss \d\.\d{3}, [\d:]+ left in this segment, [\d:]+ in the run$"
    printed = re.findall(pattern, terminal, re.MULTILINE)
    assert printed
    assert len(set(printed)) == len(printed)
    assert "left in this segment" not in log.read_text()
    assert "train 0 -> 10" in log.read_text()
    assert "train 0 -> 10" not in terminal
