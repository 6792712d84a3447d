"""results/explore.html in a real browser: no console error, no request, and a slider that works."""

import pytest

from tests.studies.explore.samples import TOKENS, explore_tables
from twoscale.studies.explore import draw


@pytest.fixture
def page(open_page, tmp_path):
    file = tmp_path / "explore.html"
    file.write_text(draw.page(draw.figure(**explore_tables(), text="a text")), encoding="utf-8")
    opened = open_page(file.as_uri())
    opened.wait_for_selector("#explore .main-svg")
    return opened


def test_the_slider_shows_another_token_with_its_text(page):
    rail = page.locator(".slider-rail-touch-rect").bounding_box()
    page.mouse.click(rail["x"] + rail["width"] / 3, rail["y"] + 5)  # the second of four tokens
    page.wait_for_function("document.querySelector('.slider-label').textContent.startsWith('token=1')")
    assert TOKENS[1] in page.locator(".slider-label").first.text_content()
    assert page.locator(".slider-label b").count() == 0


def test_a_criterion_is_shown_when_its_entry_of_the_legend_is_clicked(page):
    visible = (
        "document.getElementById('explore').data.filter(t => t.visible === true && t.name.startsWith('exit')).length"
    )
    assert page.evaluate(visible) == 0
    page.locator(".legendtoggle").last.click()
    page.wait_for_function(f"{visible} === 1")


def test_the_page_is_drawn(page):
    """A blank plot has one colour."""
    assert len(page.locator("#explore").screenshot()) > 5000
