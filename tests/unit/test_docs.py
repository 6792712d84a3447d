"""README and docs/: every link leads to a file and a heading that exist."""

import re

import pytest

from twoscale.config import PROJECT

PAGES = [*PROJECT.glob("*.md"), *sorted((PROJECT / "docs").rglob("*.md"))]
# Written by the code, or a list of changes: not counted as prose.
GENERATED = {
    "CHANGELOG.md",
    "benchmarks.md",
    "claims.md",
    "config.md",
    "jacobians.md",
    "results.md",
    "seeds.md",
    "tables.md",
}
GENERATED |= {"zoo.md"}
PAGE_WORDS, ALL_WORDS = 2500, 45_000
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """The anchors of the headings of a page, as GitHub and MkDocs derive them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_of_a_page_leads_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or found.suffix != ".md" or anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_no_link_follows_itself(page):
    assert not re.search(r"(\[[^\]]+\]\([^)]+\))[\s·,]+\1", page.read_text(encoding="utf-8"))


def test_the_first_page_counts_the_verdicts_of_its_table():
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \|.*\| ([✓✗?])[^|]*\|[^|]*\| ([✓✗?])[^|]*\|$", text, re.MULTILINE)
    demo, fineweb = zip(*rows, strict=True)
    counts = [run.count(mark) for run in (demo, fineweb) for mark in "✓✗"]
    told = r"Of (\d+) claims, (\d+) hold and (\d+) do not in the demo, and (\d+) hold and (\d+) do not"
    assert [int(count) for count in re.search(told, " ".join(text.split())).groups()] == [len(rows), *counts]


def test_the_first_page_is_short():
    assert len((PROJECT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def words(page):
    """Words and numbers, with those of tables and code."""
    return sum(any(map(str.isalnum, word)) for word in page.read_text(encoding="utf-8").split())


WRITTEN = [page for page in PAGES if page.name not in GENERATED]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(PROJECT)))
def test_a_page_is_read_in_ten_minutes(page):
    assert words(page) <= PAGE_WORDS, "split the page, or delete what a reader does not need"


def test_all_pages_are_read_in_an_afternoon():
    assert sum(map(words, WRITTEN)) <= ALL_WORDS
