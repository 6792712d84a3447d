"""Tables of the study with known content, and its figure of them."""

import pandas as pd

from tests.figures import RUN
from twoscale import tables
from twoscale.studies.scaling import figure


def scaling_table(iterations=(0, 50, 600), loops=(1, 2, 6)):
    rows = [
        {"iteration": iteration, "loops": n, "ppl": 9.0 + 1 / n, "ppl_low": 8.0, "ppl_high": 11.0}
        | {"excess": 0.1 / n, "excess_low": 0.0, "excess_high": 0.2}
        for iteration in iterations
        for n in loops
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("scaling")))


def draw(table=None):
    return figure.draw(scaling_table() if table is None else table, mean_loops=3, **RUN)


def scaling():
    return draw()
