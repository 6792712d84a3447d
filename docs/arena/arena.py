"""Draw docs/arena.svg from the tables in this folder, each the table "arena" of one model.

python docs/examples/shortest_path.py … results/shortest_path && cp results/shortest_path/arena/edges/arena.parquet …
python docs/arena/arena.py
"""

from pathlib import Path

import pandas as pd
from matplotlib.lines import Line2D

from twoscale.claims.exits import criterion_name
from twoscale.figures import style
from twoscale.studies.arena.draw import draw_gains

HERE = Path(__file__).parent
PANELS = {  # table -> title of its panel
    "solver_edges": "solver of shortest paths, 322 problems",
    "imdb": "demo of this project, IMDb",
}

SHOWN = ("step_norm", "direction_step_norm", "kl", "acceleration")  # in the legend

if __name__ == "__main__":
    arenas = {title: pd.read_parquet(HERE / f"{name}.parquet") for name, title in PANELS.items()}
    colours = style.criterion_colours(name for arena in arenas.values() for name in arena["criterion"])
    with style.look():
        context = style.FigureContext("docs/arena", "see panels", 30, fewest_loops=24)
        figure = style.new_figure(style.DOUBLE, 2.9, context)
        panels = figure.subplots(1, len(arenas), sharey=True)
        for axes, (title, arena), numeral in zip(panels, arenas.items(), ("(i)", "(ii)"), strict=True):
            draw_gains(axes, arena, "random", colours)
            axes.set_title(f"{numeral}  {title}", loc="left")
            axes.set_xlabel("mean evaluations per token (log scale)")
        panels[0].set_ylabel("gain over random exits (nats/token)")
        handles = {criterion_name(name): Line2D([], [], color=colours[name]) for name in SHOWN}
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4)
        style.save(figure, HERE.parent / "arena.svg")
