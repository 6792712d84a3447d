"""Basis of the verdicts: quantities with bounds, the findings about them, and how findings combine.

A claim names its quantities before any of them is measured, so the number of those that count is known when they are
judged. A finding *holds* if its whole 95 % interval is within the bounds. It *does not hold* if its whole interval is
outside, after the interval was widened for the number of findings: a claim with many findings would otherwise be
refuted by chance. Between the two it *cannot be judged*.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from twoscale.claims.evidence import Estimate, InconclusiveError

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
NOT_ASKED = "not asked"  # of a run that the claim is not about


@dataclass(frozen=True)
class Bounds:
    """The values that a number may have: from `least` to `most`, both included.

    `smallest` is the least value that the number can have at all, 0 for a variance.
    """

    text: str
    least: float = -np.inf
    most: float = np.inf
    smallest: float = -np.inf

    def too_narrow_for(self, estimate: Estimate) -> str:
        """Why an interval as wide as the estimate's is within the bounds for no value; empty if for some."""
        part, width, room = "interval", estimate.high - estimate.low, self.most - self.least
        if self.least < self.smallest:
            # the number is `smallest` at least, so only the upper part of its interval has to be within the bounds
            part, width, room = "upper part of the interval", estimate.high - estimate.value, self.most - self.smallest
        elif estimate.is_ratio and self.least > 0:
            part, width, room = "interval as a factor", estimate.high / estimate.low, self.most / self.least
        if not width > room:
            return ""
        return f"no value could be upheld: the {part} ({width:.2g}) is wider than the bounds ({room:.2g})"


def at_most(bound: float, smallest: float = -np.inf) -> Bounds:
    return Bounds(f"≤ {bound:g}", most=bound, smallest=smallest)


def at_least(bound: float) -> Bounds:
    return Bounds(f"≥ {bound:g}", least=bound)


def below(bound: float) -> Bounds:
    return Bounds(f"< {bound:g}", most=np.nextafter(bound, -np.inf))


def above(bound: float) -> Bounds:
    return Bounds(f"> {bound:g}", least=np.nextafter(bound, np.inf))


def between(least: float, most: float) -> Bounds:
    return Bounds(f"{least:g} … {most:g}", least, most)


@dataclass(frozen=True)
class Quantity:
    """A number that a claim is about, before it is measured."""

    scope: str  # group, boundary, reference state or exit criterion
    name: str
    measure: Callable[[], Estimate]  # may raise InconclusiveError
    bounds: Bounds | None  # None for a number for comparison, without a verdict
    counts: bool  # whether the verdict on the claim depends on it


@dataclass(frozen=True)
class Finding:
    """One measured number of a claim. Without bounds it has no verdict."""

    scope: str
    quantity: str
    estimate: Estimate
    bounds: str = ""
    verdict: str = ""
    reason: str = ""
    counts: bool = True


def marked(verdict: str, mark: str) -> str:
    """A verdict with the mark of its run: "does not hold, small scale"."""
    return f"{verdict}, {mark}" if mark and verdict != NOT_ASKED else verdict


def judged(
    scope: str, name: str, bounds: Bounds, measure: Callable[..., Estimate], *arguments: object, counts: bool = True
) -> Quantity:
    """The quantity `measure(*arguments)` with bounds."""
    return Quantity(scope, name, lambda: measure(*arguments), bounds, counts)


def reference(scope: str, name: str, measure: Callable[..., Estimate], *arguments: object) -> Quantity:
    """The quantity `measure(*arguments)` for comparison, without bounds."""
    return Quantity(scope, name, lambda: measure(*arguments), None, counts=False)


def judge(bounds: Bounds, estimate: Estimate, findings: int = 1) -> tuple[str, str]:
    """Verdict and reason for a number with its interval, one of so many `findings` of a claim."""
    if bounds.least <= estimate.low and estimate.high <= bounds.most:
        return HOLDS, "whole interval inside"
    if not _outside(bounds, estimate):
        return OPEN, bounds.too_narrow_for(estimate) or "the interval crosses the bounds"
    if _outside(bounds, estimate.widened(findings)):
        return FAILS, "whole interval outside"
    return OPEN, f"outside, but within the chance of one in {findings} findings"


def _outside(bounds: Bounds, estimate: Estimate) -> bool:
    return estimate.high < bounds.least or bounds.most < estimate.low


def find(quantity: Quantity, findings: int) -> Finding:
    """Measure a quantity, and judge it as one of so many `findings` of its claim."""
    bounds = quantity.bounds
    text = bounds.text if bounds else ""
    try:
        estimate = quantity.measure()
        verdict, reason = judge(bounds, estimate, findings) if bounds else ("", "")
        reason = "; ".join(part for part in (reason, estimate.remark) if part)
    except InconclusiveError as error:
        estimate, verdict, reason = Estimate(), OPEN if bounds else "", str(error)
    return Finding(quantity.scope, quantity.name, estimate, text, verdict, reason, quantity.counts)


def combine(findings: Iterable[Finding]) -> tuple[str, str]:
    """Verdict and reason of several findings: one that does not hold decides, then one that cannot be judged."""
    counted = [finding for finding in findings if finding.counts]
    for verdict in (FAILS, OPEN):
        reasons = [f"{f.scope}, {f.quantity}: {f.reason}" for f in counted if f.verdict == verdict]
        if reasons:
            return verdict, "; ".join(reasons)
    if not counted:
        return OPEN, "rows missing: nothing was measured that the claim is about"
    return HOLDS, "every finding is within its bounds"
