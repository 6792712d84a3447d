"""Pages of a run: each template with a snapshot of what it gives, escapes, and pages that need no
network.

A page that is meant to change: `python -m tests.unit.test_pages` writes the snapshots again.
"""

import re

import numpy as np
import pandas as pd
import pytest

from tests.small import ROOT
from tests.synthetic_run import drift, loop_rows, synthetic, usual_verdicts
from twoscale.claims import verdicts as claims
from twoscale.claims.estimates import Estimate
from twoscale.claims.findings import Role
from twoscale.claims.scale import Scale, Scales
from twoscale.figures.catalogue import figures
from twoscale.jobs import command
from twoscale.report import claims as claims_page
from twoscale.report import pages, render

SNAPSHOTS = ROOT / "tests" / "snapshots"
STATE = "first_state"
SCALES = Scales(Scale(1, 100, 12.0, 30, hardware="CPU"), Scale(1000, 100, 12.0, 30))


def drifting_rows():
    """A settling group "4" and a drifting group "5-6", whose steps have the norm 2, in rows of
    "loop_sequences".
    """
    settling = loop_rows(50, "4", floor=0.0)
    drifting = loop_rows(50, "5-6", rate=1.0, scale=2.0)
    is_norm = drifting["measure"] == "state_norm"
    drifting.loc[is_norm, "mean"] = 1 + 2.0 * drifting.loc[is_norm, "k"]
    turns = drifting[drifting["measure"] == "step_norm"].assign(measure="direction_step_norm")
    turns["mean"] = 3 / (1 + turns["k"] ** 2.0)
    return pd.concat([settling, drifting, turns])


def finding(
    claim,
    scope,
    quantity="",
    value=np.nan,
    interval=(np.nan, np.nan),
    bounds="",
    verdict="holds",
    reading="",
):
    role = Role.COUNTED if bounds else Role.REFERENCE
    row = {
        "role": role.value if quantity else "",
        "reading": reading,
        "claim": claim,
        "scope": scope,
        "quantity": quantity,
        "value": value,
        "bounds": bounds,
        "verdict": verdict,
    }
    return row | {"low": interval[0], "high": interval[1], "scale": "small scale"}


JUDGED = pd.DataFrame(
    [
        finding(4, "5-6", "late cosine", -0.25, (-0.5, 0.125), "0.45 … 0.7", "does not hold"),
        finding(4, "5-6", "the same, untrained", -0.5),
        finding(4, "7", "late cosine", bounds="0.45 … 0.7", verdict="cannot be judged"),
        finding(4, "all", verdict="does not hold"),
        finding(6, "4->5-6, first_state", "DLR, iteration 10", 10.0, (9.0, 11.0), "> 1"),
        finding(6, "4->5-6, first_state", "DLR, last", 20.0, (19.0, 21.0), "≥ 5"),
        finding(6, "4->5-6, projected", "DLR, last", 30.0, (29.0, 31.0), "≥ 5"),
        finding(6, "all"),
        finding(10, "kl", "acceleration over step_norm at 1e-2", -0.5, bounds="> 0"),
        finding(10, "all"),
        finding(12, "4", "step", -1.0, bounds="< 0", reading="last − untrained"),
        finding(12, "4", "trend", 1.5, bounds="< 0", verdict="does not hold", reading="trend"),
        finding(12, "reading", "last − untrained"),
        finding(12, "reading", "trend", verdict="does not hold"),
        finding(12, "all", verdict="depends on the reference"),
        finding(13, "all", verdict="not asked"),
        finding(14, "kl", "at equal τ", 2.0, bounds="> 0", reading="the paper's τ"),
        finding(14, "kl", "at equal quality", 3.0, bounds="> 0", reading="equal quality"),
        finding(14, "all"),
    ]
)


def picture(folder):
    path = folder / "fig2.svg"
    path.write_text("<svg/>" * 20_000)
    return {"name": "fig2", "title": "Fig. 2 <drift>", "picture": path, "sentences": ["1 & 2"]}


def drawn(folder):
    """Name of a template -> a page from it."""
    evidence = synthetic(loops=drifting_rows(), drift=drift((50,)))
    verdicts = claims.verdicts(evidence, claims.GEOMETRY)
    overview = pages.overview(
        "a<b", "a text", pages.answers(JUDGED, STATE), [picture(folder)], SCALES
    )
    return {
        "claims.md": claims_page.claims_markdown(
            verdicts, "trial_1", "text <img src=x>", evidence, SCALES
        ),
        "overview.html": re.sub(r"base64,[^\"]*", "base64,…", overview),
        "page.html": pages.from_markdown(
            "# Claims & *verdicts*\n\n| a | b |\n| --- | --- |\n| 1 | **holds** |\n"
        ),
    }


@pytest.mark.parametrize("name", ["claims.md", "overview.html", "page.html"])
def test_a_page_is_its_snapshot(tmp_path, name):
    assert drawn(tmp_path)[name] == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


# --- claims.md ------------------------------------------------------------------------------------


def test_every_row_of_the_claims_has_the_cells_of_its_header():
    page = claims_page.claims_markdown(usual_verdicts(), "trial", "text", synthetic())
    assert {
        line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")
    } == {4, 8}
    assert [int(number) for number in re.findall(r"^## (\d+)\.", page, re.MULTILINE)] == [
        *range(1, 17)
    ]
    assert "The state drifts" not in page


def test_the_claims_say_what_is_known_of_checkpoints_and_documents():
    evidence = synthetic()
    recorded = claims_page.claims_markdown([], "trial", "text", evidence, recorded=True)
    assert "32 recorded sequences, each of which counts as a document" in " ".join(recorded.split())
    published = claims_page.claims_markdown([], "trial", "text", synthetic(published=True))
    assert "The model is published and has one checkpoint" in published
    assert "| scale |" not in published


@pytest.mark.parametrize(
    ("value", "text"), [(np.inf, "not reached"), (np.nan, ""), (4.0, "4"), (-0.12345, "-0.123")]
)
def test_numbers_are_printed_with_three_digits(value, text):
    assert render.number(value) == text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(-7.66e-06, -6.97e-05, 6.7e-05), "-8e-06 [-7e-05 … 7e-05]"),
        (Estimate(21.53, 21.31, 21.72), "21.5 [21.3 … 21.7]"),
        (Estimate(0.00497, 7.82e-06, 3.17), "0.005 [8e-06 … 3.2]"),
        (Estimate(0.0, -0.123, 0.0456), "0 [-0.12 … 0.05]"),
    ],
)
def test_a_value_has_the_digits_that_its_interval_allows(estimate, text):
    assert f"{render.estimated(estimate)} [{render.interval(estimate)}]" == text


# --- the overview ---------------------------------------------------------------------------------


def test_a_claim_shows_the_values_that_decide_it_as_figures_name_them():
    measured = {answer.number: answer.measured for answer in pages.answers(JUDGED, STATE)}
    assert measured == {
        4: "late cosine: −0.25 [−0.5, 0.12] (group 5–6), expected 0.45 … 0.7",
        6: "DLR, last: 20 [19, 21] (4 → 5–6, first state), expected ≥ 5",
        10: "acceleration over step norm at 1e-2: −0.5 (KL), expected > 0",
        # each reading of a claim that depends on it, else the first
        12: "step: −1 (group 4), expected < 0; trend: 1.5 (group 4), expected < 0",
        13: "",
        14: "at equal τ: 2 (KL), expected > 0",
    }


def test_a_claim_is_a_sentence_for_the_captions_of_its_figures():
    sentence = next(
        answer.sentence for answer in pages.answers(JUDGED, STATE) if answer.number == 6
    )
    title = "Claim 6, Jumps between groups are larger than loop steps"
    assert sentence.startswith(f"{title}: holds, small scale; DLR, last: ")


@pytest.mark.parametrize(
    "figure", [figure for figure in figures() if figure.sentence], ids=lambda figure: figure.name
)
def test_a_figure_with_a_sentence_has_a_function_for_it_and_a_table_of_its_name(figure):
    assert callable(command.function(figure.sentence))
    assert figure.inputs[figure.name] == f"tables/{figure.name}.parquet"


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for name, text in drawn(Path(folder)).items():
            (SNAPSHOTS / f"{name}.txt").write_text(text, encoding="utf-8")
