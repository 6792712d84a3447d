"""Means over tokens of the table "lens", and a sentence for the report."""

from typing import Any

import numpy as np
import pandas as pd

from twoscale.claims.bootstrap import with_bounds


def summarise_lens(lens: pd.DataFrame, mean_loops: int, seed: int = 0) -> pd.DataFrame:
    """Means over tokens per group and loop step k, with bounds over documents.

    A change is since k = `mean_loops`, on the same documents. Bounds of `ce`, `entropy` and `rank` are for
    their change around the value: they show the change by more or fewer loop steps, not the variation of the text.

    Args:
        lens: Table "lens" of one run.
        mean_loops: The loop step in the table next to the mean of training.

    Returns:
        Columns group, k and, for each of ce, entropy, rank (geometric mean), right, lost, lost_since_mean, ce_change,
        entropy_change and rank_change (a ratio), the mean and the bounds with _low and _high; groups in the order of
        the table, null as there.
    """
    keys, point = ["group", "sequence"], ["group", "k"]
    trained = lens[lens["k"] == mean_loops].set_index(keys)
    columns: dict[str, Any] = {}
    for name in ("ce", "entropy", "log_rank"):
        at_mean = lens.join(trained[name].rename("at_mean"), on=keys)["at_mean"]
        changes = lens.assign(**{f"{name}_change": lens[name] - at_mean})
        columns |= with_bounds(changes, point, name, f"{name}_change", seed)
        columns |= with_bounds(changes, point, f"{name}_change", f"{name}_change", seed)
    for name in ("right", "lost", "lost_since_mean"):
        columns |= with_bounds(lens.dropna(subset=name), point, name, name, seed)
    summary = pd.DataFrame(columns).reset_index()
    for name in [name for name in summary.columns if name.startswith("log_rank")]:
        summary[name.removeprefix("log_")] = np.exp(summary.pop(name))
    order = {group: place for place, group in enumerate(lens["group"].unique())}
    return summary.sort_values(["group", "k"], key=lambda column: column.replace(order), ignore_index=True)


def sentence(table: pd.DataFrame) -> str:
    """Lost predictions at the last loop step, for the report."""
    last = table[table["k"] == table["k"].max()]
    shares = [
        f"{100 * np.average(rows['lost_since_mean'], weights=rows['tokens']):.2g} % (group {group.replace('-', '–')})"
        for group, rows in last.groupby("group", sort=False)
    ]
    return (
        f"Right predictions at the mean loops of training that are lost at {last['k'].iloc[0]} loops, of all tokens: "
        f"{', '.join(shares)}."
    )
