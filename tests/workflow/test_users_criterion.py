"""An exit criterion in a user's file: from the config to the tables, what an edit of it reruns, what a fault costs."""

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
MINE = {"measure_exit_quality": 1, "join_exit_quality": 1, "benchmark_exits": 1, "plot_fig4": 1}  # jobs up to Fig. 4


@pytest.fixture
def with_criterion(editable):
    (editable.root / "patience.py").write_text(CRITERION)
    editable.configure(**CONFIG)
    return editable


@pytest.mark.runs
def test_a_users_criterion_is_in_the_tables_and_only_an_edit_of_its_code_measures_it_again(with_criterion):
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
    assert with_criterion.plan("results/fig4.pdf") == MINE


@pytest.mark.parametrize(("source", "sentence"), [(None, "No such file"), ("def broken(:", "cannot be read")])
def test_a_criterion_file_that_cannot_be_read_is_named_before_any_job(with_criterion, source, sentence):
    file = with_criterion.root / "patience.py"
    file.unlink() if source is None else file.write_text(source)
    done = with_criterion.run("-n", "results/fig4.pdf")
    assert done.returncode != 0
    assert "exit criterion file patience.py: cannot be read" in done.stdout + done.stderr
    assert sentence in done.stdout + done.stderr


DECISION = "return remaining <= 0,"
CRASH = "return 1 / 0,"
ONE_NUMBER = "return (remaining <= 0).all(),"
OF_THE_BATCH = "return remaining + (len(x_new) > 1) <= 0,"


def tables(project):
    return {path.name: path.read_bytes() for path in (project.root / "results/tiny/tables").glob("*.parquet")}


@pytest.mark.runs
def test_a_fault_costs_nothing_that_existed_and_its_repair_measures_that_criterion_alone(with_criterion):
    before = tables(with_criterion)
    for decision, sentence in (
        (CRASH, "exit criterion file patience.py, line 11: Patience.update raised ZeroDivisionError: division by zero"),
        (
            ONE_NUMBER,
            "exit criterion file patience.py: Patience.update returned as should_exit a bool tensor of shape ()",
        ),
        (OF_THE_BATCH, "exit criterion 'patience' of the file patience.py at 2: found 3 evaluations of token 0"),
    ):
        (with_criterion.root / "patience.py").write_text(CRITERION.replace(DECISION, decision))
        done = with_criterion.run("results/fig4.pdf")
        assert done.returncode != 0
        assert f"error: {sentence}" in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert tables(with_criterion) == before
    with_criterion.configure()  # without the criterion
    assert with_criterion.plan("results/fig4.pdf") == {}
    with_criterion.configure(**CONFIG)
    (with_criterion.root / "patience.py").write_text(CRITERION)
    assert with_criterion.plan("results/fig4.pdf") == MINE
    with_criterion.succeed("results/fig4.pdf")
    assert with_criterion.plan("results/fig4.pdf") == {}
