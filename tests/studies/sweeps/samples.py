"""Tables of the sweeps with known content, and their figures of them."""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from tests.figures import LOOPS, RUN
from twoscale import tables
from twoscale.figures import style
from twoscale.studies.sweeps import draw

# --- adapter initialisations ----------------------------------------------------------------------

SHARES = (0.0, 0.5, 1.0, np.nan)
ITERATIONS = (0, 100, 400)


def value(share, iteration, seed):
    place = 1.5 if np.isnan(share) else share
    return 0.3 * place + iteration / 1000 + {"1": -0.05, "2": 0.05, "all": 0.0}[seed]


def starts_table(groups=("4", "5-6"), cases=(("noise", "branch"),), seeds=("1", "2", "all")):
    rows = []
    for share, (state_init, sandwich), seed, iteration in itertools.product(
        SHARES, cases, seeds, ITERATIONS
    ):
        key = {
            "share": share,
            "state_init": state_init,
            "sandwich": sandwich,
            "seed": seed,
            "iteration": iteration,
        }
        mean = value(share, iteration, seed)
        rows += [
            key | {"group": group, "measure": "late_cosine", "value": mean} for group in groups
        ]
        if iteration:
            rows.append(key | {"group": "all", "measure": "held_out_loss", "value": 7 + mean})
    table = pd.DataFrame(rows, columns=[*rows[0], "low", "high"])
    return table.assign(low=table["value"] - 0.1, high=table["value"] + 0.1)


def draw_starts(**changes):
    return draw.draw_adapter_init(
        starts_table(**changes), context=style.FigureContext("demo", "python_docs", 30)
    )


def adapter_init():
    return draw_starts(groups=("4", "5-6", "7"))


# --- variants -------------------------------------------------------------------------------------

RUNS = (
    "variants/post_residual-random-noise",
    "variants/post_residual-random-input",
    "variants/branch-random-noise",
)


def draw_variants(groups=("4", "5-6"), boundaries=("4->5-6",), runs=RUNS):
    statistics = {"q05": 1.0, "q95": 9.0, "count": 10, "nulls": 0}
    loops = [
        {"run": run, "iteration": iteration, "group": group, "k": k, "measure": measure}
        | statistics
        | {"mean": iteration + place + k}
        for place, run in enumerate(runs)
        for iteration in (0, 400)
        for group in groups
        for k in range(LOOPS)
        for measure in draw.MEASURES
    ]
    drift = [
        {
            "run": run,
            "iteration": iteration,
            "boundary": boundary,
            "reference_state": state,
            "measure": "dlr",
        }
        | statistics
        | {"mean": mean}
        for run in runs
        for iteration in (0, 400)
        for boundary in boundaries
        for state, mean in (("first_state", 3.0), ("final", 5.0))
    ]
    training = [
        {"run": run, "iteration": n, "held_out_loss": 7.0 - n if n % 2 else None}
        for run in runs
        for n in range(1, 6)
    ]
    keys, values = ["run", "iteration"], ["measure", "mean", "q05", "q95"]
    return draw.draw_variants(
        pd.DataFrame(loops, columns=[*keys, "group", "k", *values, "count", "nulls"]),
        pd.DataFrame(drift, columns=[*keys, "boundary", "reference_state", *values]),
        pd.DataFrame(training),
        reference_state="first_state",
        reading="state",
        **RUN,
    )


def variants():
    return draw_variants()


# --- baselines ------------------------------------------------------------------------------------

DOCUMENTS = 6
THREE = {("looped", 1): 0.0, ("looped", 2): 0.5, ("looped", 3): 1.0} | {
    (model, seed): base + gain + shift
    for model, gain in (("parameters", 0.3), ("flops", -0.2), ("untrained", 4.0))
    for seed, base, shift in ((1, 0.0, 0.01), (2, 0.5, 0.03), (3, 1.0, -0.04))
}
ONE = {key: offset for key, offset in THREE.items() if key[1] == 1}


def compared(folder, offsets=THREE, effect=0.05):
    """The table "baselines" of models (model, seed) -> offset.

    Documents differ by a lot, models by `offset`, both together by `effect`.
    """
    described = {"layers": 4, "parameters": 1000, "flops": 1e6, "iteration": 20}
    models = [{"model": model, "seed": seed} | described for model, seed in offsets]
    numbers, paths = np.arange(DOCUMENTS), []
    for (model, seed), offset in offsets.items():
        frame = pd.DataFrame(
            {"sequence": numbers, "document": numbers, "tokens": 100 + 100 * (numbers == 0)}
        )
        frame["ce"] = 4 + numbers + offset + effect * (model != "looped") * (-1.0) ** numbers
        paths.append(folder / f"{model}-{seed}.parquet")
        tables.write(
            "scaling_quality",
            frame.assign(iteration=20, loops=3),
            paths[-1],
        )
    return draw.compare_baselines(models, paths, "trial", seed=0)


def draw_baselines(folder, offsets=THREE):
    return draw.draw_baselines(
        compared(folder, offsets), context=style.FigureContext("trial", "text", 3)
    )


def baselines(offsets=THREE):
    with TemporaryDirectory() as folder:
        return draw_baselines(Path(folder), offsets)


FURTHER = {
    "adapter_init, one seed": lambda: draw_starts(seeds=("1", "all")),
    "baselines, one seed": lambda: baselines(ONE),
    "variants, seeds": lambda: draw_variants(runs=(RUNS[0], f"{RUNS[0]}-seed5")),
}
