"""A true claim is refuted, and a false one upheld, in at most 5 % of runs at the sizes of the presets.

The worlds are those of `tests.simulation`, at the bounds, where a verdict is wrong most often; far from them too.
"""

import math

import pytest

from tests import simulation
from tests.simulation import FALSE, FALSE_LIMIT, SIZES, TRUE, TRUE_LIMIT, WORLDS
from twoscale.analysis import bootstrap, claims
from twoscale.analysis.findings import FAILS, HOLDS

ALLOWED = 0.05
REPEATS = 300  # samples of a bootstrap, fewer than in use
LARGE = (2, 3, 5, 6, 10, 12, 13)  # claims with many findings or whole curves, which take longer to resample


def most_by_chance(draws: int) -> int:
    """The number of wrong verdicts that a chance of `ALLOWED` exceeds in one of a thousand sets of draws."""
    tail, number = 1.0, -1
    while tail > 1e-3:
        number += 1
        tail -= math.comb(draws, number) * ALLOWED**number * (1 - ALLOWED) ** (draws - number)
    return number


@pytest.mark.parametrize("size", ["demo", pytest.param("paper", marks=pytest.mark.runs)])
@pytest.mark.parametrize("number", WORLDS)
def test_a_verdict_is_wrong_in_at_most_five_percent(number, size, monkeypatch):
    monkeypatch.setattr(bootstrap, "REPEATS", REPEATS)
    draws = 30 if number in LARGE else 100
    counts = {
        kind: [simulation.count_verdicts(number, world, SIZES[size], draws) for world in WORLDS[number][kind]]
        for kind in (TRUE_LIMIT, FALSE_LIMIT)
    }
    for kind, wrong in ((TRUE_LIMIT, FAILS), (FALSE_LIMIT, HOLDS)):
        assert max(count[wrong] for count in counts[kind]) <= most_by_chance(draws)


@pytest.mark.parametrize("number", WORLDS)
def test_far_from_the_bounds_no_verdict_is_wrong_and_a_false_claim_is_mostly_refuted(number, monkeypatch):
    monkeypatch.setattr(bootstrap, "REPEATS", REPEATS)
    draws, paper = 6, SIZES["paper"]
    for world in WORLDS[number][TRUE]:
        assert simulation.count_verdicts(number, world, paper, draws)[FAILS] == 0
    for world in WORLDS[number][FALSE]:
        counts = simulation.count_verdicts(number, world, paper, draws)
        assert counts[HOLDS] == 0
        assert counts[FAILS] >= draws / 2


def test_every_claim_is_simulated():
    assert list(WORLDS) == [claim.number for claim in claims.CLAIMS]


def test_a_world_is_what_a_draw_is_around():
    """With many documents and no scatter the estimates are the true values of the world."""
    many = simulation.replace(simulation.DEMO, sequences=4000, documents=4000)
    world = simulation.World(converged=simulation.Course(0.5, -0.2), variance=simulation.Course(0.01))
    draw = simulation.Draw(world, many, seed=0)
    cosines = draw.curves("cosine", "4", draw.iterations)
    means = simulation.mean_of(cosines)[:, 10:].mean(axis=-1)
    assert means[-1] == pytest.approx(0.5, abs=0.02)
    assert means[1] == pytest.approx(0.7, abs=0.02)
    norms = simulation.mean_of(draw.curves("step_norm", "4", draw.iterations))
    assert norms[-1, 5] / norms[-1, 1] == pytest.approx(10**-1.6, rel=0.05)
