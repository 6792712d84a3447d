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
from twoscale.claims import exits
from twoscale.claims.evidence import Role
from twoscale.claims.verdicts import ALL, CLAIMS, READING
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
GAIN = "CE at the cheapest exit − CE at full depth in nats"
DECAY, COSINE, NATS, LATER = (
    next(kind for kind, claims in checks.CLAIM_KINDS.items() if claim in claims)
    for claim in (1, 4, 8, 14)
)
FINDINGS = [
    (1, "4", "mean norm at k = 10 over that at k = 1", 0.01),
    (4, "4", "late cosine", 0.5),
    (8, "kl", "CE(1e-2) − CE(1e-5) in nats", 0.01),
    (8, "all groups", "τ over the mean norm", 0.002),
    (9, "all groups", "τ over the mean norm", 0.002),
    (11, "kl", "latency over that of acceleration", 1.3),
    (14, "kl", "evaluations minus those of acceleration", -12.0),
    (8, "all groups", GAIN, 0.0965),
    (14, "kl", "the same at other thresholds", -9.0),
]
PREMISE, AT_EQUAL_QUALITY = 7, 8  # rows of other kinds
ROLES = {PREMISE: Role.PREMISE}
READINGS = {AT_EQUAL_QUALITY: exits.AT_EQUAL_QUALITY.name}


def claims():
    rows = [
        {
            "claim": claim,
            "scope": scope,
            "quantity": quantity,
            "role": ROLES.get(row, Role.COUNTED).value,
            "reading": READINGS.get(row, ""),
            "value": value,
            "low": value,
            "high": value,
        }
        for row, (claim, scope, quantity, value) in enumerate(FINDINGS)
    ]
    rows += [
        {"claim": claim.number, "scope": scope, "quantity": name, "verdict": "holds"}
        for claim in CLAIMS
        for scope, name in ((READING, "one of its readings"), (ALL, ""))
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
    assert result.outside.empty
    assert result.verdicts.empty
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


@pytest.mark.parametrize("lacking", ["found", "released"])
def test_findings_of_a_kind_that_one_side_lacks_are_outside_and_no_others(lacking):
    whole, cut = frames(), frames()
    cut["claims"] = cut["claims"][cut["claims"]["claim"] != 4]
    sides = (cut, whole) if lacking == "found" else (whole, cut)
    outside = checks.check(*sides, same_arithmetic=False).outside
    assert outside["kind"].tolist() == [COSINE.name]


def test_times_are_not_compared():
    for same in (True, False):
        slow = changed("training", "tokens_per_s", 0, 1e-3)
        slow["claims"].loc[5, ["value", "low", "high"]] = 50.0  # claim 11
        assert checks.check(slow, frames(), same).outside.empty


@pytest.mark.parametrize(
    ("name", "column", "row", "kind"),
    [
        ("training", "learning_rate", 1, checks.SCHEDULE),
        ("training_loops", "loops", 0, checks.SCHEDULE),
        ("exit_quality", "document", 0, checks.SCHEDULE),
        ("training", "held_out_loss", 1, checks.HELD_OUT),
        ("claims", "value", 1, COSINE),
        ("claims", "value", 2, NATS),
        ("claims", "value", 6, LATER),
    ],
)
def test_with_another_arithmetic_each_kind_of_number_has_its_tolerance(name, column, row, kind):
    released = frames()
    value = released[name][column].iloc[row]
    inside = checks.check(
        changed(name, column, row, value + 0.99 * kind.tolerance), released, False
    )
    outside = checks.check(
        changed(name, column, row, value + 1.01 * kind.tolerance + 1e-9), released, False
    )
    assert inside.outside.empty
    assert outside.outside["kind"].tolist() == [kind.name]


def test_lengths_are_compared_by_their_logarithms():
    bound = np.exp(DECAY.tolerance)
    for factor, count in ((0.99 * bound, 0), (1 / (1.01 * bound), 1)):
        assert (
            len(checks.check(changed("claims", "value", 0, 0.01 * factor), frames(), False).outside)
            == count
        )


@pytest.mark.parametrize(
    ("found", "released", "is_outside"),
    [
        (0.086, 0.0965, False),
        (-0.01, 0.04, False),
        (-0.01, 0.0965, True),
        (0.03, 0.0965, True),
    ],
)
def test_what_full_depth_gains_is_a_difference_in_nats(found, released, is_outside):
    """Below zero it is not infinitely far from a gain."""
    sides = [changed("claims", "value", PREMISE, value) for value in (found, released)]
    result = checks.check(*sides, False)
    (gain,) = result.numbers[
        result.numbers["row"].map(lambda row: row == (8, "all groups", GAIN))
    ].to_dict("records")
    assert gain["difference"] == pytest.approx(released - found)
    assert gain["kind"] == "cross-entropy with exits"
    assert result.outside["kind"].tolist() == [gain["kind"]] * is_outside


def test_numbers_at_equal_quality_follow_from_others_and_are_compared_only_in_the_same_arithmetic():
    far = changed("claims", "value", AT_EQUAL_QUALITY, 100.0)
    outside = [len(checks.check(far, frames(), same).outside) for same in (False, True)]
    assert outside == [0, 1]


@pytest.mark.parametrize("same", [True, False])
def test_a_missing_row_and_a_number_that_one_side_lacks_are_outside(same):
    short = frames()
    short["training"] = short["training"].iloc[:1]
    outside = checks.check(short, frames(), same).outside
    assert set(outside["difference"]) == {np.inf}
    sides = [changed("training", "held_out_loss", 1, np.nan), frames()]
    for side, (found, released) in (("found", sides), ("released", sides[::-1])):
        assert checks.check(found, released, same).outside[side].isna().tolist() == [True]


def test_a_number_that_one_side_withholds_at_the_rounding_floor_is_compared_only_in_the_same_arithmetic():
    other = changed("claims", "value", 1, np.nan)
    # also of verdicts, which stay
    other["claims"]["reason"] = "11% of the values are under the rounding floor"
    other["claims"].loc[[0, *range(2, len(FINDINGS))], "reason"] = ""
    is_whole = other["claims"]["scope"] == ALL
    other["claims"].loc[is_whole & (other["claims"]["claim"] == 1), "verdict"] = "cannot be judged"
    for sides in ((other, frames()), (frames(), other)):
        results = [checks.check(*sides, same) for same in (False, True)]
        assert [len(result.outside) for result in results] == [0, 1]
        assert [result.verdicts["claim"].tolist() for result in results] == [[1], [1]]


def test_another_verdict_is_named_and_is_no_number_and_those_of_readings_are_not():
    other = frames()
    other["claims"].loc[other["claims"]["scope"] == READING, "verdict"] = "does not hold"
    other["claims"].loc[
        other["claims"]["claim"].eq(7) & other["claims"]["scope"].eq("all"), "verdict"
    ] = "cannot be judged"
    result = checks.check(other, frames(), False)
    assert result.verdicts[["claim", "found", "released"]].to_numpy().tolist() == [
        [7, "cannot be judged", "holds"]
    ]
    assert result.outside.empty


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
    rows = re.findall(r"^\| ([^|]+?) \| [^|]+ \| [^|]+ \| ([^|]+?) \|$", page, re.MULTILINE)
    stated = {name: float(value) for name, value in rows if re.fullmatch(r"[\d.e-]+", value)}
    assert stated == {kind.name: kind.tolerance for kind in checks.KINDS}
