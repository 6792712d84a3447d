"""Figure 3, loop dynamics: norms and angles of the first loop steps at each checkpoint."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from twoscale.claims.regime import FLOOR_UNITS
from twoscale.figures import style
from twoscale.figures.style import FigureContext

COSINE = r"$\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$"
_ROWS = {"step_norm": r"(a)  step norm $\Vert\Delta^{(k)}\Vert_2$", "cosine": f"(b)  {COSINE}"}
_FLOOR: style.Look = {"color": style.GREY, "linewidth": 1.2, "linestyle": (0, (1, 1)), "zorder": 1}


@style.look()
def draw(
    loop_metrics: pd.DataFrame,
    *,
    reading: str = "state",
    dtype: str | None = None,
    context: FigureContext,
) -> Figure:
    """Two rows (measures) by one column per group; lines are means over tokens.

    The band is one standard deviation, or the range over seeds, at the last checkpoint.
    `loop_metrics` may have the run of the context under further seeds, too. `reading` is "state",
    or "direction" for steps of x / ||x||. `dtype` is that of the states, if it is known: a line
    shows the norm up to which a step is rounding.
    """
    measures = style.measures_read(loop_metrics, _ROWS, reading)
    return draw_lines(loop_metrics, measures, (0, context.loops - 1), 4.3, context, dtype)


def draw_lines(
    table: pd.DataFrame,
    measures: Mapping[str, str],
    steps: tuple[int, int],
    height: float,
    context: FigureContext,
    dtype: str | None = None,
) -> Figure:
    """Panels (measures, groups) of lines over `steps`, first and last.

    A figure of one group is higher, for its legend.
    """
    groups = style.looped_groups(table, "Figures 3 and 5")
    styles = style.checkpoint_palette(table["iteration"], context)
    legend = style.band_legend(table)
    size = (style.DOUBLE, height) if len(groups) > 1 else (style.SINGLE, height + 0.7)
    figure = style.new_figure(*size, context)
    panels = figure.subplots(len(measures), len(groups), sharex=True, sharey="row", squeeze=False)
    style.title_groups(panels[0], groups)
    shown = table[table["k"] <= steps[1]]
    for row, (measure, label) in zip(panels, measures.items(), strict=True):
        is_norm = measure.endswith("norm")
        if is_norm:
            row[0].set_yscale("log", nonpositive="mask")
        for axes, group in zip(row, groups, strict=True):
            of_group = shown[shown["group"] == group]
            rows = of_group[of_group["measure"] == measure]
            most = np.inf if is_norm else 1
            style.checkpoint_lines(axes, rows, styles, context, most)
            if is_norm and dtype is not None:
                last = of_group[of_group["iteration"] == max(styles)]
                floor = rounding_floor(style.of_run(last, context), measure, dtype)
                (line,) = axes.plot(floor.index, floor, **_FLOOR)
                legend[f"rounding floor, {dtype}"] = line
            if measure == "cosine":
                legend |= style.mark_reported(axes)
        row[0].set_ylabel(label, fontsize=style.SCRIPTED)
        if is_norm:
            style.label_powers(row[0].yaxis)
        else:  # a line near the bound of a cosine is not at the edge
            row[0].set_ylim(*np.clip(row[0].get_ylim(), -1.05, 1.05))
    for axes in panels[-1]:
        style.scale_loop_steps(axes, *steps)
    style.checkpoint_legend(figure, styles, context, legend)
    return figure


def rounding_floor(rows: pd.DataFrame, measure: str, dtype: str) -> pd.Series:
    """Step norm by k up to which a step is rounding, 16 eps ||x^k||.

    `rows` are those of one checkpoint and group of "loop_metrics". A direction has norm 1.
    """
    norms = rows[rows["measure"] == "state_norm"].set_index("k")["mean"]
    if measure.startswith("direction"):
        norms = norms * 0 + 1
    return FLOOR_UNITS * np.finfo(dtype).eps * norms
