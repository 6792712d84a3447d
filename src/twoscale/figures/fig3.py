"""Figure 3, loop dynamics: step norms and step angles of the first loop steps, checkpoint by checkpoint."""

import pandas as pd
from matplotlib.figure import Figure

from twoscale.figures import style

# The paper reads the decay off the first 5 to 10 steps (section 3); Figure 5 shows all of them.
LAST_STEP = 15

ROWS = {
    "step_norm": r"(a)  step norm $\Vert\Delta^{(k)}\Vert_2$",
    "cosine": r"(b)  $\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$",
}


@style.look()
def draw(loop_metrics: pd.DataFrame, *, reading: str = "state", context: style.FigureContext) -> Figure:
    """Two rows (measures) by one column per group; lines are means over tokens.

    The band is one standard deviation, or the range over seeds, at the last checkpoint. `loop_metrics` may have the run
    of the context under further seeds, too. `reading` is "state", or "direction" for steps of x / ||x||.
    """
    groups = style.looped_groups(loop_metrics, "Figure 3")
    styles = style.checkpoint_palette(loop_metrics["iteration"], context)
    figure = style.new_figure(style.DOUBLE if len(groups) > 1 else style.SINGLE, 4.0, context)
    panels = figure.subplots(len(ROWS), len(groups), sharex=True, sharey="row", squeeze=False)
    panels[0, 0].set_yscale("log", nonpositive="mask")
    visible = loop_metrics[loop_metrics["k"] <= LAST_STEP]
    for row, (measure, label) in zip(panels, style.measures_read(loop_metrics, ROWS, reading).items(), strict=True):
        for axes, group in zip(row, groups, strict=True):
            rows = visible[(visible["group"] == group) & (visible["measure"] == measure)]
            style.checkpoint_lines(axes, rows, styles, context)
        row[0].set_ylabel(label, fontsize=style.SCRIPTED)
    style.label_powers(panels[0, 0].yaxis)
    style.limit_cosine(panels[-1, 0])
    style.title_groups(panels[0], groups)
    for axes in panels[-1]:
        style.scale_loop_steps(axes, 0, min(LAST_STEP, context.loops - 1), ticks=5)
    style.checkpoint_legend(figure, styles, context, style.seed_legend(loop_metrics))
    return figure
