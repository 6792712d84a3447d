"""An architecture whose exits are weighted, with another training loss: one file of a model, one of
a criterion.
"""

import pandas as pd
import pytest

from tests.small import without_projection
from tests.workflow.conftest import ROOT

CORE = {
    "architecture": "universal_transformer",
    "num_layers": 2,
    "groups": [[1, 2]],
    "exit_gate": True,
}
ONE_SEGMENT = {"iterations": 10, "checkpoint_every": 10, "lr_decay_iterations": 10}
UNUSED = dict.fromkeys(("step_norm", "kl", "acceleration"))
CRITERIA = UNUSED | {"act": {"thresholds": [0.01, 0.4], "file": "act.py", "class": "ACT"}}


@pytest.mark.runs
def test_a_universal_transformer_trains_and_its_trajectories_and_exits_are_measured(editable):
    for name, folder in {"universal_transformer.py": "src/twoscale/model", "act.py": "."}.items():
        (editable.root / folder / name).write_text((ROOT / "tests" / name).read_text())
    sections = without_projection() | {"train": ONE_SEGMENT, "exits": {"criteria": CRITERIA}}
    sections["model"] |= CORE
    editable.configure(**sections)
    measured = "trajectories/iteration_000010", "tables/exit_loops"
    editable.succeed(*(f"results/tiny/{name}.parquet" for name in measured))
    trajectories, loops = (
        pd.read_parquet(editable.root / f"results/tiny/{name}.parquet") for name in measured
    )
    assert trajectories["k"].max() == 6
    means = loops.groupby(["criterion", "threshold"])["evaluations"].mean()
    assert 1 <= means["act", 0.4] <= means["act", 0.01] < means["fixed", 6]
