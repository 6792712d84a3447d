"""Exit criteria on streams of states whose answer is known."""

import math

import numpy as np
import pytest
import torch

from tests import reference_engine
from twoscale.base import InputError
from twoscale.config.definitions import THRESHOLD_TYPES
from twoscale.exits.criteria import CRITERIA, make_criterion

NEVER = None


def leave(name, threshold, states, readout=None):
    """Run a criterion on the states x^0, x^1, … (K + 1, C) of one token.

    Returns (index of the state that the token keeps, evaluations), or NEVER.
    """
    criterion = make_criterion(name, threshold)
    state, streak = criterion.start(states[:1]), 0
    for k in range(len(states) - 1):
        should_exit, state = criterion.update(state, states[k + 1 : k + 2], readout)
        streak = streak + 1 if should_exit else 0
        if streak == criterion.patience:
            return (k if criterion.keeps == "previous" else k + 1), k + 1
    return NEVER


def stream(updates, start=0.0):
    """States on a line whose successive differences are `updates`: (K + 1, 1) float64."""
    return torch.tensor([start, *updates], dtype=torch.float64).cumsum(0)[:, None]


def spiral(turn_degrees, speed=1.0, shrink=1.0, steps=30):
    """States in the plane; each update is the one before turned by the angle and scaled by `shrink`."""
    k = torch.arange(steps, dtype=torch.float64)
    angle, size = math.radians(turn_degrees) * k, speed * shrink**k
    updates = torch.stack([size * angle.cos(), size * angle.sin()], dim=1)
    return torch.cat([torch.zeros(1, 2, dtype=torch.float64), updates.cumsum(0)])


def random_streams(tokens, steps=30, hidden_size=3, seed=0):
    """Shrinking random walks (K + 1, N, C) that meet thresholds at very different steps."""
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(steps + 1, tokens, hidden_size, generator=generator, dtype=torch.float64)
    rates = torch.linspace(0.6, 1.0, tokens, dtype=torch.float64)[:, None]
    return (updates * rates ** torch.arange(steps + 1)[:, None, None]).cumsum(0)


@pytest.mark.parametrize("loops", [1, 2, 5])
def test_fixed_leaves_after_its_number_of_steps_whatever_the_states_do(loops):
    assert leave("fixed", loops, stream([1.0] * 8)) == (loops, loops)
    assert leave("fixed", loops, stream([0.0] * 8)) == (loops, loops)


@pytest.mark.parametrize("first_small", range(1, 9))
def test_contraction_is_left_where_the_closed_form_says(first_small):
    states = torch.tensor([2.0**-k for k in range(20)], dtype=torch.float64)[:, None]
    threshold = 1.5 * 2.0 ** -(first_small + 1)  # above update and acceleration of this k, below those before
    assert leave("step_norm", threshold, states) == (first_small + 1, first_small + 1)
    # the second hit comes one step later, and that step is thrown away
    assert leave("acceleration", threshold, states) == (first_small + 1, first_small + 2)


@pytest.mark.parametrize(("contraction", "step_norm_k", "acceleration_k"), [(0.9, 22, 1), (0.25, 2, 3), (-0.5, 4, 6)])
def test_slow_contraction_is_left_early_by_acceleration_and_a_fast_or_alternating_one_late(
    contraction, step_norm_k, acceleration_k
):
    """|update^k| = |1-c| |c|^k and a^k = (1-c)^2 |c|^(k-1): the first k under tau = 0.0101 / 0.0495 / 0.1."""
    threshold = {0.9: 0.0101, 0.25: 0.0495, -0.5: 0.1}[contraction]
    states = torch.tensor([contraction**k for k in range(30)], dtype=torch.float64)[:, None]
    assert leave("step_norm", threshold, states) == (step_norm_k + 1, step_norm_k + 1)
    assert leave("acceleration", threshold, states) == (acceleration_k + 1, acceleration_k + 2)


def test_oscillation_of_period_two_is_left_by_neither_criterion_below_its_size():
    states = stream([2.0, -2.0] * 15, start=-1.0)  # step norm 2, acceleration 4
    assert leave("step_norm", 1.99, states) is NEVER
    assert leave("acceleration", 3.99, states) is NEVER
    assert leave("step_norm", 2.01, states) == (1, 1)
    assert leave("acceleration", 4.01, states) == (2, 3)


@pytest.mark.parametrize("speed", [2.0**-10, 1.0, 2.0**10])
def test_slider_is_left_at_k_2_by_acceleration_at_any_speed(speed):
    states = stream([speed] * 30)  # powers of two: the updates are exactly equal
    assert leave("acceleration", 1e-12, states) == (2, 3)
    assert leave("step_norm", 0.99 * speed, states) is NEVER


def test_stall_of_one_step_is_left_by_step_norm_only():
    states = stream([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    assert leave("step_norm", 0.5, states) == (2, 2)
    assert leave("acceleration", 0.5, states) is NEVER


def test_stall_of_two_steps_is_a_single_dip_of_the_acceleration_and_not_left():
    states = stream([1.0, 0.0, 0.0, 1.0, 3.0, 6.0])  # a = 1, 0, 1, 2, 3
    assert leave("acceleration", 0.5, states) is NEVER


def test_stall_of_three_steps_is_left_although_motion_follows():
    states = stream([1.0, 0.0, 0.0, 0.0, 1.0])  # a = 1, 0, 0
    assert leave("acceleration", 0.5, states) == (3, 4)


def test_two_dips_that_are_not_successive_do_not_add_up():
    states = stream([1.0, 1.0, 5.0, 5.0, 9.0, 9.0])  # a = 0, 4, 0, 4, 0
    assert leave("acceleration", 0.5, states) is NEVER
    assert leave("acceleration", 0.5, stream([1.0, 1.0, 5.0, 5.0, 5.0])) == (4, 5)


@pytest.mark.parametrize("turn", [30, 60, 90])
def test_acceleration_of_a_constant_speed_spiral_is_twice_speed_times_sine_of_half_the_turn(turn):
    speed = 0.7
    a = 2 * speed * math.sin(math.radians(turn / 2))
    states = spiral(turn, speed)
    assert leave("acceleration", a * (1 + 1e-9), states) == (2, 3)
    assert leave("acceleration", a * (1 - 1e-9), states) is NEVER


def test_constant_speed_spiral_fools_acceleration_below_60_degrees_and_step_norm_above():
    assert leave("acceleration", 0.9, spiral(30)) == (2, 3)
    assert leave("step_norm", 0.9, spiral(30)) is NEVER
    assert leave("acceleration", 1.1, spiral(90)) is NEVER
    assert leave("step_norm", 1.1, spiral(90)) == (1, 1)
    for threshold, left in ((0.999, False), (1.001, True)):  # at 60 degrees both measure the same
        assert (leave("acceleration", threshold, spiral(60)) is not NEVER) == left
        assert (leave("step_norm", threshold, spiral(60)) is not NEVER) == left


def test_shrinking_spiral_is_left_earlier_by_acceleration_at_small_turns_and_later_at_large_ones():
    def evaluations(criterion, turn):
        return leave(criterion, 0.01, spiral(turn, shrink=0.8, steps=60))[1]

    assert evaluations("acceleration", 10) < evaluations("step_norm", 10)
    assert evaluations("acceleration", 90) > evaluations("step_norm", 90)


SCALED = {"step_norm_relative": 0.2, "acceleration_normalized": 0.4, "acceleration_relative": 0.2, "cosine": 0.02}


@pytest.mark.parametrize(("name", "threshold"), SCALED.items())
def test_a_scale_free_criterion_exits_where_it_did_when_all_states_are_scaled(name, threshold):
    states = random_streams(tokens=8).transpose(0, 1) + 3.0
    left = [leave(name, threshold, rows) for rows in states]
    assert left == [leave(name, threshold, 2.0**20 * rows) for rows in states]
    assert len(set(left)) > 2


@pytest.mark.parametrize("contraction", [0.25, 0.5, 0.9])
def test_acceleration_normalized_of_a_contraction_is_one_constant_however_small_the_steps(contraction):
    """Eq. 6 on x^k = c^k: (1 - c) / (1 + c) at every k."""
    constant = (1 - contraction) / (1 + contraction)
    states = torch.tensor([contraction**k for k in range(60)], dtype=torch.float64)[:, None]  # steps down to 4 ** -59
    assert leave("acceleration_normalized", constant * (1 - 1e-3), states) is NEVER
    assert leave("acceleration_normalized", constant * (1 + 1e-6), states) == (2, 3)


def test_acceleration_normalized_of_a_reversal_is_one_the_largest_it_can_be():
    states = stream([2.0, -2.0] * 15)
    assert leave("acceleration_normalized", 1 - 1e-6, states) is NEVER
    assert leave("acceleration_normalized", 1 + 1e-6, states) == (2, 3)


@pytest.mark.parametrize("turn", [30, 60, 90])
def test_acceleration_normalized_of_a_constant_speed_spiral_is_the_sine_of_half_the_turn(turn):
    sine = math.sin(math.radians(turn / 2))
    for speed in (0.01, 100.0):
        assert leave("acceleration_normalized", sine * (1 + 1e-5), spiral(turn, speed)) == (2, 3)
        assert leave("acceleration_normalized", sine * (1 - 1e-5), spiral(turn, speed)) is NEVER


@pytest.mark.parametrize("name", sorted(SCALED.keys() - {"cosine"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_statistic_of_steps_of_length_zero_is_finite(name, dtype):
    """A token at rest exits, also one whose state is zero; a state of norm zero that moves does not."""
    criterion = make_criterion(name, 1e-3)
    zeros, ones = torch.zeros(1, 4, dtype=dtype), torch.ones(1, 4, dtype=dtype)
    for state, moves in ((zeros, False), (ones, False), (zeros, True)):
        update = moves * 10 * ones
        arguments = (state, state + update) if name == "step_norm_relative" else (state, update, 0.5 * update)
        statistic = criterion.statistic(*arguments)
        assert statistic.isfinite().all()
        assert criterion.below(statistic).item() is not moves


def test_relative_forms_divide_by_the_state_that_the_step_starts_from():
    """x = 1, 2, 4, 8, …: each step is as long as the state it starts from, the acceleration half of that."""
    states = torch.tensor([2.0**k for k in range(12)], dtype=torch.float64)[:, None]
    for name, size, left in (("step_norm_relative", 1.0, (1, 1)), ("acceleration_relative", 0.5, (2, 3))):
        assert leave(name, size * 1.001, states) == left
        assert leave(name, size * 0.999, states) is NEVER


def test_slider_slows_down_relative_to_its_growing_state():
    """x^k = k: step k is 1 / k of its state, below 0.11 first at k = 10."""
    states = stream([1.0] * 30)
    assert leave("step_norm_relative", 0.11, states) == (11, 11)
    assert leave("acceleration_relative", 1e-12, states[1:]) == (2, 3)


def test_cosine_sees_the_angle_between_states_and_not_the_one_between_updates():
    growing = torch.tensor([[2.0**k, 0.0] for k in range(6)], dtype=torch.float64)
    assert leave("cosine", 1e-9, growing) == (1, 1)
    turning = torch.tensor(
        [[math.cos(k * math.pi / 3), math.sin(k * math.pi / 3)] for k in range(6)], dtype=torch.float64
    )
    assert leave("cosine", 0.5 * (1 + 1e-9), turning) == (1, 1)  # 1 - cos 60°
    assert leave("cosine", 0.5 * (1 - 1e-9), turning) is NEVER


def test_cosine_does_not_leave_from_a_start_at_zero():
    states = torch.cat([torch.zeros(1, 2), torch.ones(4, 2)]).double()
    assert leave("cosine", 0.1, states) == (2, 2)


@pytest.mark.parametrize("k_max", [1, 2, 3, 30])
@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.3, 0.4, 0.8, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("size", ["acceleration", "acceleration_normalized", "acceleration_relative"])
def test_every_acceleration_is_algorithm_1_line_by_line(size, threshold, k_max):
    for states in random_streams(tokens=12).unbind(1):
        expected = reference_engine.two_hit_acceleration(
            lambda k, x, s=states: s[k + 1], states[0], threshold, k_max, reference_engine.ACCELERATIONS[size]
        )
        k, evaluations = leave(size, threshold, states[: k_max + 1]) or (k_max, k_max)
        assert torch.equal(states[k], expected[0])
        assert (k, evaluations) == expected[1:]


def test_acceleration_never_leaves_before_k_2_however_large_the_threshold():
    assert leave("acceleration", 1e300, random_streams(1)[:, 0]) == (2, 3)
    assert leave("acceleration", 1e300, random_streams(1)[:3, 0]) is NEVER  # x^0, x^1, x^2: k = 2 is not evaluated


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_update_is_compared_with_nothing(dtype):
    """However the criterion marks "no update yet", no dtype may turn that into a hit or a NaN."""
    states = torch.zeros(4, 2, dtype=dtype)
    criterion = make_criterion("acceleration", 1.0)
    should_exit, _ = criterion.update(criterion.start(states[:1]), states[1:2], None)
    assert not should_exit.item()
    assert leave("acceleration", 1.0, states) == (2, 3)


@pytest.mark.parametrize(("criterion", "exact"), [("step_norm", 0.5), ("acceleration", 0.25)])
def test_a_statistic_equal_to_the_threshold_is_not_below_it(criterion, exact):
    states = stream([exact] * 6) if criterion == "step_norm" else stream([exact * k for k in range(8)])
    assert leave(criterion, exact, states) is NEVER
    assert leave(criterion, exact * 1.001, states) is not NEVER


def kl(p, q):
    """KL(p || q) in nats of two distributions, with NumPy."""
    p, q = np.asarray(p), np.asarray(q)
    return float(np.sum(p * np.log(p / q)))


def as_logits(*distributions):
    """States (K, V) that decode to these distributions when the decoder is the identity."""
    return torch.tensor(distributions, dtype=torch.float64).log() + 0.7  # softmax does not see a constant


@pytest.mark.parametrize(
    ("before", "after"), [((0.98, 0.01, 0.01), (0.4, 0.3, 0.3)), ((0.4, 0.3, 0.3), (0.98, 0.01, 0.01))]
)
def test_kl_is_that_of_the_new_distribution_from_the_one_before(before, after):
    divergence, reverse = kl(after, before), kl(before, after)
    assert abs(divergence - reverse) > 0.1 * divergence  # else the case could not tell the directions apart
    states = as_logits(before, after)
    assert leave("kl", divergence * (1 + 1e-9), states, readout=lambda x: x) == (1, 1)
    assert leave("kl", divergence * (1 - 1e-9), states, readout=lambda x: x) is NEVER


def test_kl_compares_successive_distributions_and_not_with_the_first():
    states = as_logits((0.7, 0.2, 0.1), (0.1, 0.2, 0.7), (0.2, 0.7, 0.1), (0.21, 0.69, 0.1))
    assert leave("kl", 0.01, states, readout=lambda x: x) == (3, 3)


def test_kl_looks_at_the_decoded_state_only():
    """A motion that the decoder does not see is none: the second coordinate runs away."""
    states = torch.tensor([[0.3, 10.0**k] for k in range(5)], dtype=torch.float64)
    head = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert leave("kl", 1e-12, states, readout=lambda x: x @ head.T) == (1, 1)
    assert leave("step_norm", 1.0, states) is NEVER


def same(x):
    """A decoder whose logits are the states."""
    return x


def filtered(p):
    """Min-p filter of a distribution, with NumPy."""
    p = np.asarray(p)
    q = np.where(p < 0.1 * p.max(), 1 / len(p), p)
    return q / q.sum()


def test_minp_kl_is_that_of_the_distribution_before_from_the_new_one_after_the_filter():
    before, after = (0.9, 0.06, 0.04), (0.5, 0.46, 0.04)  # 0.06 and 0.04, then 0.04 are under a tenth of the largest
    expected = kl(filtered(before), filtered(after))
    assert abs(expected - kl(filtered(after), filtered(before))) > 0.01 * expected
    assert abs(expected - kl(before, after)) > 0.01 * expected
    states = as_logits((1, 1, 1), before, after)  # the first step is far from uniform
    assert kl([1 / 3] * 3, filtered(before)) > expected
    assert leave("minp_kl", expected * (1 + 1e-9), states, same) == (2, 2)
    assert leave("minp_kl", expected * (1 - 1e-9), states, same) is NEVER


def test_minp_kl_starts_from_the_uniform_distribution_and_not_from_the_first_state():
    states = as_logits((0.7, 0.2, 0.1), (0.7, 0.2, 0.1), (0.7, 0.2, 0.1))
    assert leave("minp_kl", 1e-9, states, same) == (2, 2)
    flat = as_logits((0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3))
    assert leave("minp_kl", 1e-9, flat, same) == (1, 1)


def test_minp_kl_does_not_see_a_change_among_unlikely_tokens():
    states = as_logits((1, 1, 1), (0.9, 0.06, 0.04), (0.9, 0.04, 0.06))
    assert leave("minp_kl", 1e-9, states, same) == (2, 2)
    assert leave("kl", 1e-3, states, same) is NEVER


def test_the_filter_of_minp_kl_keeps_what_equals_its_limit():
    criterion = make_criterion("minp_kl", 1.0)
    criterion.MIN_P = 1.0  # the largest equals the limit
    found = criterion.filtered(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()).exp()
    expected = torch.tensor([[0.5, 1 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(found, expected / expected.sum())


def test_entropy_diff_starts_from_an_entropy_of_100_and_is_finite_for_a_certain_prediction():
    states = as_logits((1, 1, 1), (0.7, 0.2, 0.1))
    assert leave("entropy_diff", 100.0, states, same) == (1, 1)
    assert leave("entropy_diff", 99.0, states, same) is NEVER
    certain = torch.tensor([[1000.0, 0.0, 0.0]], dtype=torch.float64)
    assert make_criterion("entropy_diff", 1.0).entropy(certain).item() == pytest.approx(-1e-10, rel=1e-4)


def test_entropy_diff_compares_entropies_and_not_distributions():
    states = as_logits((1, 1, 1), (0.7, 0.2, 0.1), (0.1, 0.7, 0.2))
    assert leave("entropy_diff", 1e-9, states, same) == (2, 2)
    assert leave("kl", 0.1, states, same) is NEVER


def test_entropy_diff_takes_the_absolute_difference_in_nats():
    entropies = [-sum(a * math.log(a) for a in p) for p in ((0.5, 0.3, 0.2), (0.4, 0.3, 0.3))]
    step = entropies[1] - entropies[0]
    for order in (1, -1):
        states = as_logits((1, 1, 1), *((0.5, 0.3, 0.2), (0.4, 0.3, 0.3))[::order])
        assert leave("entropy_diff", step * (1 + 1e-6), states, same) == (2, 2)
        assert leave("entropy_diff", step * (1 - 1e-6), states, same) is NEVER


def test_entropy_diff_has_nothing_to_compare_at_the_first_step():
    still = as_logits(*[(0.5, 0.3, 0.2)] * 4)
    assert leave("entropy_diff", 1.0, still, same) == (2, 2)


@pytest.mark.parametrize("stable", [1, 2, 3])
def test_argmax_stability_counts_repeats_of_the_prediction_in_a_row(stable):
    likeliest = [0, 0, 1, 1, 2, 2, 2, 1, 1, 1, 1]  # of x^0, x^1, …
    states = torch.nn.functional.one_hot(torch.tensor(likeliest), 3).double()
    left = {1: 3, 2: 6, 3: 10}[stable]
    assert leave("argmax_stability", stable, states, same) == (left, left)
    assert leave("argmax_stability", 4, states, same) is NEVER


def test_argmax_stability_does_not_count_the_prediction_of_the_first_state():
    states = torch.tensor([[1.0, 0.0]] * 4)
    assert leave("argmax_stability", 1, states, same) == (2, 2)


CONFIDENT = [(0.4, 0.3, 0.3), (0.7, 0.2, 0.1), (0.5, 0.5, 0.0), (0.98, 0.01, 0.01)]  # of x^0, x^1, …


@pytest.mark.parametrize(
    ("name", "threshold", "left"),
    [
        ("confidence", 0.7 - 1e-9, 1),
        ("confidence", 0.7 + 1e-9, 3),
        ("confidence", 0.98 + 1e-9, NEVER),
        ("margin", 0.5 - 1e-9, 1),
        ("margin", 0.5 + 1e-9, 3),  # the second step is as sure of two tokens
        ("margin", 0.97 + 1e-9, NEVER),
        ("entropy", 0.802, 1),  # 0.8018, 0.6931 and 0.1119 nats
        ("entropy", 0.7, 2),
        ("entropy", math.log(2) - 1e-9, 3),
        ("entropy", 0.11, NEVER),
    ],
)
def test_criteria_of_one_prediction_leave_at_the_first_that_is_sure_enough(name, threshold, left):
    """The first state is not asked, and the first loop step may already be enough."""
    states = as_logits(*CONFIDENT).clamp(min=-1e4)
    assert leave(name, threshold, states, same) == (left and (left, left))


@pytest.mark.parametrize("size", [2, 5, 50])
def test_uniform_and_certain_predictions_have_the_limits_of_confidence_margin_and_entropy(size):
    uniform, certain = torch.zeros(2, size, dtype=torch.float64), torch.zeros(2, size, dtype=torch.float64)
    certain[:, -1] = 1e4
    near = 1e-9
    assert leave("confidence", 1 / size - near, uniform, same) == (1, 1)
    assert leave("confidence", 1 / size + near, uniform, same) is NEVER
    assert leave("margin", near, uniform, same) is NEVER
    assert leave("entropy", math.log(size) + near, uniform, same) == (1, 1)
    assert leave("entropy", math.log(size) - near, uniform, same) is NEVER
    for name, threshold in (("confidence", 1.0), ("margin", 1.0), ("entropy", near)):
        assert leave(name, threshold, certain, same) == (1, 1)


MET_BY_SOME = {
    "fixed": 4,
    "step_norm": 0.8,
    "step_norm_relative": 0.3,
    "kl": 0.05,
    "acceleration": 1.2,
    "acceleration_normalized": 0.7,
    "acceleration_relative": 0.4,
    "entropy_diff": 0.05,
    "argmax_stability": 3,
    "cosine": 0.05,
    "minp_kl": 0.05,
    "confidence": 0.8,
    "margin": 0.6,
    "entropy": 0.5,
    "exit_gate": 0.9,
}


def readout_for(name):
    """What the engine would hand in: logits, or the probability of exit."""
    return (lambda x: x[:, 0].sigmoid()) if CRITERIA[name].needs_gate else same


@pytest.mark.parametrize(("name", "threshold"), [(name, MET_BY_SOME[name]) for name in CRITERIA])
def test_dropping_tokens_from_the_state_changes_nothing_for_the_others(name, threshold):
    states = random_streams(tokens=10, steps=12)
    criterion = make_criterion(name, threshold)
    together, apart = criterion.start(states[0]), criterion.start(states[0])
    kept = torch.arange(10)
    fired = 0
    for k in range(12):
        exits, together = criterion.update(together, states[k + 1], readout_for(name))
        exits_apart, apart = criterion.update(apart, states[k + 1, kept], readout_for(name))
        assert torch.equal(exits_apart, exits[kept])
        fired += int(exits.sum())
        stay = ~exits_apart
        stay[k % len(stay)] = False  # and one that would have stayed
        kept, apart = kept[stay], {key: rows[stay] for key, rows in apart.items()}
        if len(kept) < 2:
            break
    assert fired


@pytest.mark.parametrize("name", CRITERIA)
def test_a_stricter_threshold_never_lets_a_token_leave_earlier(name):
    """A larger one is strict for a probability or a count, a smaller one for a size or an entropy."""
    factors = sorted([0.25, 0.5, 1, 1.25, 2], reverse=not CRITERIA[name].larger_is_later)
    exits = set()
    for states in random_streams(tokens=20, steps=12).unbind(1):
        left = [leave(name, factor * MET_BY_SOME[name], states, readout_for(name)) or (99, 99) for factor in factors]
        assert left == sorted(left)
        exits |= set(left)
    assert len(exits) > 2


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_keeps_no_state_between_texts(name):
    """One object serves all groups: the state of one token must not reach the next."""
    criterion = make_criterion(name, 2)
    states = random_streams(tokens=4, steps=6)

    def answers():
        state, exits = criterion.start(states[0]), []
        for x in states[1:]:
            should_exit, state = criterion.update(state, x, readout_for(name))
            exits.append(should_exit)
        return torch.stack(exits)

    assert torch.equal(answers(), answers())


def test_the_exit_gate_cumulates_the_probability_of_having_left():
    """lambda = 1/2 at every step: 1/2, 3/4, 7/8 have left; a threshold that is reached exactly is met."""
    for threshold, steps in ((0.4, 1), (0.5, 1), (0.6, 2), (0.75, 2), (0.8, 3)):
        criterion = make_criterion("exit_gate", threshold)
        x, taken, exits = torch.zeros(1, 2), 0, torch.tensor([False])
        state = criterion.start(x)
        while not exits.item():
            exits, state = criterion.update(state, x, lambda x: torch.full((len(x),), 0.5))
            taken += 1
        assert taken == steps


def test_an_unknown_criterion_is_refused_with_the_known_names():
    with pytest.raises(InputError, match=r"'step_nrom'.*fixed, step_norm, .*kl, .*acceleration"):
        make_criterion("step_nrom", 1.0)


def test_config_and_criteria_know_the_same_names():
    """The criterion `probe` is made of a file of the run."""
    assert THRESHOLD_TYPES.keys() == CRITERIA.keys() | {"probe"}


@pytest.mark.parametrize("tokens", [1, 3])
def test_one_criterion_rounds_its_threshold_to_the_dtype_of_each_model(tokens):
    """0.7 rounded to float32 is less than 0.7, but not less than a threshold of 0.7 in float32."""
    criterion = make_criterion("step_norm", 0.7)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float64):
        at, under = torch.full((2, tokens), 0.7, dtype=dtype)
        under -= torch.finfo(dtype).eps
        assert criterion.below(at).tolist() == [False] * tokens
        assert criterion.below(under).tolist() == [True] * tokens


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_says_whether_it_calls_the_readout(name):
    calls = []

    def readout(x):
        calls.append(x)
        return x[:, 0] if criterion.needs_gate else x  # probabilities (N,) or logits (N, V)

    states = random_streams(tokens=2)
    criterion = make_criterion(name, 0.1)
    state = criterion.start(states[0])
    for k in range(3):
        _, state = criterion.update(state, states[k + 1], readout)
    assert bool(calls) is (criterion.needs_readout or criterion.needs_gate)
