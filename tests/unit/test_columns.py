"""The meaning of a column is the comment beside it in tables.py."""

import re
from pathlib import Path

import pytest

from twoscale import tables
from twoscale.analysis.columns import meanings

REPORT = Path(__file__).parents[2] / "workflow" / "rules" / "report.smk"
SHOWN = re.findall(r'"(\w+)"', re.search(r"REPORT_TABLES = \[(.*?)\]", REPORT.read_text(), re.DOTALL).group(1))


@pytest.mark.parametrize("table", SHOWN)
def test_every_column_of_a_table_in_the_report_has_a_meaning(table):
    assert list(meanings(table)) == list(tables.columns(table))


def test_a_column_has_the_meaning_of_its_own_table_before_that_of_another():
    assert meanings("exit_quality")["share_at_max_loops"].startswith("share of (token, group) pairs")
    assert meanings("uniform_loops")["share_at_max_loops"].startswith("share of tokens")
    assert meanings("uniform_loops")["ce"] == meanings("exit_quality")["ce"] == "nats per token"


def test_statistics_have_a_meaning_in_every_table_that_has_them():
    assert meanings("drift")["std"] == meanings("path_metrics")["std"] == "1 sigma over tokens"
