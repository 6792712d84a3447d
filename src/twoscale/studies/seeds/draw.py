"""The verdicts under each seed and over all seeds: the table "seeds", results/seeds.md and the
figure.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale import tables
from twoscale.claims import bootstrap, seeds
from twoscale.claims.evidence import FAILS, HOLDS, NOT_ASKED, OPEN, Estimate, Evidence, marked
from twoscale.claims.scale import Scales
from twoscale.claims.seeds import MEAN, SeedFinding, SeedVerdict
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.figures import style
from twoscale.jobs.table_job import StudyJob, job_files
from twoscale.report.claims import scale_table
from twoscale.report.render import estimated, interval, render

FEW_SEEDS = 6  # below, the interval of the mean is wider than about one standard deviation


@job_files(reads="loops drift quality exit_loops latency checks", writes="table page")
def run(job: StudyJob) -> None:
    """Write the table "seeds" and results/seeds.md."""
    config = job.config
    # one seed for all bootstraps: they draw the same documents
    values = {"max_loops": config.max_loops, "warmup": config.warmup_iterations}
    values |= {"seed": config.seed, "published": config.published}
    files = zip(*(job.files[name] for name in tables.CLAIM_TABLES), strict=True)
    found = [
        Evidence.read(dict(zip(tables.CLAIM_TABLES, paths, strict=True)), **values)
        for paths in files
    ]
    verdicts = seeds.verdicts(dict(zip(config.seeds, found, strict=True)))
    scales = Scales.of(config.scales).with_run(seeds=len(config.seeds))
    frame = seeds.table(verdicts, config.run, config.seeds, scales.mark)
    tables.write("seeds", frame, job.file("table"))
    job.write_text("page", page(verdicts, config.run, config.text, config.seeds, scales))


# --- page -----------------------------------------------------------------------------------------


def page(
    verdicts: Sequence[SeedVerdict],
    run: str,
    text: str,
    named: Sequence[int],
    scales: Scales | None = None,
) -> str:
    """Markdown of the verdicts under each seed and over all of them; `named` are the seeds in their
    order.
    """
    frame = seeds.table(verdicts, run, named, scales.mark if scales else "")
    cells = {
        verdict.claim.number: [_cells(finding) for finding in verdict.findings]
        for verdict in verdicts
    }
    values = _summary(frame, text, scales) | {"verdicts": verdicts, "named": named, "cells": cells}
    return render("studies/seeds/seeds.md.j2", **values)


def summary(frame: pd.DataFrame, text: str, scales: Scales | None = None) -> str:
    """The first part of the page: how to read it, the scale, and how many seeds have each
    verdict.
    """
    return render("studies/seeds/seeds.md.j2", **_summary(frame, text, scales), verdicts=[])


def _summary(frame: pd.DataFrame, text: str, scales: Scales | None) -> dict[str, Any]:
    """Values of the first part of the page, from the table "seeds"."""
    whole = frame[frame["scope"] == ALL]
    named = [seed for seed in whole["seed"].unique() if seed != MEAN]
    low, high = bootstrap.deviation_factors(len(named))
    reach = bootstrap.t_quantile((1 + bootstrap.LEVEL) / 2, len(named) - 1) / np.sqrt(len(named))
    titles = {claim.number: claim.title for claim in CLAIMS}
    rows = []
    for claim, own in whole.groupby("claim"):
        each = (verdicts := own.set_index("seed")["verdict"]).drop(MEAN)
        counts = [
            "" if (each == NOT_ASKED).any() else (each == name).sum()
            for name in (HOLDS, FAILS, OPEN)
        ]
        rows.append(
            (
                claim,
                titles.get(claim, ""),
                *counts,
                f"**{marked(verdicts[MEAN], own['scale'].iloc[0])}**",
            )
        )
    shown = {
        "run": frame["run"].iloc[0],
        "text": text,
        "seeds": named,
        "scale": scale_table(scales),
        "counts": rows,
    }
    header = (
        "claim",
        "in short",
        *(f"seeds: {verdict}" for verdict in (HOLDS, FAILS, OPEN)),
        "mean over seeds",
    )
    return shown | {
        "reach": reach,
        "low": low,
        "high": high,
        "few": len(named) < FEW_SEEDS,
        "header": header,
    }


def _cells(finding: SeedFinding) -> tuple[str, ...]:
    """The row of a finding."""
    mean, ratio = finding.mean, finding.mean.estimate.is_ratio
    spreads = (
        ""
        if np.isnan(value)
        else f"{100 * value:.2g} %"
        if ratio
        else f"{value:.2g}"  # of logarithms for ratios
        for value in (finding.deviation, finding.document_error)
    )
    bounds = mean.bounds or "(for comparison)"
    of_seeds = (_cell(found.estimate) for found in finding.of_seeds)
    return (
        mean.scope,
        mean.quantity,
        *of_seeds,
        *spreads,
        _cell(mean.estimate),
        bounds,
        mean.verdict,
    )


def _cell(estimate: Estimate) -> str:
    """The value and its interval in brackets; a dash if it was not measured."""
    return "–" if np.isnan(estimate.value) else f"{estimated(estimate)} ({interval(estimate)})"


# --- figure ---------------------------------------------------------------------------------------

# Verdict -> colour and sign of its cell; the others have a dash.
CELLS = {HOLDS: (style.GREEN, "✓"), FAILS: (style.ORANGE, "✗"), OPEN: ("0.75", "?")}
OTHER = ("white", "–")
# Kind of quantity -> the claims about it. The claims about times have no spread over seeds.
KINDS = {"step norms": (1, 2, 12, 13), "angles": (3, 4, 5), "drift": (6,), "exits": (8, 9, 14, 15)}
EQUAL: style.Look = {"color": style.GREY, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}


@style.look()
def draw_seeds(seeds: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """(i) The verdict on each claim under each seed and over seeds. (ii) Each quantity of the
    claims as a point.

    In (ii) the standard deviation between seeds is against the standard error that is due to the
    documents, each pair in the unit of its quantity; filled points count for a verdict.
    """
    style.check_rows("seeds", seeds)
    figure = style.new_figure(style.DOUBLE, 3.7, context)
    verdicts, spreads = figure.subplots(1, 2, width_ratios=(0.16 * seeds["seed"].nunique(), 1))
    _draw_verdicts(verdicts, seeds[seeds["scope"] == ALL])
    _draw_spreads(spreads, seeds[(seeds["seed"] == MEAN) & (seeds["scope"] != ALL)])
    return figure


def _draw_verdicts(axes: Axes, rows: pd.DataFrame) -> None:
    """One row per claim, one column per seed and one for the mean, with a gap before it."""
    cells = rows.pivot(index="claim", columns="seed", values="verdict")[rows["seed"].unique()]
    places = [column + 0.25 * (seed == MEAN) for column, seed in enumerate(cells.columns)]
    for row, (_, verdicts) in enumerate(cells.iterrows()):
        for place, verdict in zip(places, verdicts, strict=True):
            colour, sign = CELLS.get(verdict, OTHER)
            axes.scatter(place, row, s=105, marker="s", color=colour, linewidth=0)
            axes.text(place, row, sign, ha="center", va="center_baseline")
    titles = {claim.number: claim.title for claim in CLAIMS}
    axes.set_yticks(
        range(len(cells)), [f"{titles.get(claim, 'claim')}  {claim}" for claim in cells.index]
    )
    axes.set_xticks(places, ["over\nseeds" if seed == MEAN else seed for seed in cells.columns])
    axes.set_xlim(-0.6, places[-1] + 0.6)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.xaxis.tick_top()
    axes.set_title(f"{style.panel_number(1)}  verdicts")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    marks = {verdict: {"color": colour, "marker": "s"} for verdict, (colour, _) in CELLS.items()}
    _legend(axes, marks, loc="upper center", bbox_to_anchor=(0, 0), ncols=3)


def _draw_spreads(axes: Axes, rows: pd.DataFrame) -> None:
    spread = ["deviation", "document_error"]
    known = rows.dropna(subset=spread).drop_duplicates(
        ["scope", "quantity", *spread]
    )  # claims share some
    known = known[(known["deviation"] > 0) & (known["document_error"] > 0)]
    marks = {}
    for (kind, claims), looks in zip(KINDS.items(), style.series_styles(len(KINDS)), strict=True):
        marks[kind] = looks | {"linestyle": ""}
        of_kind = known[known["claim"].isin(claims)]
        for counts, points in of_kind.groupby(of_kind["bounds"] != ""):
            filled: style.Look = {} if counts else {"markerfacecolor": "white"}
            axes.plot(
                points["document_error"],
                points["deviation"],
                **marks[kind],
                **filled,
                markeredgewidth=0.8,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    # the same range on both axes, so that the diagonal is where the spreads are equal
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    for axis, limit in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        limit(min(limits), max(limits))
        style.label_powers(axis)
    axes.plot(axes.get_xlim(), axes.get_xlim(), zorder=0, **EQUAL)
    axes.set_xlabel("standard error over documents")
    axes.set_ylabel("standard deviation between seeds")
    axes.set_title(f"{style.panel_number(2)}  quantities, each in its unit")
    _legend(axes, marks | {"equal": EQUAL}, loc="best")


def _legend(axes: Axes, marks: dict[str, dict[str, Any]], **options: Any) -> None:
    handles = [Line2D([], [], **{"linestyle": ""} | looks) for looks in marks.values()]
    axes.legend(handles, list(marks), **options)
