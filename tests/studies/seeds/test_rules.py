"""Several seeds: what is planned for them, and `snakemake seeds` to the end."""

import pandas as pd
import pytest

BOTH = {"seeds": [1337, 7]}


def test_seeds_trains_and_analyses_the_run_under_each_seed_on_one_text(fresh):
    alone = fresh.plan()
    fresh.configure(**BOTH)
    planned = fresh.plan("seeds")
    assert [planned[rule] for rule in ("prepare_text", "tokenize_text")] == [
        alone[rule] for rule in ("prepare_text", "tokenize_text")
    ]
    assert planned["init_model"] == planned["train_segment_last"] == planned["benchmark_exits"] == 2
    assert planned["extract_trajectories"] == 6
    assert planned["compare_seeds"] == planned["plot_seeds"] == 1
    assert "judge_claims" not in planned


def test_without_further_seeds_one_sentence_says_what_to_set(fresh):
    for config in ({}, {"seeds": [1337]}):
        fresh.configure(**config)
        done = fresh.run("-n", "seeds")
        assert done.returncode != 0
        assert "run tiny has one seed, expected further ones in the config key seeds" in done.stdout + done.stderr


@pytest.mark.runs
def test_seeds_are_compared_and_drawn_without_a_rerun_of_the_run_that_is_there(editable):
    editable.configure(**BOTH)
    assert editable.plan() == {}
    assert editable.plan("seeds")["init_model"] == 1
    editable.succeed("seeds")
    frame = pd.read_parquet(editable.root / "results/tiny/tables/seeds.parquet")
    assert list(frame["seed"].unique()) == ["1337", "7", "mean"]
    assert set(frame["claim"]) == set(range(1, 16))
    claims = pd.read_parquet(editable.root / "results/tiny/tables/claims.parquet")
    first = frame[frame["seed"] == "1337"].reset_index(drop=True)
    columns = ["claim", "scope", "quantity", "value", "low", "high", "verdict"]
    merged = claims[columns].merge(first[columns], on=["claim", "scope", "quantity"], suffixes=("", "_of_seed"))
    assert len(merged) == len(claims)
    for column in columns[3:]:
        pd.testing.assert_series_equal(merged[column], merged[f"{column}_of_seed"], check_names=False)
    assert "under 2 seeds" in (editable.root / "results/seeds.md").read_text()
    assert (editable.root / "results/seeds.pdf").read_bytes().startswith(b"%PDF")
    assert editable.plan("seeds") == {}
    editable.configure(**BOTH, figures={"seed_band": True})
    assert editable.plan() == {"plot_fig2": 1, "plot_fig3": 1, "plot_fig5": 1}
    editable.succeed()
    editable.configure()
    assert set(editable.plan()) == {"plot_fig2", "plot_fig3", "plot_fig5"}
