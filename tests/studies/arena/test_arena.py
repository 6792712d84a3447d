"""Gains over cost-matched exits and regrets, from tables with known answers; their page and
figure.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tests.figures import RUN
from tests.studies.arena.samples import (
    DOCUMENTS,
    THRESHOLDS,
    compared,
    matched_tables,
    regret_tables,
)
from twoscale.claims.estimates import Estimate
from twoscale.exits.table import of_run
from twoscale.figures import style
from twoscale.replay import arena as arena_page
from twoscale.replay import gains as measured_gains
from twoscale.replay.oracle import split_half
from twoscale.replay.recording import Recording

PAGE = {"run": "trial", "text": "books", "draws": 2, "tokens": 1200, "loops": 8, "groups": "4, 5-6"}
PAGE |= {"oracle_tokens": 600, "tolerance": 0.01}
HALVES = Estimate(0.9, 0.8, 0.95), Estimate(0.0, -0.1, 0.1)


def rows_of(table, reference):
    return table[table["reference"] == reference].sort_values("threshold")


@pytest.mark.parametrize("reference", ["random", "fixed"])
def test_a_gain_is_the_nats_that_a_control_loses_more_at_the_same_evaluations(reference):
    rows = rows_of(compared(gain=0.2), reference)
    assert rows["gain"].tolist() == pytest.approx([0.2] * 3)
    assert rows["gain_low"].tolist() == pytest.approx(
        [0.2] * 3
    )  # the text varies, the difference does not
    assert rows["evaluations"].tolist() == pytest.approx([8, 5, 2])
    assert rows["documents"].tolist() == [DOCUMENTS] * 3
    assert rows["effective_documents"].tolist() == [DOCUMENTS] * 3  # of equal length


def planted(gain: float, seed: int, documents: int = 300, length: int = 64) -> pd.DataFrame:
    """The table "arena" of a criterion whose gain over random exits and fixed loops is known.

    Half of the tokens lose 0.2 nats if they leave after one evaluation and not after two. The
    criterion knows them with a probability of 0.5 + gain / 0.2, as many as it errs about the
    others.
    """
    generator = np.random.default_rng(seed)
    shape = (documents, length)
    needs = generator.random(shape) < 0.5
    benefit = (
        0.2 * needs * generator.lognormal(-0.125, 0.5, (documents, 1))
    )  # documents differ, with mean 1
    first, second = generator.normal(3, 0.7, (2, *shape))
    nats = np.stack([first, second]) + np.stack([benefit, np.zeros(shape)])
    loops = np.where(generator.random(shape) < 0.5 + gain / 0.1, needs, ~needs)
    own, share = np.where(loops, nats[1], nats[0]), loops.mean()
    point = {"criterion": "kl", "threshold": 0.1, "tokens": length}
    keys = pd.DataFrame({"sequence": range(documents), "document": range(documents)}).assign(
        **point
    )
    matched = keys.assign(
        draw=0, evaluations=1 + share, ce=(share * nats[1] + (1 - share) * nats[0]).mean(axis=1)
    )
    spent = 1 + loops.mean(axis=1)
    exits = of_run(
        keys.assign(ce=own.mean(axis=1)),
        keys.assign(group="4", evaluations=spent, loop_steps=spent),
        pd.concat([matched.assign(reference=reference) for reference in ("random", "fixed")]),
    )
    return measured_gains.summarise(exits, *(frame[:0] for frame in regret_tables()))


def share_found(gain: float, draws: int) -> float:
    verdicts = [set(measured_gains.judged(planted(gain, seed))["verdict"]) for seed in range(draws)]
    return np.mean(["better" in words or "worse" in words for words in verdicts])


@pytest.mark.parametrize("draws", [25, pytest.param(1000, marks=pytest.mark.long)])
def test_a_planted_gain_of_0_02_nats_is_found_in_300_documents_and_a_planted_zero_is_not(draws):
    assert share_found(0.02, draws) >= 0.9
    assert (
        share_found(0.0, draws) <= 0.05 + 2 * (0.05 * 0.95 / draws) ** 0.5
    )  # two standard errors of a rate of 5 %


def test_the_least_gain_is_the_one_that_is_found_in_80_percent():
    """A gain as large as the smallest one that the documents show, by their own standard error."""
    least = np.mean(
        [
            measured_gains.judged(planted(0.01, seed, documents=60))["least"].iloc[0]
            for seed in range(10)
        ]
    )
    found = [
        measured_gains.judged(planted(least, seed, documents=60))["verdict"].iloc[0] == "better"
        for seed in range(100)
    ]
    assert 0.7 < np.mean(found) < 0.92
    by_documents = dict(
        measured_gains.least_by_documents(measured_gains.judged(planted(0.01, 0, documents=100)))
    )
    assert by_documents[100] == pytest.approx(
        measured_gains.judged(planted(0.01, 0, documents=100))["least"].median()
    )
    assert by_documents[30] / by_documents[3000] > 10


def test_the_regret_beside_the_oracle_is_what_is_lost_at_the_same_evaluations():
    (row,) = rows_of(compared(), "oracle").itertuples()
    assert row.gain == pytest.approx(-0.05, abs=2e-3)  # prices are discrete
    assert (row.evaluations, row.ce) == pytest.approx((2, 0.55))
    exits = of_run(*matched_tables(documents=1))
    alone = measured_gains.summarise(exits, *regret_tables(documents=1))
    assert alone["gain"].notna().all()
    assert alone["gain_low"].isna().all()
    assert set(measured_gains.judged(alone)["verdict"]) == {"cannot be judged"}


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
    assert (
        measured_gains.oracle_gain(*criterion, *(part[None] for part in oracle), prices)[0] <= 1e-9
    )


def gains(criterion, *found, reference="random", documents=9, evaluations=None):
    """Rows of the table "arena" of one criterion: the gain at each threshold, with its interval."""
    frame = pd.DataFrame(found, columns=["gain_low", "gain", "gain_high"])
    return frame.assign(
        criterion=criterion,
        threshold=range(len(frame)),
        reference=reference,
        documents=documents,
        effective_documents=documents,
        evaluations=evaluations or [float(2 * place + 1) for place in range(len(frame))],
        ce=3.0,
    )


FULL_DEPTH = gains("fixed", (-1.0, -1.0, -1.0), reference="oracle").assign(threshold=8)


def test_the_primary_family_is_the_published_criteria_nearest_to_a_quarter_and_half_of_full_depth():
    many = [(-1.0, 0.0, 1.0)] * 4
    table = pd.concat(
        [gains("kl", *many, evaluations=[1.0, 2.2, 3.5, 7.0]), gains("entropy", *many), FULL_DEPTH]
    )
    primary = measured_gains.judged(table).query("primary")
    assert list(zip(primary["criterion"], primary["evaluations"], strict=True)) == [
        ("kl", 2.2),
        ("kl", 3.5),
    ]
    own = pd.concat([gains("mine", *many, evaluations=[1.0, 2.2, 3.5, 7.0]), FULL_DEPTH])
    assert measured_gains.judged(own).query("primary")["evaluations"].tolist() == [2.2, 3.5]


@pytest.mark.parametrize(
    ("room", "documents", "verdict"),
    [
        (0.1, 9, "cannot be judged"),
        (0.1, 900, "no relevant difference"),
        (1e-4, 900, "cannot be judged"),
    ],
)
def test_a_gain_that_is_not_shown_is_judged_only_if_the_documents_would_show_a_relevant_one(
    room, documents, verdict
):
    """The interval shrinks with the documents; the oracle may have less than 0.02 nats to gain."""
    half = 0.06 / documents**0.5
    table = gains("kl", (-half, 0.0, half), documents=documents)
    oracle = gains("kl", (-room, -room, -room), reference="oracle", documents=documents)
    assert measured_gains.judged(pd.concat([table, oracle]))["verdict"].tolist() == [verdict]


def test_the_summary_has_each_criterion_at_its_verdict():
    table = pd.concat(
        [
            gains("entropy_diff", (0.1, 0.11, 0.12), (0.2, 0.21, 0.22)),
            gains("minp_kl", (0.1, 0.11, 0.12), (-0.2, -0.19, -0.18)),
            gains("cosine", (-0.3, -0.2, -0.1)),
            gains("step_norm", (-1.0, 0.3, 2.0)),
            gains("kl", (0.1, 0.11, 0.12), reference="fixed"),
            gains("entropy", (0.4, 0.41, 0.42)),
            FULL_DEPTH,
        ]
    )
    found = [
        part.partition(": ")[2].split("; ")
        for part in measured_gains.summary(table).removesuffix(".").split(". ")
    ]
    best, both, worse, unknown = found[0]
    assert best == "better: entropy diff (by up to 0.21 nats per token)"
    assert ("minp kl (by up to 0.11" in both, worse, "step norm" in unknown) == (
        True,
        "worse: cosine",
        True,
    )
    assert ["kl (by" in found[1][0], "entropy (by up to 0.41" in found[2][0]] == [True, True]
    assert found[3] == ["no difference is shown in 0 gains"]


@pytest.mark.parametrize(
    ("gain", "noise", "verdict"),
    [(0.2, 0.0, "better"), (-0.2, 0.0, "worse"), (0.0, 0.1, "cannot be judged")],
)
def test_page_and_figure_say_whether_a_criterion_beats_its_controls(gain, noise, verdict):
    table = compared(gain=gain, noise=noise).assign(run="trial")
    assert set(measured_gains.judged(table)["verdict"]) == {verdict}
    shown = verdict + " (least gain above 0.02)" * (verdict == "cannot be judged")
    assert arena_page.page(table, HALVES, PAGE).count(f"| {shown} |") == 6
    lines = [
        line
        for line in arena_page.draw_arena(table, **RUN).axes[0].get_lines()
        if line.get_marker() == "o"
    ]
    filled = sum(
        len(line.get_xdata()) for line in lines if line.get_markerfacecolor() == style.ORANGE
    )
    assert filled == (len(THRESHOLDS) if verdict != "cannot be judged" else 0)


def test_the_ranking_has_losses_at_equal_cost_between_thresholds():
    """Thresholds at 2, 5 and 8 evaluations lose 3.41, 3.11 and 3.01 nats, cosine 0.2 more; full
    depth is 8.
    """
    worse = compared()
    worse = worse.assign(criterion="cosine", ce=worse["ce"] + 0.2)
    table = pd.concat([worse, compared(), FULL_DEPTH])
    assert measured_gains.ranking(table) == (
        "At 2 evaluations, the losses in nats are: kl 3.41, cosine 3.61."
        " At 4 evaluations, the losses in nats are: kl 3.21, cosine 3.41."
    )


def test_the_figure_has_the_gain_of_the_oracle_over_the_same_exits():
    """Tokens need 1 or 3 evaluations, and fixed loops of 2 help nobody: only the hull shows what an
    oracle gains between whole counts.
    """
    cost = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]).repeat(20, axis=1)  # (depth, token)
    document = np.arange(40) % 20
    recording = Recording(Path("planted"), document, np.arange(40), document, cost)
    depths = np.array([1, 2, 3, 3] * 10)  # 2.25 in the mean
    table = arena_page.compare(recording, {("gate", 0.5): depths}).assign(run="trial")
    context = style.FigureContext("trial", "books", 3)
    for axes, lost in zip(
        arena_page.draw_arena(table, context=context).axes, (0.25, 0.375), strict=True
    ):
        (line,) = [line for line in axes.get_lines() if line.get_marker() == "_"]
        assert line.get_xdata() == pytest.approx([2.25])
        assert line.get_ydata() == pytest.approx([lost], abs=1e-3)


def test_a_verdict_counts_every_gain_of_its_family():
    """Gains of the same family weaken the evidence of each; those of the other family and regrets
    do not.
    """
    clear, narrow = (0.2, 1.0, 1.8), (-0.5, 0.4, 1.3)
    few = pd.concat([gains("kl", clear), gains("kl", narrow, reference="fixed"), FULL_DEPTH])
    for others, verdict in (
        (gains("entropy", *[narrow] * 30), "better"),
        (
            pd.concat(
                [
                    gains(name, *[narrow] * 2)
                    for name in ("cosine", "step_norm", "acceleration", "minp_kl")
                ]
            ),
            "cannot be judged",
        ),
    ):
        table = pd.concat([few, others])
        assert measured_gains.judged(table)["verdict"].iloc[0] == verdict


@pytest.mark.parametrize(("agreement", "expected"), [(1.0, 1.0), (0.0, 0.0)])
def test_the_reliability_of_best_depths_is_1_for_depths_of_tokens_and_0_for_noise(
    agreement, expected
):
    """Tokens have a best depth of their own, or losses are noise."""
    generator = torch.Generator().manual_seed(0)
    best = torch.randint(1, 20, (40, 50), generator=generator)
    depths = torch.arange(1, 41)[:, None, None]
    losses = agreement * (depths - 2 * best).abs() + (1 - agreement) * torch.rand(
        40, 40, 50, generator=generator
    )
    halves = split_half(torch.cat([losses[:1], losses]).numpy())
    rows = pd.DataFrame({name: values.mean(-1).tolist() for name, values in halves.items()})
    rows = rows.assign(group="4", sequence=range(40), document=range(40), tokens=50)
    same, other = measured_gains.reliability(rows)
    assert same.value == pytest.approx(expected, abs=0.08)
    assert other.value == pytest.approx(0, abs=0.08)
    assert same.low <= same.value <= same.high


def test_the_largest_gain_that_is_shown_is_named_where_its_line_is_grey():
    table = compared(gain=0.2, noise=0.0).assign(run="trial", criterion="entropy")
    axes = Figure().subplots()
    arena_page.draw_gains(axes, table, "random", {"entropy": style.OTHERS})
    assert [text.get_text() for text in axes.texts] == ["entropy"]
    axes = Figure().subplots()
    arena_page.draw_gains(axes, table, "random", {"entropy": style.BLUE})
    assert not axes.texts
