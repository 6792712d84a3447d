"""Templates of pages, and the parts that every page has: numbers, intervals, tables.

A template is a file of jinja2 below src/twoscale, such as report/templates/claims.md.j2, or in
docs/. Values in a page of HTML are escaped; in Markdown the filter `markdown` does so where a value
is no text of ours. `twoscale.jobs.fingerprint` covers the templates that a module names, so an edit
of one draws its pages again.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from twoscale.base import markdown
from twoscale.claims.estimates import Estimate


def render(template: str, **values: Any) -> str:
    """A page from its template; of several empty lines one is kept."""
    text = _ENVIRONMENT.get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def blocks(*parts: str) -> str:
    """A page of these parts, with an empty line between them; empty parts are left out."""
    return "\n\n".join(part.removesuffix("\n") for part in parts if part) + "\n"


def number(value: float, width: float = math.nan) -> str:
    """One to three digits, to the second one of an interval's `width`.

    "not reached" if infinite, empty if missing.
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "not reached"
    digits = 3
    if 0 < width < math.inf and value:
        # from the first digit of the value to the second one of the width
        digits = 2 + math.floor(math.log10(abs(value))) - math.floor(math.log10(width))
        digits = min(max(digits, 1), 3)
    return f"{value:.{digits}g}"


def estimated(estimate: Estimate) -> str:
    """The value with as many digits as its interval allows."""
    return number(estimate.value, estimate.high - estimate.low)


def interval(estimate: Estimate, between: str = " … ") -> str:
    """Both ends; empty if there is no interval."""
    low, high = estimate.low, estimate.high
    if math.isnan(low):
        return ""
    return f"{number(low, high - low)}{between}{number(high, high - low)}"


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = []
    for row in (header, ["---"] * len(header), *rows):
        cells = [str(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_ENVIRONMENT = Environment(
    loader=FileSystemLoader([Path(__file__).parents[1], Path(__file__).parents[3] / "docs"]),
    autoescape=lambda template: template is not None and template.endswith(".html.j2"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "markdown": markdown,
    "number": number,
    "value": estimated,
    "interval": interval,
}
_ENVIRONMENT.globals |= {"table": table}
