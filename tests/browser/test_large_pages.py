"""A page above the 2 MB that Chromium takes as a data URL is shown inside Snakemake's report."""

import subprocess
import sys

import pytest

from tests.small import ROOT

SNAKEFILE = """
rule page:
    output: report("page.html", category="Pages")
    run:
        with open(output[0], "w") as file:
            file.write("<!DOCTYPE html><title>t</title><p id=text>shown</p><!--" + "x" * 3_000_000 + "-->")
"""


def run(folder, *command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def report(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    run(tmp_path, "-m", "snakemake", "--cores", "1", "--quiet")
    run(tmp_path, "-m", "snakemake", "--report", "report.html")
    run(ROOT, "scripts/finish_report.py", str(tmp_path / "report.html"))
    return tmp_path / "report.html"


def test_a_large_page_is_shown_in_the_report(report, open_page):
    page = open_page(report.as_uri())
    page.get_by_text("Results").first.click()
    page.get_by_text("Pages").first.click()
    page.locator("a[iconname=eye]").first.click()
    assert page.frame_locator("iframe").locator("#text").inner_text() == "shown"
