"""An exit criterion in a user's file: from the config to the tables, and what an edit of it reruns."""

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
CONFIG = {"exits": {"criteria": {"patience": {"thresholds": [2.0], "file": "patience.py", "class": "Patience"}}}}


@pytest.fixture
def with_criterion(editable):
    (editable.root / "patience.py").write_text(CRITERION)
    editable.configure(**CONFIG)
    return editable


def test_a_users_criterion_is_in_the_tables_and_only_an_edit_of_its_code_repeats_the_benchmark(with_criterion):
    with_criterion.succeed("results/fig4.pdf")
    for table in ("exit_quality", "exit_latency", "exit_loops", "exit_latency_loops"):
        rows = pd.read_parquet(with_criterion.root / f"results/tiny/tables/{table}.parquet")
        mine = rows[rows["criterion"] == "patience"]
        assert len(mine)
        if table.endswith("loops"):
            assert set(mine["group"]) == {"2", "3"}
            assert (mine["evaluations"] == 2).all()
    assert with_criterion.plan("results/fig4.pdf") == {}
    (with_criterion.root / "patience.py").write_text(CRITERION + "# a comment\n")
    assert with_criterion.plan("results/fig4.pdf") == {}
    (with_criterion.root / "patience.py").write_text(CRITERION.replace("- 1", "- 2"))
    assert with_criterion.plan("results/fig4.pdf") == {"benchmark_exits": 1, "plot_fig4": 1}


@pytest.mark.parametrize(("source", "sentence"), [(None, "No such file"), ("def broken(:", "cannot be read")])
def test_a_criterion_file_that_cannot_be_read_is_named_before_any_job(with_criterion, source, sentence):
    file = with_criterion.root / "patience.py"
    file.unlink() if source is None else file.write_text(source)
    done = with_criterion.run("-n", "results/fig4.pdf")
    assert done.returncode != 0
    assert "exit criterion file patience.py: cannot be read" in done.stdout + done.stderr
    assert sentence in done.stdout + done.stderr
