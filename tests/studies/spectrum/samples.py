"""Tables of the study with known content, and its figure of them."""

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.figures import style
from twoscale.studies.spectrum import figure

RUN = {"context": style.FigureContext("demo", "python_docs", 512)}
LENGTH, SEQUENCES = 8, 6
FLOATS = [name for name, dtype in tables.columns("token_spectrum").items() if dtype == "float32"]


def token_table(iteration=20, groups=("4", "5-6"), seed=0):
    """Tokens whose rate is the prefix modulus; token 2 of every sequence is the slowest, after it all inherit."""
    generator = np.random.default_rng(seed)
    frames = []
    for group in groups:
        for sequence in range(SEQUENCES):
            position = np.arange(LENGTH)
            own = np.where(position == 2, 0.8, generator.uniform(0.1, 0.5, LENGTH))
            prefix = np.maximum.accumulate(own)
            frame = pd.DataFrame({name: generator.uniform(0, 1, LENGTH) for name in FLOATS})
            frame = frame.assign(
                iteration=iteration,
                sequence=sequence,
                document=sequence // 2,
                position=position,
                group=group,
                token=position + 1,
                token_class=np.where(position == 0, "first", "other"),
                frequency=np.where(position == 2, 5.0, 500.0),
                exact=True,
                converged=True,
                direction_frozen=True,
                steps=40,
                leading_modulus=own,
                leading_angle=np.pi,
                prefix_modulus=prefix,
                prefix_angle=np.linspace(0, 3, LENGTH),
                source=[int(np.argmax(own[: t + 1])) for t in range(LENGTH)],
                rate=prefix,
            )
            frames.append(frame.assign(cosine=np.cos(frame["prefix_angle"])))
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
    return figure.draw(token_table(), table, **RUN)
