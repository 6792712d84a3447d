"""The exception for wrong input, as opposed to wrong code."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from twoscale.escaping import one_line


class InputError(Exception):
    """Wrong input. The message is one sentence: the file or key, what was found, what was expected.

    It may quote names from outside: characters that control a terminal are replaced, and it stays one line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def first_line(error: BaseException) -> str:
    """The first line of another library's message, without its full stop, for use in a sentence of ours."""
    return one_line(str(error).strip().partition("\n")[0].rstrip(".")) or type(error).__name__


def did_you_mean(found: Any, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name in `known` that a mistyped name is closest to, as " (did you mean X?)"; empty if none is close.

    `cutoff` is the least similarity, as in `difflib.get_close_matches`.
    """
    close = get_close_matches(str(found), list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""
