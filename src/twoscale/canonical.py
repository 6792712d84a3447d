"""Canonical JSON: equal values have equal strings, so they can be compared and hashed as text."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
