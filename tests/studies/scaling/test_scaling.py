"""The table of quality at fixed loop counts."""

import numpy as np
import pandas as pd

from tests.unit.test_benchmark import small_model
from tests.unit.test_fixed_loops import scaling
from twoscale import tables
from twoscale.studies.scaling.compare import sentence, summarise_scaling


def test_rows_fit_their_table(tmp_path):
    tables.write("scaling_quality", scaling(small_model()), tmp_path / "scaling.parquet")


def test_the_report_says_what_the_last_checkpoint_has_at_the_fewest_and_the_most_loops():
    table = pd.DataFrame({"run": "a", "iteration": [0, 20, 20], "loops": [1, 4, 1], "ppl": [9.0, 2.0, 3.0]})
    assert sentence(table) == "Perplexity at the last checkpoint: 3 at 1 loops, 2 at 4 loops."


def test_scaling_joins_checkpoints_and_bounds_the_mean_over_documents(tmp_path):
    for iteration in (20, 0):
        rows = [
            {
                "iteration": iteration,
                "loops": loops,
                "sequence": i,
                "document": i,
                "tokens": 8,
                "ce": iteration + loops + i,
                "ppl": 1.0,
            }
            for loops in (4, 1)
            for i in range(3)
        ]
        tables.write("scaling_quality", pd.DataFrame(rows), tmp_path / f"{iteration}.parquet")
    scaling = summarise_scaling([tmp_path / "20.parquet", tmp_path / "0.parquet"], "trial", seed=3)
    tables.write("scaling", scaling, tmp_path / "scaling.parquet")
    assert scaling[["iteration", "loops"]].to_numpy().tolist() == [[0, 1], [0, 4], [20, 1], [20, 4]]
    assert scaling["ce"].tolist() == [2, 5, 22, 25]
    assert scaling["tokens"].tolist() == [24] * 4
    assert (scaling["ce_low"] < scaling["ce"]).all()
    assert (scaling["ce"] < scaling["ce_high"]).all()
    np.testing.assert_allclose(scaling["ppl_high"], np.exp(scaling["ce_high"]))
    for column in ("excess", "excess_low", "excess_high"):  # the same for every sequence
        np.testing.assert_allclose(scaling[column], [-3, 0, -3, 0], atol=1e-12)
