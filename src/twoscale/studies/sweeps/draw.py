"""Comparisons and figures of the sweeps.

Adapter initialisations: the late cosine is as in claim 4, and each is judged by the bounds of claim
4.

Baselines: every difference is between two models with the same seed, on the same documents. The
interval of a mean over seeds is as in `twoscale.claims.seeds`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from twoscale import tables
from twoscale.claims import bootstrap, geometry
from twoscale.claims.bootstrap import with_bounds
from twoscale.claims.evidence import OPEN, Estimate, Evidence, InconclusiveError, between, judge
from twoscale.claims.seeds import mean_over_seeds, over_seeds
from twoscale.figures import style
from twoscale.jobs.table_job import StudyJob, job_files
from twoscale.report.render import render

Styles = Mapping[Any, Mapping[str, Any]]

# --- adapter initialisations ----------------------------------------------------------------------

ALL = "all"  # in place of a seed: all of them; in place of a group: the whole model
COSINE, LOSS = "late_cosine", "held_out_loss"
RANDOM = 1.45  # place of random weights on the axis of shares
SEEDS = 0.04  # distance of the marks of single seeds from the mean
BELOW = "all steps below\nthe rounding floor"


class InitRun(NamedTuple):
    """A run with its start and its tables."""

    share: float | None  # of the state at the start; None for random weights
    state_init: str
    sandwich: str
    seed: int
    evidence: Evidence
    training: pd.DataFrame


@job_files(reads="training loops", writes="adapter_init")
def run_adapter_init(job: StudyJob) -> None:
    config = job.config
    absent = {
        name: pd.DataFrame(columns=list(tables.columns(n)))
        for name, n in tables.CLAIM_TABLES.items()
    }
    runs = []
    for run, loops, training in zip(
        config.runs, job.files["loops"], job.files["training"], strict=True
    ):
        found = absent | {"loops": tables.read("loop_sequences", loops)}
        evidence = Evidence(**found, max_loops=0, seed=config.seed)
        runs.append(InitRun(**run, evidence=evidence, training=tables.read("training", training)))
    job.write("adapter_init", compare_starts(runs))


def compare_starts(runs: Sequence[InitRun]) -> pd.DataFrame:
    """Table "adapter_init": every measure of every start at every checkpoint, for each seed and for
    all seeds.
    """
    by_start: dict[tuple, list[InitRun]] = {}
    for run in runs:
        by_start.setdefault(run[:3], []).append(run)
    rows = []
    for start, same in by_start.items():
        evidence = same[0].evidence
        sets = [(str(run.seed), [run]) for run in same] + [(ALL, same)]
        for measure, iteration, (seed, chosen) in product(
            (COSINE, LOSS), evidence.iterations, sets
        ):
            if measure == LOSS and iteration == 0:  # training has measured none
                continue
            for group in evidence.groups if measure == COSINE else [ALL]:
                rows.append(
                    (
                        *start,
                        seed,
                        iteration,
                        group,
                        measure,
                        *_measured(measure, chosen, group, iteration),
                    )
                )
    return pd.DataFrame(rows, columns=list(tables.columns("adapter_init"))).astype(
        {"share": "float64"}
    )


def _measured(measure: str, runs: Sequence[InitRun], group: str, iteration: int) -> tuple:
    """Value, both ends of the interval, verdict and reason."""
    judged = measure == COSINE
    try:
        estimate = late_cosine(runs, group, iteration) if judged else held_out_loss(runs, iteration)
    except InconclusiveError as error:
        return np.nan, np.nan, np.nan, OPEN if judged else "", str(error)
    bounds, groups = between(*geometry.PAPER_ANGLES), len(runs[0].evidence.groups)
    verdict, reason = judge(bounds, estimate, groups) if judged else ("", estimate.remark)
    return estimate.value, estimate.low, estimate.high, verdict, reason


def late_cosine(runs: Sequence[InitRun], group: str, iteration: int) -> Estimate:
    estimates = [geometry.late_cosine(run.evidence, group, iteration) for run in runs]
    return mean_over_seeds(estimates) if len(estimates) > 1 else estimates[0].checked()


def held_out_loss(runs: Sequence[InitRun], iteration: int) -> Estimate:
    """Held-out loss of training in nats per token; its interval is over seeds alone."""
    rows = [
        run.training[run.training["iteration"] == iteration]["held_out_loss"].dropna()
        for run in runs
    ]
    if any(len(row) != 1 for row in rows):
        raise InconclusiveError("no held-out loss was measured at this iteration")
    losses = np.array([row.iloc[0] for row in rows])
    return (
        over_seeds(losses)
        if len(losses) > 1
        else Estimate(float(losses[0]), remark="one seed, no interval")
    )


@style.look()
def draw_adapter_init(adapter_init: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row per norm and first state: the late cosine in each group against the start, and the
    held-out loss.

    One line per checkpoint, the mean over seeds; bars are 95 % intervals at the last checkpoint,
    with a small mark for each seed where there are several. Raises InputError for a model without
    looped groups.
    """
    groups = style.looped_groups(adapter_init[adapter_init["measure"] == COSINE], "the starts")
    cases = list(
        dict.fromkeys(zip(adapter_init["sandwich"], adapter_init["state_init"], strict=True))
    )
    styles = style.checkpoint_palette(adapter_init["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 0.9 + 1.7 * len(cases), context)
    panels = figure.subplots(len(cases), len(groups) + 1, squeeze=False)
    for row, (sandwich, state_init) in zip(panels, cases, strict=True):
        rows = adapter_init[
            (adapter_init["sandwich"] == sandwich) & (adapter_init["state_init"] == state_init)
        ]
        for axes, group in zip(row, [*groups, ALL], strict=True):
            measure = LOSS if group == ALL else COSINE
            _draw_starts(
                axes, rows[(rows["group"] == group) & (rows["measure"] == measure)], styles
            )
        case = (
            f"{sandwich.replace('_', ' ')}, {state_init.replace('_', ' ')}\n"
            if len(cases) > 1
            else ""
        )
        row[0].set_ylabel(f"{case}late cosine")
        row[-1].set_ylabel("nats per token")
        for axes in row[1:-1]:
            axes.tick_params(labelleft=False)
    for axes in panels[:, :-1].flat:
        axes.axhspan(*style.REPORTED_COSINE, color=style.REPORTED_BAND, linewidth=0, zorder=0)
        axes.set_ylim(-1.15, 1.15)  # lines at 1 are below the frame
    for axes in panels[-1]:
        axes.set_xlabel("share of the state\nat the start")
    style.title_groups(panels[0, :-1], groups)
    panels[0, -1].set_title("held-out loss")
    drawn = adapter_init.loc[adapter_init["value"].notna(), "iteration"].unique()
    styles = {iteration: look for iteration, look in styles.items() if iteration in drawn}
    style.checkpoint_legend(
        figure, styles, context, {style.REPORTED_LABEL: Patch(color=style.REPORTED_BAND)}
    )
    return figure


def _draw_starts(axes: Axes, rows: pd.DataFrame, styles: Styles) -> None:
    """Values against the start, one line per checkpoint, with random weights apart from the line of
    the shares.
    """
    rows = rows.assign(place=rows["share"].fillna(RANDOM)).sort_values("place")
    last = max(styles)
    for iteration, look in styles.items():
        means = rows[(rows["seed"] == ALL) & (rows["iteration"] == iteration)]
        for _, part in means.groupby(means["share"].isna()):
            axes.plot(part["place"], part["value"], **look, marker="o")
    means = rows[(rows["seed"] == ALL) & (rows["iteration"] == last)]
    axes.vlines(
        means["place"], means["low"], means["high"], color=styles[last]["color"], linewidth=0.8
    )
    seeds = rows[(rows["seed"] != ALL) & (rows["iteration"] == last)]
    if seeds["seed"].nunique() > 1:
        axes.plot(
            seeds["place"] + SEEDS, seeds["value"], "_", color=styles[last]["color"], markersize=4
        )
    if rows["value"].isna().all():
        axes.text(0.5, 0.3, BELOW, ha="center", transform=axes.transAxes, color=style.GREY)
    # an axis from the input alone, 0, to the state alone, 1, with random weights at its end
    places = rows["place"].unique()
    shares = [place for place in places if place != RANDOM]
    ends = [
        share for share in (0, 0.5, 1) if shares and min(shares) <= share <= max(shares)
    ] or shares
    ticks = {share: f"{share:g}" for share in ends} | (
        {RANDOM: "random"} if RANDOM in places else {}
    )
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.12, RANDOM + 0.25)


# --- variants -------------------------------------------------------------------------------------

MEASURES = {
    "cosine": r"(a)  $\cos\angle(\Delta^{(k)}, \Delta^{(k-1)})$",
    "step_norm": r"(b)  step norm $\Vert\Delta^{(k)}\Vert_2$",
}


@style.look()
def draw_variants(
    loop_metrics: pd.DataFrame,
    drift: pd.DataFrame,
    training: pd.DataFrame,
    *,
    reference_state: str,
    reading: str = "state",
    context: style.FigureContext,
) -> Figure:
    """One column per group: cosine and step norm over the loop; below, DLR at each boundary and the
    held-out loss.

    The tables have all runs, named variants/<sandwich>-<adapter_init>-<state_init>, followed by
    -seed<seed> under a further seed. Then lines are means over seeds with the range of the seeds,
    and each seed has a mark in the DLR. `reading` says what the first two rows are of: "state", or
    "direction" for steps of x / ||x||.
    """
    groups = style.looped_groups(loop_metrics, "the variants")
    loop_metrics, drift, training = (
        table.assign(variant=table["run"].map(variant)) for table in (loop_metrics, drift, training)
    )
    looks = variant_styles(loop_metrics["variant"].unique())
    figure = style.new_figure(style.DOUBLE, 6.4, context)
    panels = figure.subplots(1 + len(MEASURES), len(groups), squeeze=False)
    loop_metrics, drift = (
        table[table["iteration"] == table.groupby("run")["iteration"].transform("max")]
        for table in (loop_metrics, drift)
    )
    measures = style.measures_read(loop_metrics, MEASURES, reading)
    for row, (measure, label) in zip(panels[:-1], measures.items(), strict=True):
        for axes, group in zip(row, groups, strict=True):
            if axes is not row[0]:  # one y axis, labelled at the left
                axes.sharey(row[0])
                axes.tick_params(labelleft=False)
            rows = loop_metrics[
                (loop_metrics["group"] == group) & (loop_metrics["measure"] == measure)
            ]
            _draw_curves(axes, style.points_above_rounding(rows), "k", looks)
            style.scale_loop_steps(axes, 0, context.loops - 1)
        row[0].set_ylabel(label, fontsize=style.SCRIPTED)
    for axes in panels[0] if reading == "state" else ():
        axes.axhspan(*style.REPORTED_COSINE, color=style.REPORTED_BAND, linewidth=0, zorder=0)
    style.title_groups(panels[0], groups)
    panels[1, 0].set_yscale("log", nonpositive="mask")
    style.label_powers(panels[1, 0].yaxis)
    ratios = drift[(drift["measure"] == "dlr") & (drift["reference_state"] == reference_state)]
    for axes, (boundary, rows) in zip(
        panels[-1], ratios.groupby("boundary", sort=False), strict=False
    ):
        _draw_ratios(axes, rows, looks)
        axes.set_title(f"boundary {style.group_name(boundary)}")
    panels[-1, 0].set_ylabel("(c)  drift-to-loop ratio")
    measured = training.dropna(subset="held_out_loss").rename(columns={"held_out_loss": "mean"})
    _draw_curves(panels[-1, -1], measured, "iteration", looks)
    panels[-1, -1].set(title="held-out loss", xlabel="iteration", ylabel="nats per token")
    figure.align_ylabels(panels[:, 0])
    handles: dict[str, Artist] = {
        name.replace("-", ", ").replace("_", "-"): Line2D([], [], **look)
        for name, look in looks.items()
    }
    handles[style.REPORTED_LABEL] = Patch(color=style.REPORTED_BAND)
    title = "sandwich, adapter at initialisation, initial state"
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=3, title=title
    )
    return figure


def variant(run: str) -> str:
    """The variant <sandwich>-<adapter_init>-<state_init> of a run under any seed, from its name."""
    return re.sub(r"-seed\d+$", "", run.rpartition("/")[2])


def variant_styles(variants: Iterable[str]) -> Styles:
    """Colour by sandwich and adapter, dashes and marker by initial state."""
    choices = {name: name.rpartition("-") for name in variants}
    pairs = list(dict.fromkeys(pair for pair, _, _ in choices.values()))
    starts = list(dict.fromkeys(start for _, _, start in choices.values()))
    by_start = style.series_styles(len(starts))
    return {
        name: by_start[starts.index(start)]
        | {"color": style.COLOURS[pairs.index(pair) % len(style.COLOURS)]}
        for name, (pair, _, start) in choices.items()
    }


def _draw_curves(axes: Axes, metrics: pd.DataFrame, x: str, looks: Styles) -> None:
    """The column `mean` against the column `x`, one line per variant: the mean over seeds, and
    their range.
    """
    for name, look in looks.items():
        rows = metrics[metrics["variant"] == name]
        style.seed_band(axes, rows, x, look["color"])
        means = rows.groupby(x)["mean"].mean()
        axes.plot(means.index, means, **{**look, "marker": ""})


def _draw_ratios(axes: Axes, ratios: pd.DataFrame, looks: Styles) -> None:
    """The mean over tokens of each variant, with a bar over nine tenths of the tokens, and a mark
    for each seed.
    """
    for place, (name, look) in enumerate(looks.items()):
        rows = ratios[ratios["variant"] == name]
        axes.plot([place, place], rows[["q05", "q95"]].mean(), color=look["color"], linewidth=0.8)
        axes.plot(place, rows["mean"].mean(), **look)
        if len(rows) > 1:
            axes.plot(
                [place + 0.3] * len(rows),
                rows["mean"],
                color=look["color"],
                marker="_",
                linestyle="",
            )
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)))
    axes.set_yscale("log")
    style.label_powers(axes.yaxis)
    axes.set_xticks([])
    axes.set_xlabel("variant, in the order of the legend")


# --- baselines ------------------------------------------------------------------------------------

LOOPED, UNTRAINED = "looped", "untrained"
BASELINES = ("parameters", "flops")  # what they have in common with the looped model
# model: as the page and the figure call it
NAMES = {
    LOOPED: "looped",
    "parameters": "same parameters",
    "flops": "same training FLOPs",
    UNTRAINED: "untrained",
}
COLOURS = {LOOPED: style.BLUE, "parameters": style.ORANGE, "flops": style.GREEN}
EVERY = -1  # in the place of a seed: the mean over seeds
POINT = ["model", "of_seed"]
MEAN: style.Look = {"marker": "o", "markersize": 5, "linestyle": ""}
SEED: style.Look = {"marker": "o", "markersize": 3, "linestyle": "", "markerfacecolor": "white"}
SPREAD = 0.12  # between the points of two seeds, in units of the axis


@job_files(reads="quality", writes="baselines page")
def run_baselines(job: StudyJob) -> None:
    table = compare_baselines(
        job.config.compared, job.files["quality"], job.config.run, job.config.seed
    )
    job.write("baselines", table)
    job.write_text("page", baselines_page(table, job.config.page))


def compare_baselines(
    models: Sequence[Mapping[str, Any]], paths: Iterable[str | Path], run: str, seed: int
) -> pd.DataFrame:
    """The table "baselines" from model, seed, iteration, layers, parameters, flops of each model
    and its quality.
    """
    frames = [
        tables.read("scaling_quality", path).assign(model=model["model"], of_seed=model["seed"])
        for model, path in zip(models, paths, strict=True)
    ]
    rows = pd.concat(frames, ignore_index=True)
    keys = ["of_seed", "sequence"]
    looped = rows[rows["model"] == LOOPED].set_index(keys)["ce"]
    rows["difference"] = rows["ce"] - rows.join(looped.rename("looped"), on=keys)["looped"]
    by_sequence = rows.groupby(["model", "sequence", "document", "tokens"], sort=False)
    means = by_sequence[["ce", "difference"]].mean().reset_index().assign(of_seed=EVERY)
    summary = _summary(pd.concat([rows, means], ignore_index=True), seed)
    first = pd.DataFrame(models).groupby("model", sort=False).first()
    sizes = first[["layers", "parameters", "flops", "iteration"]]
    return summary.join(sizes, on="model").assign(run=run)[list(tables.columns("baselines"))]


def _summary(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Per model and seed the columns of the table that follow from cross-entropies."""
    by_point = rows.groupby(POINT, sort=False)
    columns = {"tokens": by_point["tokens"].sum(), "documents": by_point["document"].nunique()}
    columns |= with_bounds(rows, POINT, "ce", "ce", seed) | with_bounds(
        rows, POINT, "difference", "difference", seed
    )
    summary = pd.DataFrame(columns).reset_index()
    summary = summary.rename(
        columns={f"difference_{end}": f"documents_{end}" for end in ("low", "high")}
    )
    is_mean, value = summary["of_seed"] == EVERY, summary["difference"]
    each = summary[~is_mean].groupby("model", sort=False)["difference"]
    summary["seeds"] = summary["model"].map(each.size()).where(is_mean, 1)
    over_seeds = pd.DataFrame(
        {model: bootstrap.t_interval(values.to_numpy()) for model, values in each}
    )
    for place, end in enumerate(("low", "high")):
        summary[f"seeds_{end}"] = summary["model"].map(over_seeds.loc[place]).where(is_mean)
    # where there is no interval over seeds, the joined one is over documents alone
    parts = [(summary["documents_low"], summary["documents_high"])]
    parts.append((summary["seeds_low"].fillna(value), summary["seeds_high"].fillna(value)))
    summary["difference_low"], summary["difference_high"] = bootstrap.joined(value, *parts)
    summary["seed"] = summary["of_seed"].where(~is_mean)
    return summary


def baselines_page(table: pd.DataFrame, values: Mapping[str, Any]) -> str:
    """Markdown: the means over seeds, then each seed. `values`: run, text, loops, mean_loops,
    iterations, …
    """
    means, each = table[table["seed"].isna()], table[table["seed"].notna()]
    seeds = {int(seed): list(rows.itertuples()) for seed, rows in each.groupby("seed")}
    looped = next(means[means["model"] == LOOPED].itertuples())
    rows = {"means": list(means.itertuples()), "seeds": seeds, "looped": looped}
    return render("studies/sweeps/baselines.md.j2", names=NAMES, **rows, **values)


def baselines_sentence(table: pd.DataFrame) -> str:
    means = table[table["seed"].isna() & table["model"].isin(BASELINES)]
    parts = [
        f"{row.difference:+.3f} [{row.difference_low:+.3f}, {row.difference_high:+.3f}] with the"
        f" {NAMES[row.model]}"
        for row in means.itertuples()
    ]
    return (
        f"Held-out cross-entropy without loops minus that of the looped model, nats per token:"
        f" {'; '.join(parts)}."
    )


@style.look()
def draw_baselines(baselines: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """(i) Cross-entropy of every trained model, (ii) its difference from the looped one with the
    same seed.
    """
    style.check_rows("baselines", baselines)
    figure = style.new_figure(style.DOUBLE, 2.8, context)
    quality, difference = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_models(quality, baselines, [LOOPED, *BASELINES], "ce")
    _draw_models(difference, baselines, [*BASELINES], "difference")
    difference.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    style.name_panel(quality, 1, "held-out text", "cross-entropy (nats/token)")
    style.name_panel(difference, 2, "what the loops buy", "nats/token above looped")
    means = baselines[baselines["seed"].isna()].set_index("model")
    several = means.loc[LOOPED, "seeds"] > 1
    handles = {
        "mean over seeds" if several else "one seed": Line2D([], [], color=style.GREY, **MEAN)
    }
    if several:
        handles["one seed"] = Line2D([], [], color=style.GREY, **SEED)
    if UNTRAINED in means.index:  # far above the others
        handles[f"untrained: {means.loc[UNTRAINED, 'ce']:.2f} nats/token"] = Line2D(
            [], [], linestyle=""
        )
    style.legend_above(figure, handles)
    return figure


def _draw_models(axes: Axes, baselines: pd.DataFrame, models: list[str], column: str) -> None:
    """One place per model: the mean over seeds with its interval, and beside it every seed with its
    own.
    """
    for place, model in enumerate(models):
        rows = baselines[baselines["model"] == model]
        each = rows[rows["seed"].notna()]
        points = [(place, rows[rows["seed"].isna()].iloc[0], MEAN)]
        if len(each) > 1:
            further = zip(place + SPREAD * (2 + np.arange(len(each))), each.iterrows(), strict=True)
            points += [(x, row, SEED) for x, (_, row) in further]
        for x, row, look in points:
            axes.vlines(
                x, row[f"{column}_low"], row[f"{column}_high"], color=COLOURS[model], linewidth=0.9
            )
            axes.plot(x, row[column], **look | {"color": COLOURS[model]})
    axes.set_xticks(
        range(len(models)), [NAMES[model].replace("same ", "same\n") for model in models]
    )
    axes.set_xlim(-0.5, len(models) - 0.3)
