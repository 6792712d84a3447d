"""Summaries, figures and pages of the measurements through the loops.

`twoscale.claims.loop_counts` has the statistics that the recorder shares.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap, loop_counts, regime
from twoscale.claims.loop_counts import NO_GROUP
from twoscale.config import PROJECT
from twoscale.figures import style
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.report import release
from twoscale.report.render import render

# --- quality at fixed loop counts, over training --------------------------------------------------

SCALING_PANELS = {  # column: (title, label)
    "ppl": ("quality", "perplexity (log scale)"),
    "excess": ("cost of fewer loops", "cross-entropy above that\nat {} loops (nats/token)"),
}
# the untrained model is left out of panel (i) if its perplexity is this many times all others
CROPPED = 2


def scaling_sentence(table: pd.DataFrame) -> str:
    last = table[table["iteration"] == table["iteration"].max()].sort_values("loops")
    values = [f"{row.ppl:.4g} at {row.loops} loops" for row in last.itertuples()]
    return f"Perplexity at the last checkpoint: {', '.join(values)}."


@style.look()
def draw_scaling(
    scaling: pd.DataFrame, *, mean_loops: float | None, context: style.FigureContext
) -> Figure:
    """Two panels against the loops of every group: (i) perplexity, (ii) the cost of fewer loops.

    One line per checkpoint; bands are 95 % intervals over documents. `mean_loops`, the mean of
    training or the published one, is a dotted line; `None` for a recorded model, where only the
    last group has these loops.
    """
    style.check_rows("scaling", scaling)
    styles = style.checkpoint_palette(scaling["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 2.7, context)
    panels = figure.subplots(1, len(SCALING_PANELS))
    mean_entry = {}  # of the legend
    where = "of the last group" if mean_loops is None else "in every group"
    for place, (column, (title, label)) in enumerate(SCALING_PANELS.items()):
        axes = panels[place]
        for iteration, rows in scaling.groupby("iteration"):
            axes.plot(rows["loops"], rows[column], **styles[iteration])
            low, high = rows[f"{column}_low"], rows[f"{column}_high"]
            look = {"color": styles[iteration]["color"], "alpha": 0.12, "linewidth": 0}
            axes.fill_between(rows["loops"], low, high, **look)
        if mean_loops is not None:
            mean_entry = style.mark_trained(axes, mean_loops, context)
        style.scale_loops(axes, scaling["loops"])
        axes.set_xlabel(f"loops {where} (log scale)")
        style.name_panel(axes, place + 1, title, label.format(scaling["loops"].max()))
    _scale_perplexity(panels[0], scaling)
    panels[1].axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    style.checkpoint_legend(figure, styles, context, mean_entry)
    return figure


def _scale_perplexity(axes: Axes, scaling: pd.DataFrame) -> None:
    """A logarithmic axis; an untrained model far above the others is a number at its edge."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: style.grouped(round(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    is_trained = scaling["iteration"] > 0
    trained = scaling[is_trained]
    untrained = scaling["ppl"][~is_trained]
    if trained.empty or untrained.empty:
        return
    if untrained.min() < CROPPED * trained["ppl"].max():
        return
    low, high = trained["ppl_low"].min(), trained["ppl_high"].max()
    axes.set_ylim(0.9 * low, 1.4 * high)
    last = style.grouped(round(untrained.iloc[-1]))
    corner: style.Look = {"transform": axes.transAxes, "ha": "right", "va": "top"}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # hides the line of trained loops
    axes.text(0.98, 0.97, f"untrained: {last} (above)", **corner, bbox=box)


# --- lens -----------------------------------------------------------------------------------------

_CHANGE = "nats/token above $k = {}$\n(linear within ±0.01, then log)"
LENS_PANELS = {  # column: (title, label)
    "ce_change": ("cross-entropy", _CHANGE),
    "entropy_change": ("entropy of the prediction", _CHANGE),
    "rank": ("rank of the right token", "geometric mean (log scale)"),
    "lost": ("right predictions lost again", "share of all tokens"),
}


def summarise_lens(lens: pd.DataFrame, mean_loops: int, seed: int = 0) -> pd.DataFrame:
    """Means over tokens per group and loop step k, with bounds over documents.

    A change is since k = `mean_loops`, on the same documents. Bounds of `ce`, `entropy` and `rank`
    are for their change around the value: they show the change by more or fewer loop steps, not the
    variation of the text.

    `rank` is a geometric mean. Groups are in the order of the table, and values are null as there.
    """
    sequence, point = ["group", "sequence"], ["group", "k"]
    trained = lens[lens["k"] == mean_loops].set_index(sequence)
    columns = ["right", "lost", "lost_since_mean", "agreement"]
    changes = {}
    for name in ("ce", "entropy", "log_rank"):
        at_mean = lens.join(trained[name].rename("at_mean"), on=sequence)["at_mean"]
        changes[f"{name}_change"] = lens[name] - at_mean
        columns += [name, f"{name}_change"]
    summary = bootstrap.means(lens.assign(**changes), point, columns, seed)
    for change in changes:
        name = change.removesuffix("_change")
        summary = summary.assign(**bootstrap.around(summary, name, change))
    summary = summary.reset_index()
    # exp of a mean of logarithms is a geometric mean, and its bounds follow in the same way
    for name in [name for name in summary if name.startswith("log_rank")]:
        summary[name.removeprefix("log_")] = np.exp(summary.pop(name))
    groups = pd.Index(lens["group"].unique())
    # groups in the order of the table, not of their names
    order = np.lexsort((summary["k"], groups.get_indexer(summary["group"])))
    return summary.iloc[order].reset_index(drop=True)


def lens_sentence(table: pd.DataFrame) -> str:
    last = table[table["k"] == table["k"].max()]
    lost = []
    for group, rows in last.groupby("group", sort=False):
        share = np.average(rows["lost_since_mean"], weights=rows["tokens"])
        lost.append(f"{100 * share:.2g} % (group {style.group_name(group)})")
    agreeing = []  # predictions that are already those at the mean loops of training
    for k in (1, 2, 4):
        rows = table[table["k"] == k]
        if len(rows):
            share = np.average(rows["agreement"], weights=rows["tokens"])
            agreeing.append(f"{100 * share:.3g} % after {k}")
    return (
        "Right predictions at the mean loops of training that are lost at"
        f" {last['k'].iloc[0]} loops, of all tokens: {', '.join(lost)}. Predictions that are"
        f" already those at the mean loops, mean over groups: {', '.join(agreeing)}."
    )


@style.look()
def draw_lens(
    lens: pd.DataFrame, *, mean_loops: float, typical_loops: int, context: style.FigureContext
) -> Figure:
    """Four panels against the loop step k, one line per group.

    They are cross-entropy, entropy, rank and lost predictions. `mean_loops` is the dotted line,
    `typical_loops` the loop step next to it, from which changes are counted.
    """
    style.check_rows("lens", lens)
    summary = summarise_lens(lens, typical_loops)
    looks = style.group_styles(style.looped_groups(summary, "the lens"))
    figure = style.new_figure(style.DOUBLE, 4.4, context)
    panels = figure.subplots(2, 2, sharex=True)
    for place, (column, (title, label)) in enumerate(LENS_PANELS.items()):
        axes = panels.flat[place]
        trained = style.mark_trained(axes, mean_loops, context)
        for group, look in looks.items():
            known = summary[summary["group"] == group].dropna(subset=column)
            axes.plot(known["k"], known[column], **look)
            low, high = known[f"{column}_low"], known[f"{column}_high"]
            style.band(axes, known["k"], low, high, color=look["color"], alpha=0.12)
        if column.endswith("_change"):  # the values that the changes start from
            value = column.removesuffix("_change")
            of_groups = summary.loc[summary["k"] == typical_loops, value].map("{:.2f}".format)
            title = f"{title}, {', '.join(of_groups.unique())} at $k = {typical_loops}$"
        style.name_panel(axes, place + 1, title, label.format(typical_loops))
    for axes in panels[0]:
        axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        low, high = axes.dataLim.intervaly
        style.scale_nats(axes)
        # room around the lines, and at least the linear part of the axis
        axes.set_ylim(min(2 * low, -style.LINEAR_NATS), max(2 * high, style.LINEAR_NATS))
    rank, lost = panels[1]
    rank.set_yscale("log")
    style.label_powers(rank.yaxis)
    lost.yaxis.set_major_formatter(PercentFormatter(1))
    lost.set_ylim(bottom=-0.04 * lost.get_ylim()[1])  # lines at zero are above the axis
    _scale_steps(rank, lens["k"].max())
    for axes in panels[1]:
        axes.set_xlabel("loop step $k$ of the decoded state (log scale)")
    style.legend_above(figure, style.group_handles(looks) | trained)
    return figure


def _scale_steps(axes: Axes, last: int) -> None:
    """A logarithmic axis of loop steps with room for k = 0, of all panels that share it."""
    exponents = range(int(last).bit_length())
    powers = [2**n for n in exponents]
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.7)
    axes.xaxis.set_major_locator(FixedLocator([0, *powers]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-0.1, 1.06 * last)


# --- depth card -----------------------------------------------------------------------------------


@job_files(reads="quality states unlooped unlooped_text text", writes="depth_card depth_findings")
def run_card(job: TableJob) -> None:
    """Write the tables "depth_card" and "depth_findings".

    InputError for a model without loops that was measured on another text.
    """
    config, twin = job.config, None
    quality, states = job.read("depth_quality", "quality"), job.read("depth_states", "states")
    if (path := job.optional("unlooped")) is not None:
        files = [job.file(name) for name in ("text", "unlooped_text")]
        # digests of the held-out tokens
        ours, theirs = (release.text_digests(file)["val.bin"] for file in files)
        if ours != theirs:
            found = f"found the run {config.unlooped} with other held-out tokens"
            expected = "expected the same text and tokenizer"
            raise InputError(f"config key depth_card.unlooped: {found}, {expected}.")
        twin = tables.read("depth_quality", path)
        twin = twin[twin["loops"] == config.unlooped_loops]
    trained, seed = config.trained_loops, config.seed
    job.write("depth_card", loop_counts.summarise_card(quality, states, trained, seed))
    rows = loop_counts.findings(quality, states, trained, config.tolerance, twin, seed)
    job.write("depth_findings", rows)


def card_sentence(table: pd.DataFrame) -> str:
    losses = table[table["quantity"] == "ce"].set_index("loops")
    best = losses["value"].idxmin()
    lowest = losses["value"][best]
    sentence = f"Lowest cross-entropy {lowest:.3f} nats per token at {best} loops"
    trained = losses.index[np.isclose(losses["multiple"], 1)]
    if len(trained):
        loss = losses["value"][trained[0]]
        sentence += f", {loss:.3f} at the trained {trained[0]}"
    return f"{sentence}."


STATE, STEP = {"linestyle": "-"}, {"linestyle": (0, (3, 1.5))}
PLATEAU: style.Look = {"color": "0.88", "linewidth": 0, "zorder": 0}
UNLOOPED: style.Look = {"color": style.BROWN, "linestyle": (0, (4, 1.2)), "linewidth": 1}
CARD_PANELS = {  # title: label
    "loss": "cross-entropy (nats/token)",
    "flipped predictions": "share of tokens",
    "norms of states (solid) and steps (dashed)": "norm (log scale)",
    "step of the direction": "length (log scale)",
}
NAMES = {  # finding: its name on the page
    "trained_loops": "trained loops",
    "best_loops": "best loops",
    "plateau_first": "plateau from",
    "plateau_last": "plateau to",
    "trained_excess": "loss at the trained loops above the lowest, nats",
    "loop_gain": "loop gain, nats",
}


@style.look()
def draw_depth_card(
    depth_card: pd.DataFrame, depth_findings: pd.DataFrame, *, context: style.FigureContext
) -> Figure:
    """Four panels against the loops of every group, on logarithmic axes.

    (i) cross-entropy, with the interval of its difference from the lowest one, the plateau, and the
    loss of the model without loops if it was measured; (ii) tokens whose prediction flips; (iii)
    norms of states and of steps; (iv) the step of the direction; the last two with one line per
    group. Its loop steps K are the largest loop count.
    """
    style.check_rows("depth_card", depth_card)
    looks = style.group_styles([group for group in depth_card["group"].unique() if group])
    known = depth_findings[depth_findings["group"] == NO_GROUP].set_index("quantity")["value"]
    figure = style.new_figure(style.DOUBLE, 4.2, context)
    panels = figure.subplots(2, 2, sharex=True)
    loss, flips, norms, directions = panels.flat
    handles = _draw_loss(loss, depth_card, known)
    handles |= style.group_handles({name: look | STATE for name, look in looks.items()})
    _draw(flips, depth_card, NO_GROUP, "flips", {"color": style.BLUE, "marker": "o"})
    flips.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    flips.set_ylim(bottom=0)
    for group, look in looks.items():
        _draw(norms, depth_card, group, "state_norm", look | STATE)
        _draw(norms, depth_card, group, "step_norm", look | STEP)
        _draw(directions, depth_card, group, "direction_step_norm", look | STATE)
    for place, (title, label) in enumerate(CARD_PANELS.items()):
        axes = panels.flat[place]
        trained = style.mark_trained(axes, known["trained_loops"], context)
        style.name_panel(axes, place + 1, title, label)
        style.scale_loops(axes, depth_card["loops"])
    for axes in panels[1]:
        axes.set_yscale("log")
        style.label_powers(axes.yaxis)
        axes.set_xlabel("loops, or loop step $k$ (log scale)")
    style.legend_above(figure, handles | trained)
    return figure


def _draw_loss(axes: Axes, card: pd.DataFrame, known: pd.Series) -> dict[str, Artist]:
    """The loss, the plateau and the model without loops; entries of the legend."""
    # a little beyond the first and the last loop count, on a logarithmic axis
    first = known["plateau_first"] / 1.06
    last = known["plateau_last"] * 1.06
    handles: dict[str, Artist] = {"plateau": axes.axvspan(first, last, **PLATEAU)}
    by_loops = card.set_index("loops").sort_index()
    losses = by_loops.loc[by_loops["quantity"] == "ce", "value"]
    excess = by_loops[by_loops["quantity"] == "excess"]
    axes.plot(losses.index, losses, color=style.BLUE, marker="o")
    # the interval is that of the difference from the lowest loss, so it is drawn above this loss
    lowest = losses - excess["value"]
    low = lowest + excess["low"]
    high = lowest + excess["high"]
    style.band(axes, losses.index, low, high, color=style.BLUE, alpha=0.15)
    if not pd.isna(known["loop_gain"]):
        # the gain is the loss without loops above that at the trained loops
        loss = losses[known["trained_loops"]] + known["loop_gain"]
        handles["without loops"] = axes.axhline(loss, **UNLOOPED)
    return handles


def _draw(axes: Axes, card: pd.DataFrame, group: str, quantity: str, look: dict) -> None:
    rows = card[(card["group"] == group) & (card["quantity"] == quantity)].sort_values("loops")
    axes.plot(rows["loops"], rows["value"], **look)
    if len(rows):
        style.band(axes, rows["loops"], rows["low"], rows["high"], color=look["color"], alpha=0.15)


@job_files(reads="card findings picture", writes="page")
def write_card(job: TableJob) -> None:
    """Write results/depth-card.md."""
    card, found = job.read("depth_card", "card"), job.read("depth_findings", "findings")
    identity = dict(job.config.identity) | {"checkpoint": int(card["iteration"].iloc[0])}
    picture = job.file("picture").name
    job.write_text("page", card_page(card, found, job.config.run, identity, picture))


def card_page(
    card: pd.DataFrame,
    findings: pd.DataFrame,
    run: str,
    identity: Mapping[str, object],
    picture: str,
    **recorded: Any,
) -> str:
    """Markdown of the tables "depth_card" and "depth_findings" of one run.

    `identity` describes model and text, name -> value; `picture` is the file of the figure,
    relative to the page. For a recorded run: `gains` and `spectrum`, cells of further tables, which
    may be empty.
    """
    found = release.checkout(PROJECT)
    code = "not in a Git checkout"
    if found["commit"]:
        changes = ", with changes" if found["modified"] else ""
        code = f"commit {found['commit']}{changes}"
    at: dict[str, list] = {}  # group -> quantity -> row, for each loop count
    for (group, _), rows in card.groupby(["group", "loops"]):
        at.setdefault(group, []).append({row.quantity: row for row in rows.itertuples()})
    groups = [group for group in card["group"].unique() if group != NO_GROUP]
    return render(
        "studies/depth/card.md.j2",
        run=run,
        identity=dict(identity) | {"code": code},
        findings=list(findings.itertuples()),
        names=NAMES,
        quality=at[NO_GROUP],
        states={group: at[group] for group in groups},
        measures=card.loc[card["group"] != NO_GROUP, "quantity"].unique().tolist(),
        statistic=regime.STATISTIC,
        picture=picture,
        last=card["loops"].max(),
        recorded=recorded,
    )
