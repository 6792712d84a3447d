"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest

PAGE = "results/depth-card.md"
COMPARED = {"compare_depths": 1, "plot_depth_card": 1, "write_depth_card": 1}


def findings(project):
    found = pd.read_parquet(project.root / "results/tiny/tables/depth_findings.parquet")
    return found[found["group"] == ""].set_index("quantity")["value"]


@pytest.mark.runs
def test_one_command_writes_the_card_and_again_only_for_its_own_keys(editable):
    assert editable.plan() == {}
    assert editable.plan(PAGE) == {"measure_depth": 1} | COMPARED
    editable.succeed(PAGE)
    card = pd.read_parquet(editable.root / "results/tiny/tables/depth_card.parquet")
    assert sorted(card["loops"].unique()) == [1, 2, 3, 6, 9, 12, 15, 18, 21, 24]
    assert card["iteration"].unique().tolist() == [20]
    text = (editable.root / PAGE).read_text()
    assert "![Loss and geometry against loops](depth_card.svg)" in text
    assert (editable.root / "results/depth_card.svg").is_file()
    assert "not measured: there is no model without loops" in text
    assert editable.plan(PAGE) == {}
    editable.configure(depth_card={"tolerance": 0.5})
    assert editable.plan(PAGE) == COMPARED
    editable.configure(depth_card={"multiples": [1, 2]})
    assert editable.plan(PAGE) == {"measure_depth": 1} | COMPARED
    assert editable.plan() == {}


@pytest.mark.runs
def test_the_card_compares_with_a_run_without_loops(editable):
    editable.configure(runs={"plain": {"model": {"groups": []}}}, depth_card={"unlooped": "plain"})
    assert editable.plan(PAGE)["measure_depth"] == 2
    editable.succeed(PAGE)
    assert findings(editable).notna()["loop_gain"]
    plain = pd.read_parquet(editable.root / "results/plain/depth_card/iteration_000020.quality.parquet")
    assert plain["loops"].unique().tolist() == [1]
    assert "| loop gain, nats |" in (editable.root / PAGE).read_text()


def test_a_model_without_loops_has_no_card(fresh):
    fresh.configure(model={"groups": []})
    done = fresh.run("-n", PAGE)
    assert done.returncode != 0
    assert "run tiny has 0 looped groups, expected at least 1" in done.stdout + done.stderr
