"""The figure of the adapter_init: what it shows of a table with known content."""

import numpy as np
import pytest

from tests.studies.adapter_init.samples import ITERATIONS, SHARES, draw, value
from twoscale.base import InputError
from twoscale.figures import style


def lines(axes, marker="o"):
    return [line for line in axes.get_lines() if line.get_marker() == marker]


def test_every_checkpoint_has_a_line_over_the_shares_and_a_mark_for_random_weights():
    for axes in draw().axes[:2]:
        by_length = {length: [line for line in lines(axes) if len(line.get_xdata()) == length] for length in (1, 3)}
        for iteration, line, mark in zip(ITERATIONS, by_length[3], by_length[1], strict=True):
            assert list(line.get_xdata()) == [0, 0.5, 1]
            assert list(line.get_ydata()) == pytest.approx([value(share, iteration, "all") for share in SHARES[:3]])
            assert list(mark.get_ydata()) == pytest.approx([value(np.nan, iteration, "all")])


def test_the_loss_is_beside_the_groups_and_has_no_untrained_checkpoint():
    loss = draw().axes[2]
    drawn = [line for line in lines(loss) if len(line.get_xdata()) == 3]
    assert [line.get_ydata()[0] for line in drawn] == pytest.approx([7.1, 7.4])


def test_intervals_and_single_seeds_are_those_of_the_last_checkpoint():
    axes = draw().axes[0]
    (bars,) = [collection for collection in axes.collections if hasattr(collection, "get_segments")]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [
        pytest.approx([value(share, 400, "all") - 0.1, value(share, 400, "all") + 0.1]) for share in SHARES
    ]
    (seeds,) = lines(axes, "_")
    assert sorted(seeds.get_ydata()) == pytest.approx(sorted(value(s, 400, seed) for s in SHARES for seed in "12"))


def test_one_seed_has_no_marks_beside_its_points():
    assert lines(draw(seeds=("1", "all")).axes[0], "_") == []


def test_every_norm_and_first_state_has_a_row_that_names_it():
    figure = draw(cases=(("noise", "branch"), ("input_plus_noise", "branch")))
    assert len(figure.axes) == 6
    assert figure.axes[3].get_ylabel() == "branch, input plus noise\nlate cosine"


def test_the_range_of_the_paper_is_visible():
    low, high = draw().axes[0].get_ylim()
    assert low <= style.REPORTED_COSINE[0] < style.REPORTED_COSINE[1] <= high


def test_a_model_without_groups_is_refused():
    with pytest.raises(InputError, match="expected at least one for the starts"):
        draw(groups=())
