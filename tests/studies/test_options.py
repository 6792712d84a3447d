"""Options of the studies that decide which checkpoints and sequences are measured."""

from pathlib import Path

import pytest

from tests.rules import config_of, rules
from tests.small import of


@pytest.mark.parametrize(
    ("checkpoints", "iterations"), [("all", [0, 10, 20]), ("last", [20])], ids=["all", "last"]
)
def test_the_spectrum_is_that_of_all_checkpoints_or_of_the_last(checkpoints, iterations):
    rule = rules(spectrum={"checkpoints": checkpoints})["aggregate_spectrum"]
    files = dict(rule.input.items())["tokens"](of(run="tiny"))
    assert [Path(file).stem for file in files] == [f"iteration_{n:06d}" for n in iterations]


@pytest.mark.parametrize(
    ("tokens", "exact_tokens", "exact"),
    [(128, 64, 2), (128, 40, 1), (128, 1, 1), (64, 128, 2)],
)
def test_exact_blocks_are_of_whole_sequences_of_32_tokens_among_those_followed(
    tokens, exact_tokens, exact
):
    keys = {"tokens": tokens, "exact_tokens": exact_tokens}
    config = config_of("measure_spectrum", spectrum=keys)
    assert (config["sequences"], config["exact_sequences"]) == (tokens // 32, exact)


@pytest.mark.parametrize(
    ("rule", "section"),
    [
        ("measure_lens", "lens"),
        ("measure_depth", "depth_card"),
        ("measure_exit_regret", "oracle"),
        ("measure_path_independence", "path_independence"),
        ("measure_scaling", "scaling"),
    ],
)
def test_the_tokens_of_a_study_are_measured_in_whole_sequences(rule, section):
    assert config_of(rule, **{section: {"tokens": 70}})["sequences"] == 2
