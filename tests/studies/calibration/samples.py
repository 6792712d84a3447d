"""Tables of the study with known content, and its figure of them."""

import pandas as pd

from twoscale import tables
from twoscale.figures import style
from twoscale.studies.calibration.draw import NO_THRESHOLD, draw_calibration


def calibration_table(criteria=("step_norm", "kl", "acceleration")):
    rows = [
        {"run": "trial", "criterion": criterion, "epsilon": epsilon, "delta": 0.1, "units": 20, "p_value": 0.05}
        | {"point": -1 if none else 2, "threshold": 0.1, "report_documents": 9, "unclipped": 0.0}
        | {"loss": 0.5 * epsilon, "loss_low": 0.1 * epsilon, "loss_high": 0.9 * epsilon, "saved": 0.1 * number}
        | {"saved_low": 0.0, "saved_high": 0.9, "verdict": NO_THRESHOLD if none else "holds"}
        for criterion in criteria
        for number, epsilon in enumerate((0.01, 0.02, 0.05, 0.1))
        for none in [number == 0]
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("calibration")))


def draw(**changes):
    return draw_calibration(calibration_table(**changes), context=style.FigureContext("trial", "text", 30))


def calibration():
    return draw()


FURTHER = {"calibration, fixed loops": lambda: draw(criteria=("fixed",))}
