"""Gains over cost-matched exits and regrets beside oracles, from tables with known answers; their page and figure."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.figures import RUN
from tests.studies.arena.samples import DOCUMENTS, GROUPS, THRESHOLDS, compared, matched_tables, regret_tables
from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap
from twoscale.figures import style
from twoscale.studies.arena import compare as arena
from twoscale.studies.arena import figure as figure_module
from twoscale.studies.arena import page as arena_page
from twoscale.studies.arena.compare import cost_at, oracle_gain, oracle_saving

PAGE = {"run": "trial", "text": "books", "draws": 2, "tokens": 1200, "loops": 8, "groups": "4, 5-6"}
PAGE |= {"oracle_tokens": 600, "tolerance": "0.01"}


def rows_of(table, reference, group="all"):
    return table[(table["reference"] == reference) & (table["group"] == group)].sort_values("threshold")


def test_tables_fit_their_columns(tmp_path):
    convergence = arena.convergence(regret_tables()[0])
    for name, frame in (("arena", compared()), ("convergence", convergence)):
        tables.write(name, frame.assign(run="trial"), tmp_path / "table.parquet")
        assert len(tables.read(name, tmp_path / "table.parquet")) == len(frame) > 0


@pytest.mark.parametrize("reference", ["random", "fixed"])
def test_a_gain_is_the_nats_that_a_control_loses_more_at_the_same_evaluations(reference):
    rows = rows_of(compared(gain=0.2), reference)
    assert rows["gain"].tolist() == pytest.approx([0.2] * 3)
    assert rows["gain_low"].tolist() == pytest.approx([0.2] * 3)  # the text varies, the difference does not
    assert rows["evaluations"].tolist() == pytest.approx([8, 5, 2])
    assert rows["documents"].tolist() == [DOCUMENTS] * 3
    assert rows["effective_documents"].tolist() == [DOCUMENTS] * 3  # of equal length


def test_saved_are_the_evaluations_of_a_control_of_the_same_loss_where_it_reaches_it():
    rows = rows_of(compared(gain=0.2), "random")
    # cost-matched exits have the losses 3.2, 3.3, 3.6 at 8, 5, 2 evaluations
    expected = [np.nan, np.nan, 5 - 3 * (3.4 - 3.3) / 0.3 - 2]
    assert rows["saved"].tolist() == pytest.approx(expected, nan_ok=True)
    assert rows["saved_low"].isna().tolist() == [True, True, False]


def test_random_exits_gain_nothing_over_themselves():
    """The interval of a gain of 0 misses it in about 5 % of 120 gains, and after widening for all in none."""
    no_oracle = [frame[:0] for frame in regret_tables()]
    texts = (matched_tables(gain=0.0, noise=0.1, seed=seed, criterion=f"kl_{seed}") for seed in range(20))
    rows = pd.concat([arena.summarise(*text, *no_oracle) for text in texts])
    missed = (rows["gain_low"] > 0) | (rows["gain_high"] < 0)
    assert len(missed) == 120
    assert 0 < missed.sum() <= 14
    assert arena_page.summary(rows).count("same cost: no difference shown with kl 0, kl 1, ") == 2


def test_the_regret_beside_the_oracle_is_what_is_lost_at_the_same_evaluations():
    table = compared()
    for group in ("all", *GROUPS):
        (row,) = rows_of(table, "oracle", group).itertuples()
        assert row.gain == pytest.approx(-0.05, abs=2e-3)  # prices are discrete
        assert row.saved == pytest.approx(-(2 - 1 / 0.55) * 1.0, abs=0.1)
        assert (row.evaluations, row.ce) == pytest.approx((2, 0.55))


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
    assert oracle_gain(*criterion, *(part[None] for part in oracle), prices)[0] <= 1e-9
    assert oracle_saving(*criterion, *(part[None] for part in oracle), prices)[0] <= 1e-4  # 1e-9 nats at 1e-6 each


def test_the_regret_of_exits_on_the_frontier_is_zero():
    prices = 10.0 ** np.arange(-6, 1.25, 0.125)
    k = np.array([min(range(1, 9), key=lambda k: 1 / k + price * k) for price in prices], dtype=float)
    for spent in (1.0, 2.0, 5.0):
        arguments = np.array([spent]), np.array([1 / spent]), k[None], 1 / k[None], prices
        assert oracle_gain(*arguments)[0] == pytest.approx(0, abs=1e-9)
        assert oracle_saving(*arguments)[0] == pytest.approx(0, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(-9, 9)), min_size=1, max_size=6), st.integers(-10, 10))
def test_the_cost_of_a_loss_is_the_first_crossing_of_the_falling_curve(points, level):
    cost, ce = (np.array(values, dtype=float)[None] for values in zip(*points, strict=True))
    found = cost_at(cost, ce, np.array([float(level)]))[0]
    curve = sorted(points)
    fallen = np.minimum.accumulate([loss for _, loss in curve])
    if level > fallen[0] or level < fallen[-1]:
        assert np.isnan(found)
        return
    at_found = [loss for (where, _), loss in zip(curve, fallen, strict=True) if where < found]
    assert min(at_found, default=np.inf) > level or found == curve[0][0]
    assert cost.min() <= found <= cost.max()


def test_settling_is_over_the_tokens_that_it_speaks_of():
    convergence = arena.convergence(regret_tables()[0]).set_index("oracle")
    loss = convergence.loc["loss"]
    assert loss["unconverged"] == pytest.approx(0.5)
    assert loss["extra"] == pytest.approx(0.25 / 0.5)  # over those that leave converged
    assert loss["lost"] == pytest.approx(0.1 / 0.5)
    assert convergence["least"].to_dict() == pytest.approx({"loss": 2.0, "prediction": 1.0})


def test_one_document_has_gains_without_an_interval():
    quality, loops, cost_matched = matched_tables(documents=1)
    table = arena.summarise(quality, loops, cost_matched, *regret_tables(documents=1))
    assert table["gain"].notna().all()
    assert table["gain_low"].isna().all()
    assert arena_page.in_words(rows_of(table, "random"), 1) == "cannot be judged"


@pytest.mark.parametrize(
    ("gain", "noise", "words"),
    [(0.2, 0.0, "better at τ = 0.1, 1, 10"), (-0.2, 0.0, "worse at τ = 0.1, 1, 10"), (0.0, 0.1, "no difference shown")],
)
def test_the_page_says_whether_a_criterion_beats_its_controls(gain, noise, words):
    table = compared(gain=gain, noise=noise)
    assert arena_page.in_words(rows_of(table, "random"), 6) == words
    page = arena_page.page(table, arena.convergence(regret_tables()[0]), PAGE)
    assert "widening for all 6 gains below" in page  # three thresholds, random exits and fixed loops
    assert f"| kl | {words} |" in page
    assert "| kl | 1 | 2.00 | 0.05 |" in page


def test_the_interval_over_documents_of_different_lengths_is_that_of_their_effective_number():
    tokens = np.array([1.0, 2, 8, 2, 4])
    units = np.stack([tokens * [0.1, 0.5, 0.2, 0.4, 0.3], tokens], axis=1)
    found = arena.estimate(lambda sums: sums[:, 0] / sums[:, 1], units, tokens, seed=0)
    assert found.freedom == pytest.approx(289 / 89 - 1)
    assert (found.low, found.high) == bootstrap.interval(bootstrap.ratio_of_sums, units, seed=0, weights=tokens)


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
    beside_random, beside_fixed, together = arena_page.summary(table).removesuffix(".").split(". ")
    assert beside_random.removeprefix("Compared with random exits of the same cost: ").split("; ") == [
        "better with entropy diff (by up to 0.21 nats per token)",
        "better or worse, depending on the threshold, with margin (by up to 0.11 nats per token)",
        "worse with cosine",
        "no difference shown with kl",
        "cannot be judged with entropy",
    ]
    assert beside_fixed == "Compared with fixed loops of the same cost: better with kl (by up to 0.11 nats per token)"
    assert together == "These verdicts hold together: intervals are widened for all 9 gains"


def test_a_gain_that_is_one_of_many_needs_a_wider_interval():
    alone = gains("kl", (0.01, 1.0, 1.99))
    assert arena_page.in_words(alone, 1) == "better at τ = 0"
    assert arena_page.in_words(alone, 9) == "no difference shown"


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
    convergence = arena.convergence(regret_tables()[0])
    for table, verdict in ((few, "better"), (pd.concat([few, others]), "no difference shown")):
        full = table.assign(group="all", evaluations=2.0, ce=3.0, saved=0.1, saved_low=0.0, saved_high=0.2)
        assert f"| kl | {verdict}" in arena_page.page(full, convergence, PAGE)
        assert f"random exits of the same cost: {verdict} with" in arena_page.summary(table)
        filled = [line for line in figure_module.draw(full, **RUN).axes[0].get_lines() if len(line.get_xdata())]
        filled = [line for line in filled if line.get_markerfacecolor() == style.ORANGE]
        assert bool(filled) == (verdict == "better")


def test_the_regrets_of_oracles_widen_no_gain():
    table = pd.concat([gains("kl", (0.01, 1.0, 1.99)), gains("kl", (-9.0, -8.0, -7.0), reference="oracle")])
    assert "better with kl" in arena_page.summary(table)


def test_a_row_of_the_figure_is_named_in_the_colour_of_its_points_with_those_of_the_paper_first():
    shown = ("cosine", "confidence", "mine", "step_norm")
    parts = [matched_tables(gain=0.05, noise=0.1, criterion=name) for name in shown]
    cost_matched = [pd.concat(frames) for frames in zip(*parts, strict=True)]
    figure = figure_module.draw(arena.summarise(*cost_matched, *regret_tables()), **RUN)
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
    table = arena.summarise(quality, loops, cost_matched, pd.concat([regret, fixed]), frontier)
    figure = figure_module.draw(table, **RUN)
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


def test_a_point_of_the_figure_is_filled_where_the_page_shows_a_difference():
    for gain, filled in ((0.2, len(THRESHOLDS)), (0.0, 0)):
        table = compared(gain=gain, noise=0.05)
        sure, unsure = (
            sum(
                len(line.get_xdata())
                for line in figure_module.draw(table, **RUN).axes[0].get_lines()
                if line.get_markerfacecolor() == face
            )
            for face in (style.ORANGE, "white")
        )
        assert (sure, unsure) == (filled, len(THRESHOLDS) - filled)


def test_the_figure_refuses_a_table_without_criteria():
    with pytest.raises(InputError, match="expected at least one exit criterion"):
        figure_module.draw(compared()[:0], **RUN)
