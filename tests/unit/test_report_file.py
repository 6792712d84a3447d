"""A script is added to Snakemake's report once; that it works is tested in tests/browser."""

import pytest

from twoscale.analysis.report_file import show_large_pages
from twoscale.errors import InputError

REPORT = "<html><body><script>var results = {};</script></body></html>"


def test_the_script_is_added_once_at_the_end_of_the_body():
    changed = show_large_pages(REPORT)
    assert changed.endswith("(results);\n</script>\n</body></html>")
    assert show_large_pages(changed) == changed


@pytest.mark.parametrize("text", ["", "<html><body></body></html>", "var results"])
def test_a_file_that_is_no_report_is_refused(text):
    with pytest.raises(InputError, match=r"expected the report\.html of Snakemake"):
        show_large_pages(text)
