"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest


@pytest.mark.runs
def test_path_types_are_made_from_the_tables_of_the_extraction_alone(editable):
    figure = "results/path_types.pdf"
    assert editable.plan(figure) == {"aggregate_paths": 1, "plot_path_types": 1}
    editable.succeed(figure)
    path_types = pd.read_parquet(editable.root / "results/tiny/tables/path_types.parquet")
    shares = path_types.groupby(["iteration", "group"])["share"].sum()
    assert shares.index.tolist() == [
        (iteration, group) for iteration in (0, 10, 20) for group in ("2", "3")
    ]
    assert shares.tolist() == pytest.approx([1.0] * 6)
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}


@pytest.mark.runs
def test_path_independence_is_measured_at_every_checkpoint(editable):
    figure = "results/path_independence.pdf"
    planned = {
        "measure_path_independence": 3,
        "aggregate_independence": 1,
        "plot_path_independence": 1,
    }
    assert editable.plan(figure) == planned
    editable.succeed(figure)
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}
