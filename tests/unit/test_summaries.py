"""Summaries of operating points against numbers that can be worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import summarise_latency, summarise_quality
from twoscale.exits.table import of_run


def quality_tables(changes):
    """Four sequences of unlike text and tokens at full depth and under `kl`, which changes each
    CE.
    """
    full, tokens = np.array([2.0, 3.0, 4.0, 9.0]), np.array([100, 300, 100, 100])
    points = [("fixed", 6.0, full, 6.0), ("kl", 0.1, full + changes, 2.0)]
    quality, exit_loops = [], []
    for criterion, threshold, ce, loops in points:
        keys = {
            "criterion": criterion,
            "threshold": threshold,
            "sequence": range(4),
            "document": [0, 1, 2, 1],
        }
        quality.append(pd.DataFrame(keys | {"tokens": tokens, "ce": ce}))
        for group, evaluations in (("5-6", loops), ("4", loops + 1)):
            spent = {"group": group, "evaluations": evaluations, "loop_steps": evaluations}
            exit_loops.append(pd.DataFrame(keys | spent))
    return pd.concat(quality), pd.concat(exit_loops)


def summary_of(*tables):
    return summarise_quality(of_run(*tables), 6)


def test_latency_is_the_median_of_repeats_with_its_bootstrap_interval():
    times = [10.0, 20.0, 30.0, 40.0, 100.0]
    latency = pd.DataFrame(
        {
            "criterion": "kl",
            "threshold": 0.1,
            "latency_ms": times,
            "baseline_ms": np.array(times) - 1,
        }
    )
    (row,) = summarise_latency(latency).to_dict("records")
    assert (row["latency_ms"], row["baseline_ms"]) == (30.0, 29.0)
    assert (row["low"], row["high"]) == bootstrap.interval(
        lambda samples: np.median(samples, axis=1), np.array(times), seed=0
    )
    assert row["low"] < 30 < row["high"]


def test_quality_weighs_sequences_by_their_tokens_and_loops_groups_alike():
    kl = summary_of(*quality_tables(0.0)).set_index("criterion").loc["kl"]
    assert kl["ce"] == pytest.approx((2 + 3 * 3 + 4 + 9) / 6)
    assert kl["ppl"] == pytest.approx(math.exp(kl["ce"]))
    assert kl["loops"] == pytest.approx(2.5)


def test_the_interval_of_quality_is_that_of_the_change_and_not_of_the_text():
    """Sequences differ by nats, the criterion adds the same to each: there is nothing uncertain
    about the change.
    """
    summary = summary_of(*quality_tables(0.25)).set_index("criterion")
    for criterion, change in (("fixed", 0.0), ("kl", 0.25)):
        bounds = summary.loc[criterion, ["low", "high"]].to_numpy(float)
        np.testing.assert_allclose(bounds, summary.loc["fixed", "ce"] + change, rtol=1e-12)
    uneven = summary_of(*quality_tables(np.array([0.0, 0.3, 0.1, 0.2]))).set_index("criterion")
    documents = np.array(
        [[0.0, 100], [0.3 * 300 + 0.2 * 100, 400], [0.1 * 100, 100]]
    )  # nats and tokens
    ((_, *ends),) = bootstrap.estimates(bootstrap.per_token, documents, documents[:, 1], 0)
    expected = uneven.loc["fixed", "ce"] + np.array(ends)
    np.testing.assert_allclose(uneven.loc["kl", ["low", "high"]].to_numpy(float), expected)


@pytest.mark.parametrize(
    "changed", [lambda rows: rows.assign(document=0), lambda rows: rows[rows["criterion"] == "kl"]]
)
def test_sequences_of_one_document_and_a_run_without_all_loop_steps_give_no_interval(changed):
    quality, exit_loops = quality_tables(np.array([0.0, 0.3, 0.1, 0.2]))
    summary = summary_of(changed(quality), exit_loops)
    assert summary["ce"].notna().all()
    assert summary[["low", "high"]].isna().all(axis=None)


def test_repeating_each_sequence_in_its_document_leaves_the_interval():
    """The units are documents: twice the sequences are not twice the evidence."""
    quality, exit_loops = quality_tables(np.array([0.0, 0.3, 0.1, 0.2]))
    twice = [
        pd.concat([table, table.assign(sequence=table["sequence"] + 4)])
        for table in (quality, exit_loops)
    ]
    once, doubled = (summary_of(*pair)[["low", "high"]] for pair in ((quality, exit_loops), twice))
    pd.testing.assert_frame_equal(once, doubled)


def test_a_model_without_groups_has_quality_and_no_loops():
    quality, exit_loops = quality_tables(0.25)
    summary = summary_of(quality, exit_loops[:0])
    assert summary["ce"].notna().all()
    assert summary["loops"].isna().all()
