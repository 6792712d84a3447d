"""Values that a job needs and that never cause a rerun: the way in use, and the one to change to.

If the first case fails with a new Snakemake, use the second: see `params.untracked`.
"""

import os

import pytest

from tests.small import ROOT
from tests.workflow.forked import snakemake

SNAKEFILE = """\
import os, sys
sys.path.insert(0, "SOURCE")
from twoscale.workflow.params import untracked

def value(wildcards):
    return os.environ["VALUE"]  # set from outside

rule make:
    output: "made.txt"
    KEYWORD: value=FUNCTION
    shell: "echo {KEYWORD.value} >> {output}"
"""
WAYS = {
    "untracked param": ("params", "untracked(value)"),
    "resource": ("resources", "value"),
    "param": ("params", "value"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_is_not_tracked_reaches_its_job_and_a_change_of_it_plans_nothing(
    way, tmp_path
):
    keyword, function = WAYS[way]
    text = SNAKEFILE.replace("KEYWORD", keyword).replace("FUNCTION", function)
    (tmp_path / "Snakefile").write_text(text.replace("SOURCE", str(ROOT / "src")))

    def call(value, *arguments):
        variables = os.environ | {"VALUE": value}
        done = snakemake(["--cores", "1", *arguments], tmp_path, variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("--job a/1.json")
    assert (tmp_path / "made.txt").read_text() == "--job a/1.json\n"
    is_planned = "Nothing to be done" not in call("--job b/2.json", "--dry-run")
    assert is_planned == (way == "param")
