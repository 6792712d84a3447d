"""Bootstrap intervals against closed forms, and what they must not depend on."""

import math

import numpy as np
import pytest

from twoscale import bootstrap
from twoscale.bootstrap import interval


def normal(n, seed=0):
    return np.random.default_rng(seed).normal(size=n)


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation():
    values = normal(400)
    low, high = interval(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    covers = [low < 0 < high for low, high in (interval(normal(60, seed), draws=400, seed=seed) for seed in range(300))]
    assert np.mean(covers) == pytest.approx(0.95, abs=0.04)


def test_values_of_one_group_are_drawn_together():
    """Copies of a value bring no information: the interval is that of the groups."""
    values = normal(50)
    copied, labels = np.repeat(values, 20), np.repeat(np.arange(50), 20)
    assert interval(copied, groups=labels) == pytest.approx(interval(values), abs=0.1 * np.diff(interval(values))[0])
    apart = interval(copied)
    assert np.diff(apart)[0] < 0.3 * np.diff(interval(values))[0]


def test_weights_count_as_copies_do():
    values, weights = normal(30), np.tile([1, 3, 2], 10)
    copied, labels = np.repeat(values, weights), np.repeat(np.arange(30), weights)
    weighted = interval(values, weights)
    assert weighted == pytest.approx(interval(copied, groups=labels), abs=0.15 * np.diff(weighted)[0])


def test_the_same_seed_gives_the_same_interval_and_the_order_of_rows_none_of_it():
    values, labels = normal(40), np.tile(np.arange(8), 5)
    shuffled = np.random.default_rng(1).permutation(40)
    assert interval(values, groups=labels, seed=5) == interval(values, groups=labels, seed=5)
    assert interval(values, groups=labels, seed=5) == pytest.approx(
        interval(values[shuffled], groups=labels[shuffled], seed=5), rel=1e-12
    )
    assert interval(values, groups=labels, seed=5) != interval(values, groups=labels, seed=6)


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([1, 2, 3], [1, 1, 1], 2),
        ([1, 2, 3, 4], [1, 1, 1, 1], 2.5),
        ([1, 2, 9], [1, 1, 3], 9),
        ([1, 2, 9], [3, 1, 0], 1),
    ],
)
def test_the_weighted_median_is_that_of_the_copied_values(values, weights, expected):
    found = bootstrap.median(np.array(values, float), np.array([weights], float))
    assert found.tolist() == [expected] == [np.median(np.repeat(values, weights))]


def test_the_interval_of_a_median_does_not_see_an_outlier():
    values = normal(99)
    moved = np.where(values == values.max(), 1e6, values)
    assert interval(values, statistic=bootstrap.median) == interval(moved, statistic=bootstrap.median)


@pytest.mark.parametrize(("values", "groups"), [([], None), ([3.0], None), ([3.0, 4.0], [7, 7])])
def test_fewer_than_two_groups_have_no_interval(values, groups):
    assert np.isnan(interval(values, groups=groups)).all()
