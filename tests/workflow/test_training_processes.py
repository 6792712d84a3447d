"""The launch of several processes by the rule's own shell line."""

import pandas as pd
import pytest

LOG = "results/tiny/training/iteration_000010.parquet"


def test_a_segment_on_two_processes_has_the_loss_curve_of_one(editable):
    alone = pd.read_parquet(editable.root / LOG)
    editable.configure(train={"processes": 2})
    assert editable.plan() == {}  # how a run is distributed reruns nothing
    editable.succeed(LOG, "--forcerun", "train_segment")
    spread = pd.read_parquet(editable.root / LOG)
    assert spread["iteration"].tolist() == alone["iteration"].tolist()
    assert spread["loss"].tolist() == pytest.approx(alone["loss"].tolist(), rel=1e-4)
    assert spread["loss"].tolist() != alone["loss"].tolist()  # another order of sums: it was another launch
