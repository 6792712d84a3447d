"""Write docs/readings.parquet, and print the table of docs/variants.md: late cosines of the demo under
other readings of the paper.

    snakemake seeds --cores 2 --configfile docs/readings.yaml
    snakemake --cores 2 --configfile docs/readings.yaml \\
        results/{loop_noise,backprop_8,backprop_1,add}-133{7,8,9}/tables/loop_sequences.parquet
    python -m docs.readings results

Some readings train the model again (docs/readings.yaml), others measure the checkpoints of the demo
in another way. The table has the late cosine of each group at the last checkpoint under each seed,
and its mean over seeds with the interval of `twoscale.claims.seeds`. Values under the rounding
floor are left out; null where they are most.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import twoscale
from twoscale import config, tables
from twoscale.claims.estimates import Estimate, InconclusiveError, mean
from twoscale.claims.evidence import Evidence
from twoscale.claims.geometry import LATE_STEPS
from twoscale.claims.seeds import MEAN, mean_over_seeds
from twoscale.data.batches import open_held_out
from twoscale.dynamics.aggregate import summarise
from twoscale.dynamics.trajectories import TABLES, extract
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.registry import build

TABLE = Path(__file__).parent / "readings.parquet"
COLUMNS = ["reading", "group", "seed", "late_cosine", "low", "high", "reason"]
SEEDS = {1337: "demo", 1338: "demo-seed1338", 1339: "demo-seed1339"}  # seed -> run
SOURCE = "loop_sequences"
Measure = Callable[[Path, int], pd.DataFrame]  # results and a seed -> table "loop_sequences"


@dataclass(frozen=True)
class Reading:
    """What late cosines are read from, and how."""

    name: str
    predicted: str  # before any was measured
    loops: Measure
    measure: str = "cosine"
    steps: Sequence[int] = tuple(LATE_STEPS)


def trained_again(name: str, results: Path, seed: int) -> pd.DataFrame:
    return tables.read(SOURCE, results / f"{name}-{seed}" / f"tables/{SOURCE}.parquet")


def as_measured(results: Path, seed: int) -> pd.DataFrame:
    return tables.read(SOURCE, results / SEEDS[seed] / f"tables/{SOURCE}.parquet")


@torch.no_grad()
def measured_again(
    results: Path,
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
    loops: int = 30,
    loop_noise: float = 0.0,
) -> pd.DataFrame:
    """The last checkpoint of the demo, run and measured in this way."""
    demo = config.checked(config.preset("demo"))
    run = twoscale.open_run(results / SEEDS[seed], dtype=dtype)
    model = build(run.model.config.model_copy(update={"loop_noise": loop_noise}))
    model.to(dtype=dtype).eval()
    model.load_state_dict(run.model.state_dict())
    data = results / "demo/data"
    text = open_held_out(
        data / "val.bin", data / "tokens.json", model.config, demo.trajectory_sequences
    )
    with tempfile.TemporaryDirectory() as folder:
        outputs = {name: Path(folder, f"{name}.parquet") for name in TABLES}
        how = demo.trajectories.model_copy(update={"loops": loops})
        extract(LoadedCheckpoint(model, run.iteration, seed), text, how, demo.path_types, outputs)
        return summarise(SOURCE, [outputs["trajectories"]], SEEDS[seed])


# Predictions by docs/spectrum.md: late steps follow the slowest eigenvalue λ, so their cosine is 1 for
# a real λ > 0 and cos θ for a pair |λ| exp(±iθ). Steps between states with independent noise have the
# cosine -(1 - λ) / 2 (successive differences of a first-order autoregression).
READINGS = (
    Reading("as the demo", "", as_measured),
    # trained again
    Reading("fresh noise at every loop step", "−0.5 to 0", partial(trained_again, "loop_noise")),
    Reading(
        "gradient through the last 8 loop steps",
        "as the demo: earlier steps have 0.6⁸ < 2 % of it",
        partial(trained_again, "backprop_8"),
    ),
    Reading(
        "gradient through the last loop step",
        "nearer to the untrained −0.57 · −0.31 · −0.55",
        partial(trained_again, "backprop_1"),
    ),
    Reading("input added, no projection", "1: λ real", partial(trained_again, "add")),
    # the demo's checkpoints
    Reading(
        "steps of normed states", "as the demo: the same λ", as_measured, measure="direction_cosine"
    ),
    Reading("k = 2 … 9", "nearer to 0: several eigenvalues", as_measured, steps=range(2, 10)),
    Reading(
        "60 loop steps, k = 40 … 59",
        "as the demo, or rounding",
        partial(measured_again, loops=60),
        steps=range(40, 60),
    ),
    Reading("model in bfloat16", "rounding", partial(measured_again, dtype=torch.bfloat16)),
    Reading(
        "fresh noise in the measurement alone",
        "−0.5 to 0",
        partial(measured_again, loop_noise=0.6324555320336759),
    ),
)


def late_cosine(reading: Reading, evidence: Evidence, group: str) -> Estimate:
    """As in claim 4, of the measure and the loop steps of this reading."""
    iteration, steps = evidence.last(), list(reading.steps)
    units = evidence.curves(reading.measure, group, [iteration], until=steps[-1])[:, 0]
    check_rounding(evidence, reading.measure, group, steps)
    # the mean of every loop step over tokens (R, K), and of these the mean over `steps`
    return evidence.estimate(lambda totals: mean(totals[..., steps, :]).mean(axis=-1), units)


def check_rounding(evidence: Evidence, measure: str, group: str, steps: Sequence[int]) -> None:
    """Raise InconclusiveError if most values are under the rounding floor; others are left out."""
    loops = evidence.loops
    loops = loops[(loops["iteration"] == evidence.last()) & (loops["group"] == group)]
    angles = loops[(loops["measure"] == measure) & loops["k"].isin(steps)]
    nulls, counts = angles[["nulls", "count"]].sum()
    if nulls > counts:
        raise InconclusiveError("most values are under the rounding floor")


def rows(reading: Reading, results: Path) -> Iterator[tuple]:
    """The rows of a reading, in the order of `COLUMNS`."""
    frames = [reading.loops(results, seed) for seed in SEEDS]
    evidence = [Evidence.of({"loops": frame}, max_loops=0, seed=0) for frame in frames]
    for group in evidence[0].groups:
        estimates = []
        try:
            for seed, of_seed in zip(SEEDS, evidence, strict=True):
                estimates.append(late_cosine(reading, of_seed, group))
                yield _row(reading, group, str(seed), estimates[-1])
            yield _row(reading, group, MEAN, mean_over_seeds(estimates))
        except InconclusiveError as error:
            yield (reading.name, group, MEAN, np.nan, np.nan, np.nan, str(error))


def _row(reading: Reading, group: str, seed: str, found: Estimate) -> tuple:
    return reading.name, group, seed, found.value, found.low, found.high, ""


def markdown(readings: pd.DataFrame) -> Iterator[str]:
    """Lines of the table of docs/variants.md: the late cosine under each seed."""
    by_group = readings.groupby(["reading", "group"], sort=False)
    groups = readings["group"].unique()
    yield f"| reading | predicted | {' | '.join(groups)} |"
    yield "|---" * (2 + len(groups)) + "|"
    for reading in READINGS:
        cells = [_cell(by_group.get_group((reading.name, group))) for group in groups]
        yield f"| {reading.name} | {reading.predicted} | {' | '.join(cells)} |"


def _cell(rows: pd.DataFrame) -> str:
    """The values under the seeds."""
    if rows["late_cosine"].isna().any():
        return "rounding"
    values = [f"{value:.2f}" for value in rows.loc[rows["seed"] != MEAN, "late_cosine"]]
    return ", ".join(values).replace("-", "−")


if __name__ == "__main__":
    results = Path(sys.argv[1])
    measured = [row for reading in READINGS for row in rows(reading, results)]
    readings = pd.DataFrame(measured, columns=COLUMNS)
    readings.to_parquet(TABLE, index=False)
    print(*markdown(readings), sep="\n")
