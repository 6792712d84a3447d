"""Figure 2, cross-block drift: the drift-to-loop ratio at each boundary over training."""

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    shown["boundary"] = shown["boundary"].map(style.group_name)
    if context.published:
        _draw_boundaries(axes, shown)
    else:
        _draw_course(axes, shown)
        style.scale_iterations(axes, shown["iteration"].unique(), context, upright=True)
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)), label="DLR = 1")
    if not wide:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"drift-to-loop ratio, $K = {context.loops_label}$ loops")

    around_core = drift["boundary"].str.contains("prelude|embedding").any()
    names = _AROUND_CORE_NAMES if around_core else _REFERENCE_STATE_NAMES
    bands = style.band_legend(every_seed)
    handles, labels = axes.get_legend_handles_labels()
    options: style.Look = {
        "handles": [*handles, *bands.values()],
        "labels": [*labels, *bands],
        "title": f"jump to the {names.get(reference_state, reference_state)}",
        "alignment": "left",
    }
    if context.published:  # points at few places: a legend inside would hide one
        figure.legend(**options, loc="outside upper center")
    else:
        axes.legend(**options)
    return figure


def _draw_course(axes: Axes, ratios: pd.DataFrame) -> None:
    """One line per boundary over the checkpoints; the band of a single one is a bar."""
    boundaries = list(ratios["boundary"].unique())
    looks = dict(zip(boundaries, style.series_styles(len(boundaries)), strict=True))
    is_course = ratios["iteration"].nunique() > 1
    sns.lineplot(
        ratios,
        x="iteration",
        y="value",
        markeredgecolor="auto",
        ax=axes,
        **(style.BANDS if is_course else {"err_style": "bars"}),
        **style.SPREAD,
        **style.semantics("boundary", looks),
    )


def _draw_boundaries(axes: Axes, ratios: pd.DataFrame) -> None:
    """One point per boundary, in the order of the model."""
    sns.pointplot(
        ratios,
        x="boundary",
        y="value",
        estimator=style.SPREAD["estimator"],
        errorbar=style.SPREAD["errorbar"],
        err_kws={"linewidth": 1},
        color=style.BLUE,
        linestyle="none",
        markersize=5,
        ax=axes,
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
