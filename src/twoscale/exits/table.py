"""The table of exits: what exits cost on each sequence of a text, in one form for all readers.

It has one row per operating point, reference and sequence, with the mean loss `ce` over its tokens
and their mean `evaluations`. The references are the criterion itself, random exits and fixed loops
of the same cost, as means over their draws. Rows of the criterion also have the evaluations in each
group, and the loop steps whose state is kept there.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from twoscale.exits.references import RANDOM

OPERATING_POINT = ["criterion", "threshold"]
OWN = "own"  # the reference of the exits of a criterion themselves

_KEYS = [*OPERATING_POINT, "reference", "sequence", "document", "tokens"]
_VALUES = ["ce", "evaluations"]

OperatingPoint = tuple[str, float]


def of_run(
    quality: pd.DataFrame, exit_loops: pd.DataFrame, cost_matched: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The exits in the tables "exit_quality", "exit_loops" and "exit_cost_matched" of a run."""
    place = [*OPERATING_POINT, "sequence"]
    # sums of floats depend on their order: that of the groups in the model, not of their labels
    names = exit_loops["group"].unique()
    own = quality.assign(reference=OWN)
    for column in ("evaluations", "loop_steps"):
        by_group = exit_loops.pivot(index=place, columns="group", values=column)[names]
        own = own.join(by_group.rename(columns=partial(in_group, column)), on=place)
    own["evaluations"] = own[[in_group("evaluations", name) for name in names]].mean(axis="columns")
    parts = [own]
    if cost_matched is not None and len(cost_matched):
        draws = cost_matched.groupby(_KEYS, sort=False)
        parts.append(draws[_VALUES].mean().reset_index())
    further = [in_group(column, name) for column in ("evaluations", "loop_steps") for name in names]
    return pd.concat(parts, ignore_index=True)[[*_KEYS, *_VALUES, *further]]


def in_group(column: str, group: str) -> str:
    """Name of the column with the evaluations, or the kept `loop_steps`, in a group."""
    return f"{column} in {group}"


def groups(exits: pd.DataFrame) -> list[str]:
    """The groups of a run, in the order of the model."""
    start = in_group("evaluations", "")
    return [name.removeprefix(start) for name in exits if name.startswith(start)]


def of_recording(
    scaling_quality: pd.DataFrame,
    recorded_exits: pd.DataFrame | None = None,
    recorded_depths: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The exits of a recorded model on frozen trajectories, with all its fixed loops.

    Random exits are the mean over all ways to give the depths of a criterion to other tokens.
    """
    counts = scaling_quality["loops"].astype(float)
    fixed = scaling_quality.assign(
        criterion="fixed", threshold=counts, reference=OWN, evaluations=counts
    )
    parts = [fixed[[*_KEYS, *_VALUES]]]
    if recorded_exits is None or recorded_depths is None:
        return parts[0]
    parts.append(recorded_exits.assign(reference=OWN)[[*_KEYS, *_VALUES]])
    # the loss of each sequence by depth (S, K)
    keys = ["sequence", "document", "tokens"]
    at_depths = scaling_quality.pivot(index=keys, columns="loops", values="ce")
    for (criterion, threshold), rows in recorded_depths.groupby(OPERATING_POINT, sort=False):
        leaving = rows.groupby("depth")["tokens"].sum()
        shares = leaving / leaving.sum()
        losses = (at_depths[shares.index] @ shares).rename("ce").reset_index()
        point = {"criterion": criterion, "threshold": threshold, "reference": RANDOM}
        random = losses.assign(**point, evaluations=shares.index @ shares)
        parts.append(random[[*_KEYS, *_VALUES]])
    return pd.concat(parts, ignore_index=True)


def operating_points(exits: pd.DataFrame, reference: str = OWN) -> list[OperatingPoint]:
    """The operating points with rows of this reference, in the order of the table."""
    rows = exits.loc[exits["reference"] == reference, OPERATING_POINT].drop_duplicates()
    return list(rows.itertuples(index=False, name=None))


def document_units(
    exits: pd.DataFrame,
    points: Sequence[OperatingPoint],
    columns: Sequence[str] = _VALUES,
    reference: str = OWN,
) -> np.ndarray:
    """Sums over the tokens of each document at each point: (documents, points, columns + 1).

    The last entry counts the tokens. Sums are NaN where a sequence has no row or no value.
    """
    sequences = exits.drop_duplicates("sequence").sort_values("sequence")
    number, of_sequences = len(points), sequences["sequence"].to_numpy()
    index = pd.MultiIndex.from_arrays(
        [
            np.repeat([criterion for criterion, _ in points], len(of_sequences)),
            np.repeat(np.array([threshold for _, threshold in points], float), len(of_sequences)),
            np.tile(of_sequences, number),
        ]
    )
    rows = exits[exits["reference"] == reference].set_index([*OPERATING_POINT, "sequence"])
    values = rows[[*columns, "tokens"]].reindex(index).to_numpy(np.float64, copy=True)
    values[:, :-1] *= values[:, -1:]  # means over tokens become sums
    values = values.reshape(number, len(of_sequences), len(columns) + 1)
    names, places = np.unique(sequences["document"], return_inverse=True)
    sums = np.zeros((len(names), number, len(columns) + 1))
    np.add.at(sums, places, values.swapaxes(0, 1))
    return sums
