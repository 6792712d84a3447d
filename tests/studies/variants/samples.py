"""Tables of the study with known content, and its figure of them."""

import pandas as pd

from tests.figures import LOOPS, RUN
from twoscale.studies.variants import figure

ITERATIONS = (0, 400)
RUNS = ("variants/post_residual-random-noise", "variants/post_residual-random-input", "variants/branch-random-noise")


def draw(groups=("4", "5-6"), boundaries=("4->5-6",), runs=RUNS):
    statistics = {"q05": 1.0, "q95": 9.0, "count": 10, "nulls": 0}
    loops = [
        {"run": run, "iteration": iteration, "group": group, "k": k, "measure": measure}
        | statistics
        | {"mean": iteration + place + k}
        for place, run in enumerate(runs)
        for iteration in ITERATIONS
        for group in groups
        for k in range(LOOPS)
        for measure in figure.MEASURES
    ]
    drift = [
        {"run": run, "iteration": iteration, "boundary": boundary, "reference_state": state, "measure": "dlr"}
        | statistics
        | {"mean": mean}
        for run in runs
        for iteration in ITERATIONS
        for boundary in boundaries
        for state, mean in (("first_state", 3.0), ("final", 5.0))
    ]
    training = [
        {"run": run, "iteration": n, "held_out_loss": 7.0 - n if n % 2 else None} for run in runs for n in range(1, 6)
    ]
    keys, values = ["run", "iteration"], ["measure", "mean", "q05", "q95"]
    return figure.draw(
        pd.DataFrame(loops, columns=[*keys, "group", "k", *values, "count", "nulls"]),
        pd.DataFrame(drift, columns=[*keys, "boundary", "reference_state", *values]),
        pd.DataFrame(training),
        reference_state="first_state",
        **RUN,
    )


def variants():
    return draw()
