"""An architecture whose exits are weighted, with another training loss: one file of a model, one of a criterion."""

import pandas as pd
import pytest

from tests.small import without_projection
from tests.workflow.conftest import ROOT

pytestmark = pytest.mark.runs

CORE = {"architecture": "universal_transformer", "num_layers": 2, "groups": [[1, 2]], "exit_gate": True}
ONE_SEGMENT = {"iterations": 10, "checkpoint_every": 10, "lr_decay_iterations": 10}
CRITERIA = {"fixed": {"thresholds": [6]}, "act": {"thresholds": [0.01, 0.4], "file": "act.py", "class": "ACT"}}


def test_a_universal_transformer_trains_and_its_trajectories_and_exits_are_drawn(fresh):
    for name, folder in {"universal_transformer.py": "src/twoscale/model", "act.py": "."}.items():
        (fresh.root / folder / name).write_text((ROOT / "tests" / name).read_text())
    sections = without_projection() | {"train": ONE_SEGMENT, "exits": {"criteria": CRITERIA}}
    sections["model"] |= CORE
    fresh.configure(**sections)
    fresh.succeed("results/fig3.pdf", "results/fig4.pdf")
    for figure in ("fig3", "fig4"):
        assert (fresh.root / f"results/{figure}.pdf").read_bytes().startswith(b"%PDF")
    loops = pd.read_parquet(fresh.root / "results/tiny/tables/exit_loops.parquet")
    means = loops.groupby(["criterion", "threshold"])["evaluations"].mean()
    assert 1 <= means["act", 0.4] <= means["act", 0.01] < means["fixed", 6]
