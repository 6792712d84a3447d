"""Tables of the study with known content, and its figure of them."""

import numpy as np
import pandas as pd

from tests.figures import RUN
from twoscale import tables
from twoscale.claims.words import FAILS, HOLDS, OPEN
from twoscale.studies.seeds import draw

VERDICTS = {1: (HOLDS, FAILS, OPEN), 6: (HOLDS, HOLDS, HOLDS), 7: (HOLDS, HOLDS, "per run")}
SPREADS = {1: (0.02, 0.2), 6: (1.0, 0.01)}  # claim -> error over documents, deviation between seeds


def seeds_table():
    blank = dict.fromkeys(tables.columns("seeds"), "") | {
        "deviation": np.nan,
        "document_error": np.nan,
    }
    rows = [
        blank | {"claim": claim, "scope": "all", "seed": seed, "verdict": verdict}
        for claim, verdicts in VERDICTS.items()
        for seed, verdict in zip(("1337", "1338", "mean"), verdicts, strict=True)
    ]
    rows += [
        blank
        | {"claim": claim, "scope": "4", "quantity": quantity, "seed": "mean", "bounds": bounds}
        | {"role": role}
        | {"document_error": error, "deviation": deviation}
        for claim, (error, deviation) in SPREADS.items()
        for quantity, bounds, role in (
            ("judged", "> 0", "counted"),
            ("for comparison", "", "reference"),
        )
    ]
    return pd.DataFrame(rows)


def seeds(table=None):
    return draw.draw_seeds(seeds_table() if table is None else table, **RUN)
