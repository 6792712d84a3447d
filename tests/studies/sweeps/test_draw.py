"""Comparisons, figures and pages of the sweeps, of runs and tables with known content."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.studies.sweeps.samples import (
    DOCUMENTS,
    compared,
)
from tests.synthetic_run import GROUPS, loop_rows
from twoscale import tables
from twoscale.claims import bootstrap, geometry
from twoscale.claims.evidence import Evidence
from twoscale.claims.words import FAILS, HOLDS, OPEN
from twoscale.jobs.table_job import TableJob
from twoscale.studies.sweeps import draw

# --- adapter initialisations ----------------------------------------------------------------------


def start_run(share=0.5, seed=1, state_init="noise", level=0.55, loss=6.0, **shape):
    """A run whose cosines settle at `level` at iteration 10, and at 0.9 before training."""
    frames = [
        loop_rows(iteration, group, start=0.0, **({"level": level if iteration else 0.9} | shape))
        for iteration, group in itertools.product((0, 10), GROUPS)
    ]
    training = pd.DataFrame({"iteration": [5, 10], "held_out_loss": [np.nan, loss]})
    found = {"loops": pd.concat(frames, ignore_index=True)}
    evidence = Evidence.of(found, max_loops=0, seed=1)
    return draw.InitRun(share, state_init, "branch", seed, evidence, training)


def cells(table, measure="late_cosine", seed="all", iteration=10, group="4"):
    chosen = (
        (table["measure"] == measure) & (table["seed"] == seed) & (table["iteration"] == iteration)
    )
    return table[chosen & (table["group"] == group)]


def test_the_cosine_of_one_seed_is_that_of_claim_4():
    run = start_run(level_spread=0.2)
    (quantity, *_) = geometry.angles_match(run.evidence)
    expected = quantity.measure()
    table = draw.compare_starts([run])
    for seed in ("1", "all"):
        (row,) = cells(table, seed=seed).itertuples()
        assert (row.value, row.low, row.high) == (expected.value, expected.low, expected.high)


def test_all_seeds_have_their_mean_and_its_interval_the_scatter_of_the_seeds_with_students_t():
    levels = {1: 0.4, 2: 0.6}
    table = draw.compare_starts(
        [start_run(seed=seed, level=level, level_spread=0) for seed, level in levels.items()]
    )
    assert [cells(table, seed=str(seed))["value"].item() for seed in levels] == pytest.approx(
        [0.4, 0.6], abs=1e-3
    )
    (row,) = cells(table).itertuples()
    half = 12.7062 * 0.1  # quantile of Student's t with one degree of freedom, standard error
    assert row.value == pytest.approx(0.5, abs=1e-3)
    assert (row.low, row.high) == pytest.approx((row.value - half, row.value + half), rel=1e-3)


def test_runs_of_another_start_first_state_or_norm_are_not_averaged(tmp_path):
    runs = [start_run(), start_run(share=0.25), start_run(state_init="zero"), start_run(share=None)]
    table = draw.compare_starts([*runs, start_run(share=None, seed=2, level=0.75)])
    rows = cells(table)
    assert rows["share"].fillna(-1).tolist() == [0.5, 0.25, 0.5, -1]
    assert rows["state_init"].tolist() == ["noise", "noise", "zero", "noise"]
    assert rows["value"].iloc[-1] == pytest.approx(0.65, abs=1e-3)
    tables.write("adapter_init", table, tmp_path / "starts.parquet")
    pd.testing.assert_frame_equal(
        tables.read("adapter_init", tmp_path / "starts.parquet"), table, check_dtype=False
    )


def test_the_job_reads_the_tables_of_each_run_and_writes_those_of_the_comparison(tmp_path):
    run = start_run()
    loops, training = tmp_path / "loops.parquet", tmp_path / "training.parquet"
    tables.write("loop_sequences", run.evidence.loops.query("measure != 'state_norm'"), loops)
    absent = dict.fromkeys(tables.columns("training"), 0)
    tables.write(
        "training",
        pd.DataFrame([absent | row for row in run.training.to_dict("records")]),
        training,
    )
    labels = {"share": 0.5, "state_init": "noise", "sandwich": "branch", "seed": 1}
    files = {
        "loops": [loops],
        "training": [training],
        "adapter_init": [tmp_path / "starts.parquet"],
    }
    draw.run_adapter_init(TableJob(SimpleNamespace(runs=[labels], seed=1, run="starts"), files))
    written = tables.read("adapter_init", tmp_path / "starts.parquet")
    expected = draw.compare_starts([run])
    pd.testing.assert_frame_equal(written, expected[list(written)], check_dtype=False)


def test_the_loss_is_that_of_the_checkpoint_with_an_interval_over_seeds():
    runs = [start_run(seed=seed, loss=loss) for seed, loss in ((1, 6.0), (2, 6.2), (3, 6.4))]
    (row,) = cells(draw.compare_starts(runs), "held_out_loss", group="all").itertuples()
    assert row.value == pytest.approx(6.2)
    assert row.high - row.value == pytest.approx(
        4.30265 * 0.2 / np.sqrt(3), rel=1e-4
    )  # Student's t, two degrees
    (alone,) = cells(draw.compare_starts(runs[:1]), "held_out_loss", group="all").itertuples()
    assert (alone.value, np.isnan(alone.low), alone.verdict) == (6.0, True, "")


@pytest.mark.parametrize(
    ("run", "measure", "verdict", "reason"),
    [
        (start_run(nulls=0.5), ("late_cosine", "all", 10, "4"), OPEN, "rounding floor"),
        (start_run(loss=np.nan), ("held_out_loss", "all", 10, "all"), "", "no held-out loss"),
    ],
    ids=["under the rounding floor", "no loss"],
)
def test_what_cannot_be_measured_has_a_reason_and_no_value(run, measure, verdict, reason):
    (row,) = cells(draw.compare_starts([run]), *measure).itertuples()
    assert np.isnan(row.value)
    assert row.verdict == verdict
    assert reason in row.reason


@pytest.mark.parametrize(("level", "verdict"), [(0.55, HOLDS), (0.9, FAILS), (0.7, OPEN)])
def test_a_cosine_is_judged_by_the_bounds_of_claim_4(level, verdict):
    assert cells(draw.compare_starts([start_run(level=level)]))["verdict"].item() == verdict


# --- baselines ------------------------------------------------------------------------------------


def test_differences_are_between_models_of_the_same_seed_on_the_same_documents(tmp_path):
    table = compared(tmp_path)
    tables.write("baselines", table, tmp_path / "baselines.parquet")
    each = table.dropna(subset="seed").set_index(["model", "seed"])
    weights = np.r_[2.0, np.ones(DOCUMENTS - 1)] / (DOCUMENTS + 1)
    alternating = 0.05 * weights @ (-1.0) ** np.arange(DOCUMENTS)
    assert each.loc[("parameters", 2), "difference"] == pytest.approx(0.33 + alternating)
    assert each.loc[("flops", 3), "difference"] == pytest.approx(-0.24 + alternating)
    assert each.loc[("flops", 3), "ce"] == pytest.approx(
        4 + weights @ np.arange(DOCUMENTS) + 1 - 0.24 + alternating
    )
    row = each.loc[("parameters", 2)]
    # the text varies by nats between documents, the difference by hundredths
    assert row["difference_high"] - row["difference_low"] < 0.2 < 2 < row["ce_high"] - row["ce_low"]
    assert (each["seeds"] == 1).all()
    assert each["seeds_low"].isna().all()


def test_the_mean_over_seeds_has_an_interval_over_seeds_one_over_documents_and_both(tmp_path):
    table = compared(tmp_path)
    means = table[table["seed"].isna()].set_index("model")
    mean, seeds = (
        means.loc["parameters"],
        table.dropna(subset="seed").query("model == 'parameters'")["difference"],
    )
    assert mean["difference"] == pytest.approx(seeds.mean())
    assert (mean["seeds_low"], mean["seeds_high"]) == pytest.approx(
        bootstrap.t_interval(seeds.to_numpy())
    )
    for end in ("low", "high"):
        parts = [mean[f"{part}_{end}"] - mean["difference"] for part in ("documents", "seeds")]
        assert abs(mean[f"difference_{end}"] - mean["difference"]) == pytest.approx(
            np.hypot(*parts)
        )
    assert mean["seeds"] == 3
    assert means.loc["looped", ["difference", "difference_low", "difference_high"]].tolist() == [
        0,
        0,
        0,
    ]
