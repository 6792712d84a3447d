"""The check of a run against a release: which numbers are compared, and when one is outside its
tolerance.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.small import ROOT
from twoscale import tables
from twoscale.claims.verdicts import CLAIMS
from twoscale.jobs import machine
from twoscale.report import check as checks
from twoscale.report.release import Manifest

KEYS = {
    "iteration": [50, 100],
    "group": ["4", "5-6"],
    "k": [0, 1],
    "measure": ["cosine", "step_norm"],
    "criterion": ["acceleration", "kl"],
    "threshold": [1e-3, 1e-2],
    "sequence": [0, 1],
    "boundary": ["4->5-6"],
    "reference_state": ["final", "initial"],
    "site": [0, 1],
    "position": [0, 1],
    "reference": ["fixed", "random"],
    "draw": [0, 1],
}
FINDINGS = [
    (1, "4", "mean norm at k = 10 over that at k = 1", 0.01),
    (4, "4", "late cosine", 0.5),
    (11, "kl", "latency over that of acceleration", 1.3),
]


def claims():
    rows = [
        {
            "claim": claim,
            "scope": scope,
            "quantity": quantity,
            "value": value,
            "low": value,
            "high": value,
        }
        for claim, scope, quantity, value in FINDINGS
    ]
    rows += [
        {"claim": claim.number, "scope": "all", "quantity": "", "verdict": "holds"}
        for claim in CLAIMS
    ]
    return pd.DataFrame(rows).reindex(columns=list(tables.columns("claims"))).assign(reason="")


def frames():
    """Every table that is compared: two or more rows of known numbers."""
    found = {"claims": claims()}
    for name, keys in checks.KEYS.items():
        if name != "claims":
            rows = pd.MultiIndex.from_product([KEYS[key] for key in keys], names=keys).to_frame(
                index=False
            )
            numbers = [
                column
                for column, kind in tables.columns(name).items()
                if kind != "string" and column not in keys
            ]
            values = {column: 100.0 + np.arange(len(rows)) for column in numbers}
            found[name] = rows.assign(**values)
    return found


def changed(name, column, row, value):
    """The tables with one number changed."""
    tables_ = frames()
    tables_[name][column] = tables_[name][column].astype(float)
    tables_[name].loc[row, column] = value
    return tables_


@pytest.mark.parametrize("same", [True, False])
def test_a_run_has_no_number_outside_of_itself(same):
    result = checks.check(frames(), frames(), same)
    assert len(result.numbers) > 20
    assert result.agrees
    assert not result.numbers.duplicated(["kind", "column", "row"]).any()


def test_with_the_same_arithmetic_every_table_has_to_agree():
    """One number of each table differs by a little less, and then by a little more, than the
    tolerance.
    """
    released, inside, outside = frames(), frames(), frames()
    columns = []
    for name in checks.KEYS.keys() - {"claims"}:
        others = {*checks.KEYS[name], *checks.TIMED_COLUMNS}
        column = [column for column in released[name].columns if column not in others][-1]
        columns.append(f"{name}.{column}")
        for side, difference in ((inside, 0.9e-6), (outside, 1.1e-6)):
            side[name][column] = side[name][column].astype(float)
            side[name].loc[1, column] *= 1 + difference
    assert checks.check(inside, released, True).outside.empty
    assert sorted(checks.check(outside, released, True).outside["column"]) == sorted(columns)


def test_times_are_not_compared():
    for same in (True, False):
        slow = changed("training", "tokens_per_s", 0, 1e-3)
        slow["claims"].loc[2, ["value", "low", "high"]] = 50.0  # claim 11
        slow["claims"].loc[slow["claims"]["claim"].eq(11), "verdict"] = "cannot be judged"
        assert checks.check(slow, frames(), same).agrees


@pytest.mark.parametrize("kind", checks.TOLERANCES)
def test_with_another_arithmetic_each_column_has_its_tolerance(kind):
    """All rows differ, as an exit is compared by its mean over sequences."""
    (name, column), tolerance = kind.split("."), checks.TOLERANCES[kind]
    for difference, expected in ((0.99 * tolerance, set()), (1.01 * tolerance + 1e-9, {kind})):
        other = frames()
        other[name][column] = other[name][column] + difference
        outside = checks.check(other, frames(), False).outside
        assert set(outside["kind"]) == expected
        assert set(outside["column"]) == expected


def test_with_another_arithmetic_findings_are_compared_by_their_verdicts_alone():
    other = changed("claims", "value", 0, 50.0)
    assert checks.check(other, frames(), False).agrees
    assert len(checks.check(other, frames(), True).outside) == 1


@pytest.mark.parametrize("same", [True, False])
def test_a_missing_row_and_a_number_that_one_side_lacks_are_outside(same):
    short = frames()
    short["training"] = short["training"].iloc[:1]
    outside = checks.check(short, frames(), same).outside
    assert set(outside["difference"]) == {np.inf}
    sides = [changed("training", "held_out_loss", 1, np.nan), frames()]
    for side, (found, released) in (("found", sides), ("released", sides[::-1])):
        assert checks.check(found, released, same).outside[side].isna().tolist() == [True]


@pytest.mark.parametrize("same", [True, False])
def test_another_verdict_is_named_and_is_no_number(same):
    other = frames()
    of_claim = other["claims"]["claim"].eq(4) & other["claims"]["scope"].eq("all")
    other["claims"].loc[of_claim, "verdict"] = "cannot be judged"
    result = checks.check(other, frames(), same)
    assert result.verdicts[["claim", "found", "released"]].to_numpy().tolist() == [
        [4, "cannot be judged", "holds"]
    ]
    assert result.outside.empty
    assert not result.agrees


def manifest(environments, **facts):
    return Manifest(
        "demo",
        {},
        {},
        machine=machine.description(),
        training={"environments": environments},
        **facts,
    )


@pytest.fixture
def segment(tmp_path):
    """The log of a segment of two threads."""
    path = tmp_path / "iteration_000050.parquet"
    with tables.writing(
        "training",
        path,
        metadata={machine.ENVIRONMENTS: json.dumps([{"first_iteration": 1, "threads": 2}])},
    ):
        pass
    return path


def test_another_processor_or_environment_of_training_is_another_arithmetic(segment):
    assert checks.differences(manifest([{"first_iteration": 1, "threads": 2}]), [segment]) == []
    assert checks.differences(manifest([{"threads": 1}]), [segment]) == [
        "threads: 1 in the release, 2 here"
    ]
    assert checks.differences(manifest([]), [segment]) == ["threads: unset in the release, 2 here"]
    elsewhere = manifest([{"threads": 2}])
    elsewhere.machine["processor"] = "Other"
    assert re.match(
        "processor: 'Other' in the release, '.*' here", checks.differences(elsewhere, [segment])[0]
    )


def test_the_answer_names_numbers_outside_and_what_differs_in_the_machine():
    result = checks.check(changed("training", "held_out_loss", 1, 50.0), frames(), False)
    text = checks.lines(result, ["cpus: 2 in the release, 4 here"])
    assert text[0] == "another arithmetic: cpus: 2 in the release, 4 here"
    assert "outside: training.held_out_loss 100: 50 here, 101 in the release" in text
    assert (
        checks.lines(checks.check(frames(), frames(), True), [])[0]
        == "arithmetic: as in the release"
    )


def test_the_page_on_releases_has_the_tolerances_of_the_code():
    page = (ROOT / "docs" / "release.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \| [^|]+ \| ([\d.]+) \|$", page, re.MULTILINE)
    stated = {name: float(value) for names, value in rows for name in re.findall("`(.+?)`", names)}
    assert stated == checks.TOLERANCES
