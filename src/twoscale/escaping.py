"""Text from outside, made harmless: on a terminal, in a sentence, in reStructuredText and in Markdown.

Names of files, of subsets and of columns come from the hub, from data sets and from a user's folders.
"""

import re
import unicodedata

# Characters of embedding and overriding directions, which could show a text in another order.
DIRECTIONS = frozenset(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
LINE_ENDS = frozenset("\u2028\u2029")  # besides those that are control characters
CONTROL_PICTURES = 0x2400  # + code of a control character
LONGEST = 4000  # characters of a sentence


def neutralise(text: str) -> str:
    """Text that cannot control a terminal or the order of a page; line ends and tabs are kept."""
    return "".join(character if character in "\n\t" else _safe(character) for character in text)


def one_line(text: str) -> str:
    """Like `neutralise`, without line ends and tabs; the middle of a very long text is left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
    return "".join("\N{REPLACEMENT CHARACTER}" if character in LINE_ENDS else _safe(character) for character in text)


def _safe(character: str) -> str:
    if character < " ":
        return chr(CONTROL_PICTURES + ord(character))
    is_control = unicodedata.category(character) in ("Cc", "Cs") or character in DIRECTIONS
    return "\N{REPLACEMENT CHARACTER}" if is_control else character


def rst(text: str) -> str:
    """One line that reStructuredText shows as it is: a backslash before each character that could be markup."""
    return re.sub(r"([^\w\s]|_)", r"\\\1", one_line(text))


def markdown(text: str) -> str:
    """One line that Markdown shows as it is, also where HTML is allowed."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
