"""Every number of every claim on a synthetic run, worked out from its shape, and the intervals
about them.
"""

import numpy as np
import pytest

from tests.synthetic_run import (
    BOUNDARY,
    GROUPS,
    HALF_DECADES,
    ITERATIONS,
    LOOP_STEPS,
    TOKENS,
    costs,
    drift,
    examine,
    exit_loops,
    loops,
    quality,
    synthetic,
    usual_tables,
    usual_verdicts,
)
from twoscale.claims import bootstrap, estimates
from twoscale.claims import verdicts as claims
from twoscale.claims.findings import Role

RATES = {"rate": 0.72, "level": 0.62, "wobble": 0.03, "scale": 1.1}  # of the last checkpoint
DECISIONS = {"acceleration": 0.01, "step_norm": 0.02, "kl": 0.2}  # milliseconds
SHAPE = {"floor": 0.004, "bend": 1.3, "start": 0.2}
K = np.arange(30)


def distinct_run():
    """A run in which no two checkpoints, loop steps, thresholds, criteria or groups have the same
    number.
    """
    course = loops(last=RATES, **SHAPE)
    states = course["measure"] == "state_norm"
    course.loc[states, "mean"] = state_norms(course.loc[states, "k"]) * (
        1 + course.loc[states, "iteration"] / 100
    )
    jumps = drift(final=9.0, projected=11.0)
    jumps["mean"] *= 1 + jumps["iteration"] / 200
    nats = {
        "kl": {1e-4: 0.001, 1e-3: 0.002, 1e-2: 0.004},
        "acceleration": {1e-4: -0.001, 1e-3: 0.003, 1e-2: 0.006},
    }
    later = exit_loops()
    later["evaluations"] -= (
        (later["criterion"] == "kl") * np.log10(later["threshold"]) * (later["group"] == "4")
    )
    return synthetic(
        loops=course,
        drift=jumps,
        quality=quality(**nats),
        exit_loops=later,
        costs=costs(**DECISIONS),
    )


def computed_time(criterion, place):
    """Milliseconds at a place of the grid, from the shape of the synthetic run."""
    decision = DECISIONS[criterion]
    if place != int(place):
        first = int(place)
        return between(criterion, first, first + 1, place - first)
    milliseconds = 2 + decision
    for group, step in LOOP_STEPS.items():
        milliseconds += evaluations(criterion, group, int(place)) * (step + decision)
    return milliseconds


def between(criterion, first, last, share):
    """Milliseconds at a share of the way between two places, linear in logarithms."""
    before, after = (computed_time(criterion, place) for place in (first, last))
    return before ** (1 - share) * after**share


def evaluations(criterion, group, place):
    more = -np.log10(HALF_DECADES[place]) * (criterion == "kl" and group == "4")
    return {"acceleration": 12, "step_norm": 13, "kl": 15}[criterion] - place + more


def decision_over_loop_step(criterion, place):
    counts = {group: evaluations(criterion, group, place) for group in GROUPS}
    steps = sum(count * LOOP_STEPS[group] for group, count in counts.items())
    return DECISIONS[criterion] * sum(counts.values()) / steps


def state_norms(k):
    return 8.0 + 0.1 * k


def norms_at(iteration):
    share = np.log10(iteration / 10) if iteration else 0
    rate = 0.8 + (0.72 - 0.8) * share if iteration else 0.95
    scale = 1.5 + (1.1 - 1.5) * share if iteration else 1.0
    return scale * np.maximum(rate**K, 0.004)


def cosines_at(iteration):
    share = np.log10(iteration / 10) if iteration else 0
    level, wobble = (
        (0.9 + (0.62 - 0.9) * share, 0.1 + (0.03 - 0.1) * share) if iteration else (0.9, 0.0)
    )
    return level - (level - 0.2) * np.exp(-(K - 1.0)) + wobble * np.sin(K)


def decades(iteration):
    """Until a tenth is reached, which happens above the floor; the untrained model does not, and
    has the rate of a tenth at the last loop step.
    """
    share = np.log10(iteration / 10) if iteration else 0
    return -np.log10(0.8 + (0.72 - 0.8) * share) if iteration else 1 / 28


def on_a_line(number):
    """The change from first to last checkpoint of the line over log iteration, and the plain
    difference.
    """
    values, position = [number(iteration) for iteration in ITERATIONS[1:]], np.log(ITERATIONS[1:])
    return np.polyfit(position, values, 1)[0] * (position[-1] - position[0]), values[-1] - values[0]


def settled(iteration):
    return cosines_at(iteration)[10:]


def log_step(iteration):
    return np.log(norms_at(iteration)[1:].mean())


def log_relative_step(iteration):
    return log_step(iteration) - np.log(state_norms(K[1:]).mean() * (1 + iteration / 100))


def numbers_of_groups():
    """Claim -> {quantity: number}, the same in both groups."""
    last, untrained = norms_at(100), norms_at(0)
    rising, falling, relative = (
        on_a_line(decades),
        on_a_line(log_step),
        on_a_line(log_relative_step),
    )
    variance, modulus = (
        on_a_line(lambda i: settled(i).var()),
        on_a_line(lambda i: abs(settled(i).mean())),
    )
    curvature, turn = last * 1.3 ** (K >= 20) / last**2, np.arccos(cosines_at(100))
    ends = "the same, last − first after warm-up"
    decay, angle = (
        "decades per loop step until a tenth of k = 1",
        "variance of the mean cosine over k = 10 … 29",
    )
    step, ranges = (
        "ln of the mean step norm over k ≥ 1",
        "over k = 20 … 29 over that over k = 10 … 19",
    )
    return {
        1: {
            "mean norm at k = 10 over that at k = 1": last[10] / last[1],
            "the same, untrained": untrained[10] / untrained[1],
            "norm at k = 0 over that at k = 1 (the leap from x⁰)": last[0] / last[1],
        },
        2: {
            f"{decay}, last − untrained": decades(100) - decades(0),
            f"{decay}, trend over checkpoints": rising[0],
        },
        3: {
            "cosine at k = 1 − late mean": cosines_at(100)[1] - settled(100).mean(),
            angle: settled(100).var(),
            f"{angle}, last − untrained": settled(100).var() - settled(0).var(),
            f"{angle}, trend over checkpoints": variance[0],
            ends: variance[1],
        },
        4: {"late cosine": settled(100).mean(), "the same, untrained": settled(0).mean()},
        5: {
            "|late cosine|, last − untrained": abs(settled(100).mean()) - abs(settled(0).mean()),
            "|late cosine|, trend over checkpoints": modulus[0],
            "late cosine, last": settled(100).mean(),
            "|late cosine|, last − first after warm-up": modulus[1],
        },
        12: {
            f"{step}, last − untrained": log_step(100) - log_step(0),
            f"{step}, trend over checkpoints": falling[0],
            f"{step}, trend over checkpoints, over the norm of the states": relative[0],
        },
        13: {
            f"mean norm {ranges}": last[20:].mean() / last[10:20].mean(),
            f"mean turn {ranges}": turn[20:].mean() / turn[10:20].mean(),
            f"mean curvature {ranges}": curvature[20:].mean() / curvature[10:20].mean(),
            "the norm over k = 20 … 29 over that at k = 1": last[20:].mean() / last[1],
        },
    }


def scales():
    return {
        "τ = 0.01 over the mean norm of the states, last checkpoint": 0.01
        / (2 * state_norms(K[1:]).mean()),
        "τ = 0.01 over the mean step norm at k = 1, last checkpoint": 0.01 / norms_at(100)[1],
    }


def numbers_of_criteria():
    """Claim -> {(criterion, quantity): number}."""
    change, later = (
        "CE({}) − CE(1e-5) in nats",
        "evaluations per token and group minus those of acceleration, τ = {}",
    )
    slower = "time over that of acceleration, τ = {}"
    thresholds = ("1e-05", "0.0001", "0.001", "0.01")
    # Acceleration and KL lose 0.01 nats between 1e-2 and the next threshold, where 0.015 are lost, or
    # the next decade, where 0.03 are; step norm after 1e-3.
    races = {"kl": {}, "step_norm": {}}
    for nats in (0.01, 0.008, 0.0125):
        other = f"the same at a loss of {nats:g} nats"
        name = "time at equal quality" if nats == 0.01 else other
        ours = computed_time("acceleration", 6 + (nats - 0.006) / 0.009)
        kl = computed_time("kl", 6 + (nats - 0.004) / 0.011)
        step_norm = computed_time("step_norm", 4 + nats / 0.05)
        races["kl"][f"{name}, acceleration over kl"] = ours / kl
        races["step_norm"][f"{name}, acceleration over step_norm"] = ours / step_norm
    ours = between("acceleration", 6, 8, 0.004 / 0.024)
    for other, share in (("kl", 0.006 / 0.026), ("step_norm", 0.01 / 0.3)):
        theirs = between(other, *((6, 8) if other == "kl" else (4, 6)), share)
        races[other][f"the same on whole decades, acceleration over {other}"] = ours / theirs
    races = {
        other: {(other, name): ratio for name, ratio in of_other.items()}
        for other, of_other in races.items()
    }
    gain = {("all groups", "CE at the cheapest exit − CE at full depth in nats"): 1.0}
    random = {
        (criterion, f"random exits of the same cost: {change.format(threshold)}"): 0.1
        for criterion in ("acceleration", "kl")
        for threshold in ("0.0001", "0.001", "0.01")
    }
    beyond_random = {
        ("acceleration", f"CE({tau:g}) − CE of random exits of the same cost in nats"): nats - 0.1
        for tau, nats in ((1e-2, 0.006), (3.16e-2, 0.015), (0.1, 0.03), (0.316, 0.045))
    }
    places = dict(zip(thresholds, (0, 2, 4, 6), strict=True))
    later_times, decisions = {}, {}
    for tau, place in places.items():
        ratio = computed_time("kl", place) / computed_time("acceleration", place)
        later_times["kl", slower.format(tau)] = ratio
        later_times["kl", f"measured: {slower.format(tau)}"] = 1.5
        name = f"decision in loop steps, τ = {tau}"
        decisions["kl", name] = decision_over_loop_step("kl", place)
    robust = "nats lost from τ = 1e-5 to 1e-2: step norm minus"
    return {
        7: {
            ("acceleration", "time at τ = 1e-2 over that at 1e-5"): computed_time("acceleration", 6)
            / computed_time("acceleration", 0),
            ("acceleration", "measured: time at τ = 1e-2 over that at 1e-5"): 8 / 14,
        }
        | {
            (other, "the same: time at τ = 1e-2 over that at 1e-5"): computed_time(other, 6)
            / computed_time(other, 0)
            for other in ("step_norm", "kl")
        },
        8: {
            (criterion, change.format(threshold)): number
            for criterion, numbers in (
                ("acceleration", (-0.001, 0.003, 0.006)),
                ("kl", (0.001, 0.002, 0.004)),
            )
            for threshold, number in zip(("0.0001", "0.001", "0.01"), numbers, strict=True)
        }
        | random
        | gain
        | beyond_random,
        9: {
            ("step_norm", "CE(1e-3) − CE(1e-5) in nats"): 0.0,
            ("step_norm", "CE(1e-2) − CE(1e-3) in nats"): 0.3,
        }
        | gain,
        10: races["kl"],
        16: races["step_norm"],
        11: later_times | decisions,
        14: {
            ("kl", later.format(threshold)): 3 - np.log10(float(threshold)) / 2
            for threshold in thresholds
        },
        15: {("acceleration", f"{robust} acceleration"): 0.294, ("kl", f"{robust} kl"): 0.296}
        | gain,
    }


# equal quality, and the check of computed times, which have their own tests
ELSEWHERE = ("at equal quality:", "steps at equal quality", "computed over measured", "is kept")


def test_every_number_of_a_claim_is_the_one_worked_out_by_hand():
    expected = {
        number: {(group, name): value for group in GROUPS for name, value in numbers.items()}
        for number, numbers in numbers_of_groups().items()
    }
    for number, numbers in numbers_of_criteria().items():
        expected[number] = numbers | {
            ("all groups", name): value for name, value in scales().items()
        }
    run = distinct_run()
    for number, numbers in expected.items():
        found = {(f.scope, f.quantity): f.estimate.value for f in examine(number, run).findings}
        # not those at other thresholds than these
        found = {
            key: value
            for key, value in found.items()
            if not any(part in key[1] for part in ELSEWHERE)
        }
        assert found == {
            key: pytest.approx(value, rel=1e-6, abs=1e-9) for key, value in numbers.items()
        }, number


def test_every_number_of_claim_6_is_the_one_worked_out_by_hand():
    expected = {
        (group, "leap from x⁰ (k = 0) over the path of the loop"): norms_at(100)[0]
        / norms_at(100).sum()
        for group in GROUPS
    }
    for state, ratio in {
        "first_state": 12.0,
        "projected": 11.0,
        "final": 9.0,
        "initial": 0.5,
    }.items():
        scope = f"{BOUNDARY}, {state}"
        expected |= {(scope, f"DLR, iteration {i}"): ratio * (1 + i / 200) for i in ITERATIONS[1:]}
        expected |= {(scope, "DLR, last"): ratio * 1.5, (scope, "DLR, untrained"): ratio}
        expected |= {(scope, "jump over the path of the loop, last"): ratio * 1.5 / 30}
    found = {(f.scope, f.quantity): f.estimate.value for f in examine(6, distinct_run()).findings}
    assert found == {key: pytest.approx(value, rel=1e-6) for key, value in expected.items()}


def test_reasons_name_the_numbers_behind_a_ratio_or_a_difference():
    run = distinct_run()
    reasons = {
        (number, f.scope, f.quantity.split(",")[0]): f.reason
        for number in (1, 7, 14, 15)
        for f in examine(number, run).findings
    }
    tenth = 1 + np.log(0.1) / np.log(0.72)
    assert reasons[1, "4", "mean norm at k = 10 over that at k = 1"].endswith(
        f"a tenth at k = {tenth:.3g}"
    )
    assert reasons[1, "4", "the same"] == "a tenth is not reached"
    assert reasons[7, "acceleration", "time at τ = 1e-2 over that at 1e-5"].endswith(
        "8.13 against 14.2 ms"
    )
    assert reasons[
        14, "kl", "evaluations per token and group minus those of acceleration"
    ].endswith("10 against 6")
    assert reasons[15, "kl", "nats lost from τ = 1e-5 to 1e-2: step norm minus kl"].endswith(
        "0.3 against 0.004"
    )


@pytest.mark.parametrize(
    ("number", "name", "first", "end"),
    [
        (
            1,
            "mean norm at k = 10 over that at k = 1",
            1,
            7,
        ),  # a tenth is reached between k = 5 and 6
        (1, "the same, untrained", 1, 30),  # a tenth is not reached
        (3, "cosine at k = 1 − late mean", 1, 2),
        (3, "cosine at k = 1 − late mean", 10, 30),
        (3, "variance of the mean cosine over k = 10 … 29", 10, 30),
        (4, "late cosine", 10, 30),
        (13, "mean norm over k = 20 … 29 over that over k = 10 … 19", 10, 20),
        (13, "mean turn over k = 20 … 29 over that over k = 10 … 19", 10, 30),
        (13, "mean curvature over k = 20 … 29 over that over k = 10 … 19", 10, 30),
        (13, "the norm over k = 20 … 29 over that at k = 1", 10, 20),
    ],
)
def test_a_tenth_under_the_rounding_floor_is_tolerated_in_exactly_the_loop_steps_of_a_quantity(
    number, name, first, end
):
    """10 % is tolerated in them, whatever is elsewhere; 12 % at the first or the last of them is
    not.
    """

    def reason(nulls):
        findings = examine(number, synthetic(loops=under_floor(nulls))).findings
        return next(f.reason for f in findings if f.quantity == name)

    elsewhere = (
        0.1 if (number, first) in ((3, 1), (3, 10)) else 0.5
    )  # that quantity looks at two ranges
    usual = {k: 0.1 if first <= k < end else elsewhere for k in range(1, 30)}
    assert "rounding floor" not in reason(usual)
    assert "under the rounding floor" in reason(usual | {first: 0.12})
    assert "under the rounding floor" in reason(usual | {end - 1: 0.12})


def under_floor(shares):
    """Rows of "loop_sequences" with a share of tokens without an angle at each loop step."""
    rows = usual_tables()["loops"]
    share = rows["k"].map(shares).fillna(0.0).where(rows["measure"] == "cosine", 0.0)
    nulls = (TOKENS * share).round()
    return rows.assign(count=(rows["count"] - nulls).clip(lower=0), nulls=rows["nulls"] + nulls)


def test_one_checkpoint_under_the_floor_leaves_its_trend_open_and_no_other():
    rows = loops()
    cosines = (
        (rows["measure"] == "cosine")
        & (rows["iteration"] == 20)
        & (rows["k"] > 0)
        & (rows["k"] < 30)
    )
    rows.loc[cosines, ["count", "nulls"]] = [TOKENS - 6, 6]
    run = synthetic(loops=rows)
    for number in (2, 3, 5):
        findings = examine(number, run).findings
        assert {"trend" in f.quantity for f in findings if "rounding floor" in f.reason} == {True}
        assert all("rounding floor" in f.reason for f in findings if "trend" in f.quantity)


def test_the_bounds_are_the_ones_fixed_beforehand():
    bounds = {
        v.claim.number: list(dict.fromkeys(f.bounds for f in v.findings if f.bounds))
        for v in usual_verdicts()
    }
    assert bounds == {
        1: ["≤ 0.1"],
        2: ["> 0"],
        3: ["< 0", "≤ 0.0025", "≤ 0.000625"],
        4: ["0.45 … 0.7"],
        5: ["≤ -0.05"],
        6: ["> 1", "≥ 5"],
        7: ["≤ 0.75"],
        8: ["-0.01 … 0.01", "≥ 0.05"],
        9: ["≤ 0.01", "≥ 0.05"],
        10: ["< 1"],
        11: ["> 1"],
        12: ["< 0"],
        13: ["≥ 0.5", "0.5 … 2"],
        14: ["> 0"],
        15: ["> 0.01", "≥ 0.05"],
        16: ["< 1"],
    }


def test_the_numbers_of_one_reading_share_the_chance_of_an_error():
    """Claim -> the number of findings that count under each reading, those of all of them."""
    shared = {
        v.claim.number: dict.fromkeys(f.findings for f in v.findings if f.counts)
        for v in usual_verdicts()
    }
    assert {number: list(counts) for number, counts in shared.items()} == {
        1: [2],
        2: [2],
        3: [6],
        4: [2],
        5: [2],
        6: [15],
        7: [1],
        8: [6],
        9: [2, 1],
        10: [1],
        11: [4, 1],
        12: [2],
        13: [4],
        14: [4, 1],
        15: [2],
        16: [1],
    }


def test_random_exits_the_gain_of_depth_and_the_noise_that_a_group_starts_from_do_not_count():
    for verdict in usual_verdicts():
        for finding in verdict.findings:
            role, quantity = finding.subject.role, finding.quantity
            if not finding.bounds or finding.scope.endswith("initial"):
                assert role == Role.REFERENCE
            elif quantity.startswith("random exits"):
                assert role == Role.CHANCE
            elif quantity.startswith("CE at the cheapest exit"):
                assert role == Role.PREMISE
            else:
                assert role == Role.COUNTED


def test_the_interval_over_documents_of_different_lengths_is_that_of_their_effective_number():
    counts = np.array([1.0, 2, 8, 2, 4, 3, 1, 7, 2, 2])
    units = np.stack([counts * np.linspace(1, 2, 10), counts], axis=-1)
    found, effective = synthetic().estimate(estimates.mean, units), 1024 / 156
    assert (found.units, found.effective, found.freedom) == (
        10,
        pytest.approx(effective),
        pytest.approx(effective - 1),
    )
    samples = estimates.mean(bootstrap.totals(units, seed=1))
    assert (found.low, found.high) == pytest.approx(
        bootstrap.interval_about(found.value, samples, effective)
    )
    trend = synthetic().trend(estimates.mean, np.repeat(units[:, None], 4, axis=1))
    assert trend.effective == pytest.approx(effective)


def test_thresholds_are_the_same_within_a_hundredth():
    """3.16e-5 in a table is the half decade 10 ** -4.5."""
    run = synthetic()
    points = [("kl", 1e-3 * factor) for factor in (1.0, 0.991, 1.009)]
    units = run.entropies(points)
    np.testing.assert_array_equal(units[:, 1:], units[:, :1].repeat(2, axis=1))
    for factor in (0.98, 1.02):
        with pytest.raises(estimates.InconclusiveError, match="rows missing: kl at 0"):
            run.entropies([("kl", 1e-3 * factor)])


def test_an_unbiased_estimate_is_moved_by_what_resampling_adds():
    units = np.stack([np.linspace(-1, 1, 7), np.ones(7)], axis=-1)
    samples = estimates.mean(bootstrap.totals(units, seed=1)) ** 2
    found = synthetic().estimate(lambda totals: estimates.mean(totals) ** 2, units, unbias=True)
    assert found.value == pytest.approx(-samples.mean())
    assert samples.mean() > 0.01
    assert (found.low, found.high) == pytest.approx(
        bootstrap.interval_about(found.value, samples, 7)
    )


def test_the_interval_of_a_ratio_is_that_of_its_logarithm():
    units = np.stack([np.linspace(1, 2, 7), np.ones(7)], axis=-1)
    found = synthetic().ratio(estimates.mean, units)
    samples = np.log(estimates.mean(bootstrap.totals(units, seed=1)))
    assert found.is_ratio
    assert (found.low, found.high) == pytest.approx(
        np.exp(bootstrap.interval_about(np.log(1.5), samples, 7))
    )


@pytest.mark.parametrize("documents", [3, 20, 2])
@pytest.mark.parametrize("unbias", [False, True])
def test_the_interval_of_a_trend_has_the_scatter_of_checkpoints_and_the_fewer_degrees_of_freedom(
    documents, unbias
):
    generator, run = np.random.default_rng(documents), synthetic()
    course = np.array([1.0, 3.0, 2.0, 4.0]) + generator.normal(size=(documents, 4))
    units = np.stack([course, np.ones_like(course)], axis=-1)
    position = np.log(ITERATIONS[1:])
    basis = np.stack([position - position.mean(), np.ones(4)], axis=1)
    values = course.mean(axis=0) ** 2
    (slope, _), residual, *_ = np.linalg.lstsq(basis, values)
    length = position[-1] - position[0]
    # residuals of correlated scatter of variance 1: their covariance, and the variance of the slope
    correlated = np.array([[0.6 ** abs(row - column) for column in range(4)] for row in range(4)])
    to_line = np.linalg.pinv(basis)
    residuals = correlated @ (np.eye(4) - basis @ to_line).T
    scatter = (
        np.sqrt(residual[0] / np.trace(residuals) * (to_line @ correlated @ to_line.T)[0, 0])
        * length
    )
    freedom = min(documents - 1, np.trace(residuals) ** 2 / np.trace(residuals @ residuals))
    samples = estimates.mean(bootstrap.totals(units, seed=1)) ** 2
    changes = np.linalg.lstsq(basis, samples.T)[0][0] * length
    change = slope * length
    change -= (changes.mean() - change) * unbias
    expected = bootstrap.interval_about(change, changes, documents, scatter, freedom)
    found = run.trend(lambda totals: estimates.mean(totals) ** 2, units, unbias)
    assert found.value == pytest.approx(change)
    assert found.freedom == pytest.approx(freedom)
    assert freedom < 2
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.remark == f"{values[0]:.3g} → {values[-1]:.3g} over 4 checkpoints"


def test_an_estimate_without_width_is_not_widened_and_one_on_its_edge_is():
    still = estimates.Estimate(2.0, 2.0, 2.0, freedom=3)
    assert still.widened(5) == still
    endless = estimates.Estimate(np.inf, 1.0, np.inf, freedom=3)
    assert endless.widened(5) == endless
    one_sided = estimates.Estimate(2.0, 2.0, 3.0, freedom=3).widened(5)
    assert (one_sided.low, one_sided.high > 3.0) == (2.0, True)
    assert estimates.Estimate(2.0, 1.5, 3.0, freedom=3).widened(1).high == pytest.approx(3.0)
    wider = bootstrap.t_quantile(0.995, 3) / bootstrap.t_quantile(0.975, 3)
    assert estimates.Estimate(2.0, 1.0, 4.0, freedom=3).widened(5).low == pytest.approx(2 - wider)
    assert estimates.Estimate(2.0, 1.0, 4.0, freedom=3, is_ratio=True).widened(
        5
    ).low == pytest.approx(2 / 2**wider)


def test_the_claims_on_geometry_are_those_that_exit_tables_do_not_change():
    tables_of_exits = ("quality", "exit_loops", "latency", "costs")
    empty = {name: usual_tables()[name][:0] for name in tables_of_exits}
    verdicts = claims.verdicts(synthetic(**empty))
    unchanged = [
        ours.claim
        for ours, usual in zip(verdicts, usual_verdicts(), strict=True)
        if ours.verdict == usual.verdict
    ]
    assert list(claims.GEOMETRY) == unchanged


@pytest.mark.parametrize(
    ("number", "needed"),
    [
        (1, [10, 10, 1]),
        (2, [2, 2]),
        (3, [29] * 5),
        (4, [29] * 2),
        (5, [29] * 4),
        (12, [2] * 3),
        (13, [29] * 4),
    ],
)
def test_a_group_with_too_few_loop_steps_is_named_with_those_that_a_quantity_needs(number, needed):
    rows = usual_tables()["loops"]
    short = synthetic(loops=rows[(rows["group"] != "5-6") | (rows["k"] <= 1)])
    reasons = [f.reason for f in examine(number, short).findings if f.scope == "5-6"]
    assert reasons == [f"rows missing: loop steps up to k = {k}, found k ≤ 0" for k in needed]
