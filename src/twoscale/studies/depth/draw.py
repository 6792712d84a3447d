"""Means, findings, figures and pages of the measurements through the loops.

Intervals are bootstraps over documents. Best loops and plateau are found again in each resample, so
their intervals contain the choice of the best loop count.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap, regime
from twoscale.claims.bootstrap import with_bounds
from twoscale.config import PROJECT
from twoscale.figures import style
from twoscale.jobs.table_job import StudyJob, job_files
from twoscale.report import release
from twoscale.report.render import render

# --- quality at fixed loop counts, over training --------------------------------------------------

SCALING_PANELS = {  # column: (title, label)
    "ppl": ("quality", "perplexity (log scale)"),
    "excess": ("cost of fewer loops", "cross-entropy above that\nat {} loops (nats/token)"),
}
# the untrained model is left out of panel (i) if its perplexity is this many times all others
CROPPED = 2


@job_files(reads="quality", writes="scaling")
def run_scaling(job: StudyJob) -> None:
    job.write("scaling", summarise_scaling(job.files["quality"], job.config.run, job.config.seed))


def summarise_scaling(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "scaling" from the tables "scaling_quality" of all checkpoints; iterations and
    loops rise.
    """
    rows = pd.concat([tables.read("scaling_quality", path) for path in paths])
    full = rows[rows["loops"] == rows["loops"].max()].set_index(["iteration", "sequence"])["ce"]
    rows = rows.join(full.rename("full"), on=["iteration", "sequence"])
    point = ["iteration", "loops"]
    rows = rows.assign(excess=rows["ce"] - rows["full"]).sort_values(point, kind="stable")
    columns = {"tokens": rows.groupby(point)["tokens"].sum()}
    for name in ("ce", "excess"):
        columns |= with_bounds(rows, point, name, name, seed)
    columns |= {
        name.replace("ce", "ppl"): np.exp(columns[name]) for name in ("ce", "ce_low", "ce_high")
    }
    scaling = pd.DataFrame(columns).reset_index().assign(run=run)
    return scaling[list(tables.columns("scaling"))]


def scaling_sentence(table: pd.DataFrame) -> str:
    last = table[table["iteration"] == table["iteration"].max()].sort_values("loops")
    values = [f"{row.ppl:.4g} at {row.loops} loops" for row in last.itertuples()]
    return f"Perplexity at the last checkpoint: {', '.join(values)}."


@style.look()
def draw_scaling(
    scaling: pd.DataFrame, *, mean_loops: float | None, context: style.FigureContext
) -> Figure:
    """Two panels against the loops of every group: (i) perplexity, (ii) the cost of fewer loops in
    nats.

    One line per checkpoint; bands are 95 % intervals over documents. `mean_loops`, the mean of
    training or the published one, is a dotted line; `None` for a recorded model, where only the
    last group has these loops.
    """
    style.check_rows("scaling", scaling)
    styles = style.checkpoint_palette(scaling["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 2.7, context)
    panels = figure.subplots(1, len(SCALING_PANELS))
    for number, (axes, (column, (title, label))) in enumerate(
        zip(panels, SCALING_PANELS.items(), strict=True), 1
    ):
        for iteration, rows in scaling.groupby("iteration"):
            axes.plot(rows["loops"], rows[column], **styles[iteration])
            bounds = (rows[f"{column}_low"], rows[f"{column}_high"])
            axes.fill_between(
                rows["loops"], *bounds, color=styles[iteration]["color"], alpha=0.12, linewidth=0
            )
        further = {} if mean_loops is None else style.mark_trained(axes, mean_loops, context)
        style.scale_loops(axes, scaling["loops"])
        where = "of the last group" if mean_loops is None else "in every group"
        axes.set_xlabel(f"loops {where} (log scale)")
        style.name_panel(axes, number, title, label.format(context.loops))
    _scale_perplexity(panels[0], scaling)
    panels[1].axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    style.checkpoint_legend(figure, styles, context, further)
    return figure


def _scale_perplexity(axes: Axes, scaling: pd.DataFrame) -> None:
    """A logarithmic axis; an untrained model far above the others is outside, with its value at the
    edge.
    """
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: style.grouped(round(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    trained = scaling[scaling["iteration"] > 0]
    untrained = scaling.loc[scaling["iteration"] == 0, "ppl"]
    if trained.empty or untrained.empty or untrained.min() < CROPPED * trained["ppl"].max():
        return
    axes.set_ylim(0.9 * trained["ppl_low"].min(), 1.4 * trained["ppl_high"].max())
    last = style.grouped(round(untrained.iloc[-1]))
    corner: style.Look = {"transform": axes.transAxes, "ha": "right", "va": "top"}
    behind = {
        "facecolor": "white",
        "edgecolor": "none",
        "pad": 1,
    }  # hides the line of the loops in training
    axes.text(0.98, 0.97, f"untrained: {last} (above)", **corner, bbox=behind)


# --- lens -----------------------------------------------------------------------------------------

LENS_PANELS = {  # column: (title, label)
    "ce_change": ("cross-entropy", "nats/token above $k = {}$\n(linear within ±0.01, then log)"),
    "entropy_change": (
        "entropy of the prediction",
        "nats/token above $k = {}$\n(linear within ±0.01, then log)",
    ),
    "rank": ("rank of the right token", "geometric mean (log scale)"),
    "lost": ("right predictions lost again", "share of all tokens"),
}
LINEAR = 1e-2  # the axes of changes are linear within this many nats, logarithmic beyond


def summarise_lens(lens: pd.DataFrame, mean_loops: int, seed: int = 0) -> pd.DataFrame:
    """Means over tokens per group and loop step k, with bounds over documents.

    A change is since k = `mean_loops`, on the same documents. Bounds of `ce`, `entropy` and `rank`
    are for their change around the value: they show the change by more or fewer loop steps, not the
    variation of the text.

    `rank` is a geometric mean. Groups are in the order of the table, and values are null as there.
    """
    keys, point = ["group", "sequence"], ["group", "k"]
    trained = lens[lens["k"] == mean_loops].set_index(keys)
    columns: dict[str, Any] = {}
    for name in ("ce", "entropy", "log_rank"):
        at_mean = lens.join(trained[name].rename("at_mean"), on=keys)["at_mean"]
        changes = lens.assign(**{f"{name}_change": lens[name] - at_mean})
        columns |= with_bounds(changes, point, name, f"{name}_change", seed)
        columns |= with_bounds(changes, point, f"{name}_change", f"{name}_change", seed)
    for name in ("right", "lost", "lost_since_mean", "agreement"):
        columns |= with_bounds(lens.dropna(subset=name), point, name, name, seed)
    summary = pd.DataFrame(columns).reset_index()
    for name in [name for name in summary.columns if name.startswith("log_rank")]:
        summary[name.removeprefix("log_")] = np.exp(summary.pop(name))
    order = {group: place for place, group in enumerate(lens["group"].unique())}
    return summary.sort_values(
        ["group", "k"], key=lambda column: column.replace(order), ignore_index=True
    )


def lens_sentence(table: pd.DataFrame) -> str:
    last = table[table["k"] == table["k"].max()]
    shares = [
        f"{100 * np.average(rows['lost_since_mean'], weights=rows['tokens']):.2g} % (group"
        f" {group.replace('-', '–')})"
        for group, rows in last.groupby("group", sort=False)
    ]
    return (
        f"Right predictions at the mean loops of training that are lost at {last['k'].iloc[0]}"
        f" loops, of all tokens: "
        f"{', '.join(shares)}. {_agreement(table)}"
    )


def _agreement(table: pd.DataFrame) -> str:
    """After how many loop steps predictions are those at the mean loops of training."""
    means = {
        k: np.average(rows["agreement"], weights=rows["tokens"]) for k, rows in table.groupby("k")
    }
    shares = [f"{100 * means[k]:.3g} % after {k}" for k in (1, 2, 4) if k in means]
    return (
        f"Predictions that are already those at the mean loops, mean over groups:"
        f" {', '.join(shares)}."
    )


@style.look()
def draw_lens(
    lens: pd.DataFrame, *, mean_loops: float, typical_loops: int, context: style.FigureContext
) -> Figure:
    """Four panels against the loop step k, one line per group: cross-entropy, entropy, rank, lost
    predictions.

    `mean_loops` is the dotted line, `typical_loops` the loop step next to it, from which changes
    are counted.
    """
    style.check_rows("lens", lens)
    summary = summarise_lens(lens, typical_loops)
    looks = style.group_styles(style.looped_groups(summary, "the lens"))
    figure = style.new_figure(style.DOUBLE, 4.4, context)
    panels = figure.subplots(2, 2, sharex=True)
    for number, (axes, (column, (title, label))) in enumerate(
        zip(panels.flat, LENS_PANELS.items(), strict=True), 1
    ):
        trained = style.mark_trained(axes, mean_loops, context)
        for group, look in looks.items():
            known = summary[summary["group"] == group].dropna(subset=column)
            axes.plot(known["k"], known[column], **look)
            bounds = (known[f"{column}_low"], known[f"{column}_high"])
            style.band(axes, known["k"], *bounds, color=look["color"], alpha=0.12)
        at = ""
        if column.endswith(
            "_change"
        ):  # the value that the changes start from, of each group where they differ
            values = summary.loc[summary["k"] == typical_loops, column.removesuffix("_change")]
            at = (
                f", {', '.join(dict.fromkeys(f'{value:.2f}' for value in values))} at $k ="
                f" {typical_loops}$"
            )
        style.name_panel(axes, number, f"{title}{at}", label.format(typical_loops))
    for axes in panels[0]:
        axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        low, high = axes.dataLim.intervaly
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.set_ylim(min(2 * low, -LINEAR), max(2 * high, LINEAR))
        axes.yaxis.set_major_locator(FixedLocator(style.SIGNED_POWERS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.power_name(value)))
    panels[1, 0].set_yscale("log")
    style.label_powers(panels[1, 0].yaxis)
    panels[1, 1].yaxis.set_major_formatter(PercentFormatter(1))
    panels[1, 1].set_ylim(
        bottom=-0.04 * panels[1, 1].get_ylim()[1]
    )  # lines at zero are above the axis
    for axes in panels[1]:  # with room for k = 0
        axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.7)
        axes.xaxis.set_major_locator(
            FixedLocator([0, *(2**n for n in range(int(lens["k"].max()).bit_length()))])
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.1, 1.06 * lens["k"].max())
        axes.set_xlabel("loop step $k$ of the decoded state (log scale)")
    style.legend_above(figure, style.group_handles(looks) | trained)
    return figure


# --- depth card: means and findings ---------------------------------------------------------------

NO_GROUP = ""  # in the column `group`: what the prediction has
ALIKE = ["sequence", "document", "tokens"]


@job_files(reads="quality states unlooped unlooped_text text", writes="depth_card depth_findings")
def run_card(job: StudyJob) -> None:
    """Write the tables "depth_card" and "depth_findings". InputError for a model without loops on
    another text.
    """
    config, twin = job.config, None
    quality, states = job.read("depth_quality", "quality"), job.read("depth_states", "states")
    if (path := job.optional("unlooped")) is not None:
        ours, theirs = (
            release.text_digests(job.file(name))["val.bin"] for name in ("text", "unlooped_text")
        )
        if ours != theirs:
            raise InputError(
                f"config key depth_card.unlooped: found the run {config.unlooped} with other"
                f" held-out tokens, expected "
                "the same text and tokenizer."
            )
        twin = tables.read("depth_quality", path)
        twin = twin[twin["loops"] == config.unlooped_loops]
    job.write("depth_card", summarise_card(quality, states, config.trained_loops, config.seed))
    found = findings(quality, states, config.trained_loops, config.tolerance, twin, config.seed)
    job.write("depth_findings", found)


def summarise_card(
    quality: pd.DataFrame, states: pd.DataFrame, trained: int, seed: int
) -> pd.DataFrame:
    """The table "depth_card" without its column `run`, from the tables "depth_quality" and
    "depth_states".
    """
    sums, _ = _by_document(quality)
    best_loops = np.sort(quality["loops"].unique())[
        sums.sum(0).argmin()
    ]  # the smallest of equal ones
    best = quality[quality["loops"] == best_loops].set_index("sequence")["ce"]
    quality = quality.assign(excess=quality["ce"] - quality["sequence"].map(best), group=NO_GROUP)
    at_counts = states[states["k"].isin(quality["loops"])].rename(columns={"k": "loops"})
    parts = [
        _means(quality, name, seed) for name in ("ce", "excess", "entropy", "flips", "agreement")
    ]
    for name in states["measure"].unique():
        of_measure = at_counts[at_counts["measure"] == name]
        parts.append(
            _means(of_measure.rename(columns={"mean": name, "count": "tokens"}), name, seed)
        )
    means = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return means.assign(multiple=means["loops"] / trained, iteration=quality["iteration"].iloc[0])


def _means(rows: pd.DataFrame, name: str, seed: int) -> pd.DataFrame:
    """Mean of one column over tokens at each (loops, group), with its interval; rows where it is
    null are left out.
    """
    rows, point = rows.dropna(subset=name), ["loops", "group"]
    if rows.empty:
        return pd.DataFrame()
    found = pd.DataFrame(with_bounds(rows, point, name, name, seed)).reset_index()
    found = found.rename(columns={name: "value", f"{name}_low": "low", f"{name}_high": "high"})
    return found.assign(quantity=name).join(
        rows.groupby(point)["tokens"].sum().rename("tokens"), on=point
    )


def findings(
    quality: pd.DataFrame,
    states: pd.DataFrame,
    trained: int,
    tolerance: float,
    unlooped: pd.DataFrame | None,
    seed: int,
) -> pd.DataFrame:
    """The table "depth_findings" without its column `run`, from "depth_quality" and "depth_states"
    of one checkpoint.

    The `trained` loops are among its loop counts; `tolerance` is the height of the plateau in nats
    per token. `unlooped` has rows of "depth_quality" of a model without loops. InputError if it was
    measured on other sequences.
    """
    rows = [*_depths(quality, trained, tolerance, seed), _gain(quality, trained, unlooped, seed)]
    rows += [
        row
        for group, own in states.groupby("group", sort=False)
        for row in _regime(str(group), own)
    ]
    found = pd.DataFrame(rows)
    return found.assign(
        group=found["group"].fillna(NO_GROUP), iteration=quality["iteration"].iloc[0]
    )


def _depths(
    quality: pd.DataFrame, trained: int, tolerance: float, seed: int
) -> Iterator[dict[str, Any]]:
    """Best loops, plateau, and what the trained loops lose to the best ones."""
    counts = np.sort(quality["loops"].unique())
    sums, tokens = _by_document(quality)
    losses = sums.sum(0) / tokens.sum()
    low, high = np.full((2, 3), np.nan)
    if len(tokens) > 1:
        totals = bootstrap.totals(np.column_stack([sums, tokens]), seed)
        samples = np.array(
            [_places(sample, tolerance) for sample in totals[:, :-1] / totals[:, -1:]]
        )
        ends = (1 - bootstrap.LEVEL) / 2, (1 + bootstrap.LEVEL) / 2
        low, high = (
            counts[np.quantile(samples, end, axis=0, method="nearest").astype(int)] for end in ends
        )
    yield {
        "quantity": "trained_loops",
        "value": trained,
        "statement": "loops of training, or as published",
    }
    statements = (
        "lowest loss",
        f"first loop count in a row within {tolerance:g} nats of it",
        "last one",
    )
    for i, name in enumerate(("best_loops", "plateau_first", "plateau_last")):
        value = counts[_places(losses, tolerance)[i]]
        yield {
            "quantity": name,
            "value": value,
            "low": low[i],
            "high": high[i],
            "statement": statements[i],
        }
    differences = sums[:, list(counts).index(trained)] - sums[:, losses.argmin()]
    yield _ratio(
        "trained_excess",
        "loss at the trained loops minus the lowest one",
        differences,
        tokens,
        seed,
    )


def _places(losses: np.ndarray, tolerance: float) -> tuple[int, int, int]:
    """Best loop count and both ends of the plateau, as places in the losses (L,) by loop count."""
    best = first = last = int(losses.argmin())
    within = losses <= losses[best] + tolerance
    while first > 0 and within[first - 1]:
        first -= 1
    while last + 1 < len(losses) and within[last + 1]:
        last += 1
    return best, first, last


def _by_document(quality: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Summed losses (D, L) of the documents at each loop count, ascending, and their tokens
    (D,).
    """
    rows = quality.assign(sum=quality["ce"] * quality["tokens"])
    sums = rows.pivot_table(index="document", columns="loops", values="sum", aggfunc="sum")
    tokens = rows[rows["loops"] == rows["loops"].min()].groupby("document")["tokens"].sum()
    return sums.to_numpy(np.float64), tokens.loc[sums.index].to_numpy(np.float64)


def _gain(
    quality: pd.DataFrame, trained: int, unlooped: pd.DataFrame | None, seed: int
) -> dict[str, Any]:
    if unlooped is None:
        return {
            "quantity": "loop_gain",
            "statement": "not measured: there is no model without loops to compare with",
        }
    at_trained = quality[quality["loops"] == trained]
    own, other = (
        rows.sort_values("sequence", ignore_index=True) for rows in (at_trained, unlooped)
    )
    if not own[ALIKE].equals(other[ALIKE]):
        raise InputError(
            "unlooped model: the table depth_quality has other sequences than the looped model."
        )
    difference = (other["ce"] - own["ce"]) * own["tokens"]
    units = (
        pd.DataFrame({"sum": difference, "tokens": own["tokens"]}).groupby(own["document"]).sum()
    )
    statement, tokens = (
        "loss without loops minus that at the trained loops",
        units["tokens"].to_numpy(np.float64),
    )
    return _ratio("loop_gain", statement, units["sum"].to_numpy(), tokens, seed)


def _ratio(
    quantity: str, statement: str, sums: np.ndarray, tokens: np.ndarray, seed: int
) -> dict[str, Any]:
    """The mean over tokens, from sums and tokens of the documents (D,)."""
    low, high = bootstrap.interval(
        bootstrap.ratio_of_sums, np.column_stack([sums, tokens]), seed, tokens
    )
    value = sums.sum() / tokens.sum()
    return {"quantity": quantity, "value": value, "low": low, "high": high, "statement": statement}


def _regime(group: str, states: pd.DataFrame) -> Iterator[dict[str, Any]]:
    found = regime.of_sequences(states)
    yield {"group": group, "quantity": "regime", "statement": found.sentence}
    for name in ("step_exponent", "norm_exponent", "direction_exponent"):
        yield {"group": group, "quantity": name, "statement": found.name} | getattr(
            found, name
        )._asdict()
    for name in ("last_step", "unsettled_share"):
        yield {
            "group": group,
            "quantity": name,
            "statement": found.name,
            "value": getattr(found, name),
        }


def card_sentence(table: pd.DataFrame) -> str:
    losses = table[table["quantity"] == "ce"].set_index("loops")["value"]
    best, trained = (
        losses.idxmin(),
        losses.index[np.isclose(table[table["quantity"] == "ce"]["multiple"], 1)],
    )
    at = f", {losses[trained[0]]:.3f} at the trained {trained[0]}" if len(trained) else ""
    return f"Lowest cross-entropy {losses[best]:.3f} nats per token at {best} loops{at}."


# --- depth card: figure and page ------------------------------------------------------------------

STATE, STEP = {"linestyle": "-"}, {"linestyle": (0, (3, 1.5))}
PLATEAU: style.Look = {"color": "0.88", "linewidth": 0, "zorder": 0}
UNLOOPED: style.Look = {"color": style.BROWN, "linestyle": (0, (4, 1.2)), "linewidth": 1}
NAMES = {
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
    known = depth_findings[depth_findings["group"] == ""].set_index("quantity")["value"]
    figure = style.new_figure(style.DOUBLE, 4.2, context)
    panels = figure.subplots(2, 2, sharex=True)
    loss, flips, norms, directions = panels.flat
    handles = _draw_loss(loss, depth_card, known) | style.group_handles(
        {name: look | STATE for name, look in looks.items()}
    )
    _draw(flips, depth_card, "", "flips", {"color": style.BLUE, "marker": "o"})
    flips.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    flips.set_ylim(bottom=0)
    for group, look in looks.items():
        _draw(norms, depth_card, group, "state_norm", look | STATE)
        _draw(norms, depth_card, group, "step_norm", look | STEP)
        _draw(directions, depth_card, group, "direction_step_norm", look | STATE)
    titles = (
        "loss",
        "flipped predictions",
        "norms of states (solid) and steps (dashed)",
        "step of the direction",
    )
    labels = (
        "cross-entropy (nats/token)",
        "share of tokens",
        "norm (log scale)",
        "length (log scale)",
    )
    for number, (axes, title, label) in enumerate(
        zip(panels.flat, titles, labels, strict=True), start=1
    ):
        trained = style.mark_trained(axes, known["trained_loops"], context)
        style.name_panel(axes, number, title, label)
        style.scale_loops(axes, depth_card["loops"])
    for axes in panels[1]:
        axes.set_yscale("log")
        style.label_powers(axes.yaxis)
        axes.set_xlabel("loops, or loop step $k$ (log scale)")
    style.legend_above(figure, handles | trained)
    return figure


def _draw_loss(axes: Axes, card: pd.DataFrame, known: pd.Series) -> dict[str, Artist]:
    """The loss, the plateau and the model without loops; entries of the legend."""
    plateau = axes.axvspan(known["plateau_first"] / 1.06, known["plateau_last"] * 1.06, **PLATEAU)
    losses, excess = (
        card[card["quantity"] == name].set_index("loops").sort_index() for name in ("ce", "excess")
    )
    axes.plot(losses.index, losses["value"], color=style.BLUE, marker="o")
    bounds = (losses["value"] - excess["value"] + excess[end] for end in ("low", "high"))
    style.band(axes, losses.index, *bounds, color=style.BLUE, alpha=0.15)
    if pd.isna(known["loop_gain"]):
        return {"plateau": plateau}
    unlooped = axes.axhline(
        losses["value"][known["trained_loops"]] + known["loop_gain"], **UNLOOPED
    )
    return {"plateau": plateau, "without loops": unlooped}


def _draw(axes: Axes, card: pd.DataFrame, group: str, quantity: str, look: dict) -> None:
    rows = card[(card["group"] == group) & (card["quantity"] == quantity)].sort_values("loops")
    axes.plot(rows["loops"], rows["value"], **look)
    if len(rows):
        style.band(axes, rows["loops"], rows["low"], rows["high"], color=look["color"], alpha=0.15)


@job_files(reads="card findings picture", writes="page")
def write_card(job: StudyJob) -> None:
    card, findings = job.read("depth_card", "card"), job.read("depth_findings", "findings")
    identity = dict(job.config.identity) | {"checkpoint": int(card["iteration"].iloc[0])}
    job.write_text(
        "page", card_page(card, findings, job.config.run, identity, job.file("picture").name)
    )


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
    changed = ", with changes" if found["modified"] else ""
    code = f"commit {found['commit']}{changed}" if found["commit"] else "not in a Git checkout"
    at = {  # group -> quantity -> row, for each loop count
        group: [
            {row.quantity: row for row in rows.itertuples()} for _, rows in own.groupby("loops")
        ]
        for group, own in card.groupby("group", sort=False)
    }
    return render(
        "studies/depth/card.md.j2",
        run=run,
        identity=dict(identity) | {"code": code},
        findings=list(findings.itertuples()),
        names=NAMES,
        quality=at.pop(NO_GROUP),
        states=at,
        measures=card.loc[card["group"] != NO_GROUP, "quantity"].unique().tolist(),
        statistic=regime.STATISTIC,
        picture=picture,
        last=card["loops"].max(),
        recorded=recorded,
    )
