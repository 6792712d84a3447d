"""The table of quality at fixed loop counts."""

from tests.unit.test_benchmark import small_model
from tests.unit.test_fixed_loops import scaling
from twoscale import tables


def test_rows_fit_their_table(tmp_path):
    tables.write("scaling_quality", scaling(small_model()), tmp_path / "scaling.parquet")
