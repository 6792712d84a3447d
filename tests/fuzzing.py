"""Strategies for files that are nearly right, and the property of every reader: a result or one sentence."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twoscale.base import InputError

# Numbers of cases: those of every run, and those of `make test-long`.
several = pytest.mark.parametrize("cases", [100, pytest.param(2000, marks=pytest.mark.long)])

NUMBERS = st.one_of(st.integers(-3, 70), st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 10**400]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["..", "/", "\0", "a\nb"]))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def assert_read_or_refused(strategy: st.SearchStrategy, read: Callable[[Any], Any], cases: int) -> None:
    """`read` returns or raises InputError with a sentence for each of so many drawn values."""

    @settings(max_examples=cases, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def case(value: Any) -> None:
        try:
            read(value)
        except InputError as error:
            sentence = str(error)
        else:
            return
        assert sentence.endswith("."), sentence

    case()


def try_all(*readers: Callable[[], Any]) -> None:
    """Call all of them, and then raise the last InputError."""
    refusal = None
    for reader in readers:
        try:
            reader()
        except InputError as error:
            refusal = error
    if refusal is not None:
        raise refusal


@st.composite
def changed(draw: st.DrawFn, value: Any, most: int = 3) -> Any:
    """A copy of nested mappings and lists in which up to `most` entries are replaced, removed or added."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(0, most))):
        value = _changed_once(draw, value)
    return value


def _changed_once(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = draw(st.sampled_from(keys))
    action = draw(st.sampled_from(["inside", "inside", "inside", "remove", "add"]))
    if action == "inside":
        value[key] = _changed_once(draw, value[key])
    elif action == "remove":
        del value[key]
    elif isinstance(value, dict):
        value[draw(st.text(max_size=5))] = draw(VALUES)
    else:
        value.append(draw(VALUES))
    return value


@st.composite
def bent(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are cut, or of which a few are replaced, removed or added."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(content)))
        end = place + draw(st.sampled_from([0, 1, 1, 1, 4, len(content)]))
        content = content[:place] + draw(st.binary(max_size=4)) + content[end:]
    return content


def json_bytes(value: Any) -> st.SearchStrategy[bytes]:
    """JSON files: changed values, bent ones, random bytes, and JSON that is nested too deeply."""
    good = json.dumps(value).encode()
    changes = changed(value).map(lambda other: json.dumps(other).encode())
    return st.one_of(changes, changes, changes, bent(good), st.binary(max_size=40), st.just(b"[" * 3000))
