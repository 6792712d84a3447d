"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest


@pytest.mark.runs
def test_the_lens_is_measured_at_the_last_checkpoint_and_again_only_for_its_own_keys(editable):
    figure = "results/lens.pdf"
    assert editable.plan(figure) == {"measure_lens": 1, "plot_lens": 1}
    editable.succeed(figure)
    lens = pd.read_parquet(editable.root / "results/tiny/tables/lens.parquet")
    assert lens["iteration"].unique().tolist() == [20]
    assert lens["k"].unique().tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}
    editable.configure(lens={"max_multiple": 2})
    assert editable.plan(figure) == {"measure_lens": 1, "plot_lens": 1}
    assert "measure_lens" not in editable.plan()
