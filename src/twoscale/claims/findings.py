"""What the claims are judged on: bounds, quantities and findings.

A claim names its quantities before any of them is measured, so the number of those that count is
known when they are judged. A finding *holds* if its whole 95 % interval is within the bounds. It
*does not hold* if its whole interval is outside, after the interval was widened for the number of
findings: a claim with many findings would otherwise be refuted by chance. Between the two it
*cannot be judged*.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from twoscale.claims.estimates import Estimate, InconclusiveError
from twoscale.claims.words import FAILS, HOLDS, OPEN

MOVED = 1.25  # factor by which a bound that the paper does not state is moved, both ways


@dataclass(frozen=True)
class Bounds:
    """The values that a number may have: from `least` to `most`, both included.

    `smallest` is the least value that the number can have at all, 0 for a variance. Of a bound that
    the paper does not state, `ours_of_least` and `ours_of_most` are the part that is our choice:
    all of it, or the margin about a number of the paper.
    """

    text: str
    least: float = -np.inf
    most: float = np.inf
    smallest: float = -np.inf
    ours_of_least: float = 0.0
    ours_of_most: float = 0.0

    def __str__(self) -> str:
        return self.text

    @property
    def are_ours(self) -> bool:
        """Whether part of them is our choice."""
        return bool(self.ours_of_least or self.ours_of_most)

    def moved(self, is_looser: bool) -> "Bounds":
        """The bounds with the part that is our choice `MOVED` times as large, or as small."""
        of_least, of_most = (min, max) if is_looser else (max, min)
        changes = (MOVED - 1, 1 / MOVED - 1)
        return replace(
            self,
            least=of_least(self.least + change * self.ours_of_least for change in changes),
            most=of_most(self.most + change * self.ours_of_most for change in changes),
        )

    def too_narrow_for(self, estimate: Estimate) -> str:
        """Why no interval as wide as the estimate's can be within the bounds; empty if one can."""
        if self.least < self.smallest:
            # the number is at least `smallest`, so only the part above the value has to fit
            part = "upper part of the interval"
            width = estimate.high - estimate.value
            room = self.most - self.smallest
        elif estimate.is_ratio and self.least > 0:
            part = "interval as a factor"
            width = estimate.high / estimate.low
            room = self.most / self.least
        else:
            part = "interval"
            width = estimate.high - estimate.low
            room = self.most - self.least
        if not width > room:
            return ""
        wider = f"the {part} ({width:.2g}) is wider than the bounds ({room:.2g})"
        return f"no value could be upheld: {wider}"


def at_most(bound: float, smallest: float = -np.inf) -> Bounds:
    return Bounds(f"≤ {bound:g}", most=bound, smallest=smallest, ours_of_most=bound)


def at_least(bound: float) -> Bounds:
    return Bounds(f"≥ {bound:g}", least=bound, ours_of_least=bound)


def below(bound: float) -> Bounds:
    """Below a bound that the claim itself names, such as 1 for "faster"."""
    return Bounds(f"< {bound:g}", most=np.nextafter(bound, -np.inf))


def above(bound: float, ours: float = 0.0) -> Bounds:
    """Above a bound, of which `ours` is our choice."""
    return Bounds(f"> {bound:g}", least=np.nextafter(bound, np.inf), ours_of_least=ours)


def between(least: float, most: float, margin: float | None = None) -> Bounds:
    """From `least` to `most`, our choice, or the paper's numbers with a `margin` about them."""
    text = f"{least:g} … {most:g}"
    if margin is not None:
        return Bounds(text, least, most, ours_of_least=-margin, ours_of_most=margin)
    return Bounds(text, least, most, ours_of_least=least, ours_of_most=most)


class Role(StrEnum):
    """The part that a number has in the verdict on its claim."""

    COUNTED = "counted"  # the verdict depends on it
    REFERENCE = "reference"  # for comparison
    PREMISE = "premise"  # where it does not hold, the claim cannot be judged
    CHANCE = "chance"  # random exits: where they hold as well, the claim cannot be judged


@dataclass(frozen=True)
class Reading:
    """One way to read a sentence of the paper that leaves a choice open."""

    choice: str  # see `twoscale.claims.words`
    name: str
    # the reading that makes only this choice in another way; None for the first one of the claim
    other: "Reading | None" = None


@dataclass(frozen=True)
class Quantity:
    """A number that a claim is about, before it is measured."""

    scope: str  # group, boundary, reference state or exit criterion
    name: str
    measure: Callable[[], Estimate]  # may raise InconclusiveError
    bounds: Bounds | None  # None for a number for comparison, without a verdict
    role: Role
    reading: Reading | None = None  # the only one that it belongs to; None for all of its claim
    # its change along a line over training; None for a number that has no course
    trend: Callable[[], Estimate] | None = None

    def moves_towards(self, estimate: Estimate) -> bool:
        """Whether the number, which is outside its bounds, is shown to move towards them.

        It does if the whole 95 % interval of its trend has the sign that leads to the bounds.
        """
        if self.bounds is None or self.trend is None:
            return False
        try:
            change = self.trend()
        except InconclusiveError:
            return False
        if estimate.value > self.bounds.most:
            return change.high < 0
        return change.low > 0


@dataclass(frozen=True)
class Finding:
    """One measured number of a claim. Without bounds it has no verdict."""

    subject: Quantity
    estimate: Estimate
    verdict: str = ""
    reason: str = ""
    moves: bool = False  # whether it is outside its bounds and moves towards them with training
    findings: int = 1  # number of those that it was judged as one of

    @property
    def scope(self) -> str:
        return self.subject.scope

    @property
    def quantity(self) -> str:
        return self.subject.name

    @property
    def bounds(self) -> str:
        """The bounds in words; empty for a number for comparison."""
        return str(self.subject.bounds or "")

    @property
    def counts(self) -> bool:
        return self.subject.role == Role.COUNTED

    def with_moved_bounds(self, is_looser: bool) -> "Finding":
        """The finding judged against `Bounds.moved`."""
        bounds = self.subject.bounds
        if bounds is None or np.isnan(self.estimate.value):
            return self
        verdict, reason = judge(bounds.moved(is_looser), self.estimate, self.findings)
        return replace(self, verdict=verdict, reason=reason)


def judged(
    scope: str,
    name: str,
    bounds: Bounds,
    measure: Callable[..., Estimate],
    /,
    *arguments: object,
    role: Role = Role.COUNTED,
    reading: Reading | None = None,
    trend: Callable[[], Estimate] | None = None,
    **named: object,
) -> Quantity:
    """The quantity `measure(*arguments, **named)` with bounds."""
    measured = partial(measure, *arguments, **named)
    return Quantity(scope, name, measured, bounds, role, reading, trend)


def reference(
    scope: str, name: str, measure: Callable[..., Estimate], /, *arguments: object, **named: object
) -> Quantity:
    """The quantity `measure(*arguments, **named)` for comparison, without bounds."""
    return Quantity(scope, name, partial(measure, *arguments, **named), None, Role.REFERENCE)


def judge(bounds: Bounds, estimate: Estimate, findings: int = 1) -> tuple[str, str]:
    """Verdict and reason for a number with its interval, one of so many `findings` of a claim."""
    if bounds.least <= estimate.low and estimate.high <= bounds.most:
        return HOLDS, "whole interval inside"
    if not _is_outside(bounds, estimate):
        return OPEN, bounds.too_narrow_for(estimate) or "the interval crosses the bounds"
    if not _is_outside(bounds, estimate.widened(findings)):
        return OPEN, f"outside, but within the chance of one in {findings} findings"
    return FAILS, "whole interval outside"


def _is_outside(bounds: Bounds, estimate: Estimate) -> bool:
    return estimate.high < bounds.least or bounds.most < estimate.low


def find(quantity: Quantity, findings: int) -> Finding:
    """Measure a quantity, and judge it as one of so many `findings` of its claim."""
    bounds = quantity.bounds
    try:
        estimate = quantity.measure()
    except InconclusiveError as error:
        return Finding(quantity, Estimate(), OPEN if bounds else "", str(error))
    verdict, reason = judge(bounds, estimate, findings) if bounds else ("", "")
    moves = verdict == FAILS and quantity.moves_towards(estimate)
    parts = (reason, estimate.remark, "moves towards the bounds" if moves else "")
    reason = "; ".join(part for part in parts if part)
    return Finding(quantity, estimate, verdict, reason, moves, findings)


def combine(findings: Iterable[Finding]) -> tuple[str, str]:
    """Verdict and reason of a claim: a finding that does not hold decides, then an open one."""
    counted = [finding for finding in findings if finding.counts]
    if not counted:
        return OPEN, "rows missing: nothing was measured that the claim is about"
    for verdict in (FAILS, OPEN):
        reasons = [
            f"{finding.scope}, {finding.quantity}: {finding.reason}"
            for finding in counted
            if finding.verdict == verdict
        ]
        if reasons:
            return verdict, "; ".join(reasons)
    return HOLDS, "every finding is within its bounds"
