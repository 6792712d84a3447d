"""Figure 3, loop dynamics: step norms and step angles of the first loop steps, checkpoint by checkpoint."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twoscale.errors import InputError
from twoscale.figures import style

# The paper reads the decay off the first 5 to 10 steps (section 3); Figure 5 shows all of them.
LAST_STEP = 15

ROWS = {
    "step_norm": r"(a)  step norm $\Vert\Delta^{(k)}\Vert_2$",
    "cosine": r"(b)  $\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$",
}


@style.look()
def draw(loops: pd.DataFrame, budget: int, run: str, text: str) -> Figure:
    """Two rows (measures) by one column per group; lines are means over tokens, bands one standard deviation.

    `loops` is the table "loop_metrics", `budget` the loop steps of every group. Raises InputError for a model
    without looped groups.
    """
    groups = list(loops["group"].unique())
    if not groups:
        raise InputError("config key model.groups: found no looped group, expected at least one for Figure 3.")
    styles = style.checkpoint_palette(loops["iteration"])
    figure = style.new_figure(style.DOUBLE if len(groups) > 1 else style.SINGLE, 4.0, run, text, budget)
    panels = figure.subplots(len(ROWS), len(groups), sharex=True, sharey="row", squeeze=False)
    panels[0, 0].set_yscale("log", nonpositive="mask")
    shown = loops[loops["k"] <= LAST_STEP]
    for row, (measure, label) in zip(panels, ROWS.items(), strict=True):
        for axes, group in zip(row, groups, strict=True):
            style.checkpoint_lines(axes, shown[(shown["group"] == group) & (shown["measure"] == measure)], styles)
        row[0].set_ylabel(label)
    style.limit_cosine(panels[-1, 0])
    for number, (axes, group) in enumerate(zip(panels[0], groups, strict=True), start=1):
        axes.set_title(f"{style.panel_number(number)}  group {style.group_name(group)}")
    for axes in panels[-1]:
        axes.set_xlabel("loop step $k$")
        axes.set_xlim(0, min(LAST_STEP, budget - 1))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    style.checkpoint_legend(figure, styles)
    return figure
