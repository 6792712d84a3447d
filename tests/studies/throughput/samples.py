"""Tables of the study with known content, and its figure of them."""

import pandas as pd

from tests.figures import RUN
from twoscale import tables
from twoscale.studies.throughput import figure


def throughput_table(sequences=(1, 4, 16)):
    rows = [
        {"criterion": criterion, "threshold": threshold, "sequences": number, "repeat": repeat}
        | {"tokens_per_second": 10.0 * number + repeat, "latency_ms": 50.0 + number, "latency_high_ms": 90.0 + number}
        for criterion, threshold in (("fixed", 30.0), ("acceleration", 1e-2))
        for number in sequences
        for repeat in range(3)
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("throughput")))


def draw(**changes):
    return figure.draw(throughput_table(**changes), **RUN)


def throughput():
    return draw()
