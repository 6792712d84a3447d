"""Loop heatmaps: every token is visible, cut characters are joined, and text controls neither page nor terminal."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twoscale.base import neutralise
from twoscale.exits.loop_heatmap import (
    RAMP,
    TokenSpan,
    Utf8Stream,
    colour,
    loop_range,
    page,
    scale_ends,
    scale_marks,
    terminal,
    terminal_ends,
    visible,
)

NASTY = "<b>&\"'</b>\x1b[2J\r\n\ttail"


@pytest.mark.parametrize("cuts", [[1], [2], [1, 3], [3, 4, 5]])
def test_a_character_split_between_tokens_is_printed_with_its_last_byte(cuts):
    raw = "a€😀".encode()
    edges = [0, *cuts, len(raw)]
    stream = Utf8Stream()
    parts = [stream.decode(raw[first:last]) for first, last in itertools.pairwise(edges)]
    assert "".join(parts) == "a€😀"
    assert stream.flush() == ""


def test_an_incomplete_last_character_is_replaced():
    stream = Utf8Stream()
    assert stream.decode("€".encode()[:2]) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


def test_colours_follow_the_ramp_by_the_logarithm_of_the_loops():
    assert colour(1, 1, 30) == RAMP[0]
    assert colour(30, 1, 30) == colour(99, 1, 30) == RAMP[-1]
    assert colour(2, 2, 64) == RAMP[0]
    assert [colour(2**power, 1, 32) for power in range(6)] == list(RAMP)
    assert colour(5, 5, 5) == RAMP[0]


def relative_luminance(rgb):
    """As WCAG 2 defines it, from 0 (black) to 1 (white)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (value / 255 for value in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_black_text_is_legible_on_every_colour():
    contrasts = [(relative_luminance(rgb) + 0.05) / 0.05 for rgb in RAMP]
    assert min(contrasts) > 4.5  # WCAG AA
    assert contrasts == sorted(contrasts, reverse=True)  # the order is visible in grey


STYLE = re.compile(r"\x1b\[[0-9;]*m")


@given(st.text(st.characters(codec=None)))
def test_no_text_controls_a_terminal_or_leaves_its_own_characters(text):
    """Escape sequences, other controls, overrides of the direction and lone surrogates lose their effect."""
    safe = neutralise(text)
    assert len(safe) == len(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", safe)
    assert all(new == old for new, old in zip(safe, text, strict=True) if old.isprintable())


@given(st.text(st.sampled_from("a \t\n\x1b[")))
def test_each_line_end_and_tab_is_drawn_and_still_breaks_and_indents(text):
    shown = visible(text)
    assert shown.count("⏎\n") == shown.count("⏎") == text.count("\n")
    assert shown.count("→\t") == shown.count("→") == text.count("\t")
    assert shown.replace("⏎", "").replace("→", "") == neutralise(text)


def test_terminal_text_contains_no_escape_sequences_of_the_text():
    assert neutralise(NASTY) == "<b>&\"'</b>␛[2J␍\n\ttail"
    coloured = terminal(TokenSpan(NASTY, (3, 5)), (1, 30))
    assert coloured.count("\x1b") == len(STYLE.findall(coloured))
    assert STYLE.sub("", coloured) == visible(NASTY)


def test_a_token_of_line_ends_has_a_coloured_sign_on_each_line_and_no_coloured_line_end():
    lines = terminal(TokenSpan("a\n\nb", (4,)), (1, 30)).split("\n")
    assert [STYLE.sub("", line) for line in lines] == ["a⏎", "⏎", "b"]
    assert all(line.startswith("\x1b[30;48;2;") and line.endswith("\x1b[0m") for line in lines)


@given(st.floats(1, 1000))
def test_the_scale_of_a_terminal_contains_the_first_token_and_numbers_that_are_possible(first):
    low, high = terminal_ends(first)
    assert 1 <= low <= first <= high


@given(st.lists(st.floats(1, 1000), min_size=1))
def test_the_scale_of_a_page_contains_every_token_and_is_wide_unless_all_are_equal(means):
    low, high = scale_ends(means)
    assert low == min(means)
    assert high >= max(means)
    assert (low == high) == (len(set(means)) == 1)
    assert low == high or high >= 1.5 * low
    assert len(scale_marks((low, high))) == (1 if low == high else 6)


def test_equal_loops_are_said_and_a_range_has_its_ends():
    assert loop_range([TokenSpan("a", (12, 12)), TokenSpan("b", (11, 13))]) == (
        "12.0 for every token, so all have one colour"
    )
    assert loop_range([TokenSpan("a", (9,)), TokenSpan("b", (12,))]) == "9.0 to 12.0, mean over the groups"


def test_a_page_escapes_text_and_prompt():
    html = page("T&T", {"<criterion>": "a & b"}, NASTY, [TokenSpan(NASTY, (3, 5))], ["4", "5-6"])
    assert "<b>" not in html
    assert html.count("&lt;b&gt;&amp;&quot;&#x27;&lt;/b&gt;") == 2
    assert "<title>T&amp;T</title>" in html
    assert "<th>&lt;criterion&gt;<td>a &amp; b" in html
    assert 'title="4: 3, 5-6: 5"' in html


def test_a_page_is_shaded_from_its_minimum_to_its_maximum():
    shades = ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in (RAMP[0], RAMP[-1])]
    html = page("t", {}, "", [TokenSpan("few", (4, 4)), TokenSpan("many", (9, 11))], ["4", "5-6"])
    assert f'<span style="background:{shades[0]}" title="4: 4, 5-6: 4">few</span>' in html
    assert f'<span style="background:{shades[1]}" title="4: 9, 5-6: 11">many</span>' in html


def test_a_page_draws_line_ends_and_tabs_in_the_colour_of_their_token():
    html = page("t", {}, "in:\n\x1b", [TokenSpan("\n\t", (4,))], ["4"])
    assert 'title="4: 4">⏎\n→\t</span>' in html
    assert '<span class="prompt">in:\n␛</span>' in html


@pytest.mark.parametrize("spans", [[], [TokenSpan("x", ())], [TokenSpan("x", (3,))]])
def test_a_page_may_have_one_span_or_none(spans):
    assert page("t", {}, "", spans, ["4"][: len(spans[0].loops) if spans else 0]).startswith("<!doctype html>")
