"""Bootstrap intervals resample whole units, are functions of the seed, and cover what they should."""

import numpy as np
import pytest

from twoscale.analysis import bootstrap

RNG = np.random.default_rng(3)


def mean(sample):
    return sample.mean(axis=1)


def test_the_interval_is_a_function_of_the_seed():
    units = RNG.normal(size=20)
    assert bootstrap.interval(mean, units, seed=1) == bootstrap.interval(mean, units, seed=1)
    assert bootstrap.interval(mean, units, seed=1) != bootstrap.interval(mean, units, seed=2)


def test_equal_units_leave_no_width():
    assert bootstrap.interval(mean, np.full(5, 2.5), seed=1) == (2.5, 2.5)


def test_the_width_is_that_of_the_standard_error():
    units = RNG.normal(size=400)
    low, high = bootstrap.interval(mean, units, seed=1)
    assert high - low == pytest.approx(2 * 1.96 * units.std() / np.sqrt(400), rel=0.1)


def test_intervals_cover_the_true_mean_about_as_often_as_they_say():
    covered = 0
    for trial in range(200):
        units = RNG.normal(size=40)
        low, high = bootstrap.interval(mean, units, seed=trial, repeats=400)
        covered += low <= 0 <= high
    assert 180 <= covered <= 199


def test_what_belongs_to_one_unit_is_drawn_together():
    """The difference of two columns that differ by a constant has no spread, however the columns spread."""
    first = RNG.normal(size=30)
    units = np.stack([first, first + 1], axis=1)
    low, high = bootstrap.interval(lambda sample: np.diff(sample.mean(axis=1)).ravel(), units, seed=1)
    assert (low, high) == pytest.approx((1, 1))


def test_chunks_give_the_replicates_of_one_chunk(monkeypatch):
    units = RNG.normal(size=(7, 3))
    whole = bootstrap.replicates(mean, units, seed=1, repeats=50)
    monkeypatch.setattr(bootstrap, "_MAX_VALUES", 50)
    np.testing.assert_array_equal(bootstrap.replicates(mean, units, seed=1, repeats=50), whole)
    assert whole.shape == (50, 3)


def test_an_interval_may_end_at_infinity():
    units = np.array([1.0] * 5 + [np.inf] * 5)
    low, high = bootstrap.interval(lambda sample: np.sort(sample, axis=1)[:, 5], units, seed=1)
    assert (low, high) == (1.0, np.inf)


def test_a_replicate_that_is_undefined_leaves_no_interval():
    assert np.isnan(bootstrap.percentiles(np.array([1.0, np.nan, 2.0]))).all()
