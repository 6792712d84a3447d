"""README and docs/: every link leads to a file and a heading that exist."""

import re

import pytest

from twoscale.analysis import tables_page
from twoscale.config import PROJECT

PAGES = [*PROJECT.glob("*.md"), *sorted((PROJECT / "docs").rglob("*.md"))]
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


def test_the_first_page_is_short():
    assert len((PROJECT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def sections(text):
    return {section.partition("\n")[0]: section.rstrip() for section in text.split("\n## ")}


def test_the_page_of_tables_is_up_to_date():
    written, now = sections(tables_page.PAGE.read_text(encoding="utf-8")), sections(tables_page.page())
    present = {name: written.get(name) for name in now}  # a study may have been removed
    assert present == now, "run python -m twoscale.analysis.tables_page"
