"""The time of a token under an exit criterion, computed from its evaluations and their costs.

    time = outside + start + sum over groups of evaluations (loop step + decision)

Costs are medians over the repeats of their measurement (`twoscale.exits.costs`), and evaluations
are those of held-out documents: two independent sources of error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from twoscale.claims import bootstrap

# Columns of the table "exit_costs": a token without decisions, and what the criterion adds.
_OF_TOKEN = ["outside_ms", "start_ms"]
_OF_EVALUATION = ["loop_step_ms", "decision_ms"]


def cost_units(exit_costs: pd.DataFrame, criterion: str, groups: Sequence[str]) -> np.ndarray:
    """Milliseconds (repeats, 2, 1 + G): without decisions, and what the criterion adds to it.

    The first column is for a token outside its loops, the others for an evaluation in each group.
    Loop steps are those that were measured with any criterion. There are no repeats of a criterion
    without rows; `fixed` adds nothing.
    """
    keys = ["repeat", "group"]
    columns = [*_OF_TOKEN, *_OF_EVALUATION]
    bare = exit_costs.groupby(keys)[columns].median()  # over criteria
    added = exit_costs[exit_costs["criterion"] == criterion].set_index(keys)[columns]
    if criterion == "fixed":
        added = bare * 0.0
    repeats = added.index.unique("repeat")
    index = pd.MultiIndex.from_product([repeats, groups], names=keys)
    shape = len(repeats), len(groups)
    parts = []
    for number, costs in enumerate((bare, added)):
        costs = costs.reindex(index)
        of_token = costs[_OF_TOKEN[number]].to_numpy().reshape(shape)[:, :1]
        of_evaluation = costs[_OF_EVALUATION[number]].to_numpy().reshape(shape)
        parts.append(np.concatenate([of_token, of_evaluation], axis=1))
    return np.stack(parts, axis=1)


def total_costs(units: np.ndarray) -> np.ndarray:
    """Costs with decisions (..., 1 + G) from units (..., repeats, 2, 1 + G)."""
    return np.median(units, axis=-3).sum(axis=-2)


def times(costs: np.ndarray, evaluations: np.ndarray) -> np.ndarray:
    """Milliseconds per token from `total_costs` (..., 1 + G) and evaluations (..., G)."""
    return costs[..., 0] + (costs[..., 1:] * evaluations).sum(axis=-1)


@dataclass(frozen=True)
class Times:
    """Logarithms of milliseconds per token (R + 1, ...): in R samples, and last of all units."""

    of_documents: np.ndarray
    of_repeats: np.ndarray

    @property
    def milliseconds(self) -> float:
        return float(np.exp(self.of_documents[-1]))

    def __str__(self) -> str:
        return f"{self.milliseconds:.3g}"

    def __getitem__(self, part: Any) -> "Times":
        return Times(self.of_documents[part], self.of_repeats[part])

    def __sub__(self, other: "Times") -> "Times":
        """Logarithms of the ratio; infinite times of both give NaN."""
        with np.errstate(invalid="ignore"):
            return Times(self.of_documents - other.of_documents, self.of_repeats - other.of_repeats)


def summarise_times(exit_loops: pd.DataFrame, exit_costs: pd.DataFrame) -> pd.DataFrame:
    """Computed time per token at each operating point, in the order of the table "exit_loops".

    Columns criterion, threshold, time_ms, bare_ms (the same evaluations without decisions). Empty
    without costs.
    """
    groups = list(exit_loops["group"].unique())
    means = exit_loops.pivot_table(
        index=bootstrap.OPERATING_POINT, columns="group", values="evaluations", sort=False
    )
    rows = []
    for (criterion, threshold), evaluations in means[groups].iterrows():
        units = cost_units(exit_costs, criterion, groups)
        if len(units) == 0:
            continue
        bare = np.median(units[:, 0], axis=0)
        rows.append(
            {
                "criterion": criterion,
                "threshold": threshold,
                "time_ms": times(total_costs(units), evaluations.to_numpy()),
                "bare_ms": times(bare, evaluations.to_numpy()),
            }
        )
    return pd.DataFrame(rows, columns=[*bootstrap.OPERATING_POINT, "time_ms", "bare_ms"])
