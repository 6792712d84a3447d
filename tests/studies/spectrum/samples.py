"""Tables of the study with known content, and its figure of them."""

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.figures import style
from twoscale.studies.spectrum.draw import draw_spectrum

RUN = {"context": style.FigureContext("demo", "python_docs", 512)}
LENGTH, SEQUENCES = 8, 6


def token_table(iteration=20, groups=("4", "5-6"), seed=0):
    """Tokens whose rate is the prefix modulus; token 2 of every sequence is the slowest, after it
    all inherit.
    """
    generator = np.random.default_rng(seed)
    frames = []
    for group in groups:
        for sequence in range(SEQUENCES):
            position = np.arange(LENGTH)
            own = np.where(position == 2, 0.8, generator.uniform(0.1, 0.5, LENGTH))
            values = {
                "iteration": iteration,
                "sequence": sequence,
                "document": sequence // 2,
                "position": position,
                "group": group,
                "exact": True,
                "converged": True,
                "steps": 40,
                "rate": np.maximum.accumulate(own),
                "leading_modulus": own,
                "leading_angle": np.pi,
                "prefix_modulus": np.maximum.accumulate(own),
                "prefix_angle": np.linspace(0, 3, LENGTH),
                "source": [int(np.argmax(own[: t + 1])) for t in range(LENGTH)],
            }
            frames.append(pd.DataFrame(values).assign(cosine=np.cos(values["prefix_angle"])))
    return pd.concat(frames, ignore_index=True)[list(tables.columns("token_spectrum"))]


def spectrum():
    table = pd.concat(
        pd.DataFrame(
            {
                "iteration": [0, 50, 600],
                "group": group,
                "prediction": prediction,
                "quantity": "rate",
                "difference": [0.1, 0.2, 0.3],
                "difference_low": [0.05, 0.15, 0.25],
                "difference_high": [0.15, 0.25, 0.35],
            }
        )
        for group in ("4", "5-6")
        for prediction in ("leading", "prefix")
    )
    return draw_spectrum(token_table(), table, **RUN)
