"""Loop heatmaps: cut characters are joined, pages escape text, terminals ignore escape sequences in it."""

import itertools
import re

import pytest

from twoscale.exits.loop_heatmap import RAMP, TokenSpan, Utf8Stream, colour, neutralise, page, terminal

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


def test_terminal_text_contains_no_escape_sequences_of_the_text():
    assert neutralise(NASTY) == "<b>&\"'</b>\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}\n\ttail"
    coloured = terminal(TokenSpan(NASTY, (3, 5)), 30)
    styles = re.findall(r"\x1b\[[0-9;]*m", coloured)
    assert coloured.count("\x1b") == len(styles)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == neutralise(NASTY)


def test_every_line_of_a_span_resets_its_colour():
    coloured = terminal(TokenSpan("a\n\nb", (4,)), 30).split("\n")
    assert [line.endswith("\x1b[0m") for line in coloured] == [True, False, True]
    assert coloured[1] == ""


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


@pytest.mark.parametrize("spans", [[], [TokenSpan("x", ())], [TokenSpan("x", (3,))]])
def test_a_page_may_have_one_span_or_none(spans):
    assert page("t", {}, "", spans, ["4"][: len(spans[0].loops) if spans else 0]).startswith("<!doctype html>")
