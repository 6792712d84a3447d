"""Configs of the tests that need no torch."""

import re
from typing import Any

import pytest

from twoscale.base import InputError
from twoscale.config import Config, checked
from twoscale.config.loading import paper as defaults


def paper(**sections: Any) -> Config:
    """The config of the paper with some keys of some sections replaced."""
    values = defaults()
    keys = {
        name: values[name] | keys if isinstance(keys, dict) else keys
        for name, keys in sections.items()
    }
    return checked(values | keys)


def assert_refused(key: str, found: str, **sections: Any) -> None:
    """The config of the paper with these keys is refused in one sentence about the key and what was
    found there.
    """
    with pytest.raises(InputError) as refusal:
        paper(**sections)
    message = str(refusal.value)
    assert re.match(rf"config key {re.escape(key)}(\.\d+)?:", message)  # and an index
    assert found in message
    assert "expected" in message
    assert message.endswith(".")
    assert "\n" not in message
