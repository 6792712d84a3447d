"""Agreement of the spectrum with paths, slow tokens, the sentences about them, and the figure."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.studies.spectrum import samples
from tests.studies.spectrum.samples import FLOATS, LENGTH, RUN, SEQUENCES, token_table
from twoscale import tables
from twoscale.analysis import aggregate
from twoscale.base import InputError
from twoscale.config import PROJECT
from twoscale.studies.spectrum import compare as analysis
from twoscale.studies.spectrum import figure, study
from twoscale.workflow.runs import Runs


@pytest.fixture
def paths(tmp_path):
    for iteration in (0, 20):
        tables.write("token_spectrum", token_table(iteration), tmp_path / f"{iteration}.parquet")
    return [tmp_path / "0.parquet", tmp_path / "20.parquet"]


def agreement_rows(paths):
    return analysis.agreement(paths, "demo", seed=1).set_index(["iteration", "group", "prediction", "quantity"])


def test_agreement_has_a_row_per_checkpoint_group_and_comparison(paths, tmp_path):
    table = analysis.agreement(paths, "demo", seed=1)
    assert len(table) == 2 * 2 * len(analysis.COMPARISONS)
    tables.write("spectrum", table, tmp_path / "spectrum.parquet")
    pd.testing.assert_frame_equal(tables.read("spectrum", tmp_path / "spectrum.parquet"), table, check_dtype=False)


def test_a_prediction_that_is_right_has_correlation_one_and_no_difference(paths):
    row = agreement_rows(paths).loc[(20, "5-6", "prefix", "rate")]
    assert row["correlation"] == pytest.approx(1, abs=1e-6)
    assert (row["difference"], row["difference_high"]) == pytest.approx((0, 0), abs=1e-6)
    assert row["tokens"] == LENGTH * SEQUENCES


def test_agreement_is_that_of_all_tokens_and_its_interval_contains_it(paths):
    row, tokens = agreement_rows(paths).loc[(20, "4", "leading", "rate")], token_table()
    of_group = tokens[tokens["group"] == "4"]
    expected = np.corrcoef(of_group["leading_modulus"], of_group["rate"])[0, 1]
    assert row["correlation"] == pytest.approx(expected, abs=1e-6)
    assert row["difference"] == pytest.approx((of_group["leading_modulus"] - of_group["rate"]).abs().mean(), abs=1e-6)
    assert row["correlation_low"] < row["correlation"] < row["correlation_high"]
    assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_a_prediction_without_variance_has_no_correlation(paths):
    assert np.isnan(agreement_rows(paths).loc[(20, "4", "leading", "cosine"), "correlation"])


def test_paths_that_follow_the_prefix_eigenvalue_are_told_from_those_that_only_rise_with_it(tmp_path):
    """Group 4 follows it. In 5-6 every token has a rate of its own, and in both the rate rises with the position."""
    tokens = token_table()
    own = tokens["group"] == "5-6"
    tokens.loc[own, "rate"] = tokens.loc[own, "leading_modulus"] + 1e-3 * tokens.loc[own, "position"]
    tables.write("token_spectrum", tokens, tmp_path / "t.parquet")
    rows = agreement_rows([tmp_path / "t.parquet"]).loc[20].xs("rate", level="quantity")
    follows, does_not = rows.loc["4"], rows.loc["5-6"]
    assert follows.loc["prefix", ["within", "nearer"]].tolist() == pytest.approx([1, 1])
    moduli = tokens[~own].pivot(index="sequence", columns="position", values="prefix_modulus").astype(float)
    about = moduli.sub(moduli.mean(axis="columns"), axis="index").to_numpy()
    products = about @ about.T  # (S, S): a sequence with each
    of_others = (products.sum() - products.trace()) / ((len(about) - 1) * products.trace())
    assert follows.loc["prefix", "placebo"] == pytest.approx(of_others, abs=1e-6)
    assert does_not.loc["prefix", "nearer"] == 0
    assert does_not.loc["prefix", "within"] < 0.5 < 0.99 < does_not.loc["leading", "within"]
    assert rows["nearer"].isna().groupby("prediction").all()["leading"]


def test_the_correlation_within_sequences_is_that_about_their_means():
    """Against NumPy, where all sequences have all tokens; the means of sequences do not count."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 50))
    y = x + random.normal(size=x.shape)
    about = [values - values.mean(axis=1, keepdims=True) for values in (x, y)]
    expected = np.corrcoef(*(values.ravel() for values in about))[0, 1]
    assert analysis.within_sequences(x, y + np.array([[9], [0], [0], [5]]), [0]) == pytest.approx(expected, abs=1e-6)
    assert abs(analysis.within_sequences(x, y, [1, 2, 3])) < 0.2
    gap = np.where(np.arange(50) < 30, y, np.nan)
    assert analysis.within_sequences(x, gap, [0]) == pytest.approx(analysis.within_sequences(x[:, :30], y[:, :30], [0]))


@pytest.mark.parametrize("shape", [(0, 0), (1, 5)])
def test_without_another_sequence_there_is_no_placebo(shape):
    values = np.full(shape, 0.3)
    assert np.isnan(analysis.within_sequences(values, values, range(1, len(values))))
    assert np.isnan(analysis.within_sequences(values, values, [0]))  # and without variance no correlation


def test_the_correlation_of_a_sample_is_about_the_means_of_that_sample():
    x, y = np.random.default_rng(0).normal(size=(2, 3, 40)) + np.array([[[5], [6], [7]], [[1], [2], [0]]])
    sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y, abs(x - y)]).sum(-1).T  # (documents, 7)
    sampled = [[0, 1, 2], [2, 2, 0]]
    expected = [np.corrcoef(x[rows].ravel(), y[rows].ravel())[0, 1] for rows in sampled]
    assert analysis.correlation(sums[sampled]) == pytest.approx(expected)


def test_an_interval_is_null_where_a_sample_of_documents_has_no_correlation():
    values = pd.DataFrame({"predicted": [0.1, 0.3, 0.2], "measured": [0.2, 0.3, 0.1], "document": [0, 1, 2]})
    found = analysis.compare(values, seed=1)
    assert np.isfinite(found["correlation"])
    assert np.isnan([found["correlation_low"], found["correlation_high"]]).all()
    assert np.isfinite([found["difference_low"], found["difference_high"]]).all()


def test_tokens_without_a_fixed_point_or_without_exact_blocks_do_not_count(tmp_path):
    tokens = token_table(groups=("4",))
    tokens.loc[tokens["sequence"] == 0, "exact"] = False
    tokens.loc[tokens["position"] == 7, "converged"] = False
    tables.write("token_spectrum", tokens, tmp_path / "t.parquet")
    row = agreement_rows([tmp_path / "t.parquet"]).loc[(20, "4", "prefix", "rate")]
    assert row["tokens"] == (LENGTH - 1) * (SEQUENCES - 1)


def test_slow_tokens_are_those_that_others_inherit_from(paths):
    table = (
        analysis.slow_tokens(paths, "demo", seed=1).set_index(["iteration", "group", "property", "class"]).sort_index()
    )
    positions = table.loc[(20, "4", "position")]
    assert positions["prefix_share"].sum() == pytest.approx(1)
    # positions 2 to 7 of 8 inherit from position 2
    assert positions.loc["1 to 4", "prefix_share"] >= 6 / 8
    assert positions.loc["4 to 16", "prefix_share"] == 0
    rare = table.loc[(20, "4", "frequency", "0 to 10")]
    assert (rare["prefix_share"], rare["share"], rare["leading_modulus"]) == pytest.approx((6 / 8, 1 / 8, 0.8))
    assert rare["prefix_share_low"] <= rare["prefix_share"] <= rare["prefix_share_high"]


def test_without_training_text_there_are_no_classes_of_frequency(tmp_path):
    tables.write("token_spectrum", token_table().assign(frequency=np.nan), tmp_path / "t.parquet")
    table = analysis.slow_tokens([tmp_path / "t.parquet"], "demo", seed=1)
    assert set(table["property"]) == {"token_class", "position"}


def test_statistics_of_every_measured_column(paths):
    metrics = aggregate.statistics(paths, "demo", "token_spectrum", "spectrum_metrics")
    assert set(metrics["measure"]) == set(FLOATS)


def test_the_last_checkpoint_is_summed_up_group_by_group(paths):
    sentence = analysis.summary(analysis.agreement(paths, "demo", seed=1))
    assert sentence.count("iteration 20, 48 tokens: rate ") == 2
    assert sentence.startswith("Group 4, ")
    assert "Group 5–6, " in sentence
    assert "(correlation over tokens 1.00)" in sentence
    assert (
        sentence.count("100% have a rate nearer to the prefix eigenvalue; within sequences the rate correlates with")
        == 2
    )


def test_the_compared_checkpoints_are_all_or_the_last():
    def files(**user):
        runs = Runs({"preset": "tiny"} | user, PROJECT / "scripts")
        (job,) = (job for job in study.JOBS if job.name == "aggregate_spectrum")
        return job.inputs(runs)["tokens"](SimpleNamespace(run="tiny"))

    every = [f"results/tiny/spectrum/iteration_0000{number}.parquet" for number in ("00", "10", "20")]
    assert files() == every
    assert files(spectrum={"checkpoints": "last"}) == every[-1:]


def test_the_figure_shows_rates_against_the_prefix_modulus():
    panels = samples.spectrum().get_axes()
    assert len(panels) == 6
    coloured = [
        line for line in panels[1].get_lines() if line.get_marker() == "o" and line.get_color() != figure.LEADING
    ]
    assert len(coloured) == 2
    for line in coloured:
        np.testing.assert_allclose(line.get_xdata(), line.get_ydata())
    assert len([line for line in panels[5].get_lines() if len(line.get_xdata()) == 3]) == 4


def drifting_table(**changes):
    """Tokens without a fixed point whose directions have a limit."""
    return token_table().assign(
        **{"converged": False, "direction_modulus": 0.9, "direction_half_modulus": 0.8} | changes
    )


def test_a_run_without_fixed_points_and_limits_of_directions_has_no_figure():
    with pytest.raises(InputError, match=r"least one; raise spectrum\.steps"):
        figure.draw(drifting_table(direction_modulus=np.nan), pd.DataFrame({"iteration": []}), **RUN)


def test_the_figure_of_a_drifting_run_shows_the_eigenvalues_of_the_map_on_directions(tmp_path):
    tables.write("token_spectrum", drifting_table(), tmp_path / "tokens.parquet")
    drawn = figure.draw(drifting_table(), analysis.agreement([tmp_path / "tokens.parquet"], "demo", seed=1), **RUN)
    diamonds = [[line for line in axes.get_lines() if line.get_marker() == "D"] for axes in drawn.get_axes()[:2]]
    assert [len(lines) for lines in diamonds] == [2, 2]
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names[-1] == "map on directions"
    assert "map on directions" not in [text.get_text() for text in samples.spectrum().legends[0].get_texts()]


def test_directions_are_summed_up_where_there_is_no_fixed_point(tmp_path):
    path = tmp_path / "tokens.parquet"
    tables.write("token_spectrum", drifting_table(direction_rate=0.95), path)
    found = analysis.agreement([path], "demo", seed=1)
    assert set(found["prediction"]) == {"direction"}
    half = found[found["quantity"] == "half"]
    assert half["difference"].tolist() == pytest.approx([0.1, 0.1])
    sentence = analysis.summary(found)
    assert "Group 4, iteration 20, 48 tokens without a fixed point whose directions have a limit" in sentence
    assert "radius of the map on directions 0.9000 ± 0.1000" in sentence
    assert "rate of the steps of directions 0.9500" in sentence


def test_tokens_without_a_fixed_point_are_not_counted_among_those_with_one(tmp_path):
    mixed = drifting_table(converged=token_table()["position"] == 0)
    tables.write("token_spectrum", mixed, tmp_path / "tokens.parquet")
    found = analysis.agreement([tmp_path / "tokens.parquet"], "demo", seed=1)
    assert found.groupby("prediction")["tokens"].max()[["direction", "leading"]].tolist() == [42, 6]
    assert "Group 4, iteration 20, 6 tokens: rate" in analysis.summary(found)


def test_a_group_without_any_limit_is_refused_in_words(tmp_path):
    path = tmp_path / "tokens.parquet"
    nulls = dict.fromkeys(("direction_modulus", "direction_half_modulus", "direction_prefix_modulus"), np.nan)
    tables.write("token_spectrum", drifting_table(**nulls), path)
    sentence = analysis.summary(analysis.agreement([path], "demo", seed=1))
    assert "Group 5–6, iteration 20: no token has a fixed point, and no direction has a limit" in sentence
