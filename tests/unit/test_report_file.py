"""A script is added to Snakemake's report once; that it works is tested in tests/browser."""

import base64
import gzip
import re

import pytest

from twoscale.base import InputError
from twoscale.report.report_file import compress_files

REPORT = "<html><body><script>var results = {};</script></body></html>"


def test_the_script_is_added_once_at_the_end_of_the_body():
    changed = compress_files(REPORT)
    assert changed.endswith("(results);\n</script>\n</body></html>")
    assert compress_files(changed) == changed


def test_files_are_compressed_and_keep_their_bytes():
    content = b"<p>text</p>" * 1000
    encoded = base64.b64encode(content).decode()
    entry = f'{{"data_uri": "data:text/html;charset=utf8;filename=a.html;base64,{encoded}"}}'
    changed = compress_files(REPORT.replace("{}", f'{{"a.html": {entry}}}'))
    (kept,) = re.findall(r"data:text/html;gzip;base64,([^\"]+)", changed)
    assert gzip.decompress(base64.b64decode(kept)) == content
    assert len(changed) < len(entry) / 4


@pytest.mark.parametrize("text", ["", "<html><body></body></html>", "var results"])
def test_a_file_that_is_no_report_is_refused(text):
    with pytest.raises(InputError, match=r"expected the report\.html of Snakemake"):
        compress_files(text)
