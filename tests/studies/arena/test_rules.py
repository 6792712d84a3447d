"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest

from twoscale.studies.arena.draw import TOO_FEW


@pytest.mark.runs
def test_the_arena_has_every_criterion_of_the_dense_grids(editable):
    page, figure = "results/arena.md", "results/arena.pdf"
    decision = "results/exit_check.pdf"
    beside_oracles = {"measure_exit_regret": 1, "compare_exits": 1}
    measured = {"measure_exit_quality": 5, "join_exit_quality": 1} | beside_oracles
    assert editable.plan(page) == measured
    assert editable.plan(figure) == measured | {"plot_arena": 1}
    criteria = {"criteria": {"confidence": {"thresholds": [0.01, 0.1]}}}
    editable.configure(pareto=criteria)
    editable.succeed(page, figure, decision)
    arena = pd.read_parquet(editable.root / "results/tiny/tables/arena.parquet")
    controlled = arena[arena["reference"] != "oracle"]
    assert set(controlled["criterion"]) == {
        "step_norm",
        "kl",
        "acceleration",
        "argmax_stability",
        "confidence",
    }
    assert set(controlled["reference"]) == {"random", "fixed"}
    assert set(arena.loc[arena["reference"] == "oracle", "threshold"]) >= {0.01, 0.1, *range(1, 7)}
    text = (editable.root / page).read_text()
    assert "| confidence |" in text
    assert text.startswith(("# Should I exit early?\n", TOO_FEW))
    for drawn in (figure, decision):
        assert (editable.root / drawn).read_bytes().startswith(b"%PDF")
    assert editable.plan(page, figure, decision) == {}
    editable.configure(pareto=criteria, oracle={"tokens": 32})
    assert editable.plan(page) == beside_oracles
