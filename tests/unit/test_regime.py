"""The regime of loops whose path is known: linear maps, translations, rotations, logarithms,
rounding.
"""

import numpy as np
import pandas as pd
import pytest

from tests import synthetic_run
from tests.unit.test_pages import drifting_rows
from twoscale.claims import regime
from twoscale.claims.evidence import Evidence
from twoscale.dynamics import vectors

K = 64


def norms(states):
    """Norms of the steps, the states and the steps of the direction of a path (K + 1, C)."""
    states = np.asarray(states, dtype=float)
    length = np.linalg.norm(states, axis=1)
    steps, turns = (
        np.linalg.norm(np.diff(path, axis=0), axis=1) for path in (states, states / length[:, None])
    )
    return steps, length, turns


def judge(steps, states, turns=None, rounding=None):
    """The regime of norms (K,) of one unit, or (units, K)."""
    steps, states = np.atleast_2d(steps), np.atleast_2d(states)
    rounding = np.zeros_like(steps, dtype=bool) if rounding is None else np.atleast_2d(rounding)
    return regime.regime(steps, states, None if turns is None else np.atleast_2d(turns), rounding)


def iterate(step, start=(1.0, 0.5), loops=K):
    states = [np.asarray(start)]
    for _ in range(loops):
        states.append(step(states[-1]))
    return states


def rotation(angle, factor=1.0):
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]])


PATHS = {
    "contraction to a point": (iterate(lambda x: 0.8 * x + 1), "settling", None),
    "contraction to the rounding floor": (
        iterate(lambda x: np.float32(0.3) * np.float32(x) + 1),
        "settling",
        None,
    ),
    "spiral inwards to a point": (iterate(lambda x: rotation(0.7, 0.8) @ x + 1), "settling", None),
    "rotation": (iterate(lambda x: rotation(0.7) @ x), "marginal", None),
    "translation": (iterate(lambda x: x + np.array([0.0, 2.0])), "drifting", True),
    "steps that fall as 1/k": ([[20 + np.log1p(k), 0] for k in range(K + 1)], "marginal", None),
    "growth of one direction": (
        iterate(lambda x: np.array([[1.3, 0], [0, 0.6]]) @ x),
        "drifting",
        True,
    ),
    "spiral outwards": (iterate(lambda x: rotation(0.7, 1.1) @ x), "drifting", False),
    "square root of k": ([[1 + np.sqrt(k), 1] for k in range(K + 1)], "drifting", True),
}


@pytest.mark.parametrize("name", PATHS)
def test_regime_of_known_path(name):
    states, expected, freezes = PATHS[name]
    found = judge(*norms(states))
    assert found.name == expected, found
    assert found.sentence.startswith(expected)
    assert ("the direction" in found.sentence) is (expected == "drifting")
    if freezes is not None:
        assert found.freezes is freezes
        assert ("the direction freezes" in found.sentence) is freezes


@pytest.mark.parametrize("power", [-2.0, -0.5, 0.0, 0.5])
def test_exponents_of_power_laws(power):
    k = np.arange(K + 1.0)
    found = judge((k[:-1] + 0.5) ** power, (k + 1e-9) ** (power + 1), (k[:-1] + 0.5) ** (power - 1))
    exponents = (found.step_exponent, found.norm_exponent, found.direction_exponent)
    assert [exponent.value for exponent in exponents] == pytest.approx(
        [power, power + 1, power - 1]
    )
    assert (found.first, found.last) == (K // 2, K - 1)


@pytest.mark.parametrize(("power", "name"), [(0.09, "marginal"), (0.11, "drifting")])
def test_a_norm_grows_from_a_tenth_of_a_power_on(power, name):
    k = np.arange(K + 1.0)
    assert judge((k[:-1] + 0.5) ** -0.5, (k + 1e-9) ** power).name == name


def test_interval_over_units_that_reaches_minus_one_shows_neither():
    k = np.arange(K) + 0.5
    steps, states = np.stack([k**-0.5, k**-1.3]), np.full((2, K + 1), 50.0)
    assert judge(steps[1], states[1]).name == "settling"
    both = judge(steps, states)
    assert both.name == "marginal"
    assert both.step_exponent.low < -1.3 < -0.5 < both.step_exponent.high
    below_in_the_mean = judge(np.stack([k**-0.9, k**-1.5]), states)
    assert (below_in_the_mean.name, below_in_the_mean.step_exponent.value) == (
        "marginal",
        pytest.approx(-1.2),
    )


def test_steps_under_the_floor_are_left_out_of_the_fit():
    k = np.arange(K) + 0.5
    steps = np.maximum(k**-3.0, 1e-5)  # flat from k = 46: rounding of a state of norm 10
    found = judge(steps, np.full(K + 1, 10.0))
    assert found.step_exponent.value == pytest.approx(-3)
    assert found.at_floor
    assert judge(np.full(K, 1e-6), np.full(K + 1, 10.0)).name == "settling"


def test_growth_is_seen_in_steps_under_the_floor_of_a_coarse_dtype():
    states = iterate(lambda x: x + 1.0, start=[1.0])
    steps, length, turns = norms(states)
    assert judge(steps, length, turns, rounding=np.ones(K, dtype=bool)).name == "drifting"


def test_few_steps_and_infinite_states_are_undetermined():
    steps, length, turns = norms(iterate(lambda x: x + 1.0, loops=5))
    assert judge(steps, length, turns).name == "undetermined"
    assert judge(np.full(K, np.inf), np.full(K + 1, np.inf)).name == "undetermined"
    assert "6 loop steps" in judge(steps, length).sentence


def test_floor_is_that_of_the_measures():
    assert np.finfo(np.float32).eps * vectors.FLOOR_FACTOR == regime.FLOOR


def test_each_group_has_a_regime_at_the_last_checkpoint():
    rows = drifting_rows()
    still = rows.assign(iteration=0, group=rows["group"].map({"4": "5-6", "5-6": "4"}))
    found = Evidence.of({"loops": pd.concat([still, rows])}, max_loops=0).regimes
    names = {group: (each.name, each.freezes) for group, each in found.items()}
    assert names == {"4": ("settling", None), "5-6": ("drifting", True)}
    last = found["5-6"]
    assert last.step_exponent.value == pytest.approx(0, abs=1e-6)
    assert last.norm_exponent.low <= last.norm_exponent.value <= last.norm_exponent.high
    assert last.direction_exponent.value == pytest.approx(-2, abs=0.1)


def test_sequences_of_a_document_count_by_their_tokens():
    """Three quarters of a document with longer and longer steps, a quarter with shorter ones, their
    mean as before.
    """
    rows = synthetic_run.loop_rows(50, "4", floor=0.03)
    longer = 1 + 0.3 * rows["k"] / rows["k"].max()
    most = rows.assign(mean=rows["mean"] * longer, count=3 * rows["count"])
    rest = rows.assign(mean=rows["mean"] * (4 - 3 * longer), sequence=rows["sequence"] + 1000)
    whole, parts = map(regime.of_sequences, (rows, pd.concat([most, rest])))
    for name in ("step_exponent", "norm_exponent"):
        assert getattr(parts, name).value == pytest.approx(getattr(whole, name).value)


def test_sequences_that_do_not_settle_are_counted_one_by_one():
    """Each document has a sequence that settles and, in two of 32, a second one whose steps do
    not fall.
    """
    rows = synthetic_run.loop_rows(50, "4", rate=0.6, floor=0.0)
    moving = rows[rows["sequence"] < 2].assign(sequence=rows["sequence"] + 1000)
    moving.loc[moving["measure"] == "step_norm", "mean"] = 0.01
    found = regime.of_sequences(pd.concat([rows, moving.assign(count=1)]))
    assert (found.unsettled, found.sequences) == (2, 34)
    assert found.sentence.endswith("; 2 of 34 sequences (6%) do not settle.")
    alone = regime.of_sequences(rows)
    assert (alone.name, alone.unsettled) == ("settling", 0)


def test_the_last_step_is_a_ratio_of_means():
    """In one of three units the last step is large: a median would not show it."""
    steps, states = np.full((3, K), 1e-3), np.full((3, K + 1), 2.0)
    steps[2] = 3.0
    assert judge(steps, states).last_step == pytest.approx((3.0 + 2e-3) / 3 / 2)


def test_steps_whose_angles_are_null_in_the_table_are_rounding():
    """States in bfloat16: steps of 0.4 % of the state do not fall any further, and have no
    angle.
    """
    rows = synthetic_run.loop_rows(50, "4", floor=0.03)
    late = rows["k"].between(15, 29)
    assert regime.of_sequences(rows).name == "marginal"
    of_rounding = late & (rows["measure"] == "cosine")
    rows.loc[of_rounding, "nulls"], rows.loc[of_rounding, "count"] = synthetic_run.TOKENS, 0
    rows.loc[of_rounding, "mean"] = np.nan
    found = regime.of_sequences(rows)
    assert (found.name, found.at_floor) == ("settling", True)
