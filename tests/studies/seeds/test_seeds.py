"""Several seeds: the figure and the page of known verdicts, what the job reads, and `snakemake
seeds` to the end.
"""

import pandas as pd
import pytest

from tests.rules import rules
from tests.small import of
from tests.synthetic_run import loops, synthetic
from twoscale.base import InputError
from twoscale.claims import seeds as over_seeds
from twoscale.claims.scale import Scale, Scales
from twoscale.claims.verdicts import CLAIMS
from twoscale.claims.words import HOLDS, SMALL_SCALE, marked
from twoscale.studies.seeds import draw

BOTH = {"seeds": [1337, 7]}


def test_the_page_counts_its_seeds_and_marks_the_verdicts_over_them():
    far = synthetic(loops=loops(last={"level": 0.9}))
    judged = over_seeds.verdicts(dict.fromkeys((1, 2), far))
    scales = Scales(Scale(1, 100, 12.0, 30), Scale(1000, 100, 12.0, 30)).with_run(seeds=2)
    page = draw.page(judged, "trial", "text", [1, 2], scales)
    assert "| seeds | 2 | 1 | 2 |" in page
    assert f"| **{marked(judged[0].verdict, SMALL_SCALE)}** |" in page
    assert "## 4. Angles settle at 0.5–0.65: not at this scale\n" in page
    assert "Each seed: 1 not at this scale, 2 not at this scale. Over seeds: **not at" in page
    alone = draw.summary(over_seeds.table(judged, "trial", [1, 2]), "text")
    assert draw.page(judged, "trial", "text", [1, 2]).startswith(alone)
    assert alone.startswith("# The claims of the paper on the run trial under 2 seeds\n")


@pytest.mark.parametrize(("count", "is_few"), [(5, True), (6, False)])
def test_the_page_says_of_few_seeds_that_they_show_no_small_effect(count, is_few):
    names = [*map(str, range(count)), "mean"]
    row = {"run": "trial", "claim": 1, "scope": "all", "verdict": HOLDS, "scale": ""}
    text = draw.summary(pd.DataFrame([row | {"seed": name} for name in names]), "text")
    assert ("too little to tell whether a small" in text) == is_few
    assert f"| {count} | 0 | 0 | 0 | **holds** |" in text


def test_the_tables_of_all_seeds_are_read_or_one_sentence_says_why_not():
    def drift(**config):
        return rules(**config)["compare_seeds"].input["drift"]

    runs = ("tiny", "tiny-seed7")
    assert drift(**BOTH) == [f"results/{run}/tables/drift_sequences.parquet" for run in runs]
    for config, words in (
        ({"seeds": []}, "has one seed"),
        ({"seeds": [1337]}, "has one seed"),
        ({"seeds": [7], "model": {"groups": []}}, "has 0 looped groups"),
    ):
        with pytest.raises(InputError, match=rf"^results/seeds\.md: run tiny {words}"):
            drift(**config)(of())


# --- rules ----------------------------------------------------------------------------------------


def test_seeds_trains_and_analyses_the_run_under_each_seed_on_one_text(fresh):
    alone = fresh.plan()
    done = fresh.run("-n", "seeds")
    assert done.returncode != 0
    assert (
        "run tiny has one seed, expected further ones in the config key seeds"
        in done.stdout + done.stderr
    )
    fresh.configure(**BOTH)
    planned, once = fresh.plan("seeds"), ("prepare_text", "tokenize_text")
    assert [planned[rule] for rule in once] == [alone[rule] for rule in once]
    assert planned["init_model"] == planned["train_segment_last"] == planned["benchmark_exits"] == 2
    assert planned["extract_trajectories"] == 6
    assert planned["compare_seeds"] == planned["plot_seeds"] == 1
    assert "judge_claims" not in planned


@pytest.mark.runs
def test_seeds_are_compared_and_drawn_without_a_rerun_of_the_run_that_is_there(editable):
    editable.configure(**BOTH)
    assert editable.plan() == {}
    assert editable.plan("seeds")["init_model"] == 1
    editable.succeed("seeds")
    frame = pd.read_parquet(editable.root / "results/tiny/tables/seeds.parquet")
    assert list(frame["seed"].unique()) == ["1337", "7", "mean"]
    assert set(frame["claim"]) == {claim.number for claim in CLAIMS}
    claims = pd.read_parquet(editable.root / "results/tiny/tables/claims.parquet")
    first = frame[frame["seed"] == "1337"].reset_index(drop=True)
    columns = ["claim", "scope", "quantity", "value", "low", "high", "verdict"]
    merged = claims[columns].merge(
        first[columns], on=["claim", "scope", "quantity"], suffixes=("", "_of_seed")
    )
    assert len(merged) == len(claims)
    for column in columns[3:]:
        pd.testing.assert_series_equal(
            merged[column], merged[f"{column}_of_seed"], check_names=False
        )
    assert "under 2 seeds" in (editable.root / "results/seeds.md").read_text()
    assert editable.plan("seeds") == {}
    editable.configure(**BOTH, figures={"seed_band": True})
    assert editable.plan() == {"plot_fig2": 1, "plot_fig3": 1, "plot_fig5": 1}
    editable.succeed()
    editable.configure()
    assert set(editable.plan()) == {"plot_fig2", "plot_fig3", "plot_fig5"}
