"""Parts of every page."""

from collections.abc import Iterable, Sequence

import numpy as np

from twoscale.claims.evidence import Estimate


def blocks(*parts: str) -> str:
    """A page of these parts, with an empty line between them; empty parts are left out."""
    return "\n\n".join(part.removesuffix("\n") for part in parts if part) + "\n"


def number(value: float) -> str:
    """Three digits; "not reached" if infinite, empty if missing."""
    if np.isnan(value):
        return ""
    return "not reached" if np.isinf(value) else f"{value:.3g}"


def interval(estimate: Estimate) -> str:
    """Both ends; empty if there is no interval."""
    return "" if np.isnan(estimate.low) else f"{number(estimate.low)} … {number(estimate.high)}"


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
