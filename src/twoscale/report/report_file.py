"""Snakemake's report.html, so that browsers show its large pages and the file is small.

The report embeds files as data URLs, and Chromium shows an empty frame for a data URL above 2 MB
(snakemake/snakemake#1162). Here the content of each one is compressed, and a script at the end of the report turns them
into object URLs of the same bytes.
"""

import base64
import gzip
import re

from twoscale.base import InputError

END = "</body>"
TITLES = ("<title>Snakemake Report</title>", "<title>Two-scale latent dynamics: report</title>")
MARK = "object URLs for compressed files"
DATA = re.compile(r'"data_uri": "data:([^;,"]+)[^,"]*;base64,([^"]*)"')
SCRIPT = f"""<script>
// {MARK}
(function replace(node) {{
  for (const value of Object.values(node)) {{
    if (value === null || typeof value !== "object") continue;
    const found = typeof value.data_uri === "string" && value.data_uri.match(/^data:([^;]+);gzip;base64,/);
    if (!found) {{ replace(value); continue; }}
    fetch(value.data_uri.replace(found[0], "data:application/gzip;base64,"))
      .then((answer) => new Response(answer.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer())
      .then((bytes) => {{
        value.data_uri = URL.createObjectURL(new Blob([bytes], {{ type: `${{found[1]}};charset=utf-8` }}));
      }});
  }}
}})(results);
</script>
"""


def compress_files(report: str) -> str:
    """The HTML of a report with compressed files and the script; a report that has it is returned as it is.

    Raises:
        InputError: The text is no report of Snakemake.
    """
    if MARK in report:
        return report
    before, end, after = report.rpartition(END)
    if not end or "var results" not in before:
        raise InputError("report: found no results, or no end of the body, expected the report.html of Snakemake.")
    return "".join([DATA.sub(_compressed, before.replace(*TITLES)), SCRIPT, end, after])


def _compressed(found: re.Match[str]) -> str:
    content = gzip.compress(base64.b64decode(found[2]), mtime=0)
    return f'"data_uri": "data:{found[1]};gzip;base64,{base64.b64encode(content).decode()}"'
