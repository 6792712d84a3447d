"""Exit criteria on streams of states whose answer is known."""

import math
import re

import numpy as np
import pytest
import torch

from tests import reference_engine
from tests.small import LATER_IF_LARGER, ROOT
from twoscale.base import InputError
from twoscale.config.criteria import FACTS
from twoscale.exits.contract import frozen_exits
from twoscale.exits.criteria import CRITERIA, make_criterion

NEVER = None


def leave(name, threshold, states, readout=None):
    """Run a criterion on the states x^0, x^1, … (K + 1, C) of one token.

    Returns (index of the state that the token keeps, evaluations), or NEVER.
    """
    exits = frozen_exits(states[:, None], make_criterion(name, threshold), readout)
    return (int(exits.loop_steps), int(exits.evaluations)) if exits.left else NEVER


def stream(updates, start=0.0):
    """States on a line whose successive differences are `updates`: (K + 1, 1) float64."""
    return torch.tensor([start, *updates], dtype=torch.float64).cumsum(0)[:, None]


def spiral(turn_degrees, speed=1.0, shrink=1.0, steps=30):
    """States in the plane; each update is the one before turned by the angle and scaled by
    `shrink`.
    """
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


def geometric(ratio, steps=60):
    return torch.tensor([ratio**k for k in range(steps)], dtype=torch.float64)[:, None]


# criterion, threshold, states, (index of the state that the token keeps, evaluations)
ON_STATES = {
    "fixed counts steps": ("fixed", 5, stream([0.0] * 8), (5, 5)),
    "an oscillation below its step": ("step_norm", 1.99, stream([2.0, -2.0] * 15), NEVER),
    "a stall of one step": ("step_norm", 0.5, stream([1.0, 0.0] * 3), (2, 2)),
    "a step equal to the threshold": ("step_norm", 0.5, stream([0.5] * 6), NEVER),
    "an acceleration equal to it": (
        "acceleration",
        0.25,
        stream([0.25 * k for k in range(8)]),
        NEVER,
    ),
    "alternating contraction, step": ("step_norm", 0.1, geometric(-0.5), (5, 5)),
    # Eq. 6 on x^k = c^k is (1 - c) / (1 + c) at every k, for a reversal 1, the largest value
    "a normalised contraction below": ("acceleration_normalized", 0.3333, geometric(0.5), NEVER),
    "a normalised contraction above": ("acceleration_normalized", 0.33334, geometric(0.5), (2, 3)),
    # x = 1, 2, 4, …: a step is as long as the state it starts from, the acceleration half of that
    "a relative step below": ("step_norm_relative", 0.999, geometric(2.0, 12), NEVER),
    "a relative step above": ("step_norm_relative", 1.001, geometric(2.0, 12), (1, 1)),
    "a relative acceleration below": ("acceleration_relative", 0.4995, geometric(2.0, 12), NEVER),
    "a relative acceleration above": ("acceleration_relative", 0.5005, geometric(2.0, 12), (2, 3)),
    "a slider over its growing state": ("step_norm_relative", 0.11, stream([1.0] * 30), (11, 11)),
    "the cosine of a growing state": (
        "cosine",
        1e-9,
        torch.cat([geometric(2.0, 6), 0 * geometric(2.0, 6)], 1),
        (1, 1),
    ),
    "the cosine from a start at zero": (
        "cosine",
        0.1,
        torch.cat([torch.zeros(1, 2), torch.ones(4, 2)]).double(),
        (2, 2),
    ),
}


@pytest.mark.parametrize(
    ("name", "threshold", "states", "expected"), ON_STATES.values(), ids=ON_STATES
)
def test_a_token_leaves_where_the_closed_form_says(name, threshold, states, expected):
    assert leave(name, threshold, states) == expected


@pytest.mark.parametrize("turn", [30, 60, 90])
def test_accelerations_of_a_constant_speed_spiral_follow_the_sine_of_half_the_turn(turn):
    sine = math.sin(math.radians(turn / 2))
    for name, statistic in (("acceleration", 2 * 0.7 * sine), ("acceleration_normalized", sine)):
        assert leave(name, statistic * (1 + 1e-5), spiral(turn, 0.7)) == (2, 3)
        assert leave(name, statistic * (1 - 1e-5), spiral(turn, 0.7)) is NEVER
    chord = 1 - math.cos(math.radians(turn))  # of states on a circle
    angle = torch.arange(6, dtype=torch.float64) * math.radians(turn)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    assert leave("cosine", chord * (1 + 1e-9), circle) == (1, 1)
    assert leave("cosine", chord * (1 - 1e-9), circle) is NEVER


# --- predictions ----------------------------------------------------------------------------------


def kl(p, q):
    """KL(p || q) in nats of two distributions, with NumPy."""
    p, q = np.asarray(p), np.asarray(q)
    return float(np.sum(p * np.log(p / q)))


def entropy(p):
    return -sum(a * math.log(a) for a in p)


def filtered(p):
    """Min-p filter of a distribution, with NumPy."""
    p = np.asarray(p)
    q = np.where(p < 0.1 * p.max(), 1 / len(p), p)
    return q / q.sum()


def as_logits(*distributions):
    """States (K, V) that decode to these distributions when the decoder is the identity."""
    logits = (
        torch.tensor(distributions, dtype=torch.float64).log() + 0.7
    )  # softmax does not see a constant
    return logits.clamp(min=-1e4)


def same(x):
    return x


SURE, SPREAD, FLAT = (0.98, 0.01, 0.01), (0.4, 0.3, 0.3), (1, 1, 1)
LIKELY, LIKELIER = (
    (0.9, 0.06, 0.04),
    (0.5, 0.46, 0.04),
)  # two, then one are below a tenth of the largest
MIXED, OTHER = (0.5, 0.3, 0.2), (0.4, 0.3, 0.3)
CONFIDENT = as_logits((0.4, 0.3, 0.3), (0.7, 0.2, 0.1), (0.5, 0.5, 0.0), SURE)  # of x^0, x^1, …
LIKELIEST = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 1, 2, 2, 2, 1, 1, 1, 1]), 3).double()
UNIFORM, CERTAIN = (
    torch.zeros(2, 50, dtype=torch.float64),
    torch.eye(50, dtype=torch.float64)[[3, 3]] * 1e4,
)
# criterion, statistic, states, step at which a threshold just above the statistic lets the token
# go, and just below it
ON_PREDICTIONS = [
    (
        "kl",
        kl(SPREAD, SURE),
        as_logits(SURE, SPREAD),
        1,
        NEVER,
    ),  # of the new one from the one before
    ("kl", kl(SURE, SPREAD), as_logits(SPREAD, SURE), 1, NEVER),
    (
        "kl",
        0.01,
        as_logits((0.7, 0.2, 0.1), (0.1, 0.2, 0.7), (0.2, 0.7, 0.1), (0.21, 0.69, 0.1)),
        3,
        3,
    ),
    # the other direction, after the filter, from the uniform distribution on
    (
        "minp_kl",
        kl(filtered(LIKELY), filtered(LIKELIER)),
        as_logits(FLAT, LIKELY, LIKELIER),
        2,
        NEVER,
    ),
    ("minp_kl", 1e-9, as_logits(*[(0.7, 0.2, 0.1)] * 3), 2, 2),
    ("minp_kl", 1e-9, as_logits((0.7, 0.2, 0.1), FLAT), 1, 1),
    (
        "minp_kl",
        1e-9,
        as_logits(FLAT, (0.9, 0.06, 0.04), (0.9, 0.04, 0.06)),
        2,
        2,
    ),  # blind to unlikely tokens
    ("entropy_diff", entropy(OTHER) - entropy(MIXED), as_logits(FLAT, MIXED, OTHER), 2, NEVER),
    ("entropy_diff", entropy(OTHER) - entropy(MIXED), as_logits(FLAT, OTHER, MIXED), 2, NEVER),
    (
        "entropy_diff",
        1e-9,
        as_logits(FLAT, (0.7, 0.2, 0.1), (0.1, 0.7, 0.2)),
        2,
        2,
    ),  # of entropies, not distributions
    (
        "entropy_diff",
        100 - entropy((0.7, 0.2, 0.1)),
        as_logits(FLAT, (0.7, 0.2, 0.1)),
        1,
        NEVER,
    ),  # it starts from 100
    (
        "entropy_diff",
        math.log(2),
        as_logits(FLAT, (0.5, 0.5, 0.0), (1.0, 0.0, 0.0)),
        2,
        NEVER,
    ),  # probabilities of 0
    ("argmax_stability", 1, LIKELIEST, 6, 3),
    ("argmax_stability", 3, LIKELIEST, NEVER, 10),
    ("confidence", 0.7, CONFIDENT, 3, 1),
    ("confidence", 0.98, CONFIDENT, NEVER, 3),
    ("confidence", 1 / 50, UNIFORM, NEVER, 1),
    ("margin", 0.5, CONFIDENT, 3, 1),
    ("margin", 0.97, CONFIDENT, NEVER, 3),
    ("margin", 1.0, CERTAIN, NEVER, 1),
    ("entropy", entropy((0.7, 0.2, 0.1)), CONFIDENT, 1, 2),
    ("entropy", math.log(2), CONFIDENT, 2, 3),
    ("entropy", math.log(50), UNIFORM, 1, NEVER),
    ("entropy", 1e-9, CERTAIN, 1, 1),
]


@pytest.mark.parametrize(("name", "statistic", "states", "above", "below"), ON_PREDICTIONS)
def test_a_prediction_lets_a_token_go_where_the_closed_form_says(
    name, statistic, states, above, below
):
    for left, factor in ((above, 1 + 1e-6), (below, 1 - 1e-6)):
        assert leave(name, statistic * factor, states, same) == (left and (left, left))
    early, late = (below, above) if name in LATER_IF_LARGER else (above, below)
    assert late is NEVER or early <= late


@pytest.mark.parametrize(
    ("threshold", "steps"), [(0.4, 1), (0.5, 1), (0.6, 2), (0.75, 2), (0.8, 3)]
)
def test_the_exit_gate_cumulates_the_probability_of_having_left(threshold, steps):
    """lambda = 1/2 at every step: 1/2, 3/4, 7/8 have left; a threshold that is reached exactly is
    met.
    """
    left = leave("exit_gate", threshold, torch.zeros(6, 2), lambda x: torch.full((len(x),), 0.5))
    assert left == (steps, steps)


@pytest.mark.parametrize(
    "name", ["step_norm_relative", "acceleration_normalized", "acceleration_relative"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_statistic_of_steps_of_length_zero_is_finite(name, dtype):
    """A token at rest exits, also one whose state is zero; a state of norm zero that moves does
    not.
    """
    criterion = make_criterion(name, 1e-3)
    zeros, ones = torch.zeros(1, 4, dtype=dtype), torch.ones(1, 4, dtype=dtype)
    for state, moves in ((zeros, False), (ones, False), (zeros, True)):
        update = moves * 10 * ones
        arguments = (
            (state, state + update)
            if name == "step_norm_relative"
            else (state, update, 0.5 * update)
        )
        statistic = criterion.statistic(*arguments)
        assert statistic.isfinite().all()
        assert criterion.below(statistic).item() is not moves


@pytest.mark.parametrize("k_max", [1, 2, 3, 30])
@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.3, 0.4, 0.8, 1.0, 3.0, 100.0])
@pytest.mark.parametrize(
    "size", ["acceleration", "acceleration_normalized", "acceleration_relative"]
)
def test_every_acceleration_is_algorithm_1_line_by_line(size, threshold, k_max):
    for states in random_streams(tokens=12).unbind(1):
        expected = reference_engine.two_hit_acceleration(
            lambda k, x, s=states: s[k + 1],
            states[0],
            threshold,
            k_max,
            reference_engine.ACCELERATIONS[size],
        )
        k, evaluations = leave(size, threshold, states[: k_max + 1]) or (k_max, k_max)
        assert torch.equal(states[k], expected[0])
        assert (k, evaluations) == expected[1:]


@pytest.mark.parametrize(
    ("name", "threshold"),
    [("step_norm", 0.3), ("acceleration", 0.3), ("fixed", 4), ("margin", 0.9)],
)
@pytest.mark.parametrize("k_max", [1, 4, 30])
def test_frozen_exits_are_those_of_each_token_alone_and_say_which_tokens_never_leave(
    name, threshold, k_max
):
    states = random_streams(tokens=12)[: k_max + 1]
    exits = frozen_exits(states, make_criterion(name, threshold), lambda x: x)
    expected = [leave(name, threshold, each, lambda x: x) for each in states.unbind(1)]
    assert exits.left.tolist() == [exit is not NEVER for exit in expected]
    kept = [(k_max, k_max) if exit is NEVER else exit for exit in expected]
    assert torch.stack([exits.loop_steps, exits.evaluations], 1).tolist() == [*map(list, kept)]


def test_the_example_of_the_documentation_runs(capsys):
    page = (ROOT / "docs" / "exits.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/exits.md", "exec"), {})
    assert re.match(r"\d+ of 32 tokens leave; evaluations: ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("states", "found"),
    [
        (torch.zeros(1, 3, 2), r"1 states, the first of shape \(3, 2\)"),
        (torch.zeros(4, 2, 3, 5), r"4 states, the first of shape \(2, 3, 5\)"),
    ],
)
def test_states_of_another_shape_are_refused_in_one_sentence(states, found):
    with pytest.raises(InputError, match=f"^frozen_exits: found {found}, expected x"):
        frozen_exits(states, make_criterion("step_norm", 0.1), lambda x: x)


def test_each_criterion_has_a_fact_sheet_that_it_follows():
    assert FACTS.keys() == CRITERIA.keys()
    for name, criterion in CRITERIA.items():
        assert (criterion.patience, criterion.keeps) == (FACTS[name].patience, FACTS[name].keeps)
    # Algorithm 1
    assert (CRITERIA["acceleration"].patience, CRITERIA["acceleration"].keeps) == (2, "previous")
    assert (CRITERIA["step_norm"].patience, CRITERIA["step_norm"].keeps) == (1, "new")


@pytest.mark.parametrize("tokens", [1, 3])
def test_one_criterion_rounds_its_threshold_to_the_dtype_of_each_model(tokens):
    """0.7 rounded to float32 is less than 0.7, but not less than a threshold of 0.7 in float32."""
    criterion = make_criterion("step_norm", 0.7)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float64):
        at, under = torch.full((2, tokens), 0.7, dtype=dtype)
        under -= torch.finfo(dtype).eps
        assert criterion.below(at).tolist() == [False] * tokens
        assert criterion.below(under).tolist() == [True] * tokens
