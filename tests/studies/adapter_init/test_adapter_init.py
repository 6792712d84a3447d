"""Adapter initialisations: the table of constructed runs, the interval over seeds, and the answer on the page."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tests.synthetic_run import GROUPS, loop_rows
from twoscale import tables
from twoscale.claims import geometry as claims_geometry
from twoscale.claims.evidence import Evidence, InconclusiveError
from twoscale.claims.findings import FAILS, HOLDS, OPEN
from twoscale.studies.adapter_init import compare as starts
from twoscale.studies.adapter_init import page as adapter_init_page

ABSENT = [
    pd.DataFrame(columns=list(tables.columns(name)))
    for name in ("drift_sequences", "exit_quality", "exit_loops", "exit_latency", "check_cost")
]
ITERATIONS = (0, 10)


def start_run(share=0.5, seed=1, state_init="noise", level=0.55, loss=6.0, **shape):
    """A run whose cosines settle at `level` at iteration 10, and at 0.9 before training."""
    frames = [
        loop_rows(iteration, group, start=0.0, **({"level": level if iteration else 0.9} | shape))
        for iteration, group in itertools.product(ITERATIONS, GROUPS)
    ]
    training = pd.DataFrame({"iteration": [5, 10], "held_out_loss": [np.nan, loss]})
    evidence = Evidence(pd.concat(frames, ignore_index=True), *ABSENT, max_loops=0, seed=1)
    return starts.InitRun(share, state_init, "branch", seed, evidence, training)


def cells(table, measure="late_cosine", seed="all", iteration=10, group="4"):
    chosen = (table["measure"] == measure) & (table["seed"] == seed) & (table["iteration"] == iteration)
    return table[chosen & (table["group"] == group)]


def test_the_cosine_of_one_seed_is_that_of_claim_4():
    run = start_run(level_spread=0.2)
    (quantity, *_) = claims_geometry.angles_match(run.evidence)
    expected = quantity.measure()
    table = starts.compare([run])
    for seed in ("1", "all"):
        (row,) = cells(table, seed=seed).itertuples()
        assert (row.value, row.low, row.high) == (expected.value, expected.low, expected.high)


def test_all_seeds_have_the_mean_of_the_seeds_and_each_seed_its_own():
    table = starts.compare([start_run(seed=seed, level=level) for seed, level in ((1, 0.4), (2, 0.5), (3, 0.6))])
    assert cells(table)["value"].item() == pytest.approx(0.5, abs=1e-3)
    values = [cells(table, seed=str(seed))["value"].item() for seed in (1, 2, 3)]
    assert values == pytest.approx([0.4, 0.5, 0.6], abs=1e-3)


def test_the_interval_of_all_seeds_has_the_scatter_of_the_seeds_with_students_t():
    table = starts.compare([start_run(seed=seed, level=level, level_spread=0) for seed, level in ((1, 0.4), (2, 0.6))])
    (row,) = cells(table).itertuples()
    half = 12.7062 * 0.1  # quantile of Student's t with one degree of freedom, standard error
    assert (row.low, row.high) == pytest.approx((row.value - half, row.value + half), rel=1e-3)


def test_runs_of_another_start_first_state_or_norm_are_not_averaged():
    runs = [start_run(), start_run(share=0.25), start_run(state_init="zero"), start_run(share=np.nan)]
    table = starts.compare([*runs, start_run(share=np.nan, seed=2, level=0.75)])
    rows = cells(table)
    assert rows[["share", "state_init"]].fillna(-1).to_numpy().tolist() == [
        [0.5, "noise"],
        [0.25, "noise"],
        [0.5, "zero"],
        [-1, "noise"],
    ]
    assert rows["value"].iloc[-1] == pytest.approx(0.65, abs=1e-3)


def test_the_loss_is_that_of_the_checkpoint_with_an_interval_over_seeds():
    runs = [start_run(seed=seed, loss=loss) for seed, loss in ((1, 6.0), (2, 6.2), (3, 6.4))]
    (row,) = cells(starts.compare(runs), "held_out_loss", group="all").itertuples()
    assert row.value == pytest.approx(6.2)
    assert row.high - row.value == pytest.approx(4.30265 * 0.2 / np.sqrt(3), rel=1e-4)  # Student's t, two degrees
    (alone,) = cells(starts.compare(runs[:1]), "held_out_loss", group="all").itertuples()
    assert (alone.value, np.isnan(alone.low), alone.verdict) == (6.0, True, "")


def test_a_cosine_under_the_rounding_floor_has_a_reason_and_no_value():
    (row,) = cells(starts.compare([start_run(nulls=0.5)])).itertuples()
    assert np.isnan(row.value)
    assert (row.verdict, "rounding floor" in row.reason) == (OPEN, True)


def test_a_checkpoint_without_a_held_out_loss_has_a_reason():
    run = start_run(loss=np.nan)
    with pytest.raises(InconclusiveError, match="no held-out loss"):
        starts.held_out_loss([run], "all", 10)
    assert "no held-out loss" in cells(starts.compare([run]), "held_out_loss", group="all")["reason"].item()


@pytest.mark.parametrize(("level", "verdict"), [(0.55, HOLDS), (0.9, FAILS), (0.7, OPEN)])
def test_a_cosine_is_judged_by_the_bounds_of_claim_4(level, verdict):
    assert cells(starts.compare([start_run(level=level)]))["verdict"].item() == verdict


def test_the_table_has_the_columns_that_it_is_declared_to_have(tmp_path):
    table = starts.compare([start_run(), start_run(share=np.nan)])
    tables.write("adapter_init", table, tmp_path / "adapter_init.parquet")
    pd.testing.assert_frame_equal(
        tables.read("adapter_init", tmp_path / "adapter_init.parquet"), table, check_dtype=False
    )


def page(*runs):
    return adapter_init_page.page(starts.compare(runs), "demo", "a text")


def test_the_answer_names_the_start_and_the_checkpoint_that_give_the_papers_angles():
    text = page(start_run(share=0.25, level=0.3), start_run(share=0.5, level=0.6))
    assert "**Does a start give 0.5–0.65 in all groups?** Yes, by the mean: share 0.5, `noise`, `branch`, at" in text
    assert "at iteration 10 (0.60 · 0.60)." in text
    assert "share 0.25, `noise`, `branch`, at" not in text
    assert "Of 4 pairs of a start and a checkpoint, claim 4 holds for 1, does not hold for 3." in text


def test_the_answer_is_none_where_one_group_is_outside_and_names_the_nearest():
    near, far = start_run(share=np.nan, level=0.45), start_run(share=1.0, level=-0.5)
    inside = near.evidence.loops
    inside.loc[inside["group"] == "5-6", "mean"] = inside["mean"].where(inside["measure"] != "cosine", 0.6)
    text = page(near, far)
    assert (
        "None does. The nearest is random, `noise`, `branch`, at iteration 10, with 0.45 · 0.60 in the groups 4" in text
    )


def test_one_group_outside_decides_the_verdict_on_a_start():
    run = start_run(level=0.55)
    cosines = run.evidence.loops
    cosines.loc[(cosines["group"] == "5-6") & (cosines["measure"] == "cosine"), "mean"] = -0.5
    assert cells(starts.compare([run]))["verdict"].item() == HOLDS
    (row,) = [line for line in page(run).partition("## Iteration 10")[2].splitlines() if line.startswith("| share")]
    assert row.endswith("| does not hold |")


def test_the_answer_says_why_nothing_can_be_said():
    text = page(start_run(nulls=0.5))
    assert "It cannot be said: 50% of the values are under the rounding floor." in text
    assert "None does" not in text


def test_a_start_that_cannot_be_measured_is_counted_beside_the_answer():
    text = page(start_run(level=0.3), start_run(share=0.0, nulls=0.5))
    assert "None does." in text
    assert "2 of 4 could not be measured in every group." in text


def test_every_checkpoint_has_a_table_with_every_start():
    text = page(start_run(share=0.0), start_run(share=np.nan, loss=6.25))
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Iteration 0 (untrained)",
        "## Iteration 10",
    ]
    (untrained, trained) = [line for line in text.splitlines() if line.startswith("| random |")]
    assert untrained.split(" | ")[5] == "–"
    assert trained.split(" | ")[5] == "6.25"


def test_the_page_says_what_an_interval_contains():
    assert "with one seed nothing is known of another" in page(start_run())
    several = page(start_run(), start_run(seed=2))
    assert "under 2 seeds (1, 2)" in several
    assert "the scatter of the seeds" in several
