"""The rules of the study: planned, and run to the end."""

import pytest


@pytest.mark.runs
def test_path_independence_is_measured_at_every_checkpoint(editable):
    figure = "results/path_independence.pdf"
    planned = {"measure_path_independence": 3, "aggregate_independence": 1, "plot_path_independence": 1}
    assert editable.plan(figure) == planned
    editable.succeed(figure)
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}
