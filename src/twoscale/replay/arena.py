"""The arena: page and figure of gains over exits of the same cost, and of regrets.

The workflow draws them for its runs (`twoscale.studies.arena`), and `twoscale exits check` for the
exits of other programs, whose random exits and fixed loops are exact means over all draws.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from twoscale import tables
from twoscale.base import replacing
from twoscale.claims.estimates import Estimate
from twoscale.config.criteria import criterion_name
from twoscale.exits.references import FIXED, RANDOM, fixed_evaluations
from twoscale.exits.table import OWN
from twoscale.figures import style
from twoscale.replay import TOLERANCE
from twoscale.replay.gains import (
    BETTER,
    COST_MATCHED,
    ORACLE,
    RELEVANT,
    UNKNOWN,
    WORSE,
    judged,
    least_by_documents,
    ranking,
    reliability,
    summarise,
    summary,
)
from twoscale.replay.oracle import PRICES, cheapest_exits, split_half
from twoscale.replay.recording import Exits, Recording
from twoscale.report.render import render

_GROUP = "loop"  # the one looped group of a recording


# --- exits of another program ---------------------------------------------------------------------


def write_arena(
    recording: Recording, exits: Exits, name: str, folder: Path, tolerance: float = TOLERANCE
) -> str:
    """Write arena.md, arena.pdf and arena.parquet to a folder; returns the summary.

    `name` is that of the exits, `tolerance` that of `oracle.split_half`.
    """
    arena = compare(recording, exits).assign(run=name)
    tables.write("arena", arena[list(tables.columns("arena"))], folder / "arena.parquet")
    cost = _with_input(recording)
    depths = _means(recording, **split_half(cost, tolerance))
    halves = reliability(depths.assign(group=_GROUP))
    values = {
        "run": name,
        "text": recording.path.name,
        "tokens": len(recording.documents),
        "loops": recording.depths,
        "draws": "all",
        "tolerance": tolerance,
    }
    with replacing(folder / "arena.md") as temporary:
        temporary.write_text(page(arena, halves, values), encoding="utf-8")
    context = style.FigureContext(name, recording.path.name, recording.depths)
    style.save(draw_arena(arena, context=context), folder / "arena.pdf")
    return summary(arena)


def compare(recording: Recording, exits: Exits, seed: int = 0) -> pd.DataFrame:
    """The table "arena" without its column `run`: against cost-matched exits and the oracle.

    `exits` has the depth of each token (M,), which is also its number of evaluations.
    """
    fixed: Exits = {}
    for k in range(1, recording.depths + 1):
        fixed["fixed", float(k)] = np.full(len(recording.documents), k)
    regret = [
        _at(recording, depths).assign(criterion=criterion, threshold=threshold, group=_GROUP)
        for (criterion, threshold), depths in (exits | fixed).items()
    ]
    losses = _with_input(recording)  # its index is the depth
    frontier = []
    for price in PRICES:
        depths = cheapest_exits(losses, price)
        frontier.append(_at(recording, depths).assign(group=_GROUP, price=price))
    return summarise(of_tokens(recording, exits), pd.concat(regret), pd.concat(frontier), seed)


def of_tokens(recording: Recording, exits: Exits) -> pd.DataFrame:
    """The table of exits (`twoscale.exits.table`), with the mean over all draws of random exits."""
    parts = []
    for (criterion, threshold), depths in exits.items():
        of_references = {OWN: _at(recording, depths)}
        (equal,) = fixed_evaluations(depths[None])
        for reference, plan in {RANDOM: depths, FIXED: equal}.items():
            # over all draws, every token takes the mean
            spent = np.full(len(plan), plan.mean())
            ce = mean_over_draws(recording.cost, plan)
            of_references[reference] = _means(recording, ce=ce, evaluations=spent)
        for reference, rows in of_references.items():
            point = {"criterion": criterion, "threshold": threshold, "reference": reference}
            parts.append(rows.assign(**point))
    return pd.concat(parts, ignore_index=True)


def mean_over_draws(cost: np.ndarray, plan: np.ndarray) -> np.ndarray:
    """Expected cost (M,) of each token if the depths of a plan (M,) are dealt at random.

    It is the mean of `exits.cost_matched.random_exits` over all draws: there, too, each token has
    every depth with its share in the text. cost: (K, M) at depths 1 … K.
    """
    shares = np.bincount(plan - 1, minlength=len(cost)) / len(plan)
    return shares @ cost


def _with_input(recording: Recording) -> np.ndarray:
    """The cost (K + 1, M) with one of the state before the first loop step, where none leaves."""
    return np.concatenate([np.full_like(recording.cost[:1], np.inf), recording.cost])


def _at(recording: Recording, depths: np.ndarray) -> pd.DataFrame:
    """Means of `ce` and `evaluations` of tokens that leave at these depths (M,)."""
    # (K, M) -> (M,)
    ce = np.take_along_axis(recording.cost, depths[None] - 1, axis=0)[0]
    return _means(recording, ce=ce, evaluations=depths)


def _means(recording: Recording, **values: np.ndarray) -> pd.DataFrame:
    """Means of values (M,) over the tokens of each sequence, with its keys."""
    keys = {"sequence": recording.sequences, "document": recording.documents}
    columns = {name: of_tokens.astype(np.float64) for name, of_tokens in values.items()}
    by_sequence = pd.DataFrame(keys | columns).groupby(["sequence", "document"])
    return by_sequence.mean().assign(tokens=by_sequence.size()).reset_index()


# --- page -----------------------------------------------------------------------------------------


def page(arena: pd.DataFrame, halves: tuple[Estimate, Estimate], values: Mapping[str, Any]) -> str:
    """Markdown of the table "arena" and of its `reliability`.

    `values` name the run, the text and their sizes.
    """
    gains, regret = judged(arena), arena[arena["reference"] == ORACLE]
    # estimates for the template; a regret is a negative gain, without the sign of zero
    ends = {"gain": "value", "gain_low": "low", "gain_high": "high"}
    turned = 0 - regret[[*ends]].rename(columns={"gain_low": "gain_high", "gain_high": "gain_low"})
    shown = gains.rename(columns=ends)
    return render(
        "replay/arena.md.j2",
        **values,
        summary=summary(arena),
        ranking=ranking(arena),
        relevant=RELEVANT,
        unknown=UNKNOWN,
        documents=gains["documents"].max() if len(gains) else 0,
        references=COST_MATCHED,
        primary=list(shown[shown["primary"]].itertuples()),
        exploratory=list(shown[~shown["primary"]].itertuples()),
        least=least_by_documents(gains[gains["primary"]]),
        regrets=list(regret.assign(**turned).rename(columns=ends).itertuples()),
        halves=halves,
    )


# --- figure: gains --------------------------------------------------------------------------------

SURE: style.Look = {"marker": "o", "markersize": 4, "linestyle": ""}
UNSURE: style.Look = SURE | {"markerfacecolor": "white", "markersize": 2.5, "markeredgewidth": 0.7}
TOO_SMALL: style.Look = {"color": "0.93", "linewidth": 0, "zorder": -2}
ROOM: style.Look = {"color": style.BLACK, "marker": "_", "markersize": 3.5, "linestyle": ""}


@style.look()
def draw_arena(arena: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Gain in nats against mean evaluations (i) over random exits, (ii) over fixed loops.

    One line per exit criterion with a point per threshold, filled where a difference from 0 is
    shown. The criteria of the paper and of the user are in colour, the others grey. Gains in the
    grey area are too small for these documents to show. A dash is the gain of the oracle over the
    same exits, at the evaluations of a point.

    Raises InputError for a table without criteria.
    """
    gains = judged(arena)
    style.check_rows("arena", gains)
    colours = style.criterion_colours(gains["criterion"])
    figure = style.new_figure(style.DOUBLE, 3.0, context)
    panels = figure.subplots(1, len(COST_MATCHED), sharex=True, sharey=True)
    for place, (reference, name) in enumerate(COST_MATCHED.items()):
        draw_gains(panels[place], arena, reference, colours)
        style.name_panel(panels[place], place + 1, f"gain over {name}")
        panels[place].set_xlabel("evaluations per token and group (mean, log scale)")
    panels[0].set_ylabel(f"cross-entropy saved (nats/token)\nlinear within ±{style.LINEAR_NATS:g}")
    lines: dict[str, Line2D | Patch] = {}
    for name, colour in colours.items():
        if colour != style.OTHERS:
            lines[criterion_name(name)] = Line2D([], [], color=colour)
    others = list(colours.values()).count(style.OTHERS)
    if others:
        lines[f"{others} other criteria"] = Line2D([], [], color=style.OTHERS)
    looks = {"difference shown": SURE, "not shown": UNSURE, "the oracle, over the same exits": ROOM}
    for name, look in looks.items():
        lines[name] = Line2D([], [], **{"color": style.GREY, **look})
    lines["too small to be shown"] = Patch(**TOO_SMALL)
    style.legend_above(figure, lines, min(len(lines), 4))
    return figure


def draw_gains(axes: Axes, arena: pd.DataFrame, reference: str, colours: Mapping[str, str]) -> None:
    """Gains over one kind of cost-matched exits against mean evaluations.

    Criteria without a colour are left out.
    """
    gains = judged(arena).sort_values("evaluations", kind="stable")
    is_drawn = (gains["reference"] == reference) & gains["criterion"].isin(list(colours))
    gains = gains[is_drawn]
    for criterion, rows in gains.groupby("criterion", sort=False):
        colour = colours[criterion]
        look: style.Look = {"linewidth": 0.8, "zorder": 0}
        if colour == style.OTHERS:
            look = {"linewidth": 0.5, "zorder": -1}
        axes.plot(rows["evaluations"], rows["gain"], color=colour, **look)
        # open markers for gains that are not shown, filled ones for those that are
        is_shown = rows["verdict"].isin((BETTER, WORSE))
        for points, look in ((rows[~is_shown], UNSURE), (rows[is_shown], SURE)):
            axes.plot(points["evaluations"], points["gain"], color=colour, **look)
    _name_best(axes, gains, colours)
    # the grey area, from the median of the points in each of eight bins of the axis
    most = max(2, gains["evaluations"].max())
    bins = np.geomspace(1, most * 1.001, 9)  # the last point is inside the last bin
    by_bin = gains.groupby(np.digitize(gains["evaluations"], bins))
    least = by_bin[["evaluations", "least"]].median()
    axes.fill_between(least["evaluations"], -least["least"], least["least"], **TOO_SMALL)
    axes.plot(gains["evaluations"], gains["room"], **ROOM)
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=-1)
    scale_axes(axes)


def _name_best(axes: Axes, gains: pd.DataFrame, colours: Mapping[str, str]) -> None:
    """Name the largest gain that is shown if its line is one of the grey ones."""
    shown = gains[gains["verdict"] == BETTER].sort_values("gain")
    if shown.empty:
        return
    best = shown.iloc[-1]
    if colours[best["criterion"]] == style.OTHERS:
        axes.annotate(
            criterion_name(best["criterion"]),
            xy=(best["evaluations"], best["gain"]),
            xytext=(4, 4),
            textcoords="offset points",
            color=style.OTHERS,
        )


def scale_axes(axes: Axes) -> None:
    """Costs on a logarithmic axis, nats on one that is linear around 0."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    style.scale_nats(axes)
