"""Canonical JSON: one string per value, so that equal configurations compare and hash equal."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """``value`` as JSON with sorted keys and no optional spaces. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
