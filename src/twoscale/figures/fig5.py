"""Figure 5: the cosine between consecutive loop steps over all loop steps, at every checkpoint."""

import pandas as pd
from matplotlib.figure import Figure

from twoscale.figures import style
from twoscale.figures.fig3 import COSINE, draw_lines


@style.look()
def draw(
    loop_metrics: pd.DataFrame, *, reading: str = "state", context: style.FigureContext
) -> Figure:
    """One panel per group; lines are means over tokens.

    Bands, `loop_metrics` and `reading` are as in Figure 3. The range in the paper is about states;
    it is left out for directions.
    """
    measures = style.measures_read(loop_metrics, {"cosine": COSINE}, reading)
    return draw_lines(loop_metrics, measures, (1, context.loops - 1), 2.8, context)
