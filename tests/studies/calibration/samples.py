"""Tables of the study with known content, and its figure of them."""

import pandas as pd

from twoscale import tables
from twoscale.figures import style
from twoscale.studies.calibration import figure
from twoscale.studies.calibration.compare import NO_THRESHOLD


def calibration_table(criteria=("step_norm", "kl", "acceleration"), paths=("common", "per_group")):
    rows = [
        {"run": "trial", "criterion": criterion, "path": path, "guarantee": guarantee, "epsilon": epsilon, "delta": 0.1}
        | {"units": 20, "index": -1 if none else 2, "p_value": 0.05, "report_documents": 9, "unclipped": 0.0}
        | {"loss": 0.5 * epsilon, "loss_low": 0.1 * epsilon, "loss_high": 0.9 * epsilon, "saved": 0.1 * number}
        | {"saved_low": 0.0, "saved_high": 0.9, "verdict": NO_THRESHOLD if none else "holds"}
        for criterion in criteria
        for path in paths
        for guarantee in ("ce", "disagreement")
        for number, epsilon in enumerate((0.01, 0.02, 0.05, 0.1))
        for none in [number == 0]
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("calibration")))


def draw(**changes):
    return figure.draw(calibration_table(**changes), context=style.FigureContext("trial", "text", 30))


def calibration():
    return draw()
