"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest

PAGE, LENS = "results/depth-card.md", "results/lens.pdf"
COMPARED = {"compare_depths": 1, "plot_depth_card": 1, "write_depth_card": 1}


@pytest.mark.runs
def test_lens_and_card_are_measured_at_the_last_checkpoint_and_again_only_for_their_own_keys(
    editable,
):
    assert editable.plan(LENS) == {"measure_lens": 1, "plot_lens": 1}
    assert {name: editable.plan(PAGE)[name] for name in COMPARED} == COMPARED
    editable.succeed(LENS, PAGE)
    lens, card = (
        pd.read_parquet(editable.root / f"results/tiny/tables/{n}.parquet")
        for n in ("lens", "depth_card")
    )
    assert lens["k"].unique().tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert sorted(card["loops"].unique()) == [1, 2, 3, 6, 9, 12, 15, 18, 21, 24]
    assert {*lens["iteration"], *card["iteration"]} == {20}
    text = (editable.root / PAGE).read_text()
    assert "![Loss and geometry against loops](depth_card.svg)" in text
    assert (editable.root / "results/depth_card.svg").is_file()
    assert "not measured: there is no model without loops" in text
    assert editable.plan(LENS, PAGE) == {}
    editable.configure(depth_card={"tolerance": 0.5})
    assert editable.plan(PAGE) == COMPARED
    editable.configure(depth_card={"multiples": [1, 2]}, lens={"max_multiple": 2})
    assert (
        editable.plan(LENS, PAGE)
        == {"measure_lens": 1, "plot_lens": 1, "measure_depth": 1} | COMPARED
    )
    assert editable.plan() == {}


@pytest.mark.runs
def test_the_card_compares_with_a_run_without_loops(editable):
    editable.configure(runs={"plain": {"model": {"groups": []}}}, depth_card={"unlooped": "plain"})
    assert editable.plan(PAGE)["measure_depth"] == 2
    editable.succeed(PAGE)
    findings = pd.read_parquet(editable.root / "results/tiny/tables/depth_findings.parquet")
    assert findings[findings["group"] == ""].set_index("quantity")["value"].notna()["loop_gain"]
    plain = pd.read_parquet(editable.root / "results/plain/depth_card/quality.parquet")
    assert plain["loops"].unique().tolist() == [1]
