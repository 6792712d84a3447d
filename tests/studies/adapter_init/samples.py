"""Tables of the study with known content, and its figure of them."""

import itertools

import numpy as np
import pandas as pd

from twoscale.figures import style
from twoscale.studies.adapter_init import figure

SHARES = (0.0, 0.5, 1.0, np.nan)
ITERATIONS = (0, 100, 400)


def value(share, iteration, seed):
    place = 1.5 if np.isnan(share) else share
    return 0.3 * place + iteration / 1000 + {"1": -0.05, "2": 0.05, "all": 0.0}[seed]


def starts_table(groups=("4", "5-6"), cases=(("noise", "branch"),), seeds=("1", "2", "all")):
    rows = []
    for share, (state_init, sandwich), seed, iteration in itertools.product(SHARES, cases, seeds, ITERATIONS):
        key = {"share": share, "state_init": state_init, "sandwich": sandwich, "seed": seed, "iteration": iteration}
        mean = value(share, iteration, seed)
        for group in groups:
            rows.append(key | {"group": group, "measure": "late_cosine", "value": mean})
        if iteration:
            rows.append(key | {"group": "all", "measure": "held_out_loss", "value": 7 + mean})
    table = pd.DataFrame(rows, columns=[*rows[0], "low", "high"])
    return table.assign(low=table["value"] - 0.1, high=table["value"] + 0.1)


def draw(**changes):
    return figure.draw(starts_table(**changes), context=style.FigureContext("demo", "python_docs", 30))


def starts():
    return draw(groups=("4", "5-6", "7"))
