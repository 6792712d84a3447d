"""Templates of pages, and the parts that every page has: numbers, intervals, tables.

A template is a file of jinja2 below src/twoscale, such as report/templates/claims.md.j2, or in docs/. Values in a page
of HTML are escaped; in Markdown the filter `markdown` does so where a value is no text of ours.
`twoscale.jobs.fingerprint` covers the templates that a module names, so an edit of one draws its pages again.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from twoscale.base import markdown

if TYPE_CHECKING:
    from twoscale.claims.evidence import Estimate


def render(template: str, **values: Any) -> str:
    """A page from its template; of several empty lines one is kept."""
    text = ENVIRONMENT.get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def blocks(*parts: str) -> str:
    """A page of these parts, with an empty line between them; empty parts are left out."""
    return "\n\n".join(part.removesuffix("\n") for part in parts if part) + "\n"


def number(value: float) -> str:
    """Three digits; "not reached" if infinite, empty if missing."""
    if math.isnan(value):
        return ""
    return "not reached" if math.isinf(value) else f"{value:.3g}"


def interval(estimate: "Estimate") -> str:
    """Both ends; empty if there is no interval."""
    return "" if math.isnan(estimate.low) else f"{number(estimate.low)} … {number(estimate.high)}"


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


ENVIRONMENT = Environment(
    loader=FileSystemLoader([Path(__file__).parents[1], Path(__file__).parents[3] / "docs"]),
    autoescape=lambda template: template is not None and template.endswith(".html.j2"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"markdown": markdown, "number": number, "interval": interval}
ENVIRONMENT.globals |= {"table": table}
