"""The figure of the starts: what it shows of a table with known content."""

import itertools

import numpy as np
import pandas as pd
import pytest

from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.studies.starts import figure as starts

SHARES = (0.0, 0.5, 1.0, np.nan)
ITERATIONS = (0, 100, 400)


def value(share, iteration, seed):
    place = 1.5 if np.isnan(share) else share
    return 0.3 * place + iteration / 1000 + {"1": -0.05, "2": 0.05, "all": 0.0}[seed]


def starts_table(groups=("4", "5-6"), cases=(("noise", "branch"),), seeds=("1", "2", "all")):
    rows = []
    for share, (state_init, sandwich), seed, iteration in itertools.product(SHARES, cases, seeds, ITERATIONS):
        key = {"share": share, "state_init": state_init, "sandwich": sandwich, "seed": seed, "iteration": iteration}
        mean = value(share, iteration, seed)
        for group in groups:
            rows.append(key | {"group": group, "measure": "settled_cosine", "value": mean})
        if iteration:
            rows.append(key | {"group": "all", "measure": "held_out_loss", "value": 7 + mean})
    table = pd.DataFrame(rows, columns=[*rows[0], "low", "high"])
    return table.assign(low=table["value"] - 0.1, high=table["value"] + 0.1)


def draw(**changes):
    return starts.draw(starts_table(**changes), context=style.FigureContext("demo", "python_docs", 30))


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
    assert figure.axes[3].get_ylabel() == "branch, input plus noise\nsettled cosine"


def test_the_range_of_the_paper_is_visible():
    low, high = draw().axes[0].get_ylim()
    assert low <= style.REPORTED_COSINE[0] < style.REPORTED_COSINE[1] <= high


def test_a_model_without_groups_is_refused():
    with pytest.raises(InputError, match="expected at least one for the starts"):
        draw(groups=())


def test_the_same_table_gives_the_same_bytes(tmp_path):
    for name in ("one.pdf", "two.pdf"):
        style.save(draw(), tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()
