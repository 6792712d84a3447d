"""loop_colours: text keeps its characters, pages keep their markup, terminals keep their settings."""

import itertools
import re

import pytest

from twoscale.exits.loop_heatmap import RAMP, Piece, Pieces, colour, harmless, page, terminal

NASTY = "<b>&\"'</b>\x1b[2J\r\n\ttail"


@pytest.mark.parametrize("cuts", [[1], [2], [1, 3], [3, 4, 5]])
def test_a_character_cut_between_tokens_appears_with_its_last_byte(cuts):
    raw = "a€😀".encode()
    edges = [0, *cuts, len(raw)]
    pieces = Pieces()
    parts = [pieces.next(raw[first:last]) for first, last in itertools.pairwise(edges)]
    assert "".join(parts) == "a€😀"
    assert pieces.rest() == ""


def test_a_character_that_never_ends_is_replaced():
    pieces = Pieces()
    assert pieces.next("€".encode()[:2]) == ""
    assert pieces.rest() == "\N{REPLACEMENT CHARACTER}"


def test_colours_run_along_the_ramp_by_the_logarithm_of_the_loops():
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
    assert contrasts == sorted(contrasts, reverse=True)  # so the order survives in grey


def test_a_terminal_is_not_steered_by_the_text():
    assert harmless(NASTY) == "<b>&\"'</b>\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}\n\ttail"
    shown = terminal(Piece(NASTY, (3, 5)), 30)
    styles = re.findall(r"\x1b\[[0-9;]*m", shown)
    assert shown.count("\x1b") == len(styles)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == harmless(NASTY)


def test_every_line_of_a_piece_ends_its_own_colour():
    shown = terminal(Piece("a\n\nb", (4,)), 30).split("\n")
    assert [line.endswith("\x1b[0m") for line in shown] == [True, False, True]
    assert shown[1] == ""


def test_a_page_escapes_text_and_prompt():
    made = page("T&T", {"<rule>": "a & b"}, NASTY, [Piece(NASTY, (3, 5))], ["4", "5-6"])
    assert "<b>" not in made
    assert made.count("&lt;b&gt;&amp;&quot;&#x27;&lt;/b&gt;") == 2
    assert "<title>T&amp;T</title>" in made
    assert "<th>&lt;rule&gt;<td>a &amp; b" in made
    assert 'title="4: 3, 5-6: 5"' in made


def test_a_page_shades_from_its_fewest_loops_to_its_most():
    shades = ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in (RAMP[0], RAMP[-1])]
    made = page("t", {}, "", [Piece("few", (4, 4)), Piece("many", (9, 11))], ["4", "5-6"])
    assert f'<span style="background:{shades[0]}" title="4: 4, 5-6: 4">few</span>' in made
    assert f'<span style="background:{shades[1]}" title="4: 9, 5-6: 11">many</span>' in made


@pytest.mark.parametrize("pieces", [[], [Piece("x", ())], [Piece("x", (3,))]])
def test_a_page_of_one_piece_or_none_is_a_page(pieces):
    assert page("t", {}, "", pieces, ["4"][: len(pieces[0].loops) if pieces else 0]).startswith("<!doctype html>")
