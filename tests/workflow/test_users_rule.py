"""An exit rule in a file of the user: from the configuration into the tables, and what an edit of it repeats."""

import pandas as pd
import pytest

RULE = '''"""A rule."""
from twoscale.exits import ExitCriterion


class Patience(ExitCriterion):
    def start(self, x0):
        return {"left": x0[:, 0] * 0 + self.threshold}

    def update(self, state, x_new):
        left = state["left"] - 1
        return left <= 0, {"left": left}
'''
SETTINGS = {"exits": {"criteria": {"patience": {"thresholds": [2.0], "file": "patience.py", "class": "Patience"}}}}


@pytest.fixture
def with_rule(editable):
    (editable.root / "patience.py").write_text(RULE)
    editable.configure(**SETTINGS)
    return editable


def test_a_users_rule_is_in_the_tables_and_only_an_edit_of_its_code_repeats_the_benchmark(with_rule):
    with_rule.succeed("results/fig4.pdf")
    for table in ("exit_quality", "exit_latency"):
        rows = pd.read_parquet(with_rule.root / f"results/tiny/tables/{table}.parquet")
        mine = rows[rows["criterion"] == "patience"]
        assert len(mine)
        assert (mine["evaluations_g2"] == 2).all()
    assert with_rule.plan("results/fig4.pdf") == {}
    (with_rule.root / "patience.py").write_text(RULE + "# a comment\n")
    assert with_rule.plan("results/fig4.pdf") == {}
    (with_rule.root / "patience.py").write_text(RULE.replace("- 1", "- 2"))
    assert with_rule.plan("results/fig4.pdf") == {"benchmark_exits": 1, "fig4": 1}


@pytest.mark.parametrize(("source", "sentence"), [(None, "No such file"), ("def broken(:", "cannot be read")])
def test_a_rule_file_that_cannot_be_read_is_named_before_any_job(with_rule, source, sentence):
    file = with_rule.root / "patience.py"
    file.unlink() if source is None else file.write_text(source)
    done = with_rule.run("-n", "results/fig4.pdf")
    assert done.returncode != 0
    assert "exit rule file patience.py: cannot be read" in done.stdout + done.stderr
    assert sentence in done.stdout + done.stderr
