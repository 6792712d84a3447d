"""Every claim has a synthetic run of each verdict, and reasons say what stood in the way."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.small import ROOT
from twoscale import tables
from twoscale.analysis import claims, claims_page, evidence
from twoscale.analysis.claims import FAILS, HOLDS, OPEN

GROUPS = ("4", "5-6")
BOUNDARY = "4->5-6"
SEQUENCES, TOKENS, PROMPTS = 8, 50, 5
SPREAD = np.linspace(-1, 1, SEQUENCES)  # how the sequences differ, in units of each test's own
HALF_DECADES = [1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2]


# --- synthetic tables: step norms fall geometrically, cosines rise to a level ----------------------------------


def loop_rows(
    iteration, group="4", rate=0.6, spread=0.0, level=0.55, level_spread=0.01, start=0.1, wobble=0.0, **shape
):
    """Rows of "loop_sequences" of one checkpoint and group; `nulls` is the share of tokens without an angle."""
    last, nulls = shape.get("loops", 30), shape.get("nulls", 0.0)
    k = np.arange(last + 1)
    frames = []
    for sequence, unit in enumerate(SPREAD):
        norms = (rate + spread * unit) ** k
        angles = level - (level - start) * np.exp(-(k - 1.0)) + wobble * np.sin(k) + level_spread * unit
        for measure, values, first in (("step_norm", norms, 0), ("cosine", angles, 1)):
            defined = (k >= first) & (k < last)
            missing = round(TOKENS * nulls) if measure == "cosine" else 0
            counts = np.where(defined, TOKENS - missing, 0)
            rows = {
                "run": "trial",
                "iteration": iteration,
                "group": group,
                "k": k,
                "sequence": sequence,
                "measure": measure,
            }
            rows |= {"mean": np.where(counts > 0, values, np.nan), "count": counts, "nulls": TOKENS - counts}
            frames.append(pd.DataFrame(rows))
    return pd.concat(frames)


def loops(first=None, last=None, iterations=(0, 10, 100)):
    """An untrained model, a first checkpoint of slow and unsteady loops, and a last one as the paper says."""
    looks = {0: {"rate": 0.95, "level": 0.9}, 10: {"rate": 0.8, "level": 0.9, "wobble": 0.1} | (first or {})}
    looks[100] = last or {}
    return pd.concat([loop_rows(iteration, group, **looks[iteration]) for iteration in iterations for group in GROUPS])


def drift(iterations=(0, 10, 100), spread=0.1, **ratios):
    """DLR 12 everywhere, but 0.5 under the reference state `initial`, and what `ratios` gives to others."""
    means = {"first_state": 12.0, "projected": 12.0, "final": 12.0, "initial": 0.5} | ratios
    rows = [
        {
            "run": "trial",
            "iteration": iteration,
            "boundary": BOUNDARY,
            "reference_state": reference,
            "sequence": sequence,
        }
        | {"measure": "dlr", "mean": value + spread * unit, "count": TOKENS, "nulls": 0}
        for iteration in iterations
        for reference, value in means.items()
        for sequence, unit in enumerate(SPREAD)
    ]
    return pd.DataFrame(rows)


def quality(spread=0.0, **changes):
    """CE 5 at every point but step norm's last two; `changes` adds nats: criterion -> {threshold: nats}.

    Sequences differ by half a nat; `spread` is by how much the changes differ between them.
    """
    added = {"step_norm": {3.16e-3: 0.05, 1e-2: 0.3}} | changes
    rows = []
    for criterion in ("fixed", "step_norm", "kl", "acceleration"):
        for threshold in [30] if criterion == "fixed" else HALF_DECADES:
            nats = added.get(criterion, {}).get(threshold, 0.0)
            for sequence, unit in enumerate(SPREAD):
                ce = 5 + 0.5 * unit + nats * (1 + spread * unit)
                rows.append(
                    {"run": "trial", "criterion": criterion, "threshold": float(threshold), "sequence": sequence}
                    | {"tokens": TOKENS, "ce": ce, "ppl": np.exp(ce)}
                )
    return pd.DataFrame(rows)


def latency(spread=0.02, **factors):
    """From 14 ms down to 8 under acceleration, less under step norm, more under KL; `factors` scale a criterion."""
    scale = {"fixed": 1.2, "acceleration": 1.0, "kl": 1.5, "step_norm": 0.9} | factors
    rows = []
    for criterion, factor in scale.items():
        thresholds = [30] if criterion == "fixed" else HALF_DECADES
        for number, threshold in enumerate(thresholds):
            for repeat, unit in enumerate(np.linspace(-1, 1, PROMPTS)):
                # the criteria's spreads are opposite, or nothing would be left of it in a ratio
                noise = 1 + spread * unit * (-1 if criterion == "acceleration" else 1)
                rows.append(
                    {"run": "trial", "criterion": criterion, "threshold": float(threshold), "repeat": repeat}
                    | {"latency_ms": (14 - number) * factor * noise}
                )
    return pd.DataFrame(rows)


CHECKS = pd.DataFrame(
    {"run": "trial", "group": "4", "repeat": range(3), "check_ms": [3.0, 3.1, 2.9], "loop_step_ms": [2.0, 2.0, 2.0]}
)


def synthetic(**changes):
    run_tables = {"loops": loops(), "drift": drift(), "quality": quality(), "latency": latency(), "checks": CHECKS}
    return evidence.Evidence(**(run_tables | {"max_loops": 30, "seed": 1} | changes))


def without(frame, criterion, threshold):
    return frame[(frame["criterion"] != criterion) | (frame["threshold"] != threshold)]


def examine(number, evidence):
    return claims.examine(claims.CLAIMS[number - 1], evidence)


ONE = (0, 100)  # one trained checkpoint
FALLING_LATE = {"rate": 0.77, "spread": 0.06}  # a tenth near k = 10, earlier or later by sequence

CASES = [
    (1, HOLDS, {}, "every finding"),
    (1, FAILS, {"loops": loops(last={"rate": 0.95})}, "outside"),
    (1, OPEN, {"loops": loops(last=FALLING_LATE)}, "crosses"),
    (2, HOLDS, {}, "every finding"),
    (2, FAILS, {"loops": loops(last={"rate": 0.85})}, "k 11.3 → 15.2"),
    (
        2,
        OPEN,
        {"loops": loops(iterations=(0, 100)), "drift": drift(iterations=(0, 100))},
        "fewer than two trained checkpoints",
    ),
    (3, HOLDS, {}, "every finding"),
    (3, FAILS, {"loops": loops(last={"wobble": 0.2})}, "outside"),
    (3, OPEN, {"loops": loops(last={"nulls": 0.5})}, "50% of the values are under the rounding floor"),
    (4, HOLDS, {}, "every finding"),
    (4, FAILS, {"loops": loops(last={"level": 0.9})}, "outside"),
    (4, OPEN, {"loops": loops(last={"level": 0.45, "level_spread": 0.1})}, "crosses"),
    (5, HOLDS, {}, "every finding"),
    (5, FAILS, {"loops": loops(last={"level": 0.89})}, "mean 0.90 → 0.89"),
    (5, OPEN, {"loops": loops({"loops": 20}, {"loops": 20}, iterations=(10, 100))}, "rows missing: loop steps up to"),
    (6, HOLDS, {}, "every finding"),
    (6, FAILS, {"drift": drift(final=3.0)}, "final"),
    (6, OPEN, {"drift": drift(projected=5.0)}, "crosses"),
    (7, HOLDS, {}, "every finding"),
    (7, FAILS, {"latency": latency().assign(latency_ms=10.0)}, "outside"),
    (7, OPEN, {"latency": without(latency(), criterion="acceleration", threshold=1e-2)}, "rows missing: acceleration"),
    (8, HOLDS, {}, "every finding"),
    (8, FAILS, {"quality": quality(kl={1e-3: -0.1})}, "-0.1 at τ = 0.001"),
    (8, OPEN, {"quality": quality(spread=3, acceleration={1e-2: 0.01})}, "crosses"),
    (9, HOLDS, {}, "every finding"),
    (9, FAILS, {"quality": quality(step_norm={})}, "outside"),
    (
        9,
        OPEN,
        {"quality": without(quality(), criterion="step_norm", threshold=1e-3)},
        "rows missing: step_norm at 0.001",
    ),
    (10, HOLDS, {}, "every finding"),
    (10, FAILS, {"latency": latency(kl=0.5)}, "kl 4 ms at τ = 0.01"),
    (10, OPEN, {"latency": latency(spread=0.3, kl=1.05)}, "crosses"),
    (11, HOLDS, {}, "every finding"),
    (11, FAILS, {"latency": latency(kl=0.9)}, "outside"),
    (11, OPEN, {"latency": without(latency(), criterion="kl", threshold=3.16e-4)}, "rows missing: kl at 0.000316"),
]


@pytest.mark.parametrize(
    ("number", "expected", "changes", "reason"), CASES, ids=[f"{number}-{expected}" for number, expected, *_ in CASES]
)
def test_each_claim_reaches_each_verdict(number, expected, changes, reason):
    verdict = examine(number, synthetic(**changes))
    assert verdict.verdict == expected, verdict.reason
    assert reason in verdict.reason


def test_every_claim_has_a_case_of_every_verdict():
    assert [(number, expected) for number, expected, *_ in CASES] == [
        (number, expected) for number in range(1, 12) for expected in (HOLDS, FAILS, OPEN)
    ]


def test_the_bounds_are_the_ones_fixed_beforehand():
    bounds = {
        v.claim.number: list(dict.fromkeys(f.bounds for f in v.findings if f.bounds))
        for v in claims.verdicts(synthetic())
    }
    assert bounds == {
        1: ["≤ 10"],
        2: ["< 0"],
        3: ["< 0", "≤ 0.05", "≤ 0"],
        4: ["0.45 … 0.70"],
        5: ["≤ -0.05"],
        6: ["> 1", "≥ 5", "as above"],
        7: ["≤ 0.75"],
        8: ["≤ 0.01"],
        9: ["≤ 0.01", "≥ 0.05"],
        10: ["< 1"],
        11: ["> 1"],
    }


# --- what verdicts rest on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.0, 0.9), HOLDS), ((0.0, 1.0), HOLDS), ((0.9, 1.1), OPEN), ((1.01, 2.0), FAILS)],
)
def test_bounds_are_met_by_a_whole_interval(interval, expected):
    estimate = evidence.Estimate(0.5, *interval)
    assert claims.judge(claims.at_most(1), estimate)[0] == expected


def test_a_strict_bound_is_not_met_by_its_own_value():
    assert claims.judge(claims.below(0), evidence.Estimate(0, 0, 0))[0] == FAILS
    assert claims.judge(claims.above(1), evidence.Estimate(1, 1, 1))[0] == FAILS


def test_one_group_decides_against_a_claim_and_is_named():
    split = pd.concat([loop_rows(100, "4"), loop_rows(100, "5-6", rate=0.97)])
    verdict = examine(1, synthetic(loops=split))
    assert verdict.verdict == FAILS
    assert verdict.reason.startswith("5-6: ")


def test_one_finding_left_open_leaves_a_claim_open():
    split = pd.concat([loop_rows(100, "4"), loop_rows(100, "5-6", level=0.45, level_spread=0.1)])
    assert examine(4, synthetic(loops=split)).verdict == OPEN


def test_a_negative_settled_mean_is_anti_parallel_though_its_modulus_fell():
    verdict = examine(5, synthetic(loops=loops(last={"level": -0.5})))
    assert verdict.verdict == FAILS
    assert "anti-parallel" in verdict.reason


def test_an_anti_parallel_group_says_what_its_first_checkpoint_lacks():
    rows = loops(first={"nulls": 0.5}, last={"level": -0.5})
    assert "anti-parallel, not orthogonal; 50% of the values" in examine(5, synthetic(loops=rows)).reason


def test_a_settled_mean_around_zero_is_orthogonal():
    assert examine(5, synthetic(loops=loops(last={"level": 0.0, "level_spread": 0.05}))).verdict == HOLDS


def test_each_reference_state_of_the_drift_has_a_verdict_and_the_initial_one_does_not_count():
    verdict = examine(6, synthetic())
    by_state = {f.scope: f.verdict for f in verdict.findings if f.bounds == "as above"}
    assert by_state == {"first_state": HOLDS, "projected": HOLDS, "final": HOLDS, "initial": FAILS}
    untrained = [f for f in verdict.findings if "untrained" in f.quantity]
    assert len(untrained) == 4
    assert all(np.isfinite(f.estimate.value) and not f.verdict for f in untrained)


def test_the_drift_of_every_trained_checkpoint_counts():
    early = drift()
    early.loc[(early["iteration"] == 10) & (early["reference_state"] == "final"), "mean"] = 0.8
    verdict = examine(6, synthetic(drift=early))
    assert verdict.verdict == FAILS
    (least,) = (f for f in verdict.findings if f.scope == f"{BOUNDARY}, final" and f.verdict == FAILS)
    assert least.estimate.remark == "at iteration 10"


def test_max_loops_other_than_the_papers_leaves_the_saving_open():
    verdict = examine(7, synthetic(max_loops=64))
    assert (verdict.verdict, "max_loops is 64" in verdict.reason) == (OPEN, True)


def test_a_threshold_of_lesser_quality_does_not_race():
    """Step norm is fastest at 1e-2, where its quality is gone."""
    verdict = examine(10, synthetic(latency=latency(step_norm=0.99)))
    (race,) = (f for f in verdict.findings if f.scope == "step_norm")
    assert race.verdict == HOLDS
    assert "step_norm 9.9 ms at τ = 0.001" in race.reason


def test_a_criterion_without_a_threshold_of_equal_quality_loses():
    worse = dict.fromkeys(HALF_DECADES, 0.2)
    verdict = examine(10, synthetic(quality=quality(acceleration=worse)))
    assert verdict.verdict == FAILS
    assert "acceleration has no threshold of equal quality" in verdict.reason


def test_the_cost_of_a_check_is_given_with_claims_10_and_11():
    for number in (10, 11):
        (cost,) = (f for f in examine(number, synthetic()).findings if "KL check" in f.quantity)
        assert cost.estimate.value == pytest.approx(1.5)
        assert cost.verdict == ""


@pytest.mark.parametrize("empty", ["loops", "drift", "quality", "latency", "checks"])
def test_empty_tables_leave_claims_open_and_none_fails(empty):
    whole = synthetic()
    verdicts = claims.verdicts(replace(whole, **{empty: getattr(whole, empty)[:0]}))
    assert len(verdicts) == 11
    assert FAILS not in {v.verdict for v in verdicts}
    if empty != "checks":
        assert any(v.verdict == OPEN and "rows missing" in v.reason for v in verdicts)


def test_one_sequence_gives_no_interval():
    alone = synthetic(loops=loops().query("sequence == 0"))
    verdict = examine(1, alone)
    assert (verdict.verdict, "at least 2 values of sequence" in verdict.reason) == (OPEN, True)


def test_a_hole_in_a_table_is_named():
    holed = loops().query("not (group == '5-6' and iteration == 100 and k == 4 and sequence == 3)")
    verdict = examine(1, synthetic(loops=holed))
    assert verdict.verdict == OPEN
    assert "rows missing: sequence 3, iteration 100, k 4" in verdict.reason


def test_tokens_weigh_a_sequence():
    """A sequence with most of its angles under the floor counts for the few that are left."""
    sample = np.array([[[[0.5 * 10, 10]], [[0.9 * 30, 30]]]])  # (R, sequences, K, sum and count)
    assert evidence.mean(sample)[0, 0] == pytest.approx(0.8)


# --- statistics with known answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.9])
def test_a_geometric_decay_reaches_a_tenth_when_its_logarithm_says(rate):
    norms = rate ** np.arange(40)[None]
    exact = 1 + np.log(0.1) / np.log(rate)
    assert evidence.decay_time(norms)[0] == pytest.approx(exact)
    assert evidence.decay_step(norms)[0] == np.ceil(exact)


def test_a_loop_that_does_not_decay_never_reaches_a_tenth():
    norms = np.ones((1, 30))
    assert evidence.decay_step(norms)[0] == np.inf
    assert evidence.decay_time(norms)[0] == np.inf


def test_the_leap_from_the_noise_does_not_count_as_decay():
    norms = np.concatenate([[100.0], np.ones(29)])[None]
    assert evidence.decay_step(norms)[0] == np.inf


# --- table and page --------------------------------------------------------------------------------------------


def test_the_table_holds_every_finding_and_one_verdict_a_claim(tmp_path):
    verdicts = claims.verdicts(synthetic())
    frame = claims.table(verdicts, "trial")
    tables.write("claims", frame, tmp_path / "claims.parquet")
    read = tables.read("claims", tmp_path / "claims.parquet")
    assert len(read) == sum(len(v.findings) + 1 for v in verdicts)
    whole = read[read["scope"] == claims.ALL]
    assert list(whole["claim"]) == list(range(1, 12))
    assert list(whole["verdict"]) == [v.verdict for v in verdicts]


def test_the_same_tables_give_the_same_intervals():
    pd.testing.assert_frame_equal(
        claims.table(claims.verdicts(synthetic()), "a"), claims.table(claims.verdicts(synthetic()), "a")
    )


def test_the_page_names_run_text_and_checkpoints_and_every_claim():
    verdicts = claims.verdicts(synthetic())
    page = claims_page.page(verdicts, "trial", "Python documentation", synthetic())
    for words in ("**trial**", "Python documentation", "0 (untrained), 10, 100"):
        assert words in page
    for v in verdicts:
        assert f"## {v.claim.number}. {v.claim.title}: {v.verdict}" in page
        assert v.claim.where in page
        assert v.claim.statement in page


def test_every_row_of_the_page_has_the_cells_of_its_header():
    page = claims_page.page(claims.verdicts(synthetic()), "trial", "text", synthetic())
    widths = [line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")]
    assert set(widths) == {4, 8}


@pytest.mark.parametrize(("value", "text"), [(np.inf, "not reached"), (np.nan, ""), (4.0, "4"), (-0.12345, "-0.123")])
def test_numbers_are_printed_with_three_digits(value, text):
    assert claims_page.number(value) == text


def test_analysis_needs_no_torch():
    modules = sorted(path.stem for path in (ROOT / "src" / "twoscale" / "analysis").glob("*.py"))
    names = ["twoscale.analysis" if name == "__init__" else f"twoscale.analysis.{name}" for name in modules]
    code = f"import sys; sys.modules['torch'] = None; import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "src")
