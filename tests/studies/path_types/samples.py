"""Tables of the study with known content, and its figure of them."""

import pandas as pd

from tests.figures import ITERATIONS, RUN, quantile_table
from twoscale.studies.path_types import figure


def types_table(groups=("4", "5-6")):
    shares = [("converging", 0, 0.4), ("orbiting", 2, 0.3), ("orbiting", 5, 0.1), ("orbiting", 3, 0.1)]
    rows = [
        (iteration, group, *part)
        for iteration in ITERATIONS
        for group in groups
        for part in [*shares, ("undecided", 0, 0.1)]
    ]
    return pd.DataFrame(rows, columns=["iteration", "group", "path_type", "period", "share"])


def draw(types=None, metrics=None):
    types = types_table() if types is None else types
    return figure.draw(types, quantile_table(figure.ROWS) if metrics is None else metrics, **RUN)


def path_types():
    return draw()
