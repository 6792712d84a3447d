"""Figure 3, loop dynamics: norms and angles of the first loop steps at each checkpoint."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from twoscale.claims.geometry import LATE_STEPS
from twoscale.figures import style
from twoscale.figures.style import FigureContext

# The paper reads the decay off the first 5 to 10 steps (section 3); Figure 5 shows all of them.
_LAST_STEP = 15
COSINE = r"$\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$"
_ROWS = {"step_norm": r"(a)  step norm $\Vert\Delta^{(k)}\Vert_2$", "cosine": f"(b)  {COSINE}"}


@style.look()
def draw(loop_metrics: pd.DataFrame, *, reading: str = "state", context: FigureContext) -> Figure:
    """Two rows (measures) by one column per group; lines are means over tokens.

    The band is one standard deviation, or the range over seeds, at the last checkpoint.
    `loop_metrics` may have the run of the context under further seeds, too. `reading` is "state",
    or "direction" for steps of x / ||x||.
    """
    measures = style.measures_read(loop_metrics, _ROWS, reading)
    return draw_lines(loop_metrics, measures, (0, min(_LAST_STEP, context.loops - 1)), 4.0, context)


def draw_lines(
    table: pd.DataFrame,
    measures: Mapping[str, str],
    steps: tuple[int, int],
    height: float,
    context: FigureContext,
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
            rows = shown[(shown["group"] == group) & (shown["measure"] == measure)]
            style.checkpoint_lines(axes, rows, styles, context)
            if measure == "cosine" and steps[1] >= LATE_STEPS[-1]:
                look: style.Look = {"color": style.REPORTED_BAND, "linewidth": 0, "zorder": 0}
                late = LATE_STEPS[[0, -1]]
                reported = axes.fill_between(late, *style.REPORTED_COSINE, **look)
                legend[style.REPORTED_LABEL] = reported
        row[0].set_ylabel(label, fontsize=style.SCRIPTED)
        if is_norm:
            style.label_powers(row[0].yaxis)
        else:  # bands may have extended the range of a cosine
            row[0].set_ylim(*np.clip(row[0].get_ylim(), -1.05, 1.05))
    for axes in panels[-1]:
        style.scale_loop_steps(axes, *steps)
    style.checkpoint_legend(figure, styles, context, legend)
    return figure
