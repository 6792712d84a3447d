"""Which tests a change can touch."""

import pytest

from tests.selection import ROOT, is_touched

SOURCE, TESTS = ROOT / "src" / "twoscale", ROOT / "tests"


@pytest.mark.parametrize(
    ("changed", "test", "touched"),
    [
        # a module that the test imports, one that such a module imports, and one that none imports
        (SOURCE / "claims/bootstrap.py", "unit/test_bootstrap.py", True),
        (SOURCE / "rng.py", "unit/test_bootstrap.py", True),
        (SOURCE / "recorder/recorder.py", "unit/test_bootstrap.py", False),
        # what runs the workflow or a script may start any module
        (SOURCE / "figures/fig2.py", "workflow/test_run.py", True),
        # helpers of tests, and the test itself
        (TESTS / "worlds.py", "unit/test_simulation.py", True),
        (TESTS / "worlds.py", "unit/test_loss.py", False),
        (TESTS / "unit/test_loss.py", "unit/test_loss.py", True),
        # pages are read by the tests of the documentation only
        (ROOT / "docs/arena.md", "unit/test_docs.py", True),
        (ROOT / "docs/arena.md", "unit/test_bootstrap.py", False),
        # what is neither a module nor a page can touch everything
        (ROOT / "requirements.txt", "unit/test_bootstrap.py", True),
        (ROOT / "workflow/rules/exits.smk", "unit/test_bootstrap.py", True),
        (ROOT / "scripts/measure.py", "unit/test_bootstrap.py", True),
    ],
)
def test_a_test_is_left_out_only_where_it_reads_nothing_that_changed(changed, test, touched):
    assert is_touched(TESTS / test, {changed}) == touched
