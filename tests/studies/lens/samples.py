"""Tables of the study with known content, and its figure of them."""

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.figures import style
from twoscale.studies.lens import figure


def lens_table(groups=("2", "3"), steps=(0, 1, 3, 24)):
    """Two documents; cross-entropy, rank and shares are functions of k, the text shifts both alike."""
    rows = [
        {
            "run": "trial",
            "iteration": 20,
            "group": group,
            "k": k,
            "sequence": number,
            "document": number,
            "tokens": 100 + 100 * number,
            "ce": 4 + 1 / (k + 1) + number,
            "entropy": 3 + 1 / (k + 1),
            "log_rank": np.log(2 + k) + number,
            "right": 0.25,
            "lost": 0.1 * k / 24 if k else None,
            "lost_since_mean": 0.05 if k > 3 else None,
        }
        for group in groups
        for k in steps
        for number in range(2)
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("lens")))


def draw(**changes):
    context = style.FigureContext("trial", "text", 24)
    return figure.draw(lens_table(**changes), mean_loops=3.2, typical_loops=3, context=context)


def lens():
    return draw(steps=(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96))
