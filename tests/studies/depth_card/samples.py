"""Tables of the study with known content, and its figure of them."""

import numpy as np
import pandas as pd

from twoscale.figures import style
from twoscale.studies.depth_card import compare, figure

TRAINED = 3
LOSSES = {1: 4.0, 2: 3.2, 3: 3.0, 6: 2.995, 12: 3.006, 24: 3.3}  # nats by loops, before the shift of a document


def quality(losses=LOSSES, documents=8, tokens=100):
    """Documents of one sequence each, whose losses are shifted alike, and by 1e-4 times the loops of their own."""
    rows = [
        {"iteration": 20, "loops": loops, "sequence": n, "document": n, "tokens": tokens * (1 + n % 2)}
        | {"ce": ce + n + 1e-4 * (-1) ** (n // 2) * loops, "entropy": 2.0, "flips": None if loops == 1 else 1 / loops}
        for loops, ce in losses.items()
        for n in range(documents)
    ]
    return pd.DataFrame(rows)


def states(step=lambda k: 0.5**k, norm=lambda k: 1.0, groups=("2", "3"), documents=8, last=24):
    """Step and state norms as functions of the loop step; the direction moves by the step over the norm."""
    rows = [
        {"iteration": 20, "group": group, "k": k, "sequence": n, "document": n, "tokens": 100}
        | {
            "state_norm": norm(k),
            "step_norm": step(k),
            "cosine": 0.5 if k else np.nan,
            "direction_step_norm": step(k) / norm(k),
        }
        for group in groups
        for k in range(last + 1)
        for n in range(documents)
    ]
    return pd.DataFrame(rows)


def card(losses=LOSSES, unlooped=None, tolerance=0.01, **of_states):
    """The tables "depth_card" and "depth_findings"."""
    tables = quality(losses), states(**of_states)
    found = compare.findings(*tables, TRAINED, tolerance, unlooped, seed=1)
    return compare.summarise(*tables, TRAINED, seed=1).assign(run="trial"), found.assign(run="trial")


def draw(**changes):
    return figure.draw(*card(**changes), context=style.FigureContext("trial", "text", 24))


def depth_card():
    return draw(unlooped=quality({1: 3.5}))
