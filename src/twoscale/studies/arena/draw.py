"""The arena of a run: its table and page, and its figures.

Gains, regrets and what to exit by are those of `twoscale.replay`, as `twoscale exits check` has
them.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.claims.bootstrap import summarise_latency, summarise_quality
from twoscale.config.criteria import criterion_name
from twoscale.exits.table import OPERATING_POINT, of_run
from twoscale.figures import style
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.replay import TOLERANCE
from twoscale.replay.arena import draw_arena as draw_arena
from twoscale.replay.arena import page, scale_axes
from twoscale.replay.check import Check, check
from twoscale.replay.gains import reliability, summarise
from twoscale.replay.gains import summary as summary
from twoscale.replay.page import draw as draw_check
from twoscale.replay.page import page as check_page
from twoscale.replay.recording import FEWEST_DOCUMENTS
from twoscale.replay.run_tables import of_exits
from twoscale.report.render import blocks


@job_files(
    reads="oracle_frontier exit_reliability exit_quality exit_loops exit_cost_matched exit_regret",
    writes="arena page",
)
def run(job: TableJob) -> None:
    """Write the table "arena" and results/arena.md."""
    config = job.config
    exits = of_run(*map(job.read, ("exit_quality", "exit_loops", "exit_cost_matched")))
    oracle = (job.read("exit_regret"), job.read("oracle_frontier"))
    arena = summarise(exits, *oracle, seed=config.seed)
    job.write("arena", arena)
    halves = reliability(job.read("exit_reliability"), config.seed)
    names = ("run", "text", "draws", "loops", "groups", "tokens", "oracle_tokens")
    values = {name: getattr(config, name) for name in names}
    compared = page(arena, halves, values | {"tolerance": TOLERANCE})
    decided = _decided(config.run, exits)
    job.write_text("page", blocks(TOO_FEW if decided is None else check_page(decided), compared))


# --- what to exit by ------------------------------------------------------------------------------

TOO_FEW = f"Fewer than {FEWEST_DOCUMENTS} documents do not show by what to exit."


def _decided(name: str, exits: pd.DataFrame) -> Check | None:
    """What to exit by in a run; None for fewer than `FEWEST_DOCUMENTS`."""
    run = of_exits(Path(name), exits)
    if len(run.documents) < FEWEST_DOCUMENTS:
        return None
    return check(run, lambda first: run.options(), TOLERANCE)


@style.look()
def draw_exit_check(
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    exit_cost_matched: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """The figure of `twoscale exits check` for a run: excess over full depth against loop steps.

    Raises InputError for a table without rows.
    """
    style.check_rows("exit_quality", exit_quality)
    style.check_rows("exit_cost_matched", exit_cost_matched)
    decided = _decided(context.run, of_run(exit_quality, exit_loops, exit_cost_matched))
    if decided is not None:
        return draw_check(decided, context)
    figure = style.new_figure(style.SINGLE, 0.8, context)
    figure.text(0.5, 0.5, TOO_FEW, ha="center")
    return figure


# --- figure: Pareto -------------------------------------------------------------------------------

# x axis of each panel: column -> title, label
COSTS = {
    "latency_ms": ("(i)  quality against latency", "latency (ms/token, log scale)"),
    "loops": ("(ii)  quality against loops", "evaluations per token and group (mean, log scale)"),
}
FIXED: style.Look = {
    "color": style.BLACK,
    "linestyle": (0, (5, 2)),
    "linewidth": 1,
    "marker": "|",
    "markersize": 5,
}
LINE: style.Look = {"markersize": 3.5, "linewidth": 1.2}
FRONTIER: style.Look = {"color": "0.8", "linewidth": 3, "solid_joinstyle": "round", "zorder": 0}


@style.look()
def draw_pareto(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops, one line per exit criterion.

    A line runs along the thresholds. The criteria of the paper and those of the user are in
    colour, with 95 % intervals over documents. The broad grey line is the frontier of all other
    criteria: their points that no other of them beats in both quantities. Quality is the
    cross-entropy minus that of `fixed` at all `context.loops` loop steps. Raises InputError for a
    table without rows.
    """
    style.check_rows("exit_latency", exit_latency)
    style.check_rows("exit_quality", exit_quality)
    times = summarise_latency(exit_latency)[[*OPERATING_POINT, "latency_ms"]]
    points = summarise_quality(of_run(exit_quality, exit_loops), context.loops)
    points = points.merge(times, on=OPERATING_POINT).sort_values("threshold")
    is_full = (points["criterion"] == "fixed") & (points["threshold"] == context.loops)
    full = points.loc[is_full, "ce"].item()  # at full depth
    points["excess"] = points["ce"] - full
    colours = style.criterion_colours(exit_quality["criterion"])
    others = [name for name, colour in colours.items() if colour == style.OTHERS]
    coloured = style.criterion_styles(name for name in colours if name not in others)
    styles = {name: look | LINE for name, look in coloured.items()}
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    of_others = points[points["criterion"].isin(others)]
    for axes, (column, (title, label)) in zip(panels, COSTS.items(), strict=True):
        axes.plot(*frontier(of_others[column], of_others["excess"]), **FRONTIER)
        for criterion, look in {"fixed": FIXED, **styles}.items():
            rows = points[points["criterion"] == criterion]
            below = rows["ce"] - rows["low"]
            above = rows["high"] - rows["ce"]
            # `errorbar` refuses lengths below 0, which rounding may give
            bars = np.maximum([below, above], 0)
            axes.errorbar(rows[column], rows["excess"], yerr=bars, elinewidth=0.6, **look)
        axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        scale_axes(axes)
        axes.set_xlabel(label)
        axes.set_title(title, loc="left")
    scale = f"(nats/token, linear within ±{style.LINEAR_NATS:g})"
    panels[0].set_ylabel(f"cross-entropy above that of {context.loops} loops\n{scale}")
    handles = {criterion_name(name): Line2D([], [], **look) for name, look in styles.items()}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    if others:
        handles[f"best of {len(others)} other criteria"] = Line2D([], [], **FRONTIER)
    style.legend_above(figure, handles, min(len(handles), 5))
    return figure


def frontier(cost: pd.Series, excess: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Cost and excess of the points that no other point beats, from low to high cost."""
    order = np.lexsort((excess, cost))
    costs = cost.to_numpy()[order]
    excesses = excess.to_numpy()[order]
    # a point is on the frontier if its excess is below that of all cheaper ones
    before = np.concatenate([[np.inf], excesses[:-1]])
    is_best = excesses < np.minimum.accumulate(before)
    return costs[is_best], excesses[is_best]
