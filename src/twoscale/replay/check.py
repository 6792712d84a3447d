"""Which exit rule saves loop steps on a recording, and does it choose better than chance?

For every rule the threshold is chosen on half of the documents: the one with the fewest
evaluations whose loss is at most `tolerance` above full depth. Its evaluations and its loss are
reported on the other half, beside those of the smallest fixed count within the tolerance and of
random exits: the same depths, given to other tokens. A rule is worth its checks only if it loses
less than these.

The loss on the second half differs by the noise of both halves. So a threshold is within the
tolerance where an upper bound of the difference of two halves is, not where the mean of one is:
mean + t · sqrt(2) · standard error, with the 95 % quantile of Student's t.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from twoscale.claims.bootstrap import effective_number, t_quantile
from twoscale.claims.estimates import Estimate
from twoscale.replay.gains import BETTER, WORSE, estimates, with_verdicts
from twoscale.replay.recording import Recording
from twoscale.replay.rules import Option
from twoscale.replay.run_tables import RunTables

SHOWN, NOT_SHOWN, IS_WORSE = "shown", "not shown", "worse"


# Exits of some documents, or of all: replayed on a recording, or from the tables of a run.
Data = Recording | RunTables
Offer = Callable[[Any], Iterable[list[Option]]]
_MIXTURES = 100  # of two neighbouring fixed counts, that are tried
CONFIDENCE = 0.95  # one-sided, that the second half stays within the tolerance


@dataclass(frozen=True)
class Found:
    """A rule with the threshold that the first half chose, measured on the second half.

    Excess is the cost above that at full depth: nats per token, or the share of predicted tokens
    that change. `random` is the excess of random exits with the same depths, `gain` theirs minus
    that of the rule, `saved` the evaluations saved over the fixed count within the tolerance.
    """

    option: Option
    evaluations: float
    excess: Estimate
    random: float
    gain: Estimate
    saved: Estimate
    verdict: str
    least: float  # the smallest gain that would have been shown with a probability of 80 %


@dataclass(frozen=True)
class Check:
    """The result. `fixed` is the smallest fixed count within the tolerance, see `fixed_excess`."""

    data: Data
    tolerance: float
    documents: int  # of the second half
    fixed: float
    fixed_excess: dict[float, float]  # of fixed counts on the second half
    found: list[Found]  # the rules with a threshold within the tolerance, fewest evaluations first
    none_within: list[str]  # rules without one

    @property
    def best(self) -> Found | None:
        """The rule to exit by: better than chance, and cheaper than the fixed count."""
        for found in self.found:
            is_cheaper = found.saved.low > 0
            is_within = found.excess.value <= self.tolerance
            if found.verdict == SHOWN and is_cheaper and is_within:
                return found
        return None

    def sentence(self) -> str:
        """What to do, in one or two sentences."""
        depths = self.data.depths
        count = math.ceil(self.fixed)  # it may be a mixture of two counts
        best = self.best
        if best is not None:
            share = 1 - best.evaluations / depths
            cost = "lose" if self.data.is_loss else "have"
            return (
                f"Exit on {best.option.condition}: {share:.0%} fewer loop steps than {depths} at"
                f" {self._said(best.excess.value)}; random exits of the same cost {cost}"
                f" {self._said(best.random)}, and the smallest fixed count within the tolerance is"
                f" {self.fixed:.3g}."
            )
        if count < depths:
            return f"Lower the fixed count from {depths} to {count}; {self._of_rules()}."
        mixture = f" ({self.fixed:.3g} as a mean of two counts does)" if self.fixed < depths else ""
        return (
            f"Run all {depths} loop steps: no smaller count stays within"
            f" {self._said(self.tolerance)}{mixture}, and {self._of_rules()}."
        )

    def _of_rules(self) -> str:
        """Why no rule is recommended: against random exits, and against the fixed count."""
        if not self.found and not self.none_within:
            return "no exit rule was tried"
        better = [found for found in self.found if found.verdict == SHOWN]
        if better:
            found = better[0]  # that with the fewest loop steps
            problem = f"not to take fewer than {self.fixed:.3g} loop steps: {found.evaluations:.2f}"
            if found.saved.low > 0:  # its threshold was within the tolerance on the first half
                problem = f"have {self._said(found.excess.value)} on the other half"
            return (
                f"exits on {found.option.condition} are shown to be better than random exits of the"
                f" same cost, by {self._said(found.gain.value)}, but {problem}"
            )
        not_shown = [found.least for found in self.found if found.verdict == NOT_SHOWN]
        seen = [least for least in not_shown if np.isfinite(least) and least > 0]
        gain = self._said(float(np.median(seen))) if seen else ""
        would = f" (a gain of {gain} would have been)" if seen else ""
        return f"no rule is shown to be better than random exits of the same cost{would}"

    def _said(self, value: float) -> str:
        if self.data.is_loss:
            return f"{value:.2g} nats" if abs(value) >= 5e-5 else "0 nats"
        return f"{value:.2%} of predictions changed"


def check(data: Data, offer: Offer, tolerance: float, seed: int = 0) -> Check:
    """Choose the threshold of each rule on half of the documents, and report it on the others.

    Args:
        data: At least four documents.
        offer: The options of each rule, a list per rule, for the first half.
        tolerance: Excess over full depth: nats per token, or a share of predicted tokens.
        seed: Of the halves and of the bootstrap.
    """
    first, second = data.halves(seed)
    fixed = _smallest_fixed(first, tolerance)
    chosen, none_within = [], []
    for options in tqdm(offer(first), desc="rules", unit="", leave=False, disable=None):
        option = _cheapest(first, options, tolerance)
        if option is None:
            none_within.append(options[0].rule)
        else:
            chosen.append(option)
    found = measure(second, chosen, fixed, seed)
    found.sort(key=lambda rule: rule.evaluations)
    total = second.tokens.sum()
    excess = {
        count: float(fixed_excess(second, count).sum() / total)
        for count in sorted({*second.fixed, fixed})
    }
    return Check(data, tolerance, len(second.tokens), fixed, excess, found, none_within)


def fixed_excess(part: Data, count: float) -> np.ndarray:
    """Sums of the excess (D,) at a fixed count, between two measured counts a mixture of these.

    Of a count of 2.4, a random four tenths of the tokens take 3 loop steps and the others 2, so the
    expected loss is the mean of both with these weights.
    """
    counts = sorted(part.fixed)
    above = bisect_left(counts, count)
    if counts[above] == count:
        return part.fixed[count]
    low, high = counts[above - 1], counts[above]
    share = (count - low) / (high - low)
    return (1 - share) * part.fixed[low] + share * part.fixed[high]


def _smallest_fixed(part: Data, tolerance: float) -> float:
    """The smallest fixed count within the tolerance, to `_MIXTURES` parts of a loop step."""
    counts = sorted(part.fixed)
    # full depth has no excess, so there is one
    place = next(
        place
        for place, count in enumerate(counts)
        if _is_within(part.fixed[count], part.tokens, tolerance)
    )
    if place == 0:
        return counts[0]
    below, above = counts[place - 1 : place + 1]
    for mixture in np.linspace(below, above, _MIXTURES, endpoint=False)[1:]:
        if _is_within(fixed_excess(part, mixture), part.tokens, tolerance):
            return float(mixture)
    return above


def _cheapest(part: Data, options: list[Option], tolerance: float) -> Option | None:
    """The option with the fewest evaluations within the tolerance; None if there is none."""
    best, fewest = None, float(part.depths)
    for option in options:
        units = option.units(part)
        evaluations = float(units[:, 0].sum() / part.tokens.sum())
        if evaluations < fewest and _is_within(units[:, 1], part.tokens, tolerance):
            best, fewest = option, evaluations
    return best


def _is_within(excess: np.ndarray, tokens: np.ndarray, tolerance: float) -> bool:
    """Whether exits stay within the tolerance, with a margin for the noise of the documents.

    Args:
        excess: Sums over the tokens of each document (D,).
        tokens: Their numbers (D,).
        tolerance: Of the mean over tokens.
    """
    # nothing changes, as at full depth, so there is no noise to allow for
    if not excess.any():
        return True
    mean = excess.sum() / tokens.sum()
    # standard error of a ratio of sums, over documents
    residual = excess - mean * tokens
    number = effective_number(tokens)
    error = np.sqrt((residual @ residual) * number / (number - 1)) / tokens.sum()
    # sqrt(2): the mean over the other half has the same error, independently
    return bool(mean + t_quantile(CONFIDENCE, number - 1) * np.sqrt(2) * error <= tolerance)


def measure(part: Data, chosen: list[Option], fixed: float, seed: int) -> list[Found]:
    """Options on some documents, such as the second half, judged together (Holm).

    `fixed` is the fixed count of which evaluations are saved.
    """
    tokens = part.tokens

    def means(sums: np.ndarray) -> np.ndarray:
        """Sums (R, 4) -> excess, gain, evaluations saved (R, 3)."""
        evaluations, excess, random = (sums[..., i] / sums[..., 3] for i in range(3))
        return np.stack([excess, random - excess, fixed - evaluations], axis=-1)

    rows = []
    for option in chosen:
        units = option.units(part)  # (D, 4)
        evaluations, _, random = units[:, :3].sum(axis=0) / tokens.sum()
        excess, gain, saved = estimates(means, units, tokens, seed)
        row = {
            "option": option,
            "evaluations": evaluations,
            "excess": excess,
            "saved": saved,
            "random": random,
        }
        ends = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        rows.append(row | ends)
    if not rows:
        return []
    frame = pd.DataFrame(rows)
    # no oracle was measured
    frame = frame.assign(room=np.nan, effective_documents=effective_number(tokens))
    judged = with_verdicts(frame)
    words = {BETTER: SHOWN, WORSE: IS_WORSE}
    return [
        Found(
            option=row.option,
            evaluations=float(row.evaluations),
            excess=row.excess,
            random=float(row.random),
            gain=Estimate(row.gain, row.gain_low, row.gain_high),
            saved=row.saved,
            verdict=words.get(row.verdict, NOT_SHOWN),
            least=float(row.least),
        )
        for row in judged.itertuples()
    ]
