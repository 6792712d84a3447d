"""Thresholds of exit criteria that are calibrated to a guarantee, and a test of the guarantee on other documents."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.findings import FAILS, HOLDS, OPEN
from twoscale.studies.calibration.risk_control import betting, fixed_sequence, hoeffding_bentkus

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob
    from twoscale.studies.calibration.config import GuaranteesConfig

NO_THRESHOLD = "no threshold"
MEASURED = ("loss", "loss_low", "loss_high", "unclipped", "saved", "saved_low", "saved_high")  # columns of the report
LARGEST = {"ce": np.inf, "disagreement": 1.0}  # largest loss of a unit


def run(job: "StudyJob") -> None:
    """Write the tables "calibration" and "calibrated_thresholds"."""
    config = job.config
    runs, paths = (
        pd.concat([tables.read(f"calibration_{name}", path) for path in job.files[f"{name}_files"]])
        for name in ("runs", "paths")
    )
    table = calibrate(runs, config.guarantees, config.max_loops, config.seed)
    tables.write("calibration", table, job.file("calibration"))
    tables.write("calibrated_thresholds", chosen_thresholds(table, paths), job.file("thresholds"))


def calibrate(runs: pd.DataFrame, guarantees: "GuaranteesConfig", max_loops: int, seed: int) -> pd.DataFrame:
    """The table "calibration" from the table "calibration_runs".

    Of the points that the test accepts, the one with the fewest evaluations on the documents of the calibration is
    chosen: all of them keep the guarantee together with probability 1 - delta.

    Args:
        runs: Table of this name.
        guarantees: Values of epsilon, delta, the clip and the unit.
        max_loops: Evaluations of a token and group at full depth.
        seed: Seed of the intervals.
    """
    rows = [
        {"run": point[0], "criterion": point[1], "path": point[2]} | row
        for point, of_path in runs.groupby(["run", "criterion", "path"], sort=False)
        for row in _guaranteed(of_path, guarantees, max_loops, seed)
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("calibration")))


def chosen_thresholds(calibration: pd.DataFrame, paths: pd.DataFrame) -> pd.DataFrame:
    """The table "calibrated_thresholds" from the tables "calibration" and "calibration_paths"."""
    chosen = calibration.merge(paths, on=["run", "criterion", "path", "point"])
    return chosen[list(tables.columns("calibrated_thresholds"))]


def _guaranteed(
    runs: pd.DataFrame, guarantees: "GuaranteesConfig", max_loops: int, seed: int
) -> Iterator[dict[str, object]]:
    """One row per guarantee about the points of one path."""
    for guarantee, epsilons in (("ce", guarantees.nats), ("disagreement", guarantees.disagreement)):
        units = unit_losses(runs, guarantee, guarantees.unit)
        for epsilon in epsilons:
            bound = min(guarantees.clip * epsilon, LARGEST[guarantee])
            clipped = units.assign(clipped=units["loss"].clip(0, bound))
            chooses = clipped[clipped["part"] == "calibration"]
            index, p_value = _choose(chooses, epsilon, bound, guarantees)
            known = {"guarantee": guarantee, "epsilon": epsilon, "delta": guarantees.delta, "point": index}
            known |= {"p_value": p_value, "units": chooses["point"].eq(0).sum()}
            yield known | _report(clipped[clipped["part"] == "report"], index, epsilon, max_loops, seed)


def unit_losses(runs: pd.DataFrame, guarantee: str, unit: str) -> pd.DataFrame:
    """One row per (point, unit): `part`, `document`, `tokens`, and the means over tokens `loss` and `evaluations`.

    `guarantee` is "ce" or "disagreement", `unit` is "document" or "sequence".
    """
    loss = runs["ce"] - runs["full_depth_ce"] if guarantee == "ce" else 1 - runs["agreement"]
    sums = runs[["evaluations"]].assign(loss=loss).mul(runs["tokens"], axis="index").assign(tokens=runs["tokens"])
    keys = ["point", "part", "document"] + (["sequence"] if unit == "sequence" else [])
    totals = pd.concat([runs[keys], sums], axis="columns").groupby(keys).sum()
    means = totals[["loss", "evaluations"]].div(totals["tokens"], axis="index")
    return means.assign(tokens=totals["tokens"]).reset_index()


def _choose(units: pd.DataFrame, epsilon: float, bound: float, guarantees: "GuaranteesConfig") -> tuple[int, float]:
    """The index of the chosen point, -1 if the test accepts none, and the p-value of that or of the first point."""
    by_point = units.groupby("point")
    test = partial(betting, delta=guarantees.delta) if guarantees.test == "betting" else hoeffding_bentkus
    p_values = [test(losses.to_numpy() / bound, epsilon / bound) for _, losses in by_point["clipped"]]
    if not (accepted := fixed_sequence(p_values, guarantees.delta)):
        return -1, p_values[0]
    evaluations = [np.average(rows["evaluations"], weights=rows["tokens"]) for _, rows in by_point]
    index = int(np.argmin(evaluations[:accepted]))
    return index, p_values[index]


def _report(units: pd.DataFrame, index: int, epsilon: float, max_loops: int, seed: int) -> dict[str, object]:
    """Loss and savings of the point at `index` on the units of the report; none at -1, where all loops are run."""
    documents = {"report_documents": units["document"].nunique()}
    if index < 0:
        return documents | dict.fromkeys(MEASURED, 0.0) | {"verdict": NO_THRESHOLD}
    rows = units[units["point"] == index]
    loss, low, high = _mean(rows, rows["clipped"], pd.Series(1.0, rows.index), seed)
    saved = _mean(rows, (1 - rows["evaluations"] / max_loops) * rows["tokens"], rows["tokens"], seed)
    unclipped = np.average(rows["loss"], weights=rows["tokens"])
    measured = dict(zip(MEASURED, (loss, low, high, unclipped, *saved), strict=True))
    return documents | measured | {"verdict": HOLDS if high <= epsilon else FAILS if low > epsilon else OPEN}


def _mean(units: pd.DataFrame, sums: pd.Series, weights: pd.Series, seed: int) -> tuple[float, float, float]:
    """A weighted mean and its 95 % interval over documents; the interval of one document is NaN."""
    by_document = pd.DataFrame({"sum": sums, "weight": weights}).groupby(units["document"]).sum().to_numpy(np.float64)
    value = float(bootstrap.ratio_of_sums(by_document[None])[0])
    if len(by_document) < 2:
        return value, np.nan, np.nan
    return value, *bootstrap.interval(bootstrap.ratio_of_sums, by_document, seed, by_document[:, 1])
