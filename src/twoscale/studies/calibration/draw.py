"""Thresholds of exit criteria that are calibrated to a guarantee, a test of the guarantee, and the figure of both.

Learn then Test (arXiv 2110.01052) rejects, threshold by threshold, the hypothesis that the expected loss of a document
is above a level. Documents have to be independent and alike; nothing is assumed about the distribution of their losses.
"""

from collections.abc import Iterator, Sequence
from math import log
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.evidence import FAILS, HOLDS, OPEN
from twoscale.claims.exits import criterion_name
from twoscale.figures import style

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob
    from twoscale.studies.calibration.study import CalibrationConfig

NO_THRESHOLD = "no threshold"
CLIP = 5.0  # largest loss of a document that counts, over epsilon; 13 documents are then the fewest at delta = 0.1
MEASURED = ("loss", "loss_low", "loss_high", "unclipped", "saved", "saved_low", "saved_high")  # columns of the report
GUARANTEED: style.Look = {"color": style.GREY, "linewidth": 0.8}
DODGE = 0.012  # decades between neighbouring points of one epsilon, whose intervals would coincide


def run(job: "StudyJob") -> None:
    """Write the table "calibration"."""
    runs = pd.concat([tables.read("calibration_runs", path) for path in job.files["runs_files"]])
    job.write("calibration", calibrate(runs, job.config.calibration, job.config.max_loops, job.config.seed))


def betting(losses: np.ndarray, level: float, delta: float) -> float:
    """p-value of the hypothesis that the expected loss is above `level`, by bets against it.

    One over the largest wealth of a player who stakes a share of it on every document in turn (arXiv 2010.09686), with
    the stakes of arXiv 2101.02703, proposition 5, for p-values up to `delta`. Super-uniform under the hypothesis for
    every n, if the losses (n,) are independent, between 0 and 1, in an order that does not depend on them.
    """
    number, counts = len(losses), np.arange(2, len(losses) + 2)
    means = (0.5 + np.cumsum(losses)) / counts
    variances = (0.25 + np.cumsum((losses - means) ** 2)) / counts
    before = np.concatenate([[0.25], variances[:-1]])  # a stake must not depend on the document that it is placed on
    stakes = np.minimum(np.sqrt(2 * log(1 / delta) / (number * before)), 1.0)
    wealth = np.cumprod(1 + stakes * (level - losses))
    return float(min(1.0, 1 / wealth.max())) if wealth.max() > 0 else 1.0


def fixed_sequence(p_values: Sequence[float], delta: float) -> int:
    """Number of hypotheses rejected by a test in a fixed order, which stops at the first one above `delta`.

    If the order does not depend on the documents, a true one is rejected with probability `delta` at most.
    """
    return next((number for number, p_value in enumerate(p_values) if p_value > delta), len(p_values))


def calibrate(runs: pd.DataFrame, config: "CalibrationConfig", max_loops: int, seed: int) -> pd.DataFrame:
    """The table "calibration" from the table "calibration_runs" of a run.

    Of the thresholds that the test accepts, the one with the fewest evaluations on the documents of the calibration is
    chosen: all of them keep the guarantee together with probability 1 - delta. `max_loops` are the evaluations at full
    depth.
    """
    # one row per (criterion, point, document): its tokens, and means over them
    keys = ["criterion", "point", "threshold", "part", "document"]
    sums = runs[["evaluations"]].assign(loss=runs["ce"] - runs["full_depth_ce"])
    sums = sums.mul(runs["tokens"], axis="index").assign(tokens=runs["tokens"], **runs[keys]).groupby(keys).sum()
    means = sums[["loss", "evaluations"]].div(sums["tokens"], axis="index").assign(tokens=sums["tokens"]).reset_index()
    rows = [
        {"criterion": criterion} | row
        for criterion in runs["criterion"].unique()
        for row in _guaranteed(means[means["criterion"] == criterion], config, max_loops, seed)
    ]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("calibration") if name != "run"])


def _guaranteed(documents: pd.DataFrame, config: "CalibrationConfig", max_loops: int, seed: int) -> Iterator[dict]:
    """One row per guarantee about a criterion."""
    for epsilon in config.nats:
        bound = CLIP * epsilon
        clipped = documents.assign(clipped=documents["loss"].clip(0, bound))
        points = [rows for _, rows in clipped[clipped["part"] == "calibration"].groupby("point")]
        p_values = [betting(rows["clipped"].to_numpy() / bound, epsilon / bound, config.delta) for rows in points]
        evaluations = [np.average(rows["evaluations"], weights=rows["tokens"]) for rows in points]
        accepted = fixed_sequence(p_values, config.delta)
        index = int(np.argmin(evaluations[:accepted])) if accepted else -1
        row = {"epsilon": epsilon, "delta": config.delta, "units": len(points[0]), "point": index}
        row |= {"threshold": points[index]["threshold"].iloc[0] if accepted else np.nan}
        row |= {"p_value": p_values[max(index, 0)]}
        yield row | _report(clipped[clipped["part"] == "report"], index, epsilon, max_loops, seed)


def _report(documents: pd.DataFrame, index: int, epsilon: float, max_loops: int, seed: int) -> dict[str, object]:
    """Loss and savings of the point at `index` on the documents of the report; none at -1, where all loops are run."""
    number = {"report_documents": documents["document"].nunique()}
    if index < 0:
        return number | dict.fromkeys(MEASURED, 0.0) | {"verdict": NO_THRESHOLD}
    rows = documents[documents["point"] == index]
    loss, low, high = _mean(rows["clipped"], pd.Series(1.0, rows.index), seed)
    saved = _mean(1 - rows["evaluations"] / max_loops, rows["tokens"], seed)
    unclipped = np.average(rows["loss"], weights=rows["tokens"])
    measured = dict(zip(MEASURED, (loss, low, high, unclipped, *saved), strict=True))
    return number | measured | {"verdict": HOLDS if high <= epsilon else FAILS if low > epsilon else OPEN}


def _mean(values: pd.Series, weights: pd.Series, seed: int) -> tuple[float, float, float]:
    """A weighted mean over documents and its 95 % interval, which is NaN for one document."""
    units = pd.DataFrame({"sum": values * weights, "weight": weights}).to_numpy(np.float64)
    value = float(bootstrap.ratio_of_sums(units[None])[0])
    return value, *bootstrap.interval(bootstrap.ratio_of_sums, units, seed, units[:, 1])


@style.look()
def draw_calibration(calibration: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Against epsilon: (i) evaluations saved, (ii) loss over epsilon, which keeps the guarantee up to 1.

    One line per exit criterion, with 95 % intervals over documents. Panel (ii) has no point where no threshold could be
    guaranteed. Raises InputError for a table without rows.
    """
    style.check_rows("calibration", calibration)
    criteria = list(calibration["criterion"].unique())
    fixed = {"fixed": {"color": style.BLACK, "marker": "|"}} if "fixed" in criteria else {}
    looks = fixed | style.criterion_styles(criteria)
    figure = style.new_figure(style.DOUBLE, 2.8, context)
    saved, kept = figure.subplots(1, 2)
    _draw_lines(saved, calibration, "saved", looks)
    without = calibration["verdict"] == NO_THRESHOLD
    columns = ["loss", "loss_low", "loss_high"]
    losses = calibration[~without].copy()
    losses[columns] = losses[columns].div(losses["epsilon"], axis="index")
    _draw_lines(kept, losses, "loss", looks)
    kept.axhline(1, zorder=0, **GUARANTEED)
    if without.any():
        place = (calibration.loc[without, "epsilon"].min(), 0.03)
        saved.annotate("0 %: no threshold\nis guaranteed", place, ha="left", xytext=(14, 0), textcoords="offset points")
    for axes in (saved, kept):
        axes.set_xscale("log")
        axes.set_xlim(0.7 * calibration["epsilon"].min(), 1.4 * calibration["epsilon"].max())
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        style.label_powers(axes.xaxis)
        axes.set_xlabel("guaranteed: at most ε nats/token more (log scale)")
    saved.yaxis.set_major_formatter(PercentFormatter(1))
    style.name_panel(saved, 1, "evaluations saved", "evaluations saved")
    style.name_panel(kept, 2, "was the guarantee kept", "loss over ε, other documents")
    names = {name: "fixed loops" if name == "fixed" else criterion_name(name) for name in looks}
    handles = {names[name]: Line2D([], [], **look | {"linestyle": "-"}) for name, look in looks.items()}
    style.legend_above(figure, handles | {"guaranteed": Line2D([], [], **GUARANTEED)})
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame, name: str, looks: dict[str, dict]) -> None:
    """One line per criterion against epsilon, with its interval."""
    for number, (criterion, look) in enumerate(looks.items()):
        of_criterion = rows[rows["criterion"] == criterion].sort_values("epsilon")
        value = of_criterion[name]
        low, high = (of_criterion[f"{name}_{end}"].fillna(value) for end in ("low", "high"))
        indices = of_criterion["epsilon"] * 10 ** (DODGE * (number - (len(looks) - 1) / 2))
        bars = np.maximum([value - low, high - value], 0)
        axes.errorbar(indices, value, yerr=bars, elinewidth=0.6, **look)
