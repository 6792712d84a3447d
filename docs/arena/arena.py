"""Draw docs/arena.svg from the tables in this folder, each the table "arena" of one model.

python docs/examples/shortest_path.py … results/shortest_path && cp results/shortest_path/arena/edges/arena.parquet …
python docs/arena/arena.py
"""

from pathlib import Path

import pandas as pd
from matplotlib.lines import Line2D

from twoscale.config.criteria import criterion_name
from twoscale.figures import style
from twoscale.replay.arena import draw_gains

HERE = Path(__file__).parent
PANELS = {  # table -> title of its panel
    "solver_edges": "solver of shortest paths",
    "chains_until": "chains, to the end",
    "chains_count": "chains, to a given step",
    "imdb": "demo, IMDb",
    "recur3": "recur3, FineWeb",
    "core1recur4": "core1recur4, FineWeb",
}
TRAINED = {"imdb": 12, "recur3": 3, "core1recur4": 4}  # loop steps
COLOURS = {
    "step_norm": style.BLUE,
    "step_norm_relative": style.PURPLE,
    "cosine": style.BROWN,
    "kl": style.ORANGE,
    "entropy": style.BLACK,
    "acceleration": style.GREEN,
}

TRAINED_LOOK = {"color": style.GREY, "linestyle": ":", "linewidth": 0.8, "zorder": -1}

if __name__ == "__main__":
    with style.look():
        context = style.FigureContext("docs/arena", "see panels", 30, fewest_loops=12)
        figure = style.new_figure(style.DOUBLE, 4.4, context)
        panels = figure.subplots(2, len(PANELS) // 2, sharey=True)
        for place, (axes, (name, title)) in enumerate(
            zip(panels.flat, PANELS.items(), strict=True), start=1
        ):
            arena = pd.read_parquet(HERE / f"{name}.parquet")
            draw_gains(axes, arena, "random", COLOURS)
            style.name_panel(axes, place, title)
            if name in TRAINED:
                axes.axvline(TRAINED[name], **TRAINED_LOOK)
            axes.text(
                0.97,
                0.04,
                f"{arena['documents'].max()} documents",
                ha="right",
                transform=axes.transAxes,
            )
        for row in panels:
            row[0].set_ylabel("gain over random exits (nats)")
        for axes in panels[-1]:
            axes.set_xlabel("mean evaluations per token (log scale)")
        lines = {
            criterion_name(name): Line2D([], [], color=colour) for name, colour in COLOURS.items()
        }
        style.legend_above(figure, lines)
        style.save(figure, HERE.parent / "arena.svg")
