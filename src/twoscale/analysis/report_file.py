"""Snakemake's report.html, so that browsers show its large pages.

The report embeds a page as a data URL, and Chromium shows an empty frame for a data URL above 2 MB
(snakemake/snakemake#1162). A script at the end of the report turns larger ones into object URLs of the same bytes.
"""

from twoscale.errors import InputError

END = "</body>"
TITLES = ("<title>Snakemake Report</title>", "<title>Two-scale latent dynamics: report</title>")
MARK = "object URLs for large pages"
SCRIPT = f"""<script>
// {MARK}
(function replace(node) {{
  for (const value of Object.values(node)) {{
    if (value === null || typeof value !== "object") continue;
    if (typeof value.data_uri !== "string") replace(value);
    else if (value.data_uri.length > 2 ** 21)
      fetch(value.data_uri).then((answer) => answer.blob())
        .then((page) => {{ value.data_uri = URL.createObjectURL(page); }});
  }}
}})(results);
</script>
"""


def show_large_pages(report: str) -> str:
    """The HTML of a report with the script; a report that has it is returned as it is.

    Raises:
        InputError: The text is no report of Snakemake.
    """
    if MARK in report:
        return report
    before, end, after = report.rpartition(END)
    if not end or "var results" not in before:
        raise InputError("report: found no end of a body and results, expected the report.html of Snakemake.")
    return "".join([before.replace(*TITLES), SCRIPT, end, after])
