"""The page results/explore.html: what its script reads, and text that is no markup."""

import json
import re

import pytest

from tests.studies.explore.tables import GROUPS, LOOPS, SITES, TOKENS, explore_tables
from twoscale.base import InputError
from twoscale.config import PROJECT
from twoscale.studies.explore import page as explore_page

TEMPLATE = (PROJECT / "src/twoscale/studies/explore/page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> str:
    return explore_page.page(TEMPLATE, **explore_tables(), text="a text")


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_a_token_cannot_close_the_script_that_holds_it(page):
    data = data_of(page)
    assert data["tokens"][1] == TOKENS[1]
    assert TOKENS[1] not in page
    assert "<!--" not in explore_page.embedded("<!-- <script>")


def test_line_ends_and_tabs_are_drawn_and_other_controls_replaced(page):
    assert data_of(page)["tokens"][2:] == ["tab→and⏎", "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"]
    assert explore_page.shown("naïve 日本 🎉 …") == "naïve 日本 🎉 …"


def test_every_token_has_each_place_with_its_own_numbers(page):
    data = data_of(page)
    assert [site["stage"] for site in data["sites"]] == [site["stage"] for site in SITES]
    assert data["sites"][2] == {"stage": "loop", "group": "2", "k": 0}
    loop = slice(2, 2 + LOOPS + 1)
    for position in range(len(TOKENS)):
        assert data["predictions"][position][loop] == [f"<i>{position}.{k}</i>" for k in range(LOOPS + 1)]
        assert data["measures"]["step_norm"][position][loop] == [1, 0.5, 0.25, None]
        assert data["measures"]["cosine"][position][loop] == [None, 0.5, 0.5, None]
        assert [point[2] for point in data["coordinates"][position]] == [-position] * len(SITES)
    assert data["exits"][0]["groups"] == {GROUPS[0]: [[1, 2], *[[3, 3]] * 3], GROUPS[1]: [[3, 3]] * 4}


def test_the_order_of_rows_does_not_matter(page):
    shuffled = {
        name: frame.sample(frac=1, random_state=1) for name, frame in explore_tables().items() if name != "exits"
    }
    exits = explore_tables()["exits"]
    assert explore_page.page(TEMPLATE, **shuffled, exits=exits, text="a text") == page


def test_the_page_loads_nothing_from_the_network(page):
    own = page.replace(explore_page.library(), "")
    assert not re.search(r"https?://|<link[^>]*href=\"(?!data:)|\ssrc=|@import|fetch\(", own)


@pytest.mark.parametrize("mark", [explore_page.PLOTLY_MARK, explore_page.DATA_MARK])
def test_a_template_without_a_place_for_its_parts_is_refused(mark):
    with pytest.raises(InputError, match=r"template of explore\.html: found .* 0 times, expected it once"):
        explore_page.page(TEMPLATE.replace(mark, ""), **explore_tables(), text="")
