"""Gains over cost-matched exits and regrets, from tables with known answers; their page and figure."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.figures import RUN
from tests.studies.arena.samples import DOCUMENTS, THRESHOLDS, compared, matched_tables, regret_tables
from twoscale import tables
from twoscale.base import InputError
from twoscale.figures import style
from twoscale.studies.arena import draw

PAGE = {"run": "trial", "text": "books", "draws": 2, "tokens": 1200, "loops": 8, "groups": "4, 5-6"}
PAGE |= {"oracle_tokens": 600}


def rows_of(table, reference):
    return table[table["reference"] == reference].sort_values("threshold")


@pytest.mark.parametrize("reference", ["random", "fixed"])
def test_a_gain_is_the_nats_that_a_control_loses_more_at_the_same_evaluations(reference):
    rows = rows_of(compared(gain=0.2), reference)
    assert rows["gain"].tolist() == pytest.approx([0.2] * 3)
    assert rows["gain_low"].tolist() == pytest.approx([0.2] * 3)  # the text varies, the difference does not
    assert rows["evaluations"].tolist() == pytest.approx([8, 5, 2])
    assert rows["documents"].tolist() == [DOCUMENTS] * 3
    assert rows["effective_documents"].tolist() == [DOCUMENTS] * 3  # of equal length


def test_random_exits_gain_nothing_over_themselves():
    """The interval of a gain of 0 misses it in about 5 % of 120 gains, and after widening for all in none."""
    no_oracle = [frame[:0] for frame in regret_tables()]
    texts = (matched_tables(gain=0.0, noise=0.1, seed=seed, criterion=f"kl_{seed}") for seed in range(20))
    rows = pd.concat([draw.summarise(*text, *no_oracle) for text in texts])
    missed = (rows["gain_low"] > 0) | (rows["gain_high"] < 0)
    assert len(missed) == 120
    assert 0 < missed.sum() <= 14
    assert draw.summary(rows).count("same cost: no difference shown with kl 0, kl 1, ") == 2


def test_the_regret_beside_the_oracle_is_what_is_lost_at_the_same_evaluations():
    (row,) = rows_of(compared(), "oracle").itertuples()
    assert row.gain == pytest.approx(-0.05, abs=2e-3)  # prices are discrete
    assert (row.evaluations, row.ce) == pytest.approx((2, 0.55))
    alone = draw.summarise(*matched_tables(documents=1), *regret_tables(documents=1))
    assert alone["gain"].notna().all()
    assert alone["gain_low"].isna().all()
    assert set(draw.judged(alone)["verdict"]) == {"cannot be judged"}


losses = st.lists(st.lists(st.floats(0, 4), min_size=4, max_size=4), min_size=3, max_size=3)


@given(losses, st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_no_choice_of_exits_has_a_negative_regret(losses, chosen):
    """Three tokens with four exits each, which cost 1 to 4 evaluations."""
    losses, cost, tokens = np.array(losses), np.arange(1.0, 5), np.arange(3)
    prices = 10.0 ** np.arange(-6, 1.25, 0.125)
    best = (losses[None] + prices[:, None, None] * cost).argmin(axis=2)  # (L, tokens)
    oracle = cost[best].mean(axis=1), losses[tokens, best].mean(axis=1)
    spent = cost[chosen].mean(), losses[tokens, chosen].mean()
    criterion = [np.array([value]) for value in spent]
    assert draw.oracle_gain(*criterion, *(part[None] for part in oracle), prices)[0] <= 1e-9


def gains(criterion, *found, reference="random", documents=9):
    """Rows of the table "arena" of one criterion: the gain at each threshold, with its interval."""
    frame = pd.DataFrame(found, columns=["gain_low", "gain", "gain_high"])
    return frame.assign(
        criterion=criterion,
        threshold=range(len(frame)),
        reference=reference,
        documents=documents,
        effective_documents=documents,
    )


def test_the_summary_names_the_criteria_by_their_verdicts_with_the_largest_gain():
    table = pd.concat(
        [
            gains("entropy_diff", (0.1, 0.11, 0.12), (0.2, 0.21, 0.22), (-1.0, 0.3, 2.0)),
            gains("margin", (0.1, 0.11, 0.12), (-0.2, -0.19, -0.18)),
            gains("cosine", (-0.3, -0.2, -0.1)),
            gains("kl", (-0.1, 0.01, 0.1)),
            gains("entropy", (np.nan, 0.5, np.nan), documents=1),
            gains("kl", (0.1, 0.11, 0.12), reference="fixed"),
            gains("kl", (-9.0, -9.0, -9.0), reference="oracle"),
        ]
    )
    beside_random, beside_fixed, together = draw.summary(table).removesuffix(".").split(". ")
    assert beside_random.removeprefix("Compared with random exits of the same cost: ").split("; ") == [
        "better with entropy diff (by up to 0.21 nats per token)",
        "better or worse, depending on the threshold, with margin (by up to 0.11 nats per token)",
        "worse with cosine",
        "no difference shown with kl",
        "cannot be judged with entropy",
    ]
    assert beside_fixed == "Compared with fixed loops of the same cost: better with kl (by up to 0.11 nats per token)"
    assert together == "These verdicts hold together: intervals are widened for all 9 gains"


@pytest.mark.parametrize(
    ("gain", "noise", "verdict"), [(0.2, 0.0, "better"), (-0.2, 0.0, "worse"), (0.0, 0.1, "no difference shown")]
)
def test_page_and_figure_say_whether_a_criterion_beats_its_controls(gain, noise, verdict, tmp_path):
    table = compared(gain=gain, noise=noise).assign(run="trial")
    tables.write("arena", table[list(tables.columns("arena"))], tmp_path / "table.parquet")
    assert set(draw.judged(table)["verdict"]) == {verdict}
    page = draw.page(table, PAGE)
    assert "widening for all 6 gains below" in page  # three thresholds, random exits and fixed loops
    assert page.count(f"| {verdict} |") == 6
    assert "| kl | 1 | 2.00 | 0.05 |" in page
    lines = draw.draw_arena(table, **RUN).axes[0].get_lines()
    filled = sum(len(line.get_xdata()) for line in lines if line.get_markerfacecolor() == style.ORANGE)
    assert filled == (len(THRESHOLDS) if verdict != "no difference shown" else 0)


@pytest.mark.parametrize(
    "others",
    [
        gains("kl", (-1.0, 0.0, 1.0)).assign(threshold=9),
        pd.concat([gains("cosine", (-1.0, 0.0, 1.0), reference=reference) for reference in ("random", "fixed")]),
    ],
    ids=["threshold", "criterion"],
)
def test_a_verdict_counts_every_threshold_criterion_and_reference_of_the_page(others):
    """A page of verdicts is one statement, so further gains of any kind widen the intervals of all."""
    few = pd.concat([gains("kl", (0.2, 1.0, 1.8)), gains("kl", (-1.0, 0.0, 1.0), reference="fixed")])
    few = pd.concat([few, gains("kl", (-9.0, -8.0, -7.0), reference="oracle")])  # regrets widen no gain
    for table, verdict in ((few, "better"), (pd.concat([few, others]), "no difference shown")):
        full = table.assign(evaluations=2.0, ce=3.0)
        assert f"| kl | 0 | 2.00 | 1 | 0.2 … 1.8 | random exits | {verdict} |" in draw.page(full, PAGE)
        assert f"random exits of the same cost: {verdict} with" in draw.summary(table)
        filled = [line for line in draw.draw_arena(full, **RUN).axes[0].get_lines() if len(line.get_xdata())]
        filled = [line for line in filled if line.get_markerfacecolor() == style.ORANGE]
        assert bool(filled) == (verdict == "better")


def test_a_row_of_the_figure_is_named_in_the_colour_of_its_points_with_those_of_the_paper_first():
    shown = ("cosine", "confidence", "mine", "step_norm")
    parts = [matched_tables(gain=0.05, noise=0.1, criterion=name) for name in shown]
    cost_matched = [pd.concat(frames) for frames in zip(*parts, strict=True)]
    figure = draw.draw_arena(draw.summarise(*cost_matched, *regret_tables()), **RUN)
    labels = figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["step norm", "mine", "cosine", "confidence"]
    assert [label.get_color() for label in labels] == [style.BLUE, style.PURPLE, style.OTHERS, style.OTHERS]
    for axes in figure.axes:
        points = {line.get_color() for line in axes.get_lines() if len(line.get_xdata()) == len(THRESHOLDS)}
        assert points == {style.BLUE, style.PURPLE, style.OTHERS}
        assert "linear within" in axes.get_xlabel()


def test_the_oracle_is_the_last_row_of_the_figure_with_its_gain_over_fixed_loops():
    quality, loops, cost_matched = matched_tables(criterion="mine")
    regret, frontier = regret_tables()
    fixed = regret.assign(criterion="fixed")
    table = draw.summarise(quality, loops, cost_matched, pd.concat([regret, fixed]), frontier)
    figure = draw.draw_arena(table, **RUN)
    assert [axes.get_title(loc="left").split("  ")[1] for axes in figure.axes] == [
        "gain over random exits",
        "gain over fixed loops",
    ]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["mine", "oracle: knows each loss"]
    (gain,) = [
        line.get_xdata()
        for line in figure.axes[1].get_lines()
        if line.get_color() == style.BLACK
        if len(line.get_xdata())
    ]
    assert gain.tolist() == pytest.approx([0.05], abs=2e-3)
    bottom, top = figure.axes[1].get_ylim()
    assert bottom > top  # the last row is the lowest
    with pytest.raises(InputError, match="expected at least one exit criterion"):
        draw.draw_arena(compared()[:0], **RUN)
