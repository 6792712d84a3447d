"""Predictions from the spectrum of a loop compared with the paths of tokens, and the figure of
both.

Tokens count if they have exact blocks and a fixed point. Intervals are bootstraps over documents.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap
from twoscale.figures import style
from twoscale.jobs.table_job import StudyJob, job_files

PREDICTIONS = ("leading", "prefix")  # eigenvalues
LEAST, MOST = {"correlation": -1.0, "difference": 0.0}, {"correlation": 1.0, "difference": np.inf}

DOT: style.Look = {
    "linestyle": "",
    "marker": "o",
    "markersize": 2.2,
    "markeredgewidth": 0,
    "alpha": 0.5,
    "rasterized": True,
}
LEADING = "0.72"  # colour of predictions from the leading eigenvalue
DASHES: dict[str, Any] = {"leading": (0, (3, 1.5)), "prefix": "-"}
DIAGONAL: style.Look = {"color": "0.5", "linewidth": 0.6, "zorder": 0}
MOST_DOTS = 2000  # of a group in one panel


@job_files(reads="tokens", writes="token_spectrum spectrum")
def run(job: StudyJob) -> None:
    """Write the tables "token_spectrum" and "spectrum"."""
    tokens = job.files["tokens"]
    job.write("token_spectrum", tables.read("token_spectrum", tokens[-1]))
    job.write("spectrum", agreement(tokens, job.config.run, job.config.seed))


# --- agreement ------------------------------------------------------------------------------------


def agreement(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "spectrum" from tables "token_spectrum", one per checkpoint."""
    rows = []
    for path in paths:
        tokens = tables.read("token_spectrum", path)
        tokens = tokens[tokens["exact"] & tokens["converged"]]
        for (iteration, group), of_group in tokens.groupby(["iteration", "group"], sort=False):
            for prediction in PREDICTIONS:
                for quantity in ("rate", "cosine"):
                    keys = {
                        "iteration": iteration,
                        "group": group,
                        "prediction": prediction,
                        "quantity": quantity,
                    }
                    rows.append(keys | _agreement(of_group, prediction, quantity, seed))
    return pd.DataFrame(rows, columns=list(tables.columns("spectrum"))).assign(run=run)


def predicted(tokens: pd.DataFrame, prediction: str, quantity: str) -> pd.Series:
    """A rate is the modulus of an eigenvalue; a cosine that of its angle, as on a circular
    spiral.
    """
    if quantity == "rate":
        return tokens[f"{prediction}_modulus"]
    return np.cos(tokens[f"{prediction}_angle"])


def _agreement(tokens: pd.DataFrame, prediction: str, quantity: str, seed: int) -> dict:
    """Columns of one row of the table "spectrum" from `tokens` on."""
    values = pd.DataFrame(
        {"predicted": predicted(tokens, prediction, quantity), "measured": tokens[quantity]}
    ).dropna()
    if values.empty:
        return {"tokens": 0}
    values = values.assign(leading=predicted(tokens, "leading", quantity)).astype(np.float64)
    differing = values[values["predicted"] != values["leading"]]
    gaps = [(differing[name] - differing["measured"]).abs() for name in ("predicted", "leading")]
    return compare(values.join(tokens["document"]), seed) | {"nearer": (gaps[0] < gaps[1]).mean()}


def compare(values: pd.DataFrame, seed: int) -> dict[str, float]:
    """Means, correlation and mean absolute difference with intervals: columns predicted, measured
    and document.
    """
    found = {
        "tokens": len(values),
        "predicted": values["predicted"].mean(),
        "measured": values["measured"].mean(),
    }
    # sums over the tokens of each document, (D, 7), with both columns about their means
    x, y = (values[name] - values[name].mean() for name in ("predicted", "measured"))
    terms = {"one": 1.0, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
    terms["gap"] = (values["predicted"] - values["measured"]).abs()
    units = (
        pd.DataFrame(terms, index=values.index)
        .groupby(values["document"])
        .sum()
        .to_numpy(np.float64)
    )
    for name, statistic in {"correlation": correlation, "difference": difference}.items():
        value = float(statistic(units[None])[0])
        with np.errstate(invalid="ignore"):
            low, high = bootstrap.interval(statistic, units, seed, units[:, 0])
        if not np.isfinite([value, low, high]).all():  # undefined, or undefined in a sample
            low, high = np.nan, np.nan
        found |= {
            name: value,
            f"{name}_low": max(low, LEAST[name]),
            f"{name}_high": min(high, MOST[name]),
        }
    return found


def correlation(samples: np.ndarray) -> np.ndarray:
    """Correlation over the tokens of sampled documents (R, D, 7), sums as in `compare` -> (R,); or
    NaN.
    """
    one, x, y, xx, yy, xy, _ = np.moveaxis(samples.sum(axis=1), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (xy - x * y / one) / np.sqrt((xx - x * x / one) * (yy - y * y / one))


def difference(samples: np.ndarray) -> np.ndarray:
    """Mean absolute difference over the tokens of sampled documents, sums (R, D, 7) -> (R,)."""
    total = samples.sum(axis=1)
    return total[:, 6] / total[:, 0]


def summary(spectrum: pd.DataFrame) -> str:
    """Rates and cosines in the table "spectrum" at its last checkpoint, in two sentences per
    group.
    """

    def words(row: pd.Series, prediction: str) -> str:
        return (
            f"{prediction} eigenvalue {row['predicted']:.2f} (correlation over tokens"
            f" {row['correlation']:.2f})"
        )

    last = spectrum[spectrum["iteration"] == spectrum["iteration"].max()]
    sentences = []
    for group, rows in last.groupby("group", sort=False):
        of = rows.set_index(["prediction", "quantity"])
        parts = [
            f"{quantity} {of.loc[('prefix', quantity), 'measured']:.2f}, "
            + ", ".join(
                words(of.loc[prediction, quantity], prediction)
                for prediction in ("prefix", "leading")
            )
            for quantity in ("rate", "cosine")
        ]
        sentences.append(
            f"Group {group.replace('-', '–')}, iteration {int(rows['iteration'].iloc[0])},"
            f" {int(rows['tokens'].max())} "
            f"tokens: {'; '.join(parts)}. Of the tokens for which the two eigenvalues differ, "
            f"{of.loc[('prefix', 'rate'), 'nearer']:.0%} have a rate nearer to the prefix"
            f" eigenvalue."
        )
    return " ".join(sentences)


# --- figure ---------------------------------------------------------------------------------------


@style.look()
def draw_spectrum(
    token_spectrum: pd.DataFrame, spectrum: pd.DataFrame, *, context: style.FigureContext
) -> Figure:
    """Eigenvalues, predicted against measured rates and cosines, and the error of predicted rates
    over training.

    Raises InputError for a table without a token that has exact blocks and a fixed point.
    """
    style.looped_groups(token_spectrum, "the spectrum")
    tokens = token_spectrum[token_spectrum["exact"] & token_spectrum["converged"]]
    if tokens.empty:
        raise InputError(
            "table token_spectrum: found no token with a fixed point, expected at least one;"
            " raise spectrum.steps."
        )
    groups = list(token_spectrum["group"].unique())
    looks = dict(zip(groups, style.series_styles(len(groups)), strict=True))
    parts = [(tokens[tokens["group"] == group], look["color"]) for group, look in looks.items()]
    # at most `MOST_DOTS` tokens of each group, evenly spaced, and its colour
    shown = [(rows.iloc[:: max(1, len(rows) // MOST_DOTS)], color) for rows, color in parts]
    figure = style.new_figure(style.DOUBLE, 5.0, context)
    panels = figure.subplots(2, 2).flatten()
    _draw_eigenvalues(panels[0], shown)
    _draw_predicted(
        panels[1], shown, "rate", ("modulus of the prefix eigenvalue", "measured rate"), (0, 1)
    )
    _draw_predicted(panels[2], shown, "cosine", ("cosine of its angle", "measured cosine"), (-1, 1))
    _draw_checkpoints(panels[3], spectrum, looks, context)
    titles = (
        "leading eigenvalues",
        "rate and prediction",
        "cosine and prediction",
        "error of the predicted rate",
    )
    for number, (axes, title) in enumerate(zip(panels, titles, strict=True), start=1):
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
    colours = {f"group {style.group_name(group)}": look["color"] for group, look in looks.items()}
    colours["(ii), (iii): leading eigenvalue instead of prefix"] = LEADING
    dots = {
        name: Line2D([], [], marker="o", linestyle="", color=color)
        for name, color in colours.items()
    }
    style.legend_above(figure, dots)
    return figure


Shown = list[tuple[pd.DataFrame, str]]  # the tokens of each group and its colour


def _draw_eigenvalues(axes: Axes, shown: Shown) -> None:
    """The leading eigenvalue of every token and its conjugate in the complex plane, with the unit
    circle.
    """
    turn = np.linspace(0, 2 * np.pi, 400)
    axes.plot(np.cos(turn), np.sin(turn), **DIAGONAL)
    for rows, color in shown:
        angle, modulus = rows["leading_angle"], rows["leading_modulus"]
        for sign in (1, -1):
            axes.plot(modulus * np.cos(angle), sign * modulus * np.sin(angle), color=color, **DOT)
    axes.set_aspect("equal")
    axes.set_xticks((-1, -0.5, 0, 0.5, 1))
    axes.set_yticks((-1, -0.5, 0, 0.5, 1))
    axes.set_xlabel("real part")
    axes.set_ylabel("imaginary part")


def _draw_predicted(
    axes: Axes, shown: Shown, quantity: str, labels: tuple[str, str], ends: tuple[float, float]
) -> None:
    """Measured against predicted by the prefix eigenvalue, and in grey by the leading one; they
    agree on a diagonal.
    """
    for prediction in PREDICTIONS:
        for rows, color in shown:
            shade = LEADING if prediction == "leading" else color
            axes.plot(predicted(rows, prediction, quantity), rows[quantity], color=shade, **DOT)
    axes.plot(ends, ends, **DIAGONAL)
    axes.set(xticks=np.linspace(*ends, 5), xlabel=labels[0], ylabel=labels[1])


def _draw_checkpoints(
    axes: Axes, spectrum: pd.DataFrame, looks: dict[str, dict], context: style.FigureContext
) -> None:
    """Mean absolute difference of predicted and measured rate over the checkpoints: leading dashed,
    prefix solid.
    """
    rates = spectrum[spectrum["quantity"] == "rate"]
    iterations = sorted(spectrum["iteration"].unique())
    places = style.scale_iterations(axes, iterations, context)
    for (group, prediction), rows in rates.groupby(["group", "prediction"], sort=False):
        rows = rows.set_index("iteration").reindex(iterations)
        color = looks[group]["color"]
        style.band(
            axes, places, rows["difference_low"], rows["difference_high"], color=color, alpha=0.12
        )
        axes.plot(
            places,
            rows["difference"],
            color=color,
            linestyle=DASHES[prediction],
            marker="o",
            markersize=2.5,
        )
    axes.set_ylabel("|measured − predicted|")
    axes.set_ylim(bottom=0)
    handles = [Line2D([], [], color=style.GREY, linestyle=dashes) for dashes in DASHES.values()]
    axes.legend(handles, [f"{prediction} eigenvalue" for prediction in DASHES])
