"""Summaries, findings, figures and pages of tables with known content, and what the jobs of the
study get.
"""

import numpy as np
import pandas as pd
import pytest

from tests import small
from tests.rules import config_of, rules
from tests.studies.depth.samples import card, draw_lens, lens_table, quality, scaling, scaling_table
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.claims import loop_counts
from twoscale.config import definitions
from twoscale.figures import style
from twoscale.studies.depth import draw, study

# --- lens -----------------------------------------------------------------------------------------


def test_the_sentence_has_the_agreement_of_the_loop_steps_that_were_measured():
    sentence = draw.lens_sentence(lens_table())
    assert "% after 1." in sentence
    assert "after 2" not in sentence


def test_the_summary_weighs_sequences_by_tokens_and_bounds_the_change_and_not_the_text():
    summary = draw.summarise_lens(lens_table(groups=("3", "2")), 3)
    assert summary[["group", "k"]].to_numpy().tolist() == [
        [g, k] for g in ("3", "2") for k in (0, 1, 3, 24)
    ]
    at = summary.set_index(["group", "k"])
    row, first = at.loc["2", 1], at.loc["2", 0]
    assert row["ce"] == pytest.approx(4.5 + 2 / 3)
    assert (row["ce_low"], row["ce_high"]) == pytest.approx(
        (row["ce"],) * 2
    )  # every document changes alike
    assert row["rank"] == pytest.approx(3 * np.exp(2 / 3))
    assert first[["lost", "lost_low", "lost_since_mean"]].isna().all()


@pytest.mark.parametrize(
    ("preset", "keys", "steps"),
    [
        ("demo", {}, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]),
        (
            "demo",
            {"model": {"mean_loops": 4.6}, "lens": {"max_multiple": 3}},
            [0, 1, 2, 3, 4, 5, 6, 8, 12, 14],
        ),
        ("tiny", {"model": {"mean_loops": 0.4}, "lens": {"max_multiple": 1}}, [0, 1]),
    ],
)
def test_the_loop_steps_reach_a_multiple_of_the_mean_and_contain_it(preset, keys, steps):
    assert study.lens_steps(config.checked(config.merge(config.preset(preset), keys))) == steps


# --- scaling --------------------------------------------------------------------------------------


def test_scaling_joins_checkpoints_and_bounds_the_mean_over_documents(tmp_path):
    for iteration in (20, 0):
        rows = [
            {"iteration": iteration, "loops": loops, "sequence": i, "document": i, "tokens": 8}
            | {"ce": iteration + loops + i}
            for loops in (4, 1)
            for i in range(3)
        ]
        tables.write("scaling_quality", pd.DataFrame(rows), tmp_path / f"{iteration}.parquet")
    found = loop_counts.summarise_scaling(
        [tmp_path / "20.parquet", tmp_path / "0.parquet"], "trial", seed=3
    )
    tables.write("scaling", found, tmp_path / "scaling.parquet")
    assert found[["iteration", "loops"]].to_numpy().tolist() == [[0, 1], [0, 4], [20, 1], [20, 4]]
    assert found["ce"].tolist() == [2, 5, 22, 25]
    assert found["tokens"].tolist() == [24] * 4
    assert ((found["ce_low"] < found["ce"]) & (found["ce"] < found["ce_high"])).all()
    np.testing.assert_allclose(found["ppl_high"], np.exp(found["ce_high"]))
    for column in ("excess", "excess_low", "excess_high"):  # the same for every sequence
        np.testing.assert_allclose(found[column], [-3, 0, -3, 0], atol=1e-12)


def test_an_untrained_model_far_above_the_others_is_a_number_in_the_panel_of_perplexity():
    table = scaling_table()
    assert not scaling(table).axes[0].texts
    table.loc[table["iteration"] == 0, "ppl"] = 5000.0
    first = scaling(table).axes[0]
    assert [text.get_text() for text in first.texts] == [
        f"untrained: {style.grouped(5000)} (above)"
    ]
    assert first.get_ylim()[1] < 100


# --- depth card -----------------------------------------------------------------------------------


def test_the_loop_counts_are_multiples_of_the_trained_loops_with_themselves():
    assert definitions.loop_counts(3) == (1, 2, 3, 6, 9, 12, 15, 18, 21, 24)
    assert definitions.loop_counts(12, (0.5, 2), most=20) == (6, 12)
    assert definitions.loop_counts(4.4, (8,)) == (4, 35)


def test_best_loops_plateau_and_their_intervals():
    _, findings = card()
    found = findings[findings["group"] == ""].set_index("quantity")
    assert found.loc[["trained_loops", "best_loops", "plateau_first"], "value"].tolist() == [
        3,
        6,
        3,
    ]
    assert found.loc["plateau_last", "value"] == 6  # 12 loops are 0.011 nats above
    assert found.loc["trained_excess", "value"] == pytest.approx(0.005, abs=1e-3)
    assert found.loc["trained_excess", "low"] < 0.005 < found.loc["trained_excess", "high"]
    assert np.isnan(found.loc["loop_gain", "value"])
    assert "not measured" in found.loc["loop_gain", "statement"]


GAP = {1: 4.0, 2: 2.999, 3: 3.2, 6: 2.995, 12: 3.006, 24: 3.3}


@pytest.mark.parametrize(
    ("losses", "tolerance", "ends"),
    [
        *(
            (GAP, *case)
            for case in ((1e-4, [6, 6]), (0.02, [6, 12]), (0.21, [2, 12]), (9.0, [1, 24]))
        ),
        (
            {1: 4.0, 2: 3.0, 3: 3.2, 6: 3.002},
            0.01,
            [2, 2],
        ),  # 6 is within the tolerance, and 3 is not
    ],
)
def test_a_plateau_has_no_gap(losses, tolerance, ends):
    _, findings = card(losses, tolerance=tolerance)
    assert (
        findings.set_index("quantity")["value"][["plateau_first", "plateau_last"]].tolist() == ends
    )


def test_the_loop_gain_is_the_loss_without_loops_minus_that_at_the_trained_loops_on_the_same_documents():
    _, findings = card(unlooped=quality({1: 3.5}))
    gain = findings.set_index("quantity").loc["loop_gain"]
    assert gain["value"] == pytest.approx(0.5, abs=1e-3)
    assert (
        0.49 < gain["low"] < gain["value"] < gain["high"] < 0.51
    )  # documents differ by nats, alike in both
    with pytest.raises(InputError, match="depth_quality"):
        card(unlooped=quality({1: 3.5}, tokens=50))


@pytest.mark.parametrize(
    ("norms", "name"),
    [
        ({"step": lambda k: 0.5**k}, "settling"),
        ({"step": lambda k: 1.0, "norm": lambda k: k + 1.0}, "drifting"),
        ({"step": lambda k: 1.0}, "marginal"),
    ],
)
def test_the_regime_of_each_group_is_that_of_its_norms(norms, name):
    _, findings = card(**norms)
    regimes = findings[findings["quantity"] == "regime"]
    assert regimes["group"].tolist() == ["2", "3"]
    assert regimes["statement"].str.startswith(name).all()


def test_the_card_has_each_quantity_at_each_loop_count_weighted_by_tokens():
    found, _ = card()
    of = found.set_index(["quantity", "group", "loops"])["value"]
    rows = quality()
    at = rows[rows["loops"] == 6]
    assert of["ce", "", 6] == pytest.approx(np.average(at["ce"], weights=at["tokens"]))
    assert of["excess", "", 6] == 0
    assert of["flips", "", 6] == pytest.approx(1 / 6)
    assert ("flips", "", 1) not in of.index
    assert of["step_norm", "3", 12] == pytest.approx(0.5**12)
    assert set(found.loc[found["loops"] == 6, "multiple"]) == {2.0}


# --- sentences, empty tables and jobs -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("lens", lambda: draw_lens(groups=())),
        ("scaling", lambda: scaling(scaling_table(iterations=()))),
        ("depth_card", lambda: draw.draw_depth_card(card()[0].head(0), card()[1], context=None)),
    ],
)
def test_a_table_without_rows_is_refused(name, drawn):
    with pytest.raises(InputError, match=f"table {name}: found no rows"):
        drawn()


def test_tolerance_and_unlooped_run_are_no_part_of_the_measurement():
    cards = ({}, {"tolerance": 0.5}, {"multiples": [1, 2]})
    slices = [config_of("measure_depth", depth_card=keys) for keys in cards]
    assert slices[0] == slices[1] != slices[2]


def test_the_run_without_loops_is_the_named_one():
    twin = {"runs": {"plain": {"model": {"groups": []}}}}
    inputs = rules(depth_card={"unlooped": "plain"}, **twin)["compare_depths"].input
    assert inputs["unlooped"](small.of()) == ["results/plain/depth_card/quality.parquet"]
    assert inputs["unlooped_text"](small.of()) == ["results/tiny/data/tokens.json"]
    assert rules()["compare_depths"].input["unlooped"](small.of()) == []
    with pytest.raises(
        InputError, match=r"depth_card.unlooped: found plan, expected one of the runs .*mean plain"
    ):
        rules(depth_card={"unlooped": "plan"}, **twin)["compare_depths"].input["unlooped"](
            small.of()
        )
