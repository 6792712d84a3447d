"""Why Snakemake repeats a job, with the keys that have changed in place of whole params.

Snakemake lists the params before and now that differ: here JSON objects of the config of a job, and digests of code.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from twoscale.base import one_line

LITERAL = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # a string as Python prints it
ITEM = rf"(?:{LITERAL}|[^\s,'\"]+)"
ITEMS = rf"{ITEM}(?:,{ITEM})*|<nothing exclusive>"
PARAMS = re.compile(
    f"Union of exclusive params before and now across all output: before: (?P<before>{ITEMS}) now: (?P<now>{ITEMS}) ",
    re.DOTALL,
)
DIGEST = re.compile(r"[0-9a-f]{16,64}")
MOST_KEYS, LONGEST_VALUE = 4, 40


def named(reason: str) -> str:
    """The reason of a job, such as "Params have changed since last execution: train.iterations 20, now 40"."""
    return PARAMS.sub(lambda match: _changes(match["before"], match["now"]), reason)


def _changes(before: str, now: str) -> str:
    old, new = (_leaves(_literals(text)) for text in (before, now))
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    named = [_change(key, old.get(key), new.get(key)) for key in keys[:MOST_KEYS]]
    further = [f"{len(keys) - MOST_KEYS} further keys"] if len(keys) > MOST_KEYS else []
    return "; ".join([*named, *further]) or "the order of its values"


def _change(key: str, old: str | None, new: str | None) -> str:
    if key == "code":
        return "the code of the job"
    if old is None or new is None:
        return f"{key}, {'new' if old is None else 'removed'}"
    return f"{key} {_cut(old)}, now {_cut(new)}"


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 1]}…"


def _literals(text: str) -> Iterator[Any]:
    for literal in re.findall(LITERAL, text, re.DOTALL):
        value = ast.literal_eval(literal)
        try:
            yield json.loads(value)
        except ValueError:
            yield value


def _leaves(values: Iterable[Any]) -> dict[str, str]:
    """Dotted key -> value of all objects; digests are under "code", and other values under "option"."""
    leaves: dict[str, str] = {}
    for value in values:
        if isinstance(value, dict):
            leaves.update(_flat(value))
        else:
            leaves["code" if DIGEST.fullmatch(str(value)) else "option"] = one_line(str(value))
    return leaves


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from _flat(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(entry, ensure_ascii=False)
