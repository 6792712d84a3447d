"""The verdicts under each seed and over all seeds: the table "seeds", its page and its figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale import tables
from twoscale.claims import bootstrap, seeds
from twoscale.claims.estimates import Estimate
from twoscale.claims.evidence import Evidence
from twoscale.claims.findings import Role
from twoscale.claims.scale import Scales
from twoscale.claims.seeds import MEAN, SeedFinding, SeedVerdict
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.claims.words import DEPENDS, FAILS, HOLDS, NOT_ASKED, OPEN, kind, marked, word
from twoscale.figures import style
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.report.claims import scale_table
from twoscale.report.render import estimated, interval, render

_FEW_SEEDS = 6  # below, the interval of the mean is wider than about one standard deviation
# Verdict that seeds are counted by -> colour and sign of its cell in the figure.
_CELLS = {
    HOLDS: (style.GREEN, "✓"),
    FAILS: (style.ORANGE, "✗"),
    DEPENDS: (style.PURPLE, "~"),
    OPEN: ("0.75", "?"),
}
_TITLES = {claim.number: claim.title for claim in CLAIMS}


@job_files(reads=" ".join(tables.CLAIM_TABLES), writes="table page")
def run(job: TableJob) -> None:
    """Write the table "seeds" and results/seeds.md."""
    config = job.config
    evidence = {}
    files = zip(*(job.files[name] for name in tables.CLAIM_TABLES), strict=True)
    for seed, of_seed in zip(config.seeds, files, strict=True):
        evidence[seed] = Evidence.read(
            dict(zip(tables.CLAIM_TABLES, of_seed, strict=True)),
            max_loops=config.max_loops,
            warmup=config.warmup_iterations,
            seed=config.seed,  # the same for all bootstraps: they draw the same documents
            published=config.published,
        )
    verdicts = seeds.verdicts(evidence)
    scales = Scales.of(config.scales).with_run(seeds=len(config.seeds))
    job.write("seeds", seeds.table(verdicts, config.run, config.seeds, scales.mark), "table")
    job.write_text("page", page(verdicts, config.run, config.text, config.seeds, scales))


# --- page -----------------------------------------------------------------------------------------


def page(
    verdicts: Sequence[SeedVerdict],
    run: str,
    text: str,
    named: Sequence[int],
    scales: Scales | None = None,
) -> str:
    """Markdown of the verdicts under each seed and over all of them; `named` are the seeds."""
    frame = seeds.table(verdicts, run, named, scales.mark if scales else "")
    cells = {}  # number of a claim -> rows of its table
    words = {}  # number of a claim -> its verdicts in words under each seed, and over seeds
    whole = frame[frame["scope"] == ALL]
    for verdict in verdicts:
        number = verdict.claim.number
        cells[number] = [_cells(finding) for finding in verdict.findings]
        rows = whole.loc[whole["claim"] == number, ["verdict", "scale"]]
        words[number] = [word(*row) for row in rows.itertuples(index=False)]
    values = {"verdicts": verdicts, "named": named, "cells": cells, "words": words}
    return render("studies/seeds/seeds.md.j2", **_summary(frame, text, scales), **values)


def summary(frame: pd.DataFrame, text: str, scales: Scales | None = None) -> str:
    """The first part of the page: how to read it, the scale, the number of seeds by verdict."""
    return render("studies/seeds/seeds.md.j2", **_summary(frame, text, scales), verdicts=[])


def _summary(frame: pd.DataFrame, text: str, scales: Scales | None) -> dict[str, Any]:
    """Values of the first part of the page, from the table "seeds"."""
    whole = frame[frame["scope"] == ALL]
    named = [seed for seed in whole["seed"].unique() if seed != MEAN]
    number = len(named)
    low, high = bootstrap.deviation_factors(number)  # of the standard deviation, by chi-square
    # half the interval of Student's t of the mean, in standard deviations of the seeds
    reach = bootstrap.t_quantile((1 + bootstrap.LEVEL) / 2, number - 1) / np.sqrt(number)
    return {
        "run": frame["run"].iloc[0],
        "text": text,
        "seeds": named,
        "scale": scale_table(scales),
        "header": ["claim", "in short", *_words(whole, "seeds: "), "mean over seeds"],
        "counts": [_counts(claim, rows) for claim, rows in whole.groupby("claim")],
        "reach": reach,
        "low": low,
        "high": high,
        "few": number < _FEW_SEEDS,
    }


def _counts(claim: int, rows: pd.DataFrame) -> tuple[object, ...]:
    """The row of a claim: the number of seeds with each verdict, and the verdict on the mean."""
    by_seed = rows.set_index("seed")
    of_seeds = by_seed["verdict"].drop(MEAN).map(kind).tolist()
    is_asked = NOT_ASKED not in of_seeds
    counts = [of_seeds.count(verdict) if is_asked else "" for verdict in _CELLS]
    of_mean = marked(*by_seed.loc[MEAN, ["verdict", "scale"]])
    return (claim, _TITLES[claim], *counts, f"**{of_mean}**")


def _words(whole: pd.DataFrame, prefix: str = "") -> list[str]:
    """The verdicts of `_CELLS` in words, for runs whose verdicts are `whole`."""
    mark = min(whole["scale"])  # without the trend of a single verdict
    return [prefix + word(verdict, mark) for verdict in _CELLS]


def _cells(finding: SeedFinding) -> tuple[str, ...]:
    """The row of a finding."""
    mean = finding.mean
    return (
        mean.scope,
        mean.quantity,
        *(_cell(of_seed.estimate) for of_seed in finding.of_seeds),
        _spread(finding.deviation, mean.estimate.is_ratio),
        _spread(finding.document_error, mean.estimate.is_ratio),
        _cell(mean.estimate),
        mean.bounds or "(for comparison)",
        mean.verdict,
    )


def _spread(value: float, is_ratio: bool) -> str:
    """A standard deviation, of a ratio that of its logarithm in percent; empty if not measured."""
    if np.isnan(value):
        return ""
    return f"{100 * value:.2g} %" if is_ratio else f"{value:.2g}"


def _cell(estimate: Estimate) -> str:
    """The value and its interval in brackets; a dash if it was not measured."""
    if np.isnan(estimate.value):
        return "–"
    return f"{estimated(estimate)} ({interval(estimate)})"


# --- figure ---------------------------------------------------------------------------------------

_OTHER = ("white", "–")  # of a verdict that is not in _CELLS
# Kind of quantity -> the claims about it. The claims about times have no spread over seeds.
_KINDS = {"step norms": (1, 2, 12, 13), "angles": (3, 4, 5), "drift": (6,), "exits": (8, 9, 14, 15)}
_EQUAL: style.Look = {"color": style.GREY, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}


@style.look()
def draw_seeds(seeds: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """The verdicts on the claims, and the spreads of the quantities that they are about.

    (i) The verdict on each claim under each seed and over seeds. (ii) Each quantity of the claims
    as a point, the standard deviation between seeds against the standard error that is due to the
    documents, each pair in the unit of its quantity; filled points count for a verdict.
    """
    style.check_rows("seeds", seeds)
    is_verdict = seeds["scope"] == ALL  # the last rows of a claim
    is_mean = seeds["seed"] == MEAN
    columns = seeds["seed"].nunique()
    figure = style.new_figure(style.DOUBLE, 3.7, context)
    left, right = figure.subplots(1, 2, width_ratios=(0.16 * columns, 1))
    _draw_verdicts(left, seeds[is_verdict])
    _draw_spreads(right, seeds[is_mean & ~is_verdict])
    return figure


def _draw_verdicts(axes: Axes, rows: pd.DataFrame) -> None:
    """One row per claim, one column per seed and one for the mean, with a gap before it."""
    seeds = rows["seed"].unique()
    cells = rows.pivot(index="claim", columns="seed", values="verdict")[seeds]
    places = [column + 0.25 * (seed == MEAN) for column, seed in enumerate(seeds)]  # with a gap
    for row, verdicts in enumerate(cells.to_numpy()):
        for place, verdict in zip(places, verdicts, strict=True):
            colour, sign = _CELLS.get(kind(verdict), _OTHER)
            axes.scatter(place, row, s=105, marker="s", color=colour, linewidth=0)
            axes.text(place, row, sign, ha="center", va="center_baseline")

    names = [f"{_TITLES[claim]}  {claim}" for claim in cells.index]
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(places, ["over\nseeds" if seed == MEAN else seed for seed in seeds])
    axes.set_xlim(-0.6, places[-1] + 0.6)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first claim on top
    axes.xaxis.tick_top()
    axes.set_title(f"{style.panel_number(1)}  verdicts")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    looks = [{"color": colour, "marker": "s"} for colour, _ in _CELLS.values()]
    marks = dict(zip(_words(rows), looks, strict=True))
    _legend(axes, marks, loc="upper center", bbox_to_anchor=(0, 0), ncols=2)


def _draw_spreads(axes: Axes, rows: pd.DataFrame) -> None:
    # an axis in logarithms shows no zero; NaN is not above it either
    shown = rows[(rows["deviation"] > 0) & (rows["document_error"] > 0)]
    # claims share some quantities
    shown = shown.drop_duplicates(["scope", "quantity", "deviation", "document_error"])
    marks = {}
    for name, looks in zip(_KINDS, style.series_styles(len(_KINDS)), strict=True):
        marks[name] = looks | {"linestyle": ""}
        of_kind = shown[shown["claim"].isin(_KINDS[name])]
        for counts, points in of_kind.groupby(of_kind["role"] == Role.COUNTED):
            look = marks[name] | {"markeredgewidth": 0.8}
            if not counts:  # a number for comparison
                look["markerfacecolor"] = "white"
            axes.plot(points["document_error"], points["deviation"], **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    # the same range on both axes, so that the diagonal is where the spreads are equal
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    axes.set_xlim(min(limits), max(limits))
    axes.set_ylim(min(limits), max(limits))
    style.label_powers(axes.xaxis)
    style.label_powers(axes.yaxis)
    axes.plot(axes.get_xlim(), axes.get_xlim(), zorder=0, **_EQUAL)  # diagonal
    axes.set_xlabel("standard error over documents")
    axes.set_ylabel("standard deviation between seeds")
    axes.set_title(f"{style.panel_number(2)}  quantities, each in its unit")
    _legend(axes, marks | {"equal": _EQUAL}, loc="best")


def _legend(axes: Axes, marks: dict[str, dict[str, Any]], **options: Any) -> None:
    handles = [Line2D([], [], **{"linestyle": ""} | looks) for looks in marks.values()]
    axes.legend(handles, list(marks), **options)
