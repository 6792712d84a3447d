"""Exits of recorded tokens: the loop step at which each criterion would let them leave the last group.

Exits are on frozen paths: all tokens run all loop steps, and the loss of a token that leaves after k of them is that
after k loop steps of all tokens. No cache is shared, and nothing is timed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.claims.bootstrap import with_bounds
from twoscale.exits.contract import GivenStates
from twoscale.exits.criteria import ExitCriterion, make_criterion

Thresholds = Mapping[str | type[ExitCriterion], Sequence[float]]
POINT = ["criterion", "threshold"]


def make_criteria(thresholds: Thresholds) -> dict[tuple[str, float], ExitCriterion]:
    """(name, threshold) -> criterion, of names of built-in criteria and of classes. Raises InputError."""
    found = {}
    for key, values in thresholds.items():
        for value in values:
            name = key if isinstance(key, str) else key.__name__
            found[name, value] = make_criterion(key, value) if isinstance(key, str) else key(value)
            if found[name, value].needs_gate or found[name, value].keeps == "weighted":
                raise InputError(
                    f"exits.{name}: found a criterion with a gate or a weighted state, expected one that reads states "
                    "or predictions."
                )
    return found


def exit_rows(
    exits: Mapping[tuple[str, float], GivenStates],
    losses: Tensor,
    predicted: Tensor,
    keys: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Rows of the table "recorded_exits": one per criterion, threshold and sequence, and `fixed` at each loop count.

    `exits` are those of B T tokens, after the last loop step; `losses` the nats (K + 1, B, T - 1) of each next token
    after k loop steps, of which `predicted` (B, T - 1) count; `keys` the key columns of each sequence.
    """
    shape = (predicted.shape[0], predicted.shape[1] + 1)
    taken = [(("fixed", float(k)), (torch.full(shape, k), torch.full(shape, k))) for k in range(1, len(losses))]
    taken += [(point, found.exits()) for point, found in exits.items()]
    for (name, threshold), both in taken:
        loop_steps, evaluations = (counts.cpu().view(shape) for counts in both)
        chosen = losses.gather(0, loop_steps[None, :, :-1])[0]  # (B, T - 1)
        for i, key in enumerate(keys):
            count = predicted[i]
            if count.any():
                row = dict(key) | {"criterion": name, "threshold": float(threshold), "tokens": int(count.sum())}
                means = {"ce": chosen[i], "evaluations": evaluations[i, :-1].double()}
                yield row | {name: values[count].mean().item() for name, values in means.items()}


def gains(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The table "recorded_gains" of the table "recorded_exits" of one checkpoint.

    The gain of a criterion is the loss of fixed loops at its mean evaluations minus its own, on the same documents. At
    a mean between two whole counts, fixed loops are these two for shares of the tokens.
    """
    is_fixed = rows["criterion"] == "fixed"
    fixed = rows[is_fixed].pivot(index="sequence", columns="threshold", values="ce")
    found = []
    for _, own in rows[~is_fixed].groupby(POINT, sort=False):
        mean = np.average(own["evaluations"], weights=own["tokens"])
        low = int(np.clip(np.floor(mean), 1, fixed.columns.max()))
        high = min(low + 1, int(fixed.columns.max()))
        at_mean = fixed[low] + (mean - low) * (fixed[high] - fixed[low])
        found.append(own.assign(fixed_ce=own["sequence"].map(at_mean)))
    joined = pd.concat(found).assign(gain=lambda frame: frame["fixed_ce"] - frame["ce"])
    columns: dict[str, Any] = {}
    for name in ("evaluations", "ce", "gain"):
        columns |= with_bounds(joined, POINT, name, name, seed)
    means = pd.DataFrame(columns).drop(columns=["evaluations_low", "evaluations_high"]).reset_index()
    return means.assign(iteration=rows["iteration"].iloc[0])
