"""Text from outside controls neither a terminal nor a sentence, a caption or a page."""

import html
import re

import markdown as renderer
from docutils.core import publish_doctree
from hypothesis import given, settings
from hypothesis import strategies as st

from twoscale.base import LONGEST, InputError, first_line, markdown, one_line, rst

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(shown: str) -> str:
    return " ".join(shown.split())


@given(st.text(st.characters(codec=None)))
def test_a_sentence_is_one_line_without_controls(text):
    assert not CONTROL.search(str(InputError(text)))
    assert not CONTROL.search(first_line(ValueError(text)))


def test_a_sentence_that_quotes_a_very_long_name_keeps_its_beginning_and_its_end():
    sentence = str(InputError(f"a.txt: found {'x' * 10**6}, expected less."))
    assert len(sentence) < LONGEST + 10
    assert sentence.startswith("a.txt: found xxx")
    assert sentence.endswith("xxx, expected less.")


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("ab_*`|:<>.-[]\\\"'&!#$+1(){}^=~,;@/? \n\té…"), max_size=12))
def test_reStructuredText_shows_any_text_as_it_is(text):
    # a reference that is not resolved would be an error of docutils
    document = publish_doctree(
        f"Run {rst(text)} on.", settings_overrides={"halt_level": 2, "report_level": 5}
    )
    assert plain(document.astext()) == plain(f"Run {one_line(text)} on.")
    assert len(document) == 1
    assert all(child.tagname == "#text" for child in document[0])


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("ab_*`|:<>.-[]\\\"'&!#+1(){}=~ \n\té"), max_size=12))
def test_markdown_shows_any_text_as_it_is(text):
    page = renderer.markdown(f"Run **{markdown(text)}** on.", extensions=["tables"])
    assert set(re.findall("<[^>]*>", page)) <= {"<p>", "</p>", "<strong>", "</strong>"}
    if text.strip() and text == text.strip():
        shown = html.unescape(re.sub("<[^>]*>", "", page)).replace("**", "")
        assert plain(shown) == plain(f"Run {one_line(text)} on.".replace("**", ""))


def test_markdown_leaves_a_comparison_as_it_is():
    assert markdown("entropy < 0.31") == "entropy < 0.31"
    assert markdown("a <b> <") == "a &lt;b&gt; &lt;"
