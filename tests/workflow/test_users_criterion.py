"""An exit criterion in a user's file: from the config to the tables, what an edit of it reruns,
what a fault costs.
"""

import pandas as pd
import pytest

CRITERION = '''"""A criterion."""
from twoscale.exits.criteria import ExitCriterion


class Patience(ExitCriterion):
    def start(self, x0):
        return {"remaining": x0[:, 0] * 0 + self.threshold}

    def update(self, state, x_new, readout):
        remaining = state["remaining"] - 1
        return remaining <= 0, {"remaining": remaining}
'''
CONFIG = {
    "exits": {
        "criteria": {"patience": {"thresholds": [2.0], "file": "patience.py", "class": "Patience"}}
    }
}
DECISION, OF_THE_BATCH = "return remaining <= 0,", "return remaining + (len(x_new) > 1) <= 0,"
MINE = {
    "measure_exit_quality": 1,
    "join_exit_quality": 1,
    "benchmark_exits": 1,
    "plot_fig4": 1,
}  # jobs up to Fig. 4


def tables(project):
    return {
        path.name: path.read_bytes()
        for path in (project.root / "results/tiny/tables").glob("*.parquet")
    }


@pytest.mark.runs
def test_a_criterion_is_in_the_tables_an_edit_of_its_code_measures_it_again_and_a_fault_costs_nothing(
    editable,
):
    before, file = tables(editable), editable.root / "patience.py"
    editable.configure(**CONFIG)
    file.write_text(CRITERION.replace(DECISION, OF_THE_BATCH))
    fault = (
        "error: exit criterion 'patience' of the file patience.py at 2: found 3 evaluations of"
        " token 0"
    )
    editable.refused(fault, "results/fig4.pdf")
    assert tables(editable) == before
    editable.configure()  # without the criterion
    assert editable.plan("results/fig4.pdf") == {}

    editable.configure(**CONFIG)
    file.write_text(CRITERION)
    assert editable.plan("results/fig4.pdf") == MINE
    editable.succeed("results/fig4.pdf")
    for table in ("exit_quality", "exit_latency", "exit_loops"):
        rows = pd.read_parquet(editable.root / f"results/tiny/tables/{table}.parquet")
        mine = rows[rows["criterion"] == "patience"]
        assert len(mine)
        if table == "exit_loops":
            assert set(mine["group"]) == {"2", "3"}
            assert (mine["evaluations"] == 2).all()
    file.write_text(CRITERION + "# a comment\n")
    assert editable.plan("results/fig4.pdf") == {}
    file.write_text(CRITERION.replace("- 1", "- 2"))
    assert editable.plan("results/fig4.pdf") == MINE
    for source in (None, "def broken(:"):
        file.unlink() if source is None else file.write_text(source)
        editable.refused(
            "exit criterion file patience.py: cannot be read", "-n", "results/fig4.pdf"
        )
