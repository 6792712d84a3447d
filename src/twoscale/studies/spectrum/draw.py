"""Predictions from the spectrum of a loop compared with the paths of tokens, and the figure of
both.

Tokens count if they have exact blocks and a fixed point. Intervals are bootstraps over documents.
"""

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims.bootstrap import document_sums, estimates, per_token
from twoscale.figures import style
from twoscale.jobs.table_job import TableJob, job_files

_PREDICTIONS: dict[str, Any] = {
    "leading": (0, (3, 1.5)),
    "prefix": "-",
}  # eigenvalues, and their dashes
_LEADING = "0.72"  # colour of predictions from the leading eigenvalue
_DOT: style.Look = {
    "linestyle": "",
    "marker": "o",
    "markersize": 2.2,
    "markeredgewidth": 0,
    "alpha": 0.5,
    "rasterized": True,
}
_DIAGONAL: style.Look = {"color": "0.5", "linewidth": 0.6, "zorder": 0}
_MOST_DOTS = 2000  # of a group in one panel


@job_files(reads="tokens", writes="token_spectrum spectrum")
def run(job: TableJob) -> None:
    """Write the tables "token_spectrum" and "spectrum"."""
    tokens = job.files["tokens"]
    job.write("token_spectrum", tables.read("token_spectrum", tokens[-1]))
    job.write("spectrum", agreement(tokens, job.config.run, job.config.seed))


# --- agreement ------------------------------------------------------------------------------------


def agreement(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "spectrum" from tables "token_spectrum", one per checkpoint."""
    rows = []
    for path in paths:
        # eigenvalues are known in exact sequences only, and mean something at a fixed point
        tokens = tables.read("token_spectrum", path).query("exact and converged")
        cells = tokens.groupby(["iteration", "group"], sort=False)
        for (key, of_group), prediction in product(cells, _PREDICTIONS):
            for quantity in ("rate", "cosine"):
                names = ("iteration", "group", "prediction", "quantity")
                keys = dict(zip(names, (*key, prediction, quantity), strict=True))
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
    columns = {"predicted": predicted(tokens, prediction, quantity), "measured": tokens[quantity]}
    values = pd.DataFrame(columns).dropna()
    if values.empty:
        return {"tokens": 0}
    # the same prediction from the leading eigenvalue, for `nearer`
    values = values.assign(leading=predicted(tokens, "leading", quantity)).astype(np.float64)
    found = compare(values.join(tokens["document"]), seed)
    # where both eigenvalues are the same, neither prediction is nearer
    differing = values[values["predicted"] != values["leading"]]
    gap = (differing["predicted"] - differing["measured"]).abs()
    gap_of_leading = (differing["leading"] - differing["measured"]).abs()
    return found | {"nearer": (gap < gap_of_leading).mean()}


def compare(values: pd.DataFrame, seed: int) -> dict[str, float]:
    """Means, correlation, and mean absolute difference with its interval over documents.

    `values` has the columns predicted, measured and document.
    """
    pair = values[["predicted", "measured"]]
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = pair["predicted"].corr(pair["measured"])
    gap = (pair["predicted"] - pair["measured"]).abs()
    units = document_sums(values.assign(gap=gap, tokens=1), ["gap"])  # (D, 2)
    ((difference, low, high),) = estimates(per_token, units, units[:, 1], seed)
    return {
        "tokens": len(values),
        **pair.mean(),
        "correlation": correlation,
        "difference": difference,
        "difference_low": max(low, 0.0),  # NaN stays
        "difference_high": high,
    }


def summary(spectrum: pd.DataFrame) -> str:
    """Rates and cosines in the table "spectrum" at its last checkpoint, in two sentences per
    group.
    """
    last = spectrum[spectrum["iteration"] == spectrum["iteration"].max()]
    sentences = []
    for group, rows in last.groupby("group", sort=False):
        parts = []
        for quantity, of in rows.groupby("quantity", sort=False):
            prefix, leading = (
                f"{row.prediction} eigenvalue {row.predicted:.2f} (correlation over tokens"
                f" {row.correlation:.2f})"
                for row in of[::-1].itertuples()
            )
            parts.append(f"{quantity} {of['measured'].iloc[-1]:.2f}, {prefix}, {leading}")
        of_prefix = rows.query("prediction == 'prefix' and quantity == 'rate'").iloc[0]
        sentences.append(
            f"Group {group.replace('-', '–')}, iteration {of_prefix['iteration']},"
            f" {rows['tokens'].max()} tokens: {'; '.join(parts)}. Of the tokens for which the two"
            f" eigenvalues differ, {of_prefix['nearer']:.0%} have a rate nearer to the prefix"
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
    groups = style.looped_groups(token_spectrum, "the spectrum")
    tokens = token_spectrum.query("exact and converged")
    if tokens.empty:
        raise InputError(
            "table token_spectrum: found no token with a fixed point, expected at least one;"
            " raise spectrum.steps."
        )
    looks = style.series_styles(len(groups))
    colors = {group: look["color"] for group, look in zip(groups, looks, strict=True)}
    shown = []
    for group, color in colors.items():
        rows = tokens[tokens["group"] == group]
        shown.append((rows[:: max(1, len(rows) // _MOST_DOTS)], color))  # evenly spaced tokens
    figure = style.new_figure(style.DOUBLE, 5.0, context)
    panels = figure.subplots(2, 2).flatten()
    _draw_eigenvalues(panels[0], shown)
    _draw_predicted(panels[1], shown, "rate", (0, 1))
    _draw_predicted(panels[2], shown, "cosine", (-1, 1))
    _draw_checkpoints(panels[3], spectrum, colors, context)
    style.name_panel(panels[0], 1, "leading eigenvalues", "imaginary part")
    style.name_panel(panels[1], 2, "rate and prediction", "measured rate")
    style.name_panel(panels[2], 3, "cosine and prediction", "measured cosine")
    style.name_panel(panels[3], 4, "error of the predicted rate", "|measured − predicted|")
    panels[1].set_xlabel("modulus of the prefix eigenvalue")
    panels[2].set_xlabel("cosine of its angle")
    handles = style.group_handles({group: _mark(color) for group, color in colors.items()})
    handles["(ii), (iii): leading eigenvalue instead of prefix"] = Line2D([], [], **_mark(_LEADING))
    style.legend_above(figure, handles)
    return figure


def _mark(color: str) -> style.Look:
    return {"marker": "o", "linestyle": "", "color": color}


_Shown = list[tuple[pd.DataFrame, str]]  # the tokens of each group and its colour


def _draw_eigenvalues(axes: Axes, shown: _Shown) -> None:
    """The leading eigenvalue of every token and its conjugate in the complex plane, with the unit
    circle.
    """
    turn = np.linspace(0, 2 * np.pi, 400)
    axes.plot(np.cos(turn), np.sin(turn), **_DIAGONAL)
    for rows, color in shown:
        angle, modulus = rows["leading_angle"], rows["leading_modulus"]
        for sign in (1, -1):
            axes.plot(modulus * np.cos(angle), sign * modulus * np.sin(angle), color=color, **_DOT)
    axes.set_aspect("equal")
    ticks = (-1, -0.5, 0, 0.5, 1)
    axes.set(xticks=ticks, yticks=ticks, xlabel="real part")


def _draw_predicted(axes: Axes, shown: _Shown, quantity: str, ends: tuple[float, float]) -> None:
    """Measured against predicted by the prefix eigenvalue, and in grey by the leading one; they
    agree on a diagonal.
    """
    for prediction in _PREDICTIONS:
        for rows, color in shown:
            shade = _LEADING if prediction == "leading" else color
            axes.plot(predicted(rows, prediction, quantity), rows[quantity], color=shade, **_DOT)
    axes.plot(ends, ends, **_DIAGONAL)
    axes.set_xticks(np.linspace(*ends, 5))


def _draw_checkpoints(
    axes: Axes, spectrum: pd.DataFrame, colors: dict[str, str], context: style.FigureContext
) -> None:
    """Mean absolute difference of predicted and measured rate over the checkpoints: leading dashed,
    prefix solid.
    """
    iterations = sorted(spectrum["iteration"].unique())
    places = style.scale_iterations(axes, iterations, context)
    rates = spectrum[spectrum["quantity"] == "rate"]
    for (group, prediction), rows in rates.groupby(["group", "prediction"], sort=False):
        rows = rows.set_index("iteration").reindex(iterations)
        look: style.Look = {"color": colors[group], "marker": "o", "markersize": 2.5}
        low, high = rows["difference_low"], rows["difference_high"]
        style.band(axes, places, low, high, color=colors[group], alpha=0.12)
        axes.plot(places, rows["difference"], linestyle=_PREDICTIONS[prediction], **look)
    axes.set_ylim(bottom=0)
    # the legend names the dashes only: the colours of the groups are those of the other panels
    handles = []
    names = []
    for prediction, dashes in _PREDICTIONS.items():
        handles.append(Line2D([], [], color=style.GREY, linestyle=dashes))
        names.append(f"{prediction} eigenvalue")
    axes.legend(handles, names)
