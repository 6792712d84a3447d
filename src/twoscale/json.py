"""One string per value, so that values can be compared and hashed as text."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """One string per value: keys sorted, no spaces that could vary. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
