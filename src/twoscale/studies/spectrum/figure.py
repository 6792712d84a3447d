"""Supplementary figure, the spectrum of a loop: eigenvalues at the fixed point against what paths of tokens do."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.base import InputError
from twoscale.figures import style

DOT: style.Look = {"linestyle": "", "markersize": 2.2, "markeredgewidth": 0, "alpha": 0.5, "rasterized": True}
DIAMOND: style.Look = DOT | {"marker": "D", "markerfacecolor": "none", "markeredgewidth": 0.5}
LEADING = "0.72"  # colour of predictions from the leading eigenvalue
DIAGONAL: style.Look = {"color": "0.5", "linewidth": 0.6, "zorder": 0}
MOST_DOTS = 2000  # of a group in one panel


@style.look()
def draw(token_spectrum: pd.DataFrame, spectrum: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Eigenvalues, predicted against measured rates and cosines, the two causal tests, and slow positions.

    Args:
        token_spectrum: Table of this name, of the last checkpoint.
        spectrum: Table of this name.
        context: Its loop steps K are the most to a fixed point.

    Tokens without a fixed point, but with a direction that has a limit, are open diamonds in the first two panels.

    Raises InputError for a table without a token that has exact blocks and either.
    """
    style.looped_groups(token_spectrum, "the spectrum")
    tokens = token_spectrum[token_spectrum["exact"] & token_spectrum["converged"]]
    drifting = token_spectrum[token_spectrum["exact"] & ~token_spectrum["converged"]].dropna(subset="direction_modulus")
    if tokens.empty and drifting.empty:
        raise InputError(
            "table token_spectrum: found no token with a fixed point, and none whose direction converges, expected at "
            "least one; raise spectrum.steps."
        )
    groups = list(token_spectrum["group"].unique())
    looks = dict(zip(groups, style.series_styles(len(groups)), strict=True))
    figure = style.new_figure(style.DOUBLE, 5.0, context)
    panels = figure.subplots(2, 3).flatten()
    _draw_eigenvalues(panels[0], tokens, looks)
    _draw_directions(panels, drifting, looks)
    _draw_predicted(panels[1], tokens, looks, "modulus", lambda modulus: modulus, "rate")
    _square(panels[1], "modulus of the prefix eigenvalue", "measured rate", 0, 1)
    _draw_predicted(panels[2], tokens, looks, "angle", np.cos, "cosine")
    _square(panels[2], "cosine of its angle", "measured cosine", -1, 1)
    _draw_causal(panels[3], tokens, looks)
    _draw_positions(panels[4], tokens, looks)
    _draw_checkpoints(panels[5], spectrum, looks, context)
    titles = (
        *("leading eigenvalues", "rate and prediction", "cosine and prediction"),
        *("causal tests", "slowest earlier token", "error of the predicted rate"),
    )
    for number, (axes, title) in enumerate(zip(panels, titles, strict=True), start=1):
        axes.set_title(f"{style.panel_number(number)}  {title}", loc="left")
    _add_legend(figure, looks, has_directions=not drifting.empty)
    return figure


def _by_group(tokens: pd.DataFrame, looks: dict[str, dict]) -> list[tuple[pd.DataFrame, str]]:
    """At most `MOST_DOTS` rows of each group, evenly spaced, and its colour."""
    found = [(tokens[tokens["group"] == group], look["color"]) for group, look in looks.items()]
    return [(rows.iloc[:: max(1, len(rows) // MOST_DOTS)], color) for rows, color in found]


def _draw_eigenvalues(axes: Axes, tokens: pd.DataFrame, looks: dict[str, dict]) -> None:
    """The leading eigenvalue of every token and its conjugate in the complex plane, with the unit circle."""
    turn = np.linspace(0, 2 * np.pi, 400)
    axes.plot(np.cos(turn), np.sin(turn), **DIAGONAL)
    for rows, color in _by_group(tokens, looks):
        angle, modulus = rows["leading_angle"], rows["leading_modulus"]
        for sign in (1, -1):
            axes.plot(modulus * np.cos(angle), sign * modulus * np.sin(angle), marker="o", color=color, **DOT)
    axes.set_aspect("equal")
    axes.set_xticks((-1, -0.5, 0, 0.5, 1))
    axes.set_yticks((-1, -0.5, 0, 0.5, 1))
    axes.set_xlabel("real part")
    axes.set_ylabel("imaginary part")


def _draw_directions(panels: Sequence[Axes], drifting: pd.DataFrame, looks: dict[str, dict]) -> None:
    """Eigenvalues of the map on directions, and the rate of directions against the largest modulus of them."""
    for rows, color in _by_group(drifting, looks) if len(drifting) else ():
        angle, modulus = rows["direction_angle"], rows["direction_modulus"]
        panels[0].plot(modulus * np.cos(angle), modulus * np.sin(angle), color=color, **DIAMOND)
        panels[1].plot(rows["direction_prefix_modulus"], rows["direction_rate"], color=color, **DIAMOND)


def _draw_predicted(
    axes: Axes, tokens: pd.DataFrame, looks: dict[str, dict], part: str, predict: Callable, measured: str
) -> None:
    """The column `measured` against what a part of the prefix eigenvalue predicts, and in grey the leading one."""
    for rows, _ in _by_group(tokens, looks):
        axes.plot(predict(rows[f"leading_{part}"]), rows[measured], marker="o", color=LEADING, **DOT)
    for rows, color in _by_group(tokens, looks):
        axes.plot(predict(rows[f"prefix_{part}"]), rows[measured], marker="o", color=color, **DOT)


def _draw_causal(axes: Axes, tokens: pd.DataFrame, looks: dict[str, dict]) -> None:
    """Rate with earlier tokens held against the leading modulus; with one token slowed against the largest modulus."""
    for rows, color in _by_group(tokens, looks):
        axes.plot(rows["leading_modulus"], rows["isolated_rate"], marker="o", color=color, **DOT)
        axes.plot(
            rows["slowed_modulus"], rows["slowed_rate"], marker="x", color=color, **DOT | {"markeredgewidth": 0.6}
        )
    _square(axes, "predicted modulus", "measured rate", 0, 1)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=style.GREY),
        Line2D([], [], marker="x", linestyle="", color=style.GREY),
    ]
    axes.legend(handles, ["earlier tokens held", "one token slowed"], loc="upper left")


def _draw_positions(axes: Axes, tokens: pd.DataFrame, looks: dict[str, dict]) -> None:
    """Leading modulus (thin) and prefix modulus (thick) against the position, means over sequences."""
    for group, look in looks.items():
        means = (
            tokens[tokens["group"] == group].groupby("position")[["leading_modulus", "prefix_modulus", "rate"]].mean()
        )
        axes.plot(means.index, means["leading_modulus"], color=look["color"], linewidth=0.5, alpha=0.6)
        axes.plot(means.index, means["prefix_modulus"], color=look["color"], linewidth=1.4)
    axes.set_xlabel("position in the sequence")
    axes.set_ylabel("modulus, mean over sequences")
    axes.set_ylim(0, 1)
    handles = [Line2D([], [], color=style.GREY, linewidth=width) for width in (0.5, 1.4)]
    axes.legend(handles, ["leading eigenvalue", "prefix eigenvalue"], loc="upper left")


def _draw_checkpoints(axes: Axes, spectrum: pd.DataFrame, looks: dict[str, dict], context: style.FigureContext) -> None:
    """Mean absolute difference of predicted and measured rate over the checkpoints: leading dashed, prefix solid."""
    rates = spectrum[(spectrum["quantity"] == "rate") & spectrum["prediction"].isin(["leading", "prefix"])]
    iterations = sorted(spectrum["iteration"].unique())
    places = style.scale_iterations(axes, iterations, context)
    for (group, prediction), rows in rates.groupby(["group", "prediction"], sort=False):
        rows = rows.set_index("iteration").reindex(iterations)
        color, dashes = looks[group]["color"], "-" if prediction == "prefix" else (0, (3, 1.5))
        style.band(axes, places, rows["difference_low"], rows["difference_high"], color=color, alpha=0.12)
        axes.plot(places, rows["difference"], color=color, linestyle=dashes, marker="o", markersize=2.5)
    axes.set_ylabel("|measured − predicted|")
    axes.set_ylim(bottom=0)
    handles = [Line2D([], [], color=style.GREY, linestyle=dashes) for dashes in ((0, (3, 1.5)), "-")]
    axes.legend(handles, ["leading eigenvalue", "prefix eigenvalue"])


def _square(axes: Axes, x: str, y: str, low: float, high: float) -> None:
    """Labels, and the diagonal on which prediction and measurement agree."""
    axes.plot([low, high], [low, high], **DIAGONAL)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _add_legend(figure: Figure, looks: dict[str, dict], has_directions: bool) -> None:
    handles = [Line2D([], [], marker="o", linestyle="", color=look["color"]) for look in looks.values()]
    names = [f"group {style.group_name(group)}" for group in looks]
    handles.append(Line2D([], [], marker="o", linestyle="", color=LEADING))
    names.append("(ii), (iii): leading eigenvalue instead of prefix")
    if has_directions:
        handles.append(Line2D([], [], color=style.GREY, **DIAMOND))
        names.append("map on directions")
    figure.legend(handles, names, loc="outside upper center", ncols=len(handles))
