"""The table of quality at fixed loop counts."""

import pandas as pd

from tests.unit.test_benchmark import small_model
from tests.unit.test_fixed_loops import scaling
from twoscale import tables
from twoscale.studies.scaling.compare import sentence


def test_rows_fit_their_table(tmp_path):
    tables.write("scaling_quality", scaling(small_model()), tmp_path / "scaling.parquet")


def test_the_report_says_what_the_last_checkpoint_has_at_the_fewest_and_the_most_loops():
    table = pd.DataFrame({"run": "a", "iteration": [0, 20, 20], "loops": [1, 4, 1], "ppl": [9.0, 2.0, 3.0]})
    assert sentence(table) == "Perplexity at the last checkpoint: 3 at 1 loops, 2 at 4 loops."
