"""Tables of the study with known content, and its figures of them."""

import numpy as np
import pandas as pd

from tests.figures import RUN
from twoscale import tables
from twoscale.claims import loop_counts
from twoscale.figures import style
from twoscale.studies.depth import draw

CONTEXT = style.FigureContext("trial", "text", 24)

# --- lens -----------------------------------------------------------------------------------------


def lens_table(groups=("2", "3"), steps=(0, 1, 3, 24)):
    """Two documents; cross-entropy, rank and shares are functions of k, the text shifts both
    alike.
    """
    rows = [
        {"run": "trial", "iteration": 20, "group": group, "k": k}
        | {"sequence": number, "document": number, "tokens": 100 + 100 * number}
        | {
            "ce": 4 + 1 / (k + 1) + number,
            "entropy": 3 + 1 / (k + 1),
            "log_rank": np.log(2 + k) + number,
        }
        | {
            "right": 0.25,
            "lost": 0.1 * k / 24 if k else None,
            "lost_since_mean": 0.05 if k > 3 else None,
        }
        | {"agreement": 1 - 1 / (k + 2)}
        for group in groups
        for k in steps
        for number in range(2)
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("lens")))


def draw_lens(**changes):
    return draw.draw_lens(lens_table(**changes), mean_loops=3.2, typical_loops=3, context=CONTEXT)


def lens():
    return draw_lens(steps=(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96))


# --- scaling --------------------------------------------------------------------------------------


def scaling_table(iterations=(0, 50, 600), loops=(1, 2, 6)):
    rows = [
        {"iteration": iteration, "loops": n, "ppl": 9.0 + 1 / n, "ppl_low": 8.0, "ppl_high": 11.0}
        | {"excess": 0.1 / n, "excess_low": 0.0, "excess_high": 0.2}
        for iteration in iterations
        for n in loops
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("scaling")))


def scaling(table=None):
    return draw.draw_scaling(scaling_table() if table is None else table, mean_loops=3, **RUN)


# --- depth card -----------------------------------------------------------------------------------

TRAINED = 3
LOSSES = {
    1: 4.0,
    2: 3.2,
    3: 3.0,
    6: 2.995,
    12: 3.006,
    24: 3.3,
}  # nats by loops, before the shift of a document


def quality(losses=LOSSES, documents=8, tokens=100):
    """Documents of one sequence each, whose losses are shifted alike, and by 1e-4 times the loops
    of their own.
    """
    rows = [
        {
            "iteration": 20,
            "loops": loops,
            "sequence": n,
            "document": n,
            "tokens": tokens * (1 + n % 2),
        }
        | {
            "ce": ce + n + 1e-4 * (-1) ** (n // 2) * loops,
            "entropy": 2.0,
            "flips": None if loops == 1 else 1 / loops,
        }
        | {"agreement": 1 - 1 / (loops + 1)}
        for loops, ce in losses.items()
        for n in range(documents)
    ]
    return pd.DataFrame(rows)


def states(step=lambda k: 0.5**k, norm=lambda k: 1.0, groups=("2", "3"), documents=8, last=24):
    """Step and state norms as functions of the loop step; the direction moves by the step over the
    norm.
    """
    keys = ["iteration", "group", "k", "sequence", "document"]
    rows = [
        dict(zip(keys, (20, group, k, n, n), strict=True))
        | {"state_norm": norm(k), "step_norm": step(k), "cosine": 0.5 if k else np.nan}
        | {"direction_step_norm": step(k) / norm(k)}
        for group in groups
        for k in range(last + 1)
        for n in range(documents)
    ]
    long = pd.DataFrame(rows).melt(keys, var_name="measure", value_name="mean")
    undefined = long["mean"].isna()
    return long.assign(count=np.where(undefined, 0, 100), nulls=np.where(undefined, 100, 0))


def card(losses=LOSSES, unlooped=None, tolerance=0.01, **of_states):
    """The tables "depth_card" and "depth_findings"."""
    measured = quality(losses), states(**of_states)
    found = loop_counts.findings(*measured, TRAINED, tolerance, unlooped, seed=1)
    return loop_counts.summarise_card(*measured, TRAINED, seed=1).assign(run="trial"), found.assign(
        run="trial"
    )


def draw_card(**changes):
    return draw.draw_depth_card(*card(**changes), context=CONTEXT)


def depth_card():
    return draw_card(unlooped=quality({1: 3.5}))
