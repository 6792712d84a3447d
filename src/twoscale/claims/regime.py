"""The regime of a loop: whether its path settles, drifts or does neither.

It follows from local exponents of norms.

Over the last half of the loop steps the norms are fitted by powers of the loop step: steps
||x^{k+1} - x^k|| ~ k^p, states ||x^k|| ~ k^q, steps of the direction x / ||x|| ~ k^r. A loop is

- settling, if p < -1: the steps have a finite sum, so the path ends at a fixed point. Steps at the
  rounding floor count as settled;
- drifting, if p > -1 and the norm of the state grows, q > 0.1. If r < -1, the direction has a limit
  all the same, and a readout that begins with a norm sees only the direction;
- marginal, if neither is shown: a rotation, a limit cycle, steps that fall as 1/k, or too few
  sequences to tell.

An exponent p or q counts if its whole 95 % interval over documents does. The regime describes the
loop steps that were measured: a contraction by a factor near 1 looks like a drift until about 1 /
(1 - factor) steps. `STATISTIC` says how tokens, sequences and documents are combined.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from twoscale.claims import bootstrap

SETTLING, DRIFTING, MARGINAL, UNDETERMINED = "settling", "drifting", "marginal", "undetermined"
_LEAST_GROWTH = 0.1  # of the exponent q: over the last half of the loop steps the norm grows by 7 %
FLOOR_UNITS = 16  # as in `twoscale.dynamics.vectors`, which needs torch
FLOOR = FLOOR_UNITS * float(np.finfo(np.float32).eps)
_SUMMABLE = -1.0  # steps that fall as a power of k have a finite sum if the exponent is below
_FEWEST = 3  # values of a fit
STATISTIC = (  # of every page that shows a regime
    "Norms are means over the tokens of a document. Each exponent is the mean over documents of "
    "one fit per document. The last step is the mean norm of the last step over the mean norm of "
    "its state. A sequence settles if the norms of its own tokens do; the regime of the whole does "
    "not show the sequences that do not."
)


def _slopes(values: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Least-squares slopes of log values (units, n) in log k (n,): (units,).

    NaN and zero are left out; the slope is NaN if fewer than `_FEWEST` values remain.
    """
    known = np.isfinite(values) & (values > 0)
    count = np.maximum(known.sum(1, keepdims=True), 1)
    log_k = np.log(k)
    centre = (known * log_k).sum(1, keepdims=True) / count  # mean log k of the known values
    offset = np.where(known, log_k - centre, 0)
    logs = np.log(np.where(known, values, 1))
    covariance = (offset * logs).sum(1)  # both times the number of values
    variance = (offset**2).sum(1)
    with np.errstate(invalid="ignore"):
        found = covariance / variance
    return np.where(count[:, 0] >= _FEWEST, found, np.nan)


class Exponent(NamedTuple):
    """A local exponent and its 95 % interval over units; NaN where it is not known."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (f"{round(number, 2) + 0:.2f}" for number in self)  # no -0.00
        if np.isnan(self.low):
            return f"k^{value}"
        return f"k^{value} ({low} … {high})"

    @property
    def least(self) -> float:
        """Lower end of the interval; the value if a single unit gives none."""
        return self.value if np.isnan(self.low) else self.low

    @property
    def most(self) -> float:
        """Upper end of the interval; the value if a single unit gives none."""
        return self.value if np.isnan(self.high) else self.high


_UNKNOWN = Exponent(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Regime:
    """The regime of a loop and its evidence."""

    name: str  # `UNDETERMINED` for too few loop steps, or states that are not finite
    first: int  # loop step of the fits
    last: int
    step_exponent: Exponent  # p; NaN if fewer than `_FEWEST` steps exceed the rounding floor
    norm_exponent: Exponent  # q
    direction_exponent: Exponent  # r; NaN also if no directions were given
    last_step: float  # mean norm of the last step over the mean norm of its state
    # whether the last step is at the rounding floor in at least half of the documents
    at_floor: bool = False
    # whether the steps of the direction have a finite sum, or are rounding
    freezes: bool | None = None
    sequences: int = 0
    unsettled: int = 0  # sequences that are not settling by themselves

    @property
    def unsettled_share(self) -> float:
        return self.unsettled / self.sequences if self.sequences else np.nan

    @property
    def sentence(self) -> str:
        if self.name == UNDETERMINED:
            needed = f"finite states and {2 * _FEWEST} loop steps or more"
            return f"undetermined: a regime needs {needed}."
        steps = f"goes as {self.step_exponent}"
        if self.at_floor:
            steps = "reaches the rounding floor in at least half of the documents"
        last = f"the last step is {self.last_step:.1g} of the state"
        if self.name == DRIFTING and self.freezes is not None:
            freezes = "freezes" if self.freezes else "does not freeze"
            last += f"; the direction {freezes}, its steps go as {self.direction_exponent}"
        return (
            f"{self.name}: over loop steps {self.first} to {self.last} the step norm {steps}, "
            f"the state norm goes as {self.norm_exponent}; {last}; {self.unsettled} of "
            f"{self.sequences} sequences ({self.unsettled_share:.0%}) do not settle."
        )


def regime(
    steps: np.ndarray, norms: np.ndarray, turns: np.ndarray | None, rounding: np.ndarray
) -> Regime:
    """The regime of one looped group, from norms at each loop step in each unit.

    A unit is a sequence or document, and a norm the mean over its tokens; the intervals are over
    units. Each unit counts as one of the `sequences`.

    Args:
        steps: ||x^{k+1} - x^k|| for k = 0 … K - 1, (units, K).
        norms: ||x^k|| for k = 0 … K, (units, K + 1).
        turns: the same as `steps` of the direction x / ||x||, if it was measured.
        rounding: which steps are known to be rounding, (units, K). In float64 too, a step below 16
            units of rounding of float32 counts as settled.
    """
    number = steps.shape[1]
    first = _first_late(number)
    before = norms[:, :number]  # of the state from which each step starts
    if number < 2 * _FEWEST or not (np.isfinite(steps).all() and np.isfinite(before).all()):
        unknown = (_UNKNOWN, _UNKNOWN, _UNKNOWN)
        return Regime(UNDETERMINED, first, number - 1, *unknown, last_step=np.nan)

    # p of the steps and q of the states: a fit per unit, then the mean over units
    step_slopes, at_floor = _late_slopes(steps, ~rounding & (steps > FLOOR * before))
    norm_slopes = _slopes(norms[:, first:], np.arange(first, number + 1, dtype=float))
    p = _exponent(step_slopes)
    q = _exponent(norm_slopes)
    ends_at_floor = bool(at_floor.mean() >= 0.5)

    # r of the directions, which have norm 1
    r, freezes = _UNKNOWN, None
    if turns is not None:
        turn_slopes, turns_at_floor = _late_slopes(turns, ~rounding & (turns > FLOOR))
        r = _exponent(turn_slopes)
        freezes = bool(turns_at_floor.mean() >= 0.5 or r.most < _SUMMABLE)

    # each unit by itself, without an interval
    settles = (at_floor & ~(norm_slopes > _LEAST_GROWTH)) | (step_slopes < _SUMMABLE)
    last_norm = max(before[:, -1].mean(), np.finfo(float).tiny)
    return Regime(
        name=_name(p, q, ends_at_floor),
        first=first,
        last=number - 1,
        step_exponent=p,
        norm_exponent=q,
        direction_exponent=r,
        last_step=float(steps[:, -1].mean() / last_norm),
        at_floor=ends_at_floor,
        freezes=freezes,
        sequences=len(steps),
        unsettled=int((~settles).sum()),
    )


def of_sequences(rows: pd.DataFrame) -> Regime:
    """The regime of one group at one checkpoint, from its rows of the table "loop_sequences".

    Units are documents, but the sequences that do not settle are counted one by one.
    """
    by_sequence = _of_units(rows, "sequence")
    return replace(
        _of_units(rows, "document"),
        sequences=by_sequence.sequences,
        unsettled=by_sequence.unsettled,
    )


def _of_units(rows: pd.DataFrame, unit: str) -> Regime:
    """The regime of means over the tokens of each document or each sequence, the column `unit`."""

    def sums(measure: str) -> pd.DataFrame:
        of_measure = rows[rows["measure"] == measure]
        of_measure = of_measure.assign(sum=of_measure["mean"] * of_measure["count"])
        return of_measure.groupby([unit, "k"])[["sum", "count", "nulls"]].sum()

    def means(measure: str) -> np.ndarray:  # (units, K + 1); the last state has no loop step
        cells = sums(measure)
        return (cells["sum"] / cells["count"]).unstack("k").to_numpy()

    # a cosine is null where rounding of the states' own dtype, which the table does not name,
    # decides it
    cosines = sums("cosine")
    is_rounding = (cosines["nulls"] > cosines["count"]).unstack("k").to_numpy()
    turns = None
    if "direction_step_norm" in rows["measure"].to_numpy():
        turns = means("direction_step_norm")[:, :-1]
    steps = means("step_norm")[:, :-1]
    return regime(steps, means("state_norm"), turns, rounding=is_rounding[:, :-1])


def _name(p: Exponent, q: Exponent, at_floor: bool) -> str:
    grows = q.least > _LEAST_GROWTH
    if (at_floor and not grows) or p.most < _SUMMABLE:
        return SETTLING
    # steps of a coarse dtype may all be under the floor while the norm of the state grows
    if grows and (at_floor or p.least > _SUMMABLE):
        return DRIFTING
    return MARGINAL


def _first_late(number: int) -> int:
    """The first of the last half of so many loop steps."""
    return (number + 1) // 2


def _late_slopes(norms: np.ndarray, above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes (units,) of step norms (units, K) in the last half, and whether the last is rounding.

    Steps that are not `above` the rounding floor (units, K) are left out.
    """
    number = norms.shape[1]
    first = _first_late(number)
    # a step is a difference: log(k + 1) - log k = 1 / (k + 1/2) to second order
    middle = np.arange(first, number) + 0.5
    late = np.where(above, norms, np.nan)[:, first:]
    return _slopes(late, middle), ~above[:, -1]


def _exponent(found: np.ndarray) -> Exponent:
    """Mean over units of slopes (units,), with its interval; NaN are left out."""
    known = found[~np.isnan(found)]
    if known.size == 0:
        return _UNKNOWN
    return Exponent(float(known.mean()), *bootstrap.t_interval(known))
