"""Figure 5: the cosine between consecutive loop steps over all loop steps, at every checkpoint."""

import pandas as pd
from matplotlib.figure import Figure

from twoscale.claims.geometry import LATE_STEPS
from twoscale.figures import style

COSINE = {"cosine": r"$\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$"}


@style.look()
def draw(loop_metrics: pd.DataFrame, *, reading: str = "state", context: style.FigureContext) -> Figure:
    """One panel per group; lines are means over tokens.

    Bands, `loop_metrics` and `reading` are as in Figure 3. The range in the paper, which is about late loop steps, is
    left out for a model without these.
    """
    groups = style.looped_groups(loop_metrics, "Figure 5")
    styles = style.checkpoint_palette(loop_metrics["iteration"], context)
    figure = style.new_figure(style.DOUBLE if len(groups) > 1 else style.SINGLE, 2.7, context)
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    ((measure, label),) = style.measures_read(loop_metrics, COSINE, reading).items()
    cosines = loop_metrics[loop_metrics["measure"] == measure]
    legend = style.seed_legend(cosines)
    for axes, group in zip(panels, groups, strict=True):
        if reading == "state" and context.loops > LATE_STEPS[-1]:  # the paper has no range for directions
            band = axes.axhspan(*style.REPORTED_COSINE, color=style.REPORTED_BAND, linewidth=0, zorder=0)
            legend = {style.REPORTED_LABEL: band} | legend
        style.checkpoint_lines(axes, cosines[cosines["group"] == group], styles, context)
        style.scale_loop_steps(axes, 1, context.loops - 1)
    style.title_groups(panels, groups)
    panels[0].set_ylabel(label, fontsize=style.SCRIPTED)
    style.limit_cosine(panels[0])
    style.checkpoint_legend(figure, styles, context, legend)
    return figure
