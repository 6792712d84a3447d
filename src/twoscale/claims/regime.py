"""The regime of a loop: whether its path settles, drifts or does neither, from local exponents of
its norms.

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

from twoscale import tables
from twoscale.claims import bootstrap

SETTLING, DRIFTING, MARGINAL, UNDETERMINED = ("settling", "drifting", "marginal", "undetermined")
LEAST_GROWTH = 0.1  # of the exponent q: over the last half of the loop steps the norm grows by 7 %
FLOOR = 16 * float(np.finfo(np.float32).eps)  # as in `twoscale.dynamics.vectors`, which needs torch
SUMMABLE = -1.0  # steps that fall as a power of k have a finite sum if the exponent is below
FEWEST = 3  # values of a fit
STATISTIC = (  # of every page that shows a regime
    "Norms are means over the tokens of a document. Each exponent is the mean over documents of"
    " one fit per document. "
    "The last step is the mean norm of the last step over the mean norm of its state. A sequence"
    " settles if the norms "
    "of its own tokens do; the regime of the whole does not show the sequences that do not."
)


def slopes(values: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Least-squares slopes of log values (units, n) in log k (n,): (units,).

    NaN and zero are left out; the slope is NaN if fewer than `FEWEST` values remain.
    """
    known = np.isfinite(values) & (values > 0)
    count = np.maximum(known.sum(1, keepdims=True), 1)
    offset = np.where(known, np.log(k) - (known * np.log(k)).sum(1, keepdims=True) / count, 0)
    with np.errstate(invalid="ignore"):
        found = (offset * np.log(np.where(known, values, 1))).sum(1) / (offset**2).sum(1)
    return np.where(count[:, 0] >= FEWEST, found, np.nan)


class Exponent(NamedTuple):
    """A local exponent and its 95 % interval over sequences; NaN where it is not known."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (f"{round(number, 2) + 0:.2f}" for number in self)  # no -0.00
        return f"k^{value}" if np.isnan(self.low) else f"k^{value} ({low} … {high})"

    @property
    def least(self) -> float:
        return self.value if np.isnan(self.low) else self.low

    @property
    def most(self) -> float:
        return self.value if np.isnan(self.high) else self.high


@dataclass(frozen=True)
class Regime:
    """The regime of a loop and its evidence."""

    name: str  # `UNDETERMINED` for too few loop steps, or states that are not finite
    first: int  # loop step of the fits
    last: int
    step_exponent: (
        Exponent  # p; NaN, like the others, if fewer than `FEWEST` steps exceed the rounding floor
    )
    norm_exponent: Exponent  # q
    direction_exponent: Exponent  # r; NaN also if no directions were given
    last_step: float  # mean norm of the last step over the mean norm of its state
    # whether the last step is at the rounding floor in at least half of the documents
    at_floor: bool = False
    # whether the steps of the direction have a finite sum, or are rounding
    freezes: bool | None = None
    sequences: int = 0
    unsettled: int = 0  # sequences that are not settling by themselves

    def row(self) -> dict[str, object]:
        row: dict[str, object] = {"regime": self.name, "first": self.first, "last": self.last}
        for name in ("step", "norm", "direction"):
            value, low, high = getattr(self, f"{name}_exponent")
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        direction = {None: "", True: "frozen", False: "turning"}[self.freezes]
        row |= {
            "last_step": self.last_step,
            "at_floor": self.at_floor,
            "direction_limit": direction,
        }
        return row | {"unsettled": self.unsettled_share}

    @property
    def unsettled_share(self) -> float:
        return self.unsettled / self.sequences if self.sequences else np.nan

    @property
    def sentence(self) -> str:
        if self.name == UNDETERMINED:
            return (
                f"undetermined: a regime needs finite states and {2 * FEWEST} loop steps or more."
            )
        steps = f"goes as {self.step_exponent}"
        if self.at_floor:
            steps = "reaches the rounding floor in at least half of the documents"
        direction = ""
        if self.name == DRIFTING and self.freezes is not None:
            freezes = "freezes" if self.freezes else "does not freeze"
            direction = f"; the direction {freezes}, its steps go as {self.direction_exponent}"
        return (
            f"{self.name}: over loop steps {self.first} to {self.last} the step norm {steps}, the"
            f" state norm goes as "
            f"{self.norm_exponent}; the last step is {self.last_step:.1g} of the"
            f" state{direction}; {self.unsettled} of "
            f"{self.sequences} sequences ({self.unsettled_share:.0%}) do not settle."
        )


def regime(
    step_norms: np.ndarray,
    state_norms: np.ndarray,
    direction_step_norms: np.ndarray | None = None,
    rounding: np.ndarray | None = None,
) -> Regime:
    """The regime of one looped group, from ||x^{k+1} - x^k|| for k = 0 … K - 1 and ||x^k|| for k =
    0 … K.

    Norms are (K,), or (units, K) with one row per unit, the mean over the tokens of a sequence or
    document, which gives the intervals; `state_norms` may be without the last.
    `direction_step_norms` are those of x / ||x||, and `rounding` says which steps are known to be
    rounding. A step below 16 units of rounding of float32 counts as settled in float64 too. Each
    unit counts as one of the `sequences`.
    """
    steps, norms = np.atleast_2d(step_norms).astype(float), np.atleast_2d(state_norms).astype(float)
    number = steps.shape[1]
    first, unknown = (number + 1) // 2, Exponent(np.nan, np.nan, np.nan)
    if number < 2 * FEWEST or not (
        np.isfinite(steps).all() and np.isfinite(norms[:, :number]).all()
    ):
        return Regime(UNDETERMINED, first, number - 1, unknown, unknown, unknown, np.nan)
    measured = np.ones_like(steps, dtype=bool) if rounding is None else ~np.atleast_2d(rounding)
    step_slopes, at_floor = _steps(steps, measured & (steps > FLOOR * norms[:, :number]))
    norm_slopes = slopes(norms[:, first:], np.arange(first, norms.shape[1], dtype=float))
    p, q, r = _exponent(step_slopes), _exponent(norm_slopes), unknown
    ends_at_floor, freezes = bool(at_floor.mean() >= 0.5), None
    if direction_step_norms is not None:
        turns = np.atleast_2d(direction_step_norms).astype(float)
        turn_slopes, turns_at_floor = _steps(turns, measured & (turns > FLOOR))
        r = _exponent(turn_slopes)
        freezes = bool(turns_at_floor.mean() >= 0.5 or r.most < SUMMABLE)
    settles = (at_floor & ~(norm_slopes > LEAST_GROWTH)) | (step_slopes < SUMMABLE)
    last_step = float(steps[:, -1].mean() / max(norms[:, number - 1].mean(), np.finfo(float).tiny))
    return Regime(
        _name(p, q, ends_at_floor),
        first,
        number - 1,
        *(p, q, r),
        last_step,
        ends_at_floor,
        freezes,
        sequences=len(steps),
        unsettled=int((~settles).sum()),
    )


def table(sequences: pd.DataFrame) -> pd.DataFrame:
    """The table "regime" from the table "loop_sequences", in its order."""
    keys = ["run", "iteration", "group"]
    by_key = sequences.groupby(keys, sort=False)
    rows = [
        dict(zip(keys, labels, strict=True)) | of_sequences(part).row() for labels, part in by_key
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("regime")))


def of_sequences(rows: pd.DataFrame) -> Regime:
    """The regime of one group at one checkpoint, from its rows of the table "loop_sequences"; units
    are documents.
    """
    of_each = _of_units(rows, "sequence")
    return replace(
        _of_units(rows, "document"), sequences=of_each.sequences, unsettled=of_each.unsettled
    )


def _of_units(rows: pd.DataFrame, unit: str) -> Regime:
    """The regime of means over the tokens of each document or each sequence, the column `unit`."""

    def sums(measure: str) -> pd.DataFrame:
        of = rows[rows["measure"] == measure]
        return (
            of.assign(sum=of["mean"] * of["count"])
            .groupby([unit, "k"])[["sum", "count", "nulls"]]
            .sum()
        )

    def means(measure: str) -> np.ndarray:
        return (sums(measure)["sum"] / sums(measure)["count"]).unstack("k").to_numpy()

    # a cosine is null where rounding of the states' own dtype, which the table does not name,
    # decides it
    cosines = sums("cosine")
    rounding = (cosines["nulls"] > cosines["count"]).unstack("k").to_numpy()[:, :-1]
    has_directions = (rows["measure"] == "direction_step_norm").any()
    turns = means("direction_step_norm")[:, :-1] if has_directions else None
    return regime(means("step_norm")[:, :-1], means("state_norm"), turns, rounding=rounding)


def _name(p: Exponent, q: Exponent, at_floor: bool) -> str:
    grows = q.least > LEAST_GROWTH
    if (at_floor and not grows) or p.most < SUMMABLE:
        return SETTLING
    # steps of a coarse dtype may all be under the floor while the norm of the state grows
    return DRIFTING if grows and (at_floor or p.least > SUMMABLE) else MARGINAL


def _steps(norms: np.ndarray, above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes (units,) of step norms (units, K) in the last half, without rounding, and whether the
    last is rounding.
    """
    first = (norms.shape[1] + 1) // 2
    middle = (
        np.arange(first, norms.shape[1]) + 0.5
    )  # of each step: log(k + 1) - log k = 1 / (k + 1/2) to second order
    late = np.where(above, norms, np.nan)[:, first:]
    return slopes(late, middle), ~above[:, -1]


def _exponent(found: np.ndarray) -> Exponent:
    """Mean over units of slopes (units,), with its interval; units without one, NaN, are left
    out.
    """
    known = found[~np.isnan(found)]
    return (
        Exponent(float(known.mean()), *bootstrap.t_interval(known))
        if known.size
        else Exponent(*[np.nan] * 3)
    )
