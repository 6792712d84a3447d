"""The scale of a run: the paper's follows from the defaults of the config, and verdicts of small runs are marked."""

from dataclasses import replace

import pytest

from tests.small import of, project
from tests.synthetic_run import synthetic
from tests.unit.test_claims import usual_verdicts
from twoscale import config
from twoscale.analysis.costs import scales
from twoscale.claims import verdicts as claims
from twoscale.claims.findings import marked
from twoscale.claims.scale import SMALL_SCALE, Scale, Scales
from twoscale.config import ConfigSlice
from twoscale.report import claims_page, overview
from twoscale.workflow.core import JOBS

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


def test_a_mark_leaves_the_verdict_readable_and_a_claim_that_is_not_asked_unmarked():
    assert marked("does not hold", SMALL_SCALE) == "does not hold, small scale"
    assert marked("holds", SMALL_SCALE) == "holds, small scale"
    assert marked("holds", "") == "holds"
    assert marked("not asked", SMALL_SCALE) == "not asked"


def test_the_training_tokens_of_a_published_model_are_unknown():
    found = preset("ouro-1.4b")
    assert found.run.tokens is None
    assert found.mark == ""
    assert found.rows[0] == ("tokens of training", "unknown", "307.2 M", "")


def test_scales_survive_the_params_of_a_job():
    found = preset("tiny")
    assert Scales.of(found.plain) == found
    assert found.rows[0] == ("tokens of training", "2,560", "307.2 M", "8.3e-06")


def test_the_claims_carry_the_mark_on_the_page_and_in_the_table():
    verdicts = usual_verdicts()
    page = claims_page.page(verdicts, "trial", "text", synthetic(), at(tokens=1))
    for verdict in verdicts:
        word = marked(verdict.verdict, SMALL_SCALE)
        assert f"## {verdict.claim.number}. {verdict.claim.title}: {word}\n" in page
        assert f"| {verdict.claim.number} | {verdict.claim.title} | **{word}** |" in page
    assert "| tokens of training | 1 | 1,000 | 0.001 |" in page
    assert set(claims.table(verdicts, "trial", SMALL_SCALE)["scale"]) == {SMALL_SCALE}
    assert SMALL_SCALE not in claims_page.page(verdicts, "trial", "text", synthetic(), at()).replace(
        f"*{SMALL_SCALE}*", ""
    )


def test_the_page_names_the_cores_that_latency_was_measured_on():
    cores = int(synthetic().latency["cpus"].max())
    assert claims_page.with_cores(at(hardware="CPU"), synthetic()).run.hardware == f"CPU, machine of {cores} cores"


def test_the_first_screen_has_the_scale_and_marked_verdicts():
    judged = overview.answers(claims.table(usual_verdicts(), "trial", SMALL_SCALE), "first_state")
    body = overview.body("trial", "text", judged, [], at(tokens=1))
    assert f"{usual_verdicts()[0].verdict}, small scale</td>" in body
    assert "<p>tokens of training: 1 (the paper: 1,000); parameters: 100 (the paper: 100); " in body
    assert body.index("tokens of training") < body.index("<table>")
    assert judged[0].sentence.startswith(f"Claim 1, {judged[0].title}: {judged[0].verdict}, small scale; ")


def test_the_params_of_the_jobs_that_print_verdicts_have_the_scale():
    runs = project()
    slices = [runs.report.overview_slice(of())]
    slices += [row.config(runs)(of()) for row in JOBS if row.name == "take_snapshot"]
    for text in slices:
        assert Scales.of(ConfigSlice.from_json(text).scales) == scales(runs.config)
