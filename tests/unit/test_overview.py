"""The overview of a run: verdicts with the values that they rest on, and sentences for the captions."""

from html.parser import HTMLParser

import pandas as pd
import pytest

from twoscale.figures.catalogue import figures
from twoscale.jobs import command
from twoscale.report import overview

STATE = "first_state"


def finding(claim, scope, quantity="", value=float("nan"), interval=(None, None), bounds="", verdict="holds"):
    low, high = interval
    return {
        "claim": claim,
        "scope": scope,
        "quantity": quantity,
        "value": value,
        "low": low,
        "high": high,
        "bounds": bounds,
        "verdict": verdict,
        "scale": "",
    }


@pytest.fixture
def judged():
    rows = [
        finding(4, "5-6", "late cosine", -0.25, (-0.5, 0.125), "0.45 … 0.7", "does not hold"),
        finding(4, "5-6", "the same, untrained", -0.5),
        finding(4, "7", "late cosine", bounds="0.45 … 0.7", verdict="cannot be judged"),
        finding(4, "all", verdict="does not hold"),
        finding(6, "4->5-6, first_state", "DLR, iteration 10", 10.0, (9.0, 11.0), "> 1"),
        finding(6, "4->5-6, first_state", "DLR, last", 20.0, (19.0, 21.0), "≥ 5"),
        finding(6, "4->5-6, projected", "DLR, last", 30.0, (29.0, 31.0), "≥ 5"),
        finding(6, "all"),
        finding(13, "all", verdict="not asked"),
    ]
    return overview.answers(pd.DataFrame(rows).astype({"low": float, "high": float}), STATE)


@pytest.fixture
def shown(tmp_path):
    picture = tmp_path / "fig2.svg"
    picture.write_text("<svg/>" * 20_000)
    return overview.Shown("fig2", "Fig. 2 <drift>", [6], "", picture)


def test_a_claim_shows_the_values_that_decide_it_with_intervals_and_bounds(judged):
    assert judged[0].measured == "late cosine: −0.25 [−0.5, 0.125] (group 5–6), expected 0.45 … 0.7"


def test_criteria_are_named_as_in_the_figures_and_exponents_keep_their_hyphen():
    rows = [finding(10, "kl", "acceleration over step_norm at 1e-2", -0.5, bounds="> 0"), finding(10, "all")]
    (answer,) = overview.answers(pd.DataFrame(rows).astype({"low": float, "high": float}), STATE)
    assert answer.measured == "acceleration over step norm at 1e-2: −0.5 (KL), expected > 0"


def test_a_page_of_small_scale_verdicts_says_that_the_scale_of_the_paper_was_not_run(judged):
    assert overview.WARNING not in overview.body("a", "text", judged, [])
    small = [overview.Answer(1, "title", "holds", "", "small scale")]
    assert overview.WARNING in overview.body("a", "text", small, [])


def test_of_several_reference_states_the_one_of_the_config_is_shown(judged):
    assert judged[1].measured == "DLR, last: 20 [19, 21] (4 → 5–6, first state), expected ≥ 5"


def test_a_claim_that_is_not_asked_has_a_verdict_and_no_values(judged):
    assert judged[2].sentence == "Claim 13, Loops become spirals of constant speed and curvature: not asked."


def test_a_figure_has_the_sentences_of_its_claims_and_of_its_table(judged, shown):
    (sentence,) = overview.sentences(shown, judged, None)
    assert sentence.startswith("Claim 6, Jumps between groups are larger than loop steps: holds; DLR, last: 20 ")
    assert overview.sentences(shown, judged, "Measured.") == ["Measured.", sentence]


@pytest.mark.parametrize("figure", [figure for figure in figures() if figure.sentence], ids=lambda figure: figure.name)
def test_a_figure_with_a_sentence_has_a_function_for_it_and_a_table_of_its_name(figure):
    assert callable(command.function(figure.sentence))
    assert figure.inputs[figure.name] == f"tables/{figure.name}.parquet"


def test_the_page_has_a_row_per_claim_and_the_picture_of_each_figure(judged, shown):
    body = overview.body("a<b", "text", judged, [(shown, ["one & two"])])
    rows = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: rows.append(tag)
    parser.feed(body)
    assert rows.count("tr") == 1 + len(judged)
    assert rows.count("img") == 1
    for text in (
        "a&lt;b",
        "Fig. 2 &lt;drift&gt;",
        "<li>one &amp; two</li>",
        "holds: 1, does not hold: 1, not asked: 1",
    ):
        assert text in body


def test_the_lines_of_the_page_are_short_enough_for_the_first_page_of_the_report(judged, shown):
    """docutils, which reads them, refuses lines of more than 10 000 characters."""
    body = overview.body("a", "text", judged, [(shown, [])])
    assert max(map(len, body.splitlines())) < 10_000


def test_a_run_without_claims_has_a_page_of_its_figures(shown):
    assert "<table>" not in overview.body("a", "text", [], [(shown, [])])
