"""The figure of the seeds: what it shows of a table with known content."""

import pytest

from tests.studies.seeds.samples import SPREADS, draw, seeds_table
from twoscale.base import InputError


def test_every_claim_has_a_cell_for_each_seed_and_for_the_mean():
    axes = draw().axes[0]
    signs = [text.get_text() for text in axes.texts]
    assert signs == ["✓", "✗", "?", "✓", "✓", "✓", "✓", "✓", "–"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1337", "1338", "over\nseeds"]
    assert [label.get_text().split()[-1] for label in axes.get_yticklabels()] == ["1", "6", "7"]


def test_every_quantity_is_a_point_with_its_spreads_and_hollow_if_it_has_no_bounds():
    lines = [line for line in draw().axes[1].get_lines() if line.get_marker() not in ("", "None")]
    points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in lines}
    assert points == set(SPREADS.values())
    assert [line.get_markerfacecolor() == "white" for line in lines] == [True, False] * 2


def test_both_axes_of_the_spreads_have_the_same_range():
    axes = draw().axes[1]
    assert axes.get_xlim() == axes.get_ylim()


def test_a_table_without_rows_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="table seeds: found no row"):
        draw(seeds_table().iloc[:0])
