"""The launch of several processes by the rule's own shell line, and what the terminal shows of
them.
"""

import re

import pandas as pd
import pytest

# What operators of clusters and torchrun give their processes; torchrun also takes PET_NNODES as an
# option.
LAUNCH = {
    "WORLD_SIZE": "4",
    "RANK": "3",
    "TORCHELASTIC_RUN_ID": "another",
    "PET_NNODES": "2",
    "MASTER_PORT": "9",
}
TABLE = "results/tiny/training/iteration_000010.parquet"
PRINTED = r"^tiny: iteration (\d+) of 20, loss \d\.\d{3}, [\d:]+ left$"


@pytest.mark.runs
def test_a_segment_on_two_processes_has_the_loss_curve_of_one_also_inside_another_launch(editable):
    alone = pd.read_parquet(editable.root / TABLE)
    editable.configure(train={"processes": 2, "print_seconds": 0.001})
    assert editable.plan() == {}  # how a run is distributed reruns nothing
    terminal = editable.succeed(TABLE, "--forcerun", "train_segment", **LAUNCH).stderr
    spread = pd.read_parquet(editable.root / TABLE)
    assert spread["iteration"].tolist() == alone["iteration"].tolist()
    assert spread["loss"].tolist() == pytest.approx(alone["loss"].tolist(), rel=1e-4)
    assert (
        spread["loss"].tolist() != alone["loss"].tolist()
    )  # another order of sums: it was another launch
    # lines with loss and time left are on the terminal, each once, and the log has the other lines
    printed = re.findall(PRINTED, terminal, re.MULTILINE)
    assert len(set(printed)) == len(printed) > 0
    log = (editable.root / "results/tiny/logs/train_segment_000010.log").read_text()
    assert ("of 20, loss" in log, "train 0 -> 10" in log, "train 0 -> 10" in terminal) == (
        False,
        True,
        False,
    )
