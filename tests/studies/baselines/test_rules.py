"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest


@pytest.mark.runs
def test_the_baselines_are_trained_beside_the_selected_run_and_compared_with_it(editable):
    planned = editable.plan("baselines")
    assert planned == {
        "init_model": 2,
        "train_segment": 2,
        "train_segment_last": 2,
        "measure_baseline": 4,
        "compare_baselines": 1,
        "plot_baselines": 1,
    }
    editable.succeed("baselines")
    table = pd.read_parquet(editable.root / "results/tiny/tables/baselines.parquet")
    assert table["model"].unique().tolist() == ["looped", "parameters", "flops", "untrained"]
    assert table["iteration"].unique().tolist() == [20, 0]
    looped = pd.read_parquet(editable.root / "results/tiny/training/iteration_000020.parquet")
    baseline = pd.read_parquet(editable.root / "results/baselines/flops/training/iteration_000020.parquet")
    assert baseline["tokens_seen"].tolist() == looped["tokens_seen"].tolist()
    assert "| same parameters |" in (editable.root / "results/baselines.md").read_text()
    assert (editable.root / "results/baselines.pdf").read_bytes().startswith(b"%PDF")
    assert editable.plan("baselines") == {}
    assert editable.plan() == {}
