"""Figure 5: the cosine between consecutive loop steps over the whole budget, at every checkpoint."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twoscale.errors import InputError
from twoscale.figures import style

# Where the cosine settles in later checkpoints, as section 3 of the paper reports it.
REPORTED = (0.5, 0.65)


@style.look()
def draw(loops: pd.DataFrame, budget: int, run: str, text: str) -> Figure:
    """One panel per group; lines are means over tokens, bands one standard deviation.

    `loops` is the table "loop_metrics", `budget` the loop steps of every group. Raises InputError for a model
    without looped groups.
    """
    groups = list(loops["group"].unique())
    if not groups:
        raise InputError("config key model.groups: found no looped group, expected at least one for Figure 5.")
    styles = style.checkpoint_palette(loops["iteration"])
    figure = style.new_figure(style.DOUBLE if len(groups) > 1 else style.SINGLE, 2.7, run, text, budget)
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for number, (axes, group) in enumerate(zip(panels, groups, strict=True), start=1):
        band = axes.axhspan(*REPORTED, color="0.88", linewidth=0, zorder=0)
        style.checkpoint_lines(axes, loops[(loops["group"] == group) & (loops["measure"] == "cosine")], styles)
        axes.set_title(f"{style.panel_number(number)}  group {style.group_name(group)}")
        axes.set_xlabel("loop step $k$")
        axes.set_xlim(1, budget - 1)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    panels[0].set_ylabel(r"$\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$")
    style.limit_cosine(panels[0])
    style.checkpoint_legend(figure, styles, {"paper: {}–{}".format(*REPORTED): band})
    return figure
