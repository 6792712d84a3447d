"""The documentation as a site, built by MkDocs."""

import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import twoscale
from twoscale.config import PROJECT

pytest.importorskip("mkdocs", reason="needs MkDocs: make test-tools SUITE=site")

TAG = re.compile(r'<(?:a|img|link|script)\b[^>]*?\b(?:href|src)="([^"]*)"')
ID = re.compile(r'\bid="([^"]*)"')
ELSEWHERE = ("http://", "https://", "mailto:", "data:")


def build(root: Path, out: Path) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        root / "mkdocs.yml",
        "-d",
        out,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(PROJECT, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def small(tmp_path):
    """A copy of the project's site settings with two pages of its own."""
    shutil.copytree(
        PROJECT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.md", "*.ipynb")
    )
    settings = (PROJECT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav: [index.md, page.md]\n")
    (tmp_path / "code.py").write_text("answer = 42\n")
    (tmp_path / "README.md").write_text(
        "# Start\n\n[page](docs/page.md#part-1-a) ![picture](docs/fig1.png)\n"
    )
    (tmp_path / "docs" / "page.md").write_text(
        "# Page\n\n## Part 1: a\n\n[start](../README.md) [code](../code.py)\n"
    )
    return tmp_path


def pages(site):
    return {
        page: page.read_text(encoding="utf-8")
        for page in site.rglob("*.html")
        if page.name != "404.html"
    }


def test_every_link_and_picture_of_every_page_is_in_the_site(site):
    texts = pages(site)
    ids = {page: {*map(unescape, ID.findall(text)), ""} for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        for link in {
            link for link in map(unescape, TAG.findall(text)) if not link.startswith(ELSEWHERE)
        }:
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not (target.is_file() and anchor in ids.get(target, {anchor})):
                broken.append((page.name, link))
    assert broken == []


def test_no_page_loads_anything_from_another_host(site):
    loads = re.compile(r'<(?:img|script|link rel="stylesheet")[^>]*?(?:href|src)="https?://[^"]*"')
    assert [found for text in pages(site).values() for found in loads.findall(text)] == []


def test_the_start_page_is_the_readme(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for heading in re.findall(
        "^## (.*)$", (PROJECT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    ):
        assert re.search(f"<h2 [^>]*>{re.escape(heading)}<", start), heading


def test_no_list_is_printed_as_a_paragraph(site):
    assert [
        page.name
        for page, text in pages(site).items()
        if re.search(r"<p>[^<]*\n(?:- |\d+\. )", text)
    ] == []


@pytest.mark.parametrize("name", sorted(set(twoscale.__all__) - {"__version__"}))
def test_the_api_page_describes_every_public_name(site, name):
    page = (site / "api.html").read_text(encoding="utf-8")
    described = page.partition(f'id="twoscale.{name}"')[2].partition('id="twoscale.')[0]
    assert getattr(twoscale, name).__doc__.partition(".")[0].split()[0] in described


def test_the_tour_is_a_page_with_its_code_outputs_and_pictures(site):
    page = (site / "tour.html").read_text(encoding="utf-8")
    assert "open_run" in page
    assert 'src="data:image/png;base64,' in page


def test_a_page_may_link_to_the_readme_and_to_a_source_file(small):
    done = build(small, small / "out")
    assert done.returncode == 0, done.stderr
    assert "42" in (small / "out" / "files" / "code.py.html").read_text()


@pytest.mark.parametrize(
    "text", ["[a](gone.md)", "[a](page.md#gone)", "![a](gone.png)", "[a](/page.md)"]
)
def test_a_broken_link_anchor_or_picture_fails(small, text):
    page = small / "docs" / "page.md"
    page.write_text(page.read_text() + text + "\n")
    assert build(small, small / "out").returncode != 0


def test_a_page_outside_the_navigation_fails(small):
    (small / "docs" / "new.md").write_text("# New\n")
    assert build(small, small / "out").returncode != 0
