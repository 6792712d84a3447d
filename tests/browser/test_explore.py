"""results/explore.html in a real browser: no console error, no request, and controls that work."""

import pytest

from tests.small import ROOT
from tests.studies.explore.tables import GROUPS, LOOPS, TOKENS, explore_tables
from twoscale.studies.explore import page as explore_page

STATES = LOOPS + 1


@pytest.fixture
def page(open_page, tmp_path):
    template = (ROOT / "src/twoscale/studies/explore/page.html").read_text(encoding="utf-8")
    file = tmp_path / "explore.html"
    file.write_text(explore_page.page(template, **explore_tables(), text="a text"), encoding="utf-8")
    opened = open_page(file.as_uri())
    opened.wait_for_selector("#path .main-svg")
    return opened


def choose(page, token: int, step: int) -> None:
    page.locator("#tokens input").nth(token).check(force=True)
    page.locator("#step").fill(str(step))


def points(page, name: str) -> list[dict]:
    """Coordinates of the traces of the path with this name."""
    return page.evaluate("name => document.getElementById('path').data.filter(t => t.name === name)", name)


def now(page) -> str:
    return page.locator("#now").inner_text()


def test_the_page_opens_at_a_step_with_values(page):
    text = now(page)
    assert "Step norm –" not in text
    assert "cosine –" not in text


@pytest.mark.parametrize("width", [390, 500, 1400])
def test_nothing_covers_the_path_or_leaves_the_page(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for plot in ("#path", "#curves"):
        page.hover(plot)
        box = {
            name: page.locator(f"{plot} {name}").first.bounding_box()
            for name in (".legend", ".xtitle", ".modebar", ".nsewdrag")
        }
        legend, title, bar, drawing = box.values()
        assert legend["y"] >= title["y"] + title["height"] - 2
        assert bar["y"] + bar["height"] <= drawing["y"] + 1


def test_text_of_tokens_is_no_markup(page):
    assert page.locator("#tokens span").all_inner_texts()[1] == TOKENS[1]
    assert page.locator("#tokens b, #steps i, #now i").count() == 0


def test_a_token_and_a_step_show_their_prediction_and_measures(page):
    choose(page, token=1, step=2)
    text = now(page)
    for part in (
        f"Token 1 {TOKENS[1]}",
        "group 2",
        f"loop step 2 of {LOOPS}",
        "<i>1.2</i>",
        "Step norm 0.25",
        "cosine 0.5",
    ):
        assert part in text
    assert page.locator("#steps tr.now td").all_inner_texts() == ["2", "<i>1.2</i>", "0.25", "0.25", "0.5"]
    (ring,) = points(page, "chosen loop step")
    assert ring["x"] == [2 + 2 + 1]  # site + position


def test_the_step_goes_on_into_the_next_group(page):
    choose(page, token=0, step=STATES)
    assert "group 3–4, loop step 0" in now(page)
    assert page.locator("#steps-title").inner_text() == "Loop steps of group 3–4"


def test_the_keyboard_alone_changes_token_and_step(page):
    page.locator("#tokens input").nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert "Token 1 " in now(page)
    page.locator("#step").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "loop step 1 of" in now(page)


def test_a_criterion_is_marked_where_it_lets_the_token_go(page):
    choose(page, token=0, step=0)
    assert page.locator("#exits tbody td").all_inner_texts() == ["halving", "0.1", "1", "all"]
    assert points(page, "exit: halving 0.1") == []
    page.select_option("#criterion", label="halving 0.1")
    (star,) = points(page, "exit: halving 0.1")
    assert star["x"] == [3, 2 + STATES + LOOPS]  # x^1 of the first group, the last state of the other
    assert page.locator("#exits td.gone").count() == 0
    page.locator("#step").fill("1")
    assert page.locator("#exits td.gone").all_inner_texts() == ["1"]


def test_one_group_can_be_shown_alone(page):
    choose(page, token=0, step=0)
    page.select_option("#part", GROUPS[1])
    assert points(page, "group 2") == []
    assert len(points(page, "group 3–4")[0]["x"]) == LOOPS
    assert "group 3–4, loop step 0" in now(page)


def test_three_components_are_drawn_in_space(page):
    page.select_option("#axes", "012")
    page.wait_for_selector("#path canvas")
    assert page.evaluate("document.getElementById('path').data[0].type") == "scatter3d"


def test_play_goes_to_the_last_step_and_ends(page):
    choose(page, token=0, step=2 * STATES - 2)
    page.locator("#play").click()
    assert page.locator("#play").inner_text() == "Stop"
    page.wait_for_function("document.getElementById('play').textContent === 'Play'")
    assert f"group 3–4, loop step {LOOPS} of" in now(page)


def test_the_page_is_drawn(page, tmp_path):
    """A blank plot has one colour; the path has its groups in theirs."""
    assert len(page.locator("#path").screenshot()) > 5000
    for name in ("path", "curves"):
        assert page.locator(f"#{name} .scatterlayer .trace").count() >= len(GROUPS)
