"""CITATION.cff: how the project and the works that it cites are named elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = "CITATION.cff"


def read(project: Path) -> dict[str, Any]:
    """The content of the CITATION.cff of a checkout."""
    return yaml.safe_load((project / FILE).read_text(encoding="utf-8"))


def is_person(author: Mapping[str, str]) -> bool:
    """Whether an author is a person; others are organizations and groups."""
    return "family-names" in author


def author_name(author: Mapping[str, str]) -> str:
    """The name of an author, "family, given" for a person."""
    return f"{author['family-names']}, {author['given-names']}" if is_person(author) else author["name"]
