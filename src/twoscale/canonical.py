"""Canonical JSON: equal values have equal strings, so they can be compared and hashed as text."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def json_digest(value: Any) -> str:
    """The first 64 bits of the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]
