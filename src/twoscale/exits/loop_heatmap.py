"""Generated text with every token coloured by its loops, on a terminal and as an HTML page.

Few loops are pale and many are red, on a logarithmic scale, as a background under black text, so one colour ramp
serves dark terminals, light terminals and paper. A terminal gets its text while it is generated, so its scale is
laid around the loops of the first token; the scale of a page goes from its minimum to its maximum. Neither scale is
narrow, so that a small difference of loops is a small difference of colours.

Line ends and tabs are drawn as ⏎ and →, because they are tokens with loops too; they still break and indent lines.
"""

import codecs
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twoscale.base import neutralise

# RGB from pale yellow to red, all legible under black (YlOrRd of ColorBrewer without its darkest)
RAMP = ((255, 255, 204), (255, 237, 160), (254, 217, 118), (254, 178, 76), (253, 141, 60), (252, 78, 42))
SCALE_MARKS = 6
MIN_RATIO = 1.5  # of the ends of the scale of a page
TERMINAL_RATIO = 1.5  # of the ends of the scale of a terminal to its middle
LINE_END, TAB = "\N{RETURN SYMBOL}", "\N{RIGHTWARDS ARROW}"

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 52em; margin: 3em auto; padding: 0 1em }}
body {{ color: #111; background: #fff }}
h1 {{ font-size: 1.3em }}
th {{ text-align: left; font-weight: normal; color: #555; padding-right: 1.5em; vertical-align: top }}
pre {{ font: 15px/1.9 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }}
pre span, p.scale span {{ border-radius: 2px; padding: 2px 0 }}
p.scale span {{ padding: 2px 8px }}
.prompt {{ color: #666 }}
</style>
<h1>{title}</h1>
<table>
{rows}
</table>
<p class="scale">loops per token, mean over the groups: {scale}</p>
<pre><span class="prompt">{prompt}</span>{spans}</pre>
</html>
"""


@dataclass(frozen=True)
class TokenSpan:
    """The text that one token completes, which may be empty, and its loops in each group."""

    text: str
    loops: tuple[int, ...]

    @property
    def mean(self) -> float:
        return sum(self.loops) / len(self.loops) if self.loops else 1.0


class Utf8Stream:
    """Decodes the bytes of one token after another; an incomplete character waits for its last byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def decode(self, raw: bytes) -> str:
        return self._decoder.decode(raw)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def colour(loops: float, minimum: float, maximum: float) -> tuple[int, int, int]:
    """RGB of a number of loops on the scale from `minimum` (at least 1) to `maximum`."""
    share = math.log(loops / minimum) / math.log(maximum / minimum) if maximum > minimum else 0.0
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    red, green, blue = (round(a + (place - low) * (b - a)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    return red, green, blue


def visible(text: str) -> str:
    """Safe text in which each line end and tab is drawn before it breaks or indents the line."""
    return neutralise(text).replace("\n", LINE_END + "\n").replace("\t", TAB + "\t")


def terminal(span: TokenSpan, ends: tuple[float, float]) -> str:
    """A span in ANSI colours; line ends stay uncoloured, so that no bar is drawn to the edge."""
    lines = visible(span.text).split("\n")
    return "\n".join(_ansi(line, span.mean, ends) for line in lines)


def _ansi(text: str, loops: float, ends: tuple[float, float]) -> str:
    red, green, blue = colour(loops, *ends)
    return f"\x1b[30;48;2;{red};{green};{blue}m{text}\x1b[0m" if text else ""


def terminal_ends(first: float) -> tuple[float, float]:
    """Ends of the scale of a terminal whose first token has `first` loops."""
    return max(1.0, first / TERMINAL_RATIO), max(1.0, first / TERMINAL_RATIO) * TERMINAL_RATIO**2


def terminal_scale(ends: tuple[float, float]) -> str:
    """The scale of a terminal in ANSI colours."""
    return " ".join(_ansi(f" {mark:.1f} ", mark, ends) for mark in scale_marks(ends))


def scale_marks(ends: tuple[float, float]) -> list[float]:
    """Numbers of loops at equal distances on the scale; one if its ends are equal."""
    marks = (ends[0] * (ends[1] / ends[0]) ** (i / (SCALE_MARKS - 1)) for i in range(SCALE_MARKS))
    return list(dict.fromkeys(marks))


def scale_ends(means: Sequence[float]) -> tuple[float, float]:
    """Ends of the scale of a page: the least and the most loops, or equal ends if all tokens have the same."""
    if not means:
        return 1.0, 1.0
    lowest, highest = min(means), max(means)
    return (lowest, lowest) if lowest == highest else (lowest, max(highest, MIN_RATIO * lowest))


def loop_range(spans: Sequence[TokenSpan]) -> str:
    """The least and the most loops of the tokens in words."""
    means = [span.mean for span in spans]
    if not means:
        return "no token"
    if min(means) == max(means):
        return f"{means[0]:.1f} for every token, so all have one colour"
    return f"{min(means):.1f} to {max(means):.1f}, mean over the groups"


def page(title: str, facts: Mapping[str, str], prompt: str, spans: Sequence[TokenSpan], labels: Sequence[str]) -> str:
    """An HTML page of the text; `facts` are listed above it; a tooltip shows the loops of each group."""
    ends = scale_ends([span.mean for span in spans])
    coloured = (_span(visible(span.text), span.mean, ends, _hint(span, labels)) for span in spans)
    return PAGE.format(
        title=html.escape(title),
        rows="\n".join(f"<tr><th>{html.escape(name)}<td>{html.escape(value)}" for name, value in facts.items()),
        scale=" ".join(_span(f"{loops:.1f}", loops, ends) for loops in scale_marks(ends)),
        prompt=html.escape(neutralise(prompt)),
        spans="".join(coloured),
    )


def _hint(span: TokenSpan, labels: Sequence[str]) -> str:
    return ", ".join(f"{label}: {loops}" for label, loops in zip(labels, span.loops, strict=True))


def _span(text: str, loops: float, ends: tuple[float, float], hint: str = "") -> str:
    shade = "#{:02x}{:02x}{:02x}".format(*colour(loops, *ends))
    tooltip = f' title="{html.escape(hint)}"' if hint else ""
    return f'<span style="background:{shade}"{tooltip}>{html.escape(text)}</span>'
