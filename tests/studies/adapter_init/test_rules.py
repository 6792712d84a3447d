"""The study of the adapter initialisations: planned by the rules of every run, and made to its end."""

import pandas as pd
import pytest

from tests.small import without_projection

SMALL = {
    "seeds": [5],
    "adapter_init": {"shares": [0.25], "random": False},
    "trajectories": {"loops": 30},  # angles settle over k = 10 … 29
}


def test_the_starts_are_runs_of_the_same_rules_under_every_seed(fresh):
    fresh.configure(seeds=[5], adapter_init={"shares": [0, 0.5]})
    runs = (2 + 1) * 2  # two shares and random weights, two seeds
    planned = fresh.plan("adapter_init")
    for rule, jobs in {
        "init_model": 1,
        "train_segment_last": 1,
        "extract_trajectories": 2,
        "aggregate_metrics": 1,
    }.items():
        assert planned[rule] == jobs * runs
    assert planned["compare_adapter_init"] == planned["plot_adapter_init"] == planned["prepare_text"] == 1
    assert not {"benchmark_exits", "judge_claims"} & set(planned)
    assert {rule for rule in planned if rule.startswith("plot_")} == {"plot_adapter_init"}


def test_without_a_projection_there_is_one_sentence(fresh):
    fresh.configure(**without_projection())
    done = fresh.run("-n", "results/adapter_init.md")
    assert done.returncode != 0
    assert "results/adapter_init.md: run tiny has a model without a projection" in done.stdout + done.stderr


@pytest.mark.runs
def test_the_starts_are_made_to_the_end_with_a_table_a_page_and_a_figure(editable):
    editable.configure(**SMALL)
    editable.succeed("adapter_init")
    table = pd.read_parquet(editable.root / "results/tiny/tables/adapter_init.parquet")
    converged = table[table["measure"] == "late_cosine"]
    assert set(converged["seed"]) == {"1337", "5", "all"}
    assert set(converged["iteration"]) == {0, 10}
    assert (editable.root / "results/adapter_init.pdf").read_bytes().startswith(b"%PDF")
    page = (editable.root / "results/adapter_init.md").read_text()
    assert "**Does a start give 0.5–0.65 in all groups?**" in page
    assert "| share 0.25 | `noise` | `post_residual` |" in page
    assert editable.plan("adapter_init") == {}
