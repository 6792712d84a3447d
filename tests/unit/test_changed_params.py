"""The reason for repeating a job names the keys of the config that have changed."""

import pytest
from snakemake.persistence import ParamsChange

from twoscale.base import canonical_json
from twoscale.jobs.changed_params import named

BEFORE = {"seed": 1, "train": {"learning_rate": 1e-3, "groups": [[2], [3]]}, "text": 'it\'s; now: "new"'}


def reason(before, now):
    """As Snakemake words it, with reasons before and after."""
    change = ParamsChange(only_old={*map(repr, before)}, only_new={*map(repr, now)})
    return (
        f"Code has changed; Params have changed since last execution: {change}; Input files updated by another job: a"
    )


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        ({"seed": 2}, "seed 1, now 2"),
        (
            {"train": {"learning_rate": 2e-3, "groups": [[2]]}},
            "train.groups [[2], [3]], now [[2]]; train.learning_rate 0.001, now 0.002; Input",
        ),
        ({"text": "other"}, r"""text "it's; now: \"new\"", now "other"; Input"""),
        ({"more": None}, "more, new"),
    ],
)
def test_a_changed_key_is_named_with_both_values(now, changes):
    said = named(reason([canonical_json(BEFORE)], [canonical_json(BEFORE | now)]))
    assert changes in said
    assert said.startswith("Code has changed; Params have changed since last execution: ")
    assert said.endswith("; Input files updated by another job: a")


def test_a_digest_is_the_code_and_long_values_and_many_keys_are_cut():
    assert "last execution: the code of the job; Input" in named(reason(["e405ee76218e145d"], ["b0d0bb31fd7011f5"]))
    said = named(reason([canonical_json({f"k{i}": "x" * 99 for i in range(9)})], [canonical_json({})]))
    assert "k3, removed; 5 further keys; Input" in said
    assert f'k "{"x" * 38}…, now 1; Input' in named(
        reason([canonical_json({"k": "x" * 99})], [canonical_json({"k": 1})])
    )


def test_other_reasons_are_as_they_were():
    assert (
        named("Missing output files: a.txt; Params: now: before:")
        == "Missing output files: a.txt; Params: now: before:"
    )
