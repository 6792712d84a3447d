"""Figure 2, cross-block drift: the drift-to-loop ratio at each boundary over training."""

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.base import InputError
from twoscale.figures import style

_REFERENCE_STATE_NAMES = {
    "first_state": "next group's first state",
    "projected": "next group's projected start",
    "final": "next group's last state",
    "initial": "next group's initial state",
}
# Around the only group of a model: after the boundary there is the core or the coda.
_AROUND_CORE_NAMES = {
    "first_state": "first state after the boundary",
    "projected": "input of the first layer after the boundary",
    "final": "last state after the boundary",
    "initial": "core's initial state",
}


@style.look()
def draw(drift: pd.DataFrame, *, reference_state: str, context: style.FigureContext) -> Figure:
    """Mean over tokens of equation 2 at each checkpoint, with a band.

    The band is one standard deviation, or the range of seeds. The boundaries are those between
    groups, or those around the only group. A published model has one checkpoint: its boundaries are
    side by side. `drift` may have the run of the context under further seeds, too; the ratio grows
    with its loop steps K. Raises InputError for a model without looped groups and for an unknown
    reference state.
    """
    every_seed = _ratios(drift, reference_state)
    figure = style.new_figure(style.SINGLE, 2.8, context)
    axes = figure.subplots()
    wide = every_seed["mean"].max() > 10 * every_seed["mean"].min()
    axes.set_yscale("log" if wide else "linear")
    shown = style.with_spread(every_seed, "iteration", context, wide)
    boundaries = list(map(style.group_name, shown["boundary"].unique()))
    shown["boundary"] = shown["boundary"].map(style.group_name)
    looks = dict(zip(boundaries, style.series_styles(len(boundaries)), strict=True))
    handles: dict[str, Artist] = {}
    if context.published:
        bars = {"estimator": style.SPREAD["estimator"], "errorbar": style.SPREAD["errorbar"]}
        sns.pointplot(shown, x="boundary", y="value", linestyle="none", ax=axes, **bars)
    else:
        _draw_course(axes, shown, looks, style.band_alpha(every_seed))
        style.scale_iterations(axes, shown["iteration"].unique(), context, upright=True)
        handles = {boundary: Line2D([], [], **look) for boundary, look in looks.items()}
    threshold = axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)))
    if not wide:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"drift-to-loop ratio, $K = {context.loops_label}$ loops")

    handles |= {"DLR = 1": threshold} | style.band_legend(every_seed)
    around_core = drift["boundary"].str.contains("prelude|embedding").any()
    names = _AROUND_CORE_NAMES if around_core else _REFERENCE_STATE_NAMES
    title = f"jump to the {names.get(reference_state, reference_state)}"
    options: style.Look = {"title": title, "alignment": "left"}
    if context.published:  # points at few places: a legend inside would hide one
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", **options)
    else:
        axes.legend(handles.values(), handles.keys(), **options)
    return figure


def _draw_course(
    axes: Axes, ratios: pd.DataFrame, looks: Mapping[str, style.Look], alpha: float
) -> None:
    """One line per boundary over the checkpoints."""
    course = ratios["iteration"].nunique() > 1
    bands: style.Look = {"err_style": "band", "err_kws": {"alpha": alpha, "linewidth": 0}}
    sns.lineplot(
        ratios,
        x="iteration",
        y="value",
        markeredgecolor="auto",
        ax=axes,
        **(bands if course else {"err_style": "bars"}),
        **style.SPREAD,
        **style.semantics("boundary", looks),
    )


def _ratios(drift: pd.DataFrame, reference_state: str) -> pd.DataFrame:
    """The rows of the drift-to-loop ratio with this reference state."""
    if drift.empty:
        raise InputError(
            "config key model.groups: found no looped group, expected at least one for Figure 2."
        )
    measured = drift[(drift["measure"] == "dlr") & (drift["count"] > 0)]
    known = list(measured["reference_state"].unique())
    if reference_state not in known:
        raise InputError(
            f"config key figures.dlr_reference_state: found '{reference_state}', expected one of"
            f" {', '.join(known)}."
        )
    return measured[measured["reference_state"] == reference_state]
