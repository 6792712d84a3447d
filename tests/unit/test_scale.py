"""The scale of a run: the paper's follows from the defaults of the config, and verdicts of small
runs are marked.
"""

from dataclasses import replace

import pytest

from twoscale import config
from twoscale.claims.scale import Scale, Scales, scales
from twoscale.claims.words import (
    FAILS,
    HOLDS,
    NOT_ASKED,
    OPEN,
    SMALL_SCALE,
    by_word,
    marked,
    with_trend,
    word,
)

PAPER = Scale(tokens=1000, parameters=100, mean_loops=12.0, loops=30)


def preset(name):
    return scales(config.checked(config.preset(name)))


def at(**values):
    return Scales(replace(PAPER, **values), PAPER)


def test_the_scale_of_the_paper_is_that_of_its_preset_and_its_hardware_is_not_stated():
    paper = preset("demo").paper
    assert paper == replace(preset("paper").run, hardware="not stated")
    assert paper == Scale(60_000 * 10 * 512, 127_537_920, 12.0, 30, 1, "not stated")


@pytest.mark.parametrize(
    ("values", "small"),
    [
        ({}, False),
        ({"tokens": 500, "parameters": 50}, False),
        ({"tokens": 499}, True),
        ({"parameters": 49}, True),
        ({"tokens": None}, False),
        ({"tokens": None, "parameters": 49}, True),
        ({"tokens": 10_000, "parameters": 49}, True),
        ({"loops": 3, "mean_loops": 1.0}, False),
    ],
)
def test_a_run_is_small_below_half_of_the_papers_tokens_or_parameters(values, small):
    assert at(**values).mark == (SMALL_SCALE if small else "")


def test_the_training_tokens_of_a_published_model_are_unknown():
    found = preset("ouro-1.4b")
    assert found.run.tokens is None
    assert found.mark == ""
    assert found.rows[0] == ("tokens of training", "unknown", "307.2 M", "")


def test_scales_survive_the_params_of_a_job():
    found = preset("tiny")
    assert Scales.of(found.plain) == found
    assert found.rows[0] == ("tokens of training", "2,560", "307.2 M", "8.3e-06")


@pytest.mark.parametrize(
    ("verdict", "moves", "in_words", "with_mark"),
    [
        (HOLDS, False, HOLDS, "holds, small scale"),
        (OPEN, False, OPEN, "cannot be judged, small scale"),
        (FAILS, False, "not at this scale", "not at this scale"),
        (FAILS, True, *["not at this scale; moves towards the paper"] * 2),
        (NOT_ASKED, False, NOT_ASKED, NOT_ASKED),
    ],
)
def test_a_small_run_refutes_no_claim(verdict, moves, in_words, with_mark):
    scale = with_trend(SMALL_SCALE, moves)
    assert word(verdict, scale) == in_words
    assert marked(verdict, scale) == with_mark
    assert word(verdict, with_trend("", moves)) == marked(verdict, "") == verdict


def test_claims_are_listed_by_their_verdict_and_not_counted():
    small, moving = SMALL_SCALE, with_trend(SMALL_SCALE, True)
    found = [(1, OPEN, small), (2, FAILS, small), (3, HOLDS, small), (4, FAILS, moving)]
    assert by_word([*found, (5, FAILS, small)]) == (
        "holds: 3 · not at this scale: 2, 5 · not at this scale; moves towards the paper: 4"
        " · cannot be judged: 1"
    )
