"""The pages of the report in a real browser: Snakemake's report of the tiny run."""

from tests.workflow.conftest import editable, finished  # noqa: F401
from twoscale.report import pages

DECODED_WIDTHS = """Promise.all([...document.querySelectorAll('.overview img')]
    .map(image => image.decode().then(() => image.naturalWidth)))"""


def test_the_report_shows_verdicts_first_then_figures_and_pages(open_page, editable):  # noqa: F811
    editable.succeed("report_pages")
    style = ("--report-stylesheet", "workflow/report/report.css")
    editable.succeed("report_pages", "--report", "report.html", *style)
    page = open_page((editable.root / "report.html").as_uri())
    table = page.locator(".overview table")
    table.wait_for()
    assert table.locator("tbody tr").count() == 15
    assert table.bounding_box()["y"] < 300  # after the scale of the run
    widths = page.evaluate(DECODED_WIDTHS)
    assert len(widths) == 1
    assert min(widths) > 200
    page.get_by_text("Figures of the paper").click()
    row = page.locator("tr", has_text="Fig. 2, drift")
    row.locator("a").first.click()
    picture = page.locator(".p-3 > img")
    picture.wait_for()
    assert picture.bounding_box()["width"] > 400
    row.locator("a").nth(1).click()
    page.get_by_text("Claim 6, Jumps between groups are larger than loop steps").wait_for()


def test_the_claims_are_a_page_that_shows(open_page, finished, tmp_path):  # noqa: F811
    path = tmp_path / "claims.html"
    path.write_text(pages.from_markdown((finished.root / "results/claims.md").read_text()))
    page = open_page(path.as_uri())
    assert page.locator("h2").count() == 15
    scale, verdicts = page.locator("table").first, page.locator("table").nth(1)
    assert scale.locator("tr", has_text="tokens of training").count() == 1
    assert verdicts.locator("tbody tr").count() == 15
