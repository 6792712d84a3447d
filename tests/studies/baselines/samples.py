"""Tables of the study with known content, and its figure of them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.figures import style
from twoscale.studies.baselines import compare, figure

DOCUMENTS = 6


def quality(path, offset, effect=0.0):
    """Table "scaling_quality": documents differ by a lot, models by `offset`, both together by `effect`."""
    numbers = np.arange(DOCUMENTS)
    frame = pd.DataFrame({"sequence": numbers, "document": numbers, "tokens": 100 + 100 * (numbers == 0)})
    frame["ce"] = 4 + numbers + offset + effect * (-1.0) ** numbers
    frame = frame.assign(iteration=20, loops=3, ppl=np.exp(frame["ce"]))
    tables.write("scaling_quality", frame, path)
    return path


def compared(tmp_path, offsets, effect=0.05):
    """The table of models: (model, seed) -> offset."""
    described = {"layers": 4, "parameters": 1000, "flops": 1e6, "iteration": 20}
    models = [{"model": model, "seed": seed} | described for model, seed in offsets]
    paths = [
        quality(tmp_path / f"{i}.parquet", offset, effect * (model != "looped"))
        for i, ((model, _), offset) in enumerate(offsets.items())
    ]
    return compare.compare(models, paths, "trial", seed=0)


THREE = {("looped", 1): 0.0, ("looped", 2): 0.5, ("looped", 3): 1.0} | {
    (model, seed): base + gain + shift
    for model, gain in (("parameters", 0.3), ("flops", -0.2), ("untrained", 4.0))
    for seed, base, shift in ((1, 0.0, 0.01), (2, 0.5, 0.03), (3, 1.0, -0.04))
}


def draw(folder, offsets=THREE):
    return figure.draw(compared(folder, offsets), context=style.FigureContext("trial", "text", 3))


def baselines():
    with TemporaryDirectory() as folder:
        return draw(Path(folder))
