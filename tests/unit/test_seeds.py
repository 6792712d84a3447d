"""The claims over seeds: means, spreads and verdicts of runs with known values, and how often an
interval is wrong.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests import synthetic_run
from tests.unit import test_claims
from twoscale import tables
from twoscale.claims import bootstrap, evidence, seeds
from twoscale.claims import verdicts as claims
from twoscale.claims.estimates import Estimate, InconclusiveError
from twoscale.claims.verdicts import ALL, CLAIMS, READING
from twoscale.claims.words import FAILS, HOLDS, NOT_ASKED, OPEN, UNIT, depends_on
from twoscale.studies.seeds import draw as seeds_page

SEEDS = (1337, 1338, 1339)


def runs(number, *changes):
    """Seed -> the usual synthetic tables with these changes of `test_claims.loops`, for one claim
    after another.
    """
    frames = [test_claims.loops(last=change) for change in changes]
    return {
        seed: test_claims.synthetic(loops=frame) for seed, frame in zip(SEEDS, frames, strict=True)
    }


@cache
def usual():
    levels = ({"level": 0.55}, {"level": 0.58}, {"level": 0.61})
    return seeds.verdicts(runs(4, *levels))


def examine(number, *changes):
    return seeds.examine(CLAIMS[number - 1], runs(number, *changes))


def test_the_mean_and_the_deviation_are_those_of_the_seeds_and_each_seed_has_its_finding():
    verdict = usual()[3]
    group = verdict.findings[0]
    values = [finding.estimate.value for finding in group.of_seeds]
    assert values == pytest.approx([0.55, 0.58, 0.61], abs=1e-3)
    assert group.mean.estimate.value == pytest.approx(0.58, abs=1e-3)
    assert group.deviation == pytest.approx(0.03, abs=1e-4)
    single = claims.examine(
        CLAIMS[3], test_claims.synthetic(loops=test_claims.loops(last={"level": 0.58}))
    )
    ours, theirs = group.of_seeds[1], single.findings[0]
    assert (ours.estimate, ours.verdict, ours.reason) == (
        theirs.estimate,
        theirs.verdict,
        theirs.reason,
    )


def test_the_document_error_is_the_standard_error_of_the_mean_over_documents():
    group = usual()[3].findings[0]
    number = synthetic_run.LOOP_SEQUENCES
    exact = 0.01 * np.linspace(-1, 1, number).std(ddof=1) / np.sqrt(number)
    assert group.document_error == pytest.approx(exact, rel=0.06)


def test_equal_seeds_leave_the_interval_of_the_documents():
    same = {"level": 0.58}
    group = examine(4, same, same, same).findings[0]
    assert group.deviation == pytest.approx(0, abs=1e-12)
    one, mean = group.of_seeds[0].estimate, group.mean.estimate
    assert (mean.low, mean.high) == pytest.approx((one.low, one.high))


def test_documents_without_a_spread_leave_the_interval_of_student():
    values = np.array([1.0, 2.0, 4.0])
    mean = seeds.mean_over_seeds(
        [Estimate(v, v, v, samples=np.full(9, v), units=5, effective=5) for v in values]
    )
    half = 4.302653 * values.std(ddof=1) / np.sqrt(3)
    assert (mean.low, mean.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), rel=1e-4
    )


def test_the_mean_of_ratios_is_geometric_and_its_interval_that_of_the_logarithms():
    samples = np.log([0.9, 1.0, 1.1])
    ratios = [
        Estimate(r, r, r, samples=np.log(r) + samples, units=5, effective=5, is_ratio=True)
        for r in (0.1, 1.0, 10.0)
    ]
    mean = seeds.mean_over_seeds(ratios)
    assert mean.value == pytest.approx(1.0)
    assert mean.is_ratio
    assert mean.low * mean.high == pytest.approx(1.0, rel=0.01)


def test_a_widened_interval_widens_either_part_by_its_own_degrees_of_freedom():
    def mean(spread):
        values = 1.0 + spread * np.array([-1.0, 0.0, 1.0])
        samples = np.linspace(-0.1, 0.1, 101)
        return seeds.mean_over_seeds(
            [Estimate(v, samples=v + samples, units=9, effective=9) for v in values]
        )

    of_seeds, of_documents = mean(100.0), mean(0.0)
    for estimate, freedom in ((of_seeds, 2), (of_documents, 8)):
        one, ten = (bootstrap.t_quantile(1 - 0.025 / findings, freedom) for findings in (1, 10))
        wide = estimate.widened(10)
        assert (wide.high - 1) / (estimate.high - 1) == pytest.approx(ten / one, rel=1e-3)


def test_a_quantity_that_a_seed_lacks_has_no_mean_and_says_which_seed():
    lacking = test_claims.synthetic(quality=test_claims.without(test_claims.quality(), "kl", 1e-2))
    found = {1337: test_claims.synthetic(), 1338: lacking, 1339: test_claims.synthetic()}
    verdict = seeds.examine(CLAIMS[7], found)
    assert verdict.verdict == OPEN
    assert "seed 1338: rows missing: kl at 0.01" in verdict.reason


def test_an_infinite_value_or_other_documents_give_no_mean():
    finite = Estimate(1.0, 1.0, 1.0, samples=np.ones(3), units=4, effective=4)
    for other in (
        replace(finite, value=np.inf),
        replace(finite, units=5),
        replace(finite, samples=None),
    ):
        with pytest.raises(InconclusiveError):
            seeds.mean_over_seeds([finite, other])


def test_the_samples_of_all_seeds_are_of_the_same_documents():
    """Documents that shift every seed alike are no spread between seeds, and do not average out
    over them.
    """
    shift = {"level": 0.58, "level_spread": 0.2}
    group = examine(4, shift, shift | {"level": 0.581}, shift | {"level": 0.579}).findings[0]
    assert group.deviation < 0.05 * group.document_error
    one, mean = group.of_seeds[0].estimate, group.mean.estimate
    assert mean.high - mean.low == pytest.approx(one.high - one.low, rel=0.05)


def test_seeds_are_counted_by_verdict_and_a_mean_between_the_bounds_is_no_verdict_where_seeds_differ():
    verdict = examine(4, {"level": 0.55}, {"level": 0.3}, {"level": 0.56})
    assert [of_seed.verdict for of_seed in verdict.of_seeds] == [HOLDS, FAILS, HOLDS]
    assert verdict.verdict == OPEN


def test_the_mean_moves_towards_the_paper_if_its_trend_over_seeds_does():
    """Late cosines begin at 0.9 and end above 0.70; 0.99 is further away."""
    assert examine(4, {"level": 0.8}, {"level": 0.81}, {"level": 0.79}).moves
    verdict = examine(4, {"level": 0.99}, {"level": 0.98}, {"level": 0.99})
    assert (verdict.verdict, verdict.moves) == (FAILS, False)
    rows = seeds.table([verdict], "trial", SEEDS, "small scale")
    assert set(rows["scale"]) == {"small scale"}


def test_the_mean_is_open_where_a_claim_cannot_fail():
    """The rules for one run also hold for means: random exits, and loops that do too little."""
    random = {"cost_matched": synthetic_run.cost_matched(kl=-0.1)}
    little = {"quality": synthetic_run.quality(fixed={1: 0.04})}
    cases = [({}, HOLDS, ""), (random, OPEN, "cost as KL"), (little, OPEN, "too little here")]
    for changes, expected, reason in cases:
        run = synthetic_run.synthetic(**changes)
        verdict = seeds.examine(CLAIMS[7], dict.fromkeys(SEEDS, run))
        assert (verdict.verdict, reason in verdict.reason) == (expected, True)


def test_times_have_a_verdict_per_run_and_no_mean():
    for verdict in usual():
        of_mean = [finding.mean.estimate.value for finding in verdict.findings]
        if verdict.claim.timed:
            assert verdict.verdict == seeds.PER_RUN
            assert np.isnan(of_mean).all()
            assert len(verdict.of_seeds) == 3
        else:
            assert not np.isnan(of_mean).any()


@pytest.mark.parametrize(
    ("changes", "expected"), [({}, HOLDS), (test_claims.SLOW_LOSS, depends_on([UNIT]))]
)
def test_the_mean_is_judged_under_each_reading(changes, expected):
    """At equal quality the mean over seeds of one run is its number."""
    run = test_claims.synthetic(**changes)
    for claim in (CLAIMS[number - 1] for number in (9, 15)):
        verdict, alone = seeds.examine(claim, dict.fromkeys(SEEDS, run)), claims.examine(claim, run)
        assert verdict.verdict == alone.verdict == expected
        assert verdict.by_reading == alone.by_reading
        for finding, of_run in zip(verdict.findings, alone.findings, strict=True):
            assert finding.mean.subject.reading == of_run.subject.reading
            assert finding.mean.estimate.value == pytest.approx(of_run.estimate.value)


def test_a_claim_that_is_not_asked_of_a_run_is_not_asked_over_seeds():
    short = {seed: replace(test_claims.synthetic(), max_loops=7) for seed in SEEDS}
    verdict = seeds.examine(CLAIMS[6], short)
    assert (verdict.verdict, verdict.findings) == (NOT_ASKED, ())


DRAWS, DOCUMENTS = 1000, 12
BARE = evidence.Evidence.of({}, max_loops=30)


def draw(generator, of_seeds, of_documents, of_both, count):
    """The mean over seeds of a number whose truth is 0: effects of seeds, of documents, and of
    both, crossed.
    """
    values = of_seeds * generator.normal(size=(count, 1)) + of_documents * generator.normal(
        size=DOCUMENTS
    )
    values = values + of_both * generator.normal(size=values.shape)
    units = 100 * np.stack([values, np.ones_like(values)], axis=-1)
    estimates = [
        BARE.estimate(lambda totals: totals[..., 0] / totals[..., 1], rows) for rows in units
    ]
    return estimates, seeds.mean_over_seeds(estimates)


WORLDS = {
    "seeds alone": (1.0, 0.01, 0.01),
    "documents alone": (0.0, 1.0, 0.0),
    "seeds as much as documents": (1.0, np.sqrt(DOCUMENTS), 0.0),
    "mostly an effect of both": (0.3, 1.0, 3.0),
    "seeds twice as much as documents": (2.0, np.sqrt(DOCUMENTS), 1.0),
}


@pytest.mark.parametrize(
    "count", [3, *(pytest.param(count, marks=pytest.mark.long) for count in (2, 5))]
)
@pytest.mark.parametrize("world", WORLDS)
def test_the_interval_covers_the_truth_in_95_percent(world, count):
    generator = np.random.default_rng([count, len(world)])
    drawn = [draw(generator, *WORLDS[world], count)[1] for _ in range(DRAWS)]
    covered = np.mean([mean.low <= 0 <= mean.high for mean in drawn])
    assert covered > 0.95 - 3 * np.sqrt(0.05 * 0.95 / DRAWS)


def test_the_table_has_a_row_for_each_seed_and_for_the_mean_and_the_verdicts_last():
    frame = seeds.table(usual(), "trial", SEEDS)
    assert list(frame) == list(tables.columns("seeds"))
    assert list(frame["seed"].unique()) == ["1337", "1338", "1339", "mean"]
    # times have a verdict under each reading for every seed, and none for the mean
    found = frame[frame["scope"] != READING]
    assert (found.groupby(["claim", "scope", "quantity"]).size() == 4).all()
    assert frame[frame["deviation"].notna()]["seed"].eq("mean").all()
    whole = frame[frame["scope"] == ALL]
    assert whole[whole["seed"] == "mean"]["verdict"].tolist() == [
        verdict.verdict for verdict in usual()
    ]


def test_the_page_has_each_seed_its_spread_and_what_so_many_seeds_can_say():
    text = seeds_page.page(usual(), "trial_", "Python <i>", SEEDS)
    assert "on the run trial\\_ under 3 seeds" in text
    assert "Python &lt;i&gt;" in text
    assert "reaches 2.5 standard deviations" in text
    assert "0.52 to 6.3 times" in text
    for verdict in usual():
        assert f"## {verdict.claim.number}. {verdict.claim.title}: {verdict.verdict}" in text
    row = next(line for line in text.splitlines() if line.startswith("| 4 | late cosine"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [cell.split(" ")[0] for cell in cells[2:5]] == ["0.55", "0.58", "0.61"]
    assert cells[5] == "0.03"
    assert cells[7].startswith("0.58 (")
    assert cells[9] == usual()[3].findings[0].mean.verdict
