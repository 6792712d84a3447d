"""Bootstrap intervals resample whole units, are functions of the seed, and cover what they
should.
"""

import numpy as np
import pandas as pd
import pytest

from twoscale import rng
from twoscale.claims import bootstrap

RNG = np.random.default_rng(3)


def ratio(sample):
    return sample[..., 0].sum(axis=1) / sample[..., 1].sum(axis=1)


def mean(sample):
    return sample.mean(axis=1)


@pytest.mark.parametrize(
    ("weights", "number"),
    [([3.0] * 7, 7), ([1, 2, 8, 2, 4, 3, 1, 7, 2, 2], 1024 / 156), ([1, 1000], 2)],
)
def test_the_effective_number_of_units_is_smaller_where_few_weigh_most(weights, number):
    assert bootstrap.effective_number(np.array(weights, dtype=float)) == pytest.approx(number)


def test_a_mean_over_tokens_has_the_interval_of_the_effective_number_of_its_documents():
    tokens = np.arange(1.0, 6)
    units = np.stack([RNG.normal(size=5), tokens], axis=1)
    (found,) = bootstrap.estimates(bootstrap.per_token, units, tokens, seed=1)
    value = units[:, 0].sum() / 15
    samples = bootstrap.replicates(ratio, units, seed=1)
    assert found == pytest.approx((value, *bootstrap.interval_about(value, samples, 225 / 55)))


def test_means_over_tokens_are_those_of_each_point_and_null_where_a_value_is():
    rows = pd.DataFrame(
        {
            "group": ["b"] * 3 + ["a"] * 3,
            "k": 1,
            "document": [0, 1, 0, 4, 4, 5],
            "tokens": [1, 2, 3, 4, 5, 6],
            "ce": [1.0, 2, 3, 4, 5, 6],
            "rank": [1.0, 2, 3, 4, 5, np.nan],
        }
    )
    found = bootstrap.means(rows, ["group", "k"], ["ce", "rank"], seed=2)
    assert found.index.tolist() == [("b", 1), ("a", 1)]
    for group, units in (("b", [[10, 4], [4, 2]]), ("a", [[41, 9], [36, 6]])):
        documents = np.array(units, dtype=float)
        (expected,) = bootstrap.estimates(bootstrap.per_token, documents, documents[:, 1], seed=2)
        of_group = found.loc[(group, 1)]
        assert of_group[["ce", "ce_low", "ce_high"]].tolist() == pytest.approx(expected)
        assert of_group[["rank", "rank_low", "rank_high"]].isna().all() == (group == "a")


def test_scatter_adds_to_an_interval_as_variances_do():
    samples = RNG.normal(size=4000)
    alone = np.ptp(bootstrap.interval_about(0.0, samples, units=1000))
    assert np.ptp(bootstrap.interval_about(0.0, samples, units=1000, scatter=1.0)) == pytest.approx(
        2**0.5 * alone, rel=0.05
    )


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 4, 2.77645),
        (0.975, 8, 2.30600),
        (0.9995, 4, 8.61030),
        (0.975, 100_000, 1.95999),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(probability, freedom, expected):
    assert bootstrap.t_quantile(probability, freedom) == pytest.approx(expected, rel=2e-4)
    assert bootstrap.t_quantile(1 - probability, freedom) == pytest.approx(-expected, rel=2e-4)


def test_totals_are_the_sums_of_the_samples_that_replicates_draws():
    units = RNG.normal(size=(6, 3, 2))
    sums = bootstrap.replicates(lambda sample: sample.sum(axis=1), units, seed=4)
    np.testing.assert_allclose(bootstrap.totals(units, seed=4), sums, rtol=1e-12, atol=1e-12)


def test_chunks_give_the_replicates_of_one_chunk(monkeypatch):
    units = RNG.normal(size=(7, 3))
    whole = bootstrap.replicates(mean, units, seed=1)
    monkeypatch.setattr(bootstrap, "_MAX_VALUES", 50)
    np.testing.assert_array_equal(bootstrap.replicates(mean, units, seed=1), whole)
    assert whole.shape == (1000, 3)


def test_a_replicate_that_is_undefined_leaves_no_interval():
    assert np.isnan(bootstrap.interval_about(0.0, np.array([1.0, np.nan, 2.0]), units=5)).all()


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(None, 2.776445), (2, 4.302653)]
)  # by default four
def test_percentiles_are_widened_by_the_t_quantile_and_the_missing_degree_of_freedom(
    freedom, quantile
):
    samples = np.linspace(-1, 1, 1001)  # 95 % between -0.95 and 0.95
    width = np.sqrt(5 / 4) * quantile / 1.959964 * 0.95
    found = bootstrap.interval_about(3.0, samples, units=5, freedom=freedom)
    assert found == pytest.approx((3 - width, 3 + width), rel=1e-5)


def test_the_samples_are_those_of_the_stream_of_the_seed():
    """Whoever changes the stream changes all intervals."""
    drawn = bootstrap.replicates(lambda sample: sample, np.arange(6), seed=4)
    np.testing.assert_array_equal(drawn, rng.stream(4, "bootstrap").integers(6, size=(1000, 6)))


def test_an_interval_has_two_sides_of_their_own():
    samples = np.concatenate([np.linspace(-1, 0, 501), np.linspace(0, 3, 501)])
    low, high = bootstrap.interval_about(2.0, samples, units=1_000_000)
    centre = samples.mean()
    assert (2 - low, high - 2) == pytest.approx((centre + 0.95, 2.85 - centre), rel=1e-3)


def test_the_interval_of_a_mean_is_that_of_student():
    assert bootstrap.t_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        (2 - 2.4841, 2 + 2.4841), abs=1e-3
    )
    assert all(np.isnan(bootstrap.t_interval(np.array([1.0]))))


def test_independent_sources_of_error_are_joined_by_their_squares():
    """3-4-5 below the value and 5-12-13 above it."""
    assert bootstrap.joined(20.0, (17.0, 25.0), (16.0, 32.0)) == pytest.approx((15.0, 33.0))


def test_the_interval_of_a_standard_deviation_is_that_of_chi_square():
    """Tables: 97.5 and 2.5 % of chi-square with 9 degrees of freedom are 19.023 and 2.700."""
    assert bootstrap.deviation_factors(10) == pytest.approx(
        ((9 / 19.023) ** 0.5, (9 / 2.700) ** 0.5), rel=1e-3
    )


def test_the_tail_of_students_t_is_that_of_its_quantile():
    for freedom in (1, 5.6, 40):
        assert bootstrap.t_tail(bootstrap.t_quantile(0.975, freedom), freedom) == pytest.approx(
            0.025
        )
    assert bootstrap.t_tail(0.0, 3) == pytest.approx(0.5)
    assert bootstrap.t_tail(np.inf, 3) == 0


def test_holm_rejects_from_the_smallest_on_until_one_is_too_large():
    """Levels for three tests: 0.05 / 3, 0.05 / 2 and 0.05."""
    assert bootstrap.holm(np.array([0.04, 0.01, 0.02])).tolist() == [True, True, True]
    assert bootstrap.holm(np.array([0.04, 0.01, 0.03])).tolist() == [False, True, False]
    assert bootstrap.holm(np.array([0.02, 0.02, 0.02])).tolist() == [False, False, False]
