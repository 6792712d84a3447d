"""Comparisons and figures of the sweeps.

Adapter initialisations: the late cosine is as in claim 4, and each is judged by the bounds of claim
4.

Baselines: every difference is between two models with the same seed, on the same documents. The
interval of a mean over seeds is as in `twoscale.claims.seeds`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale import tables
from twoscale.claims import bootstrap, geometry
from twoscale.claims.estimates import Estimate, InconclusiveError
from twoscale.claims.evidence import Evidence
from twoscale.claims.findings import Quantity, between, find, judged, reference
from twoscale.claims.seeds import mean_over_seeds, over_seeds
from twoscale.figures import style
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.report.render import render
from twoscale.studies.sweeps.study import LOOPED, UNTRAINED

_Styles = Mapping[Any, Mapping[str, Any]]

# --- adapter initialisations ----------------------------------------------------------------------

_ALL = "all"  # in place of a seed: all of them; in place of a group: the whole model
_COSINE, _LOSS = "late_cosine", "held_out_loss"
_RANDOM = 1.45  # place of random weights on the axis of shares
_TICKS = {0: "0", 0.5: "0.5", 1: "1"}  # from the input alone, 0, to the state alone, 1
_SEED_GAP = 0.04  # distance of the marks of single seeds from the mean
_BELOW = "all steps below\nthe rounding floor"  # in an empty panel


class InitRun(NamedTuple):
    """A run with its start and its tables."""

    share: float | None  # of the state at the start; None for random weights
    state_init: str
    sandwich: str
    seed: int
    evidence: Evidence
    training: pd.DataFrame


@job_files(reads="training loops", writes="adapter_init")
def run_adapter_init(job: TableJob) -> None:
    """Write the table "adapter_init"."""
    config = job.config
    files = zip(config.runs, job.files["loops"], job.files["training"], strict=True)
    runs = []
    for labels, loops, training in files:
        of_loops = {"loops": tables.read("loop_sequences", loops)}
        evidence = Evidence.of(of_loops, max_loops=0, seed=config.seed)
        log = tables.read("training", training)
        runs.append(InitRun(**labels, evidence=evidence, training=log))
    job.write("adapter_init", compare_starts(runs))


def compare_starts(runs: Sequence[InitRun]) -> pd.DataFrame:
    """Table "adapter_init": every measure of every start at every checkpoint, for each seed and for
    all seeds; the runs of a start follow one another.
    """
    bounds = between(*geometry.PAPER_ANGLES)
    rows = []
    for start, same in groupby(runs, key=lambda run: run[:3]):  # all but the seed
        of_start = list(same)
        evidence = of_start[0].evidence
        # each seed alone, then all of them
        sets = [(str(run.seed), [run]) for run in of_start] + [(_ALL, of_start)]
        cosines, losses = [], []
        for iteration, (seed, chosen) in product(evidence.iterations, sets):
            key = (*start, seed, iteration)
            for group in evidence.groups:
                cosine = partial(late_cosine, chosen, group, iteration)
                quantity = judged(group, _COSINE, bounds, cosine)
                cosines.append((*key, *_measured(quantity, len(evidence.groups))))
            if iteration > 0:  # training measures no loss before its first iteration
                quantity = reference(_ALL, _LOSS, partial(held_out_loss, chosen, iteration))
                losses.append((*key, *_measured(quantity, 1)))
        rows += cosines + losses
    columns = list(tables.columns("adapter_init"))
    return pd.DataFrame(rows, columns=columns).astype({"share": "float64"})


def _measured(quantity: Quantity, findings: int) -> tuple:
    """Group, measure, value, both ends of the interval, verdict and reason."""
    found = find(quantity, findings)
    value, low, high = found.estimate.value, found.estimate.low, found.estimate.high
    return found.scope, found.quantity, value, low, high, found.verdict, found.reason


def late_cosine(runs: Sequence[InitRun], group: str, iteration: int) -> Estimate:
    """Late cosine of claim 4; over several seeds, its mean with an interval over both."""
    estimates = [geometry.late_cosine(run.evidence, group, iteration) for run in runs]
    if len(estimates) == 1:
        return estimates[0].checked()
    return mean_over_seeds(estimates)


def held_out_loss(runs: Sequence[InitRun], iteration: int) -> Estimate:
    """Held-out loss of training in nats per token; its interval is over seeds alone."""
    logs = [run.training.set_index("iteration")["held_out_loss"] for run in runs]
    losses = np.array([log.get(iteration, np.nan) for log in logs])  # NaN: not measured
    if np.isnan(losses).any():
        raise InconclusiveError("no held-out loss was measured at this iteration")
    if len(losses) == 1:
        return Estimate(float(losses[0]), remark="one seed, no interval")
    return over_seeds(losses)


@style.look()
def draw_adapter_init(adapter_init: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row per norm and first state: the late cosine in each group against the start, and the
    held-out loss.

    One line per checkpoint, the mean over seeds; bars are 95 % intervals at the last checkpoint,
    with a small mark for each seed where there are several. Raises InputError for a model without
    looped groups.
    """
    groups = style.looped_groups(adapter_init.query("measure == @_COSINE"), "the starts")
    cases = adapter_init.groupby(["sandwich", "state_init"], sort=False)
    styles = style.checkpoint_palette(adapter_init["iteration"], context)
    figure = style.new_figure(style.DOUBLE, 0.9 + 1.7 * len(cases), context)
    panels = figure.subplots(len(cases), len(groups) + 1, squeeze=False)
    for row, (case, rows) in zip(panels, cases, strict=True):
        for axes, group in zip(row, [*groups, _ALL], strict=True):  # _ALL: the held-out loss
            _draw_starts(axes, rows[rows["group"] == group], styles)
        name = ", ".join(case).replace("_", " ") + "\n" if len(cases) > 1 else ""
        row[0].set_ylabel(f"{name}late cosine")
        row[-1].set_ylabel("nats per token")
    for axes in panels[:, :-1].flat:
        reported = style.mark_reported(axes)
        axes.set_ylim(-1.15, 1.15)  # lines at 1 are below the frame
    for axes in panels[:, 1:-1].flat:
        axes.tick_params(labelleft=False)
    for axes in panels[-1]:
        axes.set_xlabel("share of the state\nat the start")
    style.title_groups(panels[0, :-1], groups)
    panels[0, -1].set_title("held-out loss")
    drawn = set(adapter_init.dropna(subset="value")["iteration"])
    styles = {iteration: look for iteration, look in styles.items() if iteration in drawn}
    style.checkpoint_legend(figure, styles, context, reported)
    return figure


def _draw_starts(axes: Axes, rows: pd.DataFrame, styles: _Styles) -> None:
    """Values against the start, one line per checkpoint, with random weights apart from the line of
    the shares.
    """
    rows = rows.assign(place=rows["share"].fillna(_RANDOM)).sort_values("place")
    for iteration, look in styles.items():
        of_checkpoint = rows[rows["iteration"] == iteration]
        means = of_checkpoint.query("seed == @_ALL")
        mark = {**look, "marker": look.get("marker") or "o"}  # a point may be alone
        # no line leads from the shares to random weights, which are no share
        for _, line in means.groupby(means["share"].isna()):
            axes.plot(line["place"], line["value"], **mark)
    # only the last checkpoint, drawn last, has intervals and single seeds
    color = look["color"]
    seeds = of_checkpoint.query("seed != @_ALL")
    axes.vlines(means["place"], means["low"], means["high"], color=color, linewidth=0.8)
    if seeds["seed"].nunique() > 1:
        axes.plot(seeds["place"] + _SEED_GAP, seeds["value"], "_", color=color, markersize=4)
    if rows["value"].isna().all():
        axes.text(0.5, 0.3, _BELOW, ha="center", transform=axes.transAxes, color=style.GREY)
    # random weights are at the end of the axis of shares
    ticks = dict(_TICKS)
    if rows["share"].isna().any():
        ticks[_RANDOM] = "random"
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.12, _RANDOM + 0.25)


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
    reading: str,
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
    loop_metrics, drift, training = map(_with_variant, (loop_metrics, drift, training))
    looks = variant_styles(loop_metrics["variant"].unique())
    figure = style.new_figure(style.DOUBLE, 6.4, context)
    panels = figure.subplots(1 + len(MEASURES), len(groups), squeeze=False)

    loops = _at_last_checkpoint(loop_metrics)
    measures = style.measures_read(loops, MEASURES, reading)
    for row, (measure, label) in zip(panels[:-1], measures.items(), strict=True):
        for axes, group in zip(row, groups, strict=True):
            if axes is not row[0]:  # one y axis, labelled at the left
                axes.sharey(row[0])
                axes.tick_params(labelleft=False)
            rows = loops[(loops["group"] == group) & (loops["measure"] == measure)]
            _draw_curves(axes, style.points_above_rounding(rows), "k", looks)
            style.scale_loop_steps(axes, 0, context.loops - 1)
        row[0].set_ylabel(label, fontsize=style.SCRIPTED)
    handles: dict[str, Artist] = {}
    for name, look in looks.items():
        handles[name.replace("-", ", ").replace("_", "-")] = Line2D([], [], **look)
    for axes in panels[0] if reading == "state" else ():
        handles |= style.mark_reported(axes)
    style.title_groups(panels[0], groups)
    # a step of length 0 has no logarithm
    panels[1, 0].set_yscale("log", nonpositive="mask")
    style.label_powers(panels[1, 0].yaxis)

    # below, one panel for each boundary and the last for the loss
    ratios = drift.query("measure == 'dlr' and reference_state == @reference_state")
    boundaries = _at_last_checkpoint(ratios).groupby("boundary", sort=False)
    for axes, (boundary, rows) in zip(panels[-1], boundaries, strict=False):
        _draw_ratios(axes, rows, looks)
        axes.set_title(f"boundary {style.group_name(boundary)}")
    panels[-1, 0].set_ylabel("(c)  drift-to-loop ratio")
    losses = training.dropna(subset="held_out_loss").rename(columns={"held_out_loss": "mean"})
    _draw_curves(panels[-1, -1], losses, "iteration", looks)
    panels[-1, -1].set(title="held-out loss", xlabel="iteration", ylabel="nats per token")
    figure.align_ylabels(panels[:, 0])

    title = "sandwich, adapter at initialisation, initial state"
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=3, title=title
    )
    return figure


def _with_variant(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `variant`, from the name of the run under any seed."""
    return table.assign(variant=table["run"].str.extract(r"([^/]+?)(?:-seed\d+)?$", expand=False))


def _at_last_checkpoint(table: pd.DataFrame) -> pd.DataFrame:
    # of each run, because the runs of a sweep may end at different iterations
    return table[table["iteration"] == table.groupby("run")["iteration"].transform("max")]


def variant_styles(variants: Sequence[str]) -> _Styles:
    """Colour by sandwich and adapter, dashes and marker by initial state."""
    parts = pd.Series(variants).str.rpartition("-")
    pairs, _ = pd.factorize(parts[0])  # numbers in the order of the variants
    starts, _ = pd.factorize(parts[2])
    looks = style.series_styles(len(variants))
    return {
        name: looks[start] | {"color": looks[pair]["color"]}
        for name, pair, start in zip(variants, pairs, starts, strict=True)
    }


def _draw_curves(axes: Axes, metrics: pd.DataFrame, x: str, looks: _Styles) -> None:
    """The column `mean` against the column `x`, one line per variant: the mean over seeds, and
    their range.
    """
    sns.lineplot(
        metrics,
        x=x,
        y="mean",
        errorbar=("pi", 100),
        legend=False,
        ax=axes,
        **style.BANDS,
        **{**style.semantics("variant", looks), "markers": False},
    )
    axes.set(xlabel="", ylabel="")


def _draw_ratios(axes: Axes, ratios: pd.DataFrame, looks: _Styles) -> None:
    """The mean over tokens of each variant, with a bar over nine tenths of the tokens, and a mark
    for each seed.
    """
    for place, (name, look) in enumerate(looks.items()):
        rows, color = ratios[ratios["variant"] == name], look["color"]
        axes.plot([place, place], rows[["q05", "q95"]].mean(), color=color, linewidth=0.8)
        axes.plot(place, rows["mean"].mean(), **look)
        if len(rows) > 1:
            seeds = [place + 0.3] * len(rows)
            axes.plot(seeds, rows["mean"], color=color, marker="_", linestyle="")
    axes.axhline(1, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)))
    axes.set_yscale("log")
    style.label_powers(axes.yaxis)
    axes.set_xticks([])
    axes.set_xlabel("variant, in the order of the legend")


# --- baselines ------------------------------------------------------------------------------------

# Model -> its name in the page and the figure; those without loops are named by what they have in
# common with the looped one.
_NAMES = {
    LOOPED: "looped",
    "parameters": "same parameters",
    "flops": "same training FLOPs",
    UNTRAINED: "untrained",
}
_BASELINES = ["parameters", "flops"]
_COLOURS = {LOOPED: style.BLUE, "parameters": style.ORANGE, "flops": style.GREEN}
_EVERY = -1  # in the place of a seed: the mean over seeds
_POINT = ["model", "seed"]
_MEAN: style.Look = {"marker": "o", "markersize": 5, "linestyle": ""}
_SEED: style.Look = {"marker": "o", "markersize": 3, "linestyle": "", "markerfacecolor": "white"}
_SPREAD = 0.12  # between the points of two seeds, in units of the axis


@job_files(reads="quality", writes="baselines page")
def run_baselines(job: TableJob) -> None:
    """Write the table "baselines" and the page results/baselines.md."""
    config = job.config
    table = compare_baselines(config.compared, job.files["quality"], config.run, config.seed)
    job.write("baselines", table)
    job.write_text("page", baselines_page(table, config.page))


def compare_baselines(
    models: Sequence[Mapping[str, Any]], paths: Iterable[str | Path], run: str, seed: int
) -> pd.DataFrame:
    """The table "baselines" from model, seed, iteration, layers, parameters, flops of each model
    and its quality.
    """
    frames = []
    for model, path in zip(models, paths, strict=True):
        quality = tables.read("scaling_quality", path)
        frames.append(quality.assign(model=model["model"], seed=model["seed"]))
    rows = pd.concat(frames, ignore_index=True)
    # paired: each sequence under each seed against the looped model on the same sequence
    keys = ["seed", "sequence"]
    looped = rows.query("model == @LOOPED").set_index(keys)["ce"].rename("looped")
    rows["difference"] = rows["ce"] - rows.join(looped, on=keys)["looped"]
    # a further "seed": the mean over seeds of every sequence
    by_sequence = rows.groupby(["model", "sequence", "document", "tokens"], sort=False)
    means = by_sequence[["ce", "difference"]].mean().reset_index()
    means = means.assign(seed=_EVERY)
    summary = _summary(pd.concat([rows, means], ignore_index=True), seed)
    # sizes do not depend on the seed
    by_model = pd.DataFrame(models).groupby("model", sort=False)
    sizes = by_model.first()[["layers", "parameters", "flops", "iteration"]]
    table = summary.join(sizes, on="model").assign(run=run)
    return table[list(tables.columns("baselines"))]


def _summary(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Per model and seed the columns of the table that follow from cross-entropies."""
    by_point = rows.groupby(_POINT, sort=False)
    counts = {"tokens": by_point["tokens"].sum(), "documents": by_point["document"].nunique()}
    summary = bootstrap.means(rows, _POINT, ("ce", "difference"), seed)
    summary = summary.assign(**counts).reset_index()
    # differences of single seeds, whose spread gives the interval over seeds
    each = summary.query("seed != @_EVERY").groupby("model", sort=False)["difference"]
    spread = [
        (model, _EVERY, len(values), *bootstrap.t_interval(values.to_numpy()))
        for model, values in each
    ]
    over_seeds = pd.DataFrame(spread, columns=[*_POINT, "seeds", "seeds_low", "seeds_high"])
    summary = summary.merge(over_seeds, on=_POINT, how="left")  # null in the rows of single seeds
    value = summary["difference"]
    documents = summary["difference_low"], summary["difference_high"]
    # where there is no interval over seeds, the joined one is over documents alone
    seeds = summary["seeds_low"].fillna(value), summary["seeds_high"].fillna(value)
    low, high = bootstrap.joined(value, documents, seeds)
    return summary.assign(
        seed=summary["seed"].where(summary["seed"] != _EVERY),
        seeds=summary["seeds"].fillna(1).astype("int64"),
        documents_low=documents[0],
        documents_high=documents[1],
        difference_low=low,
        difference_high=high,
    )


def baselines_page(table: pd.DataFrame, values: Mapping[str, Any]) -> str:
    """Markdown: the means over seeds, then each seed. `values`: run, text, loops, mean_loops,
    iterations, training_tokens.
    """
    means = list(table.query("seed.isna()").itertuples())
    each = table.dropna(subset="seed").groupby("seed")
    return render(
        "studies/sweeps/baselines.md.j2",
        names=_NAMES,
        means=means,
        looped=next(row for row in means if row.model == LOOPED),
        seeds={int(seed): list(rows.itertuples()) for seed, rows in each},
        **values,
    )


def baselines_sentence(table: pd.DataFrame) -> str:
    """The differences in one sentence, for the report."""
    means = table.query("seed.isna() and model in @_BASELINES")
    parts = [
        f"{row.difference:+.3f} [{row.difference_low:+.3f}, {row.difference_high:+.3f}] with the"
        f" {_NAMES[row.model]}"
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
    _draw_models(quality, baselines, [LOOPED, *_BASELINES], "ce")
    _draw_models(difference, baselines, _BASELINES, "difference")
    difference.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    style.name_panel(quality, 1, "held-out text", "cross-entropy (nats/token)")
    style.name_panel(difference, 2, "what the loops buy", "nats/token above looped")
    means = baselines.query("seed.isna()").set_index("model")
    mean, seed = (Line2D([], [], color=style.GREY, **look) for look in (_MEAN, _SEED))
    handles: dict[str, Artist] = {"one seed": mean}
    if means.loc[LOOPED, "seeds"] > 1:
        handles = {"mean over seeds": mean, "one seed": seed}
    # the untrained model is far above the others
    untrained = f"untrained: {means.loc[UNTRAINED, 'ce']:.2f} nats/token"
    handles[untrained] = Line2D([], [], linestyle="")
    style.legend_above(figure, handles)
    return figure


def _draw_models(axes: Axes, baselines: pd.DataFrame, models: list[str], column: str) -> None:
    """One place per model: the mean over seeds with its interval, and beside it every seed with its
    own.
    """
    for place, model in enumerate(models):
        # the mean over seeds is the last row of a model
        *each, mean = baselines[baselines["model"] == model].to_dict("records")
        points = [(float(place), mean, _MEAN)]
        if len(each) > 1:
            points += [(place + _SPREAD * n, row, _SEED) for n, row in enumerate(each, start=2)]
        for x, row, look in points:
            interval = row[f"{column}_low"], row[f"{column}_high"]
            axes.vlines(x, *interval, color=_COLOURS[model], linewidth=0.9)
            axes.plot(x, row[column], **look, color=_COLOURS[model])
    names = [_NAMES[model].replace("same ", "same\n") for model in models]
    axes.set_xticks(range(len(models)), names)
    axes.set_xlim(-0.5, len(models) - 0.3)
