"""The report of a run with names of text and run that try to be commands, markup and scripts."""

import base64
import random
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.workflow.conftest import checkout
from tests.workflow.test_run import embedded
from twoscale.base import one_line

pytestmark = pytest.mark.runs

RUN = "demo_"  # a reference in reStructuredText
COMMANDS = "it's $(touch PWN2) `touch PWN3`; touch PWN4"
MARKUP = (
    "\u202e|x| {y} $\\z$ --> `c <javascript:alert(1)>`_\n\n.. raw:: html\n\n   <img src=x"
    " onerror=alert(1)>\n\ncorpus_"
)
FOLDER = f"{COMMANDS} {MARKUP}"


class Tags(HTMLParser):
    """The values of all attributes of a page, as a browser reads them, and its text outside
    scripts.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.values += [value or "" for _, value in attributes]

    def handle_data(self, data):
        if self.cdata_elem is None:
            self.text += data


def write_text(folder):
    """Documents of random words, which are no near-duplicates."""
    draw, words = random.Random(0), [f"word{number}" for number in range(500)]
    texts = [" ".join(draw.choices(words, k=150)) for _ in range(1500)]
    folder.mkdir()
    pq.write_table(pa.table({"text": texts}), folder / f"{COMMANDS}.parquet")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The project with all figures and the report of such a run."""
    project = checkout(tmp_path_factory.mktemp("hostile"))
    write_text(project.root / FOLDER)
    project.configure(run=RUN, data={"source": "parquet", "path": FOLDER})
    project.succeed("all", "report_pages")
    done = project.succeed("report_pages", "--report", "report.html")
    assert "(ERROR" not in done.stderr  # of docutils, about a caption
    assert "(WARNING" not in done.stderr
    return project


def test_names_are_text_and_nothing_else_from_the_shell_to_the_report(report):
    assert list(report.root.rglob("PWN*")) == []
    content = (report.root / "report.html").read_text()
    entries = embedded(content, "results")
    files = [
        base64.b64decode(entry["data_uri"].partition("base64,")[2]).decode()
        for entry in entries.values()
    ]
    captions = [entry["caption"] for entry in entries.values()]
    for page in (content, embedded(content, "workflow-desc"), *captions, *files):
        assert "\u202e" not in page
        assert [value for value in Tags(page).values if "alert(1)" in value] == []
    shown = " ".join(one_line(FOLDER).split())
    named = [caption for caption in captions if shown in " ".join(Tags(caption).text.split())]
    assert len(named) == len(captions)


def test_the_report_opens_with_the_answer_and_has_labels_and_results_in_captions(report):
    page = (report.root / "report.html").read_text()
    for category in ("Claims", "Figures of the paper"):
        assert f'"{category}"' in page
    results, first_page = embedded(page, "results"), embedded(page, "workflow-desc")
    assert "Claims of the paper in this run, one seed: " in first_page
    assert first_page.count("data:image/svg+xml") == 1
    figures = {path: entry for path, entry in results.items() if path.endswith(".svg")}
    assert len(figures) == 5
    assert results[f"results/{RUN}/figures/fig2.svg"]["labels"] == {"figure": "Fig. 2, drift"}
    assert (
        "Claim 6, Jumps between groups are larger than loop steps"
        in results[f"results/{RUN}/figures/fig2.svg"]["caption"]
    )
    assert all(
        "caption=(see the description)" in entry["job_properties"]["params"]
        for entry in figures.values()
    )
    assert {entry["mime_type"] for entry in results.values()} == {"text/html", "image/svg+xml"}
    assert report.plan("report_pages") == {}
