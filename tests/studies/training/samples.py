"""Tables of the study with known content, and its figure of them."""

import numpy as np
import pandas as pd

from tests.figures import RUN
from twoscale.studies.training import draw as drawing


def training_table(iterations=100, **changed):
    """Loss falling by 0.01 per iteration, measured on held-out text every 50."""
    iteration = np.arange(1, iterations + 1)
    table = {
        "iteration": iteration,
        "tokens_seen": iteration * 20,
        "loss": 6 - 0.01 * iteration,
        "held_out_loss": np.where(iteration % 50 == 0, 5.5, np.nan),
        "learning_rate": np.minimum(iteration, 10) * 6e-5,
        "gradient_norm": np.full(iterations, 0.5),
    }
    return pd.DataFrame(table | changed)


def loops_table(groups=("4", "5-6"), iterations=100):
    """Loop counts from 1 to 5 in turn; a single count of 40 in group 5-6."""
    rows = [
        (iteration, group, 40 if (iteration, group) == (1, "5-6") else 1 + iteration % 5)
        for iteration in range(1, iterations + 1)
        for group in groups
    ]
    return pd.DataFrame(rows, columns=["iteration", "group", "loops"])


def draw(groups=("4", "5-6"), iterations=100, **changed):
    tables = training_table(iterations, **changed), loops_table(groups, iterations)
    return drawing.draw_training(*tables, mean_loops=2, grad_clip=1.0, **RUN)


def training():
    return draw()


FURTHER = {"training, falling gradient": lambda: draw(gradient_norm=np.r_[50.0, np.full(99, 0.5)])}
