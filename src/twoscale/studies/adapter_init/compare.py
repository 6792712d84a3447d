"""Adapter initialisations side by side: late angles and held-out loss at every checkpoint, over all seeds.

The late cosine is as in claim 4, and each is judged by the bounds of claim 4.

Means over seeds and their intervals are from `twoscale.claims.seeds`. Two seeds or three give wide intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import geometry as claims_geometry
from twoscale.claims.evidence import Estimate, Evidence, InconclusiveError
from twoscale.claims.findings import OPEN, between, judge
from twoscale.claims.seeds import mean_over_seeds, over_seeds

ALL = "all"  # in place of a seed: all of them; in place of a group: the whole model
START = ["share", "state_init", "sandwich"]  # columns that name a start
COSINE, LOSS = "late_cosine", "held_out_loss"


@dataclass(frozen=True)
class InitRun:
    """One run of the study.

    Attributes:
        share: Share of the state at the adapter initialisation; NaN for random weights.
        state_init: First state of a loop.
        sandwich: Position of the second norm.
        seed: Seed of the run.
        evidence: Its trajectories.
        training: Table "training".
    """

    share: float
    state_init: str
    sandwich: str
    seed: int
    evidence: Evidence
    training: pd.DataFrame

    @property
    def start(self) -> tuple[float | None, str, str]:
        """Keys that distinguish it from other runs, without the seed."""
        return (None if np.isnan(self.share) else self.share), self.state_init, self.sandwich


# --- what is compared ----------------------------------------------------------------------------------------------


def late_cosine(runs: Sequence[InitRun], group: str, iteration: int) -> Estimate:
    """Late cosine, the mean over the runs, which differ in their seed and have the same documents."""
    estimates = [claims_geometry.late_cosine(run.evidence, group, iteration) for run in runs]
    return mean_over_seeds(estimates) if len(estimates) > 1 else estimates[0].checked()


def held_out_loss(runs: Sequence[InitRun], scope: str, iteration: int) -> Estimate:
    """Held-out loss of training in nats per token, the mean over the runs; its interval is over seeds alone."""
    rows = [run.training[run.training["iteration"] == iteration]["held_out_loss"].dropna() for run in runs]
    if any(len(row) != 1 for row in rows):
        raise InconclusiveError("no held-out loss was measured at this iteration")
    losses = np.array([row.iloc[0] for row in rows])
    if len(losses) < 2:
        return Estimate(float(losses[0]), remark="one seed, no interval")
    return over_seeds(losses)


# --- the table -----------------------------------------------------------------------------------------------------


def compare(runs: Sequence[InitRun]) -> pd.DataFrame:
    """Table "adapter_init": every measure of every start at every checkpoint, for each seed and for all seeds."""
    by_start: dict[tuple, list[InitRun]] = {}
    for run in runs:
        by_start.setdefault(run.start, []).append(run)
    rows = [row for same in by_start.values() for row in _rows(same)]
    return pd.DataFrame(rows, columns=list(tables.columns("adapter_init")))


def _rows(runs: Sequence[InitRun]) -> Iterator[tuple]:
    """Rows of one start."""
    first = runs[0]
    sets = [(str(run.seed), [run]) for run in runs] + [(ALL, list(runs))]
    for measure, iteration, (seed, chosen) in product((COSINE, LOSS), first.evidence.iterations, sets):
        if measure == LOSS and iteration == 0:  # training has measured none
            continue
        for group in first.evidence.groups if measure == COSINE else [ALL]:
            key = (first.share, first.state_init, first.sandwich, seed, iteration, group, measure)
            yield key + _measured(measure, chosen, group, iteration)


def _measured(measure: str, runs: Sequence[InitRun], group: str, iteration: int) -> tuple:
    """Value, both ends of the interval, verdict and reason."""
    judged = measure == COSINE
    try:
        estimate = (late_cosine if judged else held_out_loss)(runs, group, iteration)
    except InconclusiveError as error:
        return np.nan, np.nan, np.nan, OPEN if judged else "", str(error)
    bounds, groups = between(*claims_geometry.PAPER_ANGLES), len(runs[0].evidence.groups)
    verdict, reason = judge(bounds, estimate, groups) if judged else ("", estimate.remark)
    return estimate.value, estimate.low, estimate.high, verdict, reason
