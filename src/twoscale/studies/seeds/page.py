"""The claims over several seeds as a Markdown page: results/seeds.md."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import markdown
from twoscale.claims import bootstrap, seeds
from twoscale.claims.evidence import Estimate, Evidence
from twoscale.claims.findings import FAILS, HOLDS, NOT_ASKED, OPEN, marked
from twoscale.claims.scale import Scales
from twoscale.claims.seeds import MEAN, SeedFinding, SeedVerdict
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.report.pages import scale_table
from twoscale.report.render import blocks, interval, number, table

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob

HEADER = """\
# The claims of the paper on the run {run} under {count} seeds

Run **{run}** on {text}, under the seeds {seeds}. A seed decides the initial weights, the order of the batches, the loop
counts and the noise; the text and the held-out documents are the same. Where single seeds have a verdict and the mean
over seeds is open, trust the mean. The verdicts are about this model and text, and about the paper's model only if the
run has its size.

With {count} seeds the 95 % interval of the mean reaches {reach:.2g} standard deviations of the seeds to either side
(Student's t), and the true standard deviation may be {low:.2g} to {high:.2g} times the measured one, if seeds vary
normally.
{few}

Times depend on the machine and its load, so the claims about them have a verdict per run and none over seeds. Any other
verdict over seeds follows the rules for one run, with the mean over seeds in place of its value.
"""
COLUMNS = """\
- **Each seed** has the value and the 95 % interval of its run: a bootstrap over documents, which says nothing about
  other seeds.
- **Between seeds** is the standard deviation of these values; **documents** is the standard error of one value that is
  due to the choice of held-out documents, in the same unit, the root mean square over the seeds. Where the first is
  much larger, the verdict of one run is about its seed.
- **Mean over seeds** has a 95 % interval for other seeds and other documents. It joins the interval of Student's t over
  the seeds and the bootstrap of the mean over documents (docs/judging.md). Ratios have their geometric mean and
  standard deviations of their logarithm, printed as percentages.
"""
FEW = """\
That is enough to see an effect that is large against the spread between seeds, and too little to tell whether a small
one differs from none."""
ENOUGH = 6  # seeds from which the interval of the mean is about one standard deviation or less


def run(job: "StudyJob") -> None:
    """Write the table "seeds" and results/seeds.md."""
    config = job.config
    # one seed for all bootstraps: they draw the same documents
    values = {"max_loops": config.max_loops, "warmup": config.warmup_iterations}
    values |= {"seed": config.seed, "published": config.published}
    files = zip(*(job.files[name] for name in tables.CLAIM_TABLES), strict=True)
    found = [Evidence.read(dict(zip(tables.CLAIM_TABLES, paths, strict=True)), **values) for paths in files]
    verdicts = seeds.verdicts(dict(zip(config.seeds, found, strict=True)))
    scales = Scales.of(config.scales).of_seeds(len(config.seeds))
    frame = seeds.table(verdicts, config.run, config.seeds, scales.mark)
    tables.write("seeds", frame, job.file("table"))
    job.write_text("page", page(verdicts, config.run, config.text, config.seeds, scales))


def page(
    verdicts: Sequence[SeedVerdict], run: str, text: str, named: Sequence[int], scales: Scales | None = None
) -> str:
    """Markdown of the verdicts under each seed and over all of them.

    Args:
        verdicts: One per claim.
        run: Name of the run.
        text: Name of its text.
        named: The seeds, in the order of the verdicts.
        scales: Those of the runs and of the paper, if they are known.
    """
    frame = seeds.table(verdicts, run, named, scales.mark if scales else "")
    sections = (part for verdict in verdicts for part in _section(verdict, named))
    return blocks(summary(frame, text, scales), COLUMNS, *sections)


def summary(frame: pd.DataFrame, text: str, scales: Scales | None = None) -> str:
    """The first part of the page: how to read it, the scale, and how many seeds have each verdict.

    Args:
        frame: Table "seeds" of one run.
        text: Name of its text.
        scales: As for `page`.
    """
    whole = frame[frame["scope"] == ALL]
    named = [seed for seed in whole["seed"].unique() if seed != MEAN]
    header = ("claim", "in short", *(f"seeds: {verdict}" for verdict in (HOLDS, FAILS, OPEN)), "mean over seeds")
    rows = [_counts(claim, rows) for claim, rows in whole.groupby("claim")]
    return blocks(_header(frame["run"].iloc[0], text, named), scale_table(scales), table(header, rows))


def _header(run: str, text: str, seeds: Sequence[str]) -> str:
    count = len(seeds)
    low, high = bootstrap.deviation_factors(count)
    reach = bootstrap.t_quantile((1 + bootstrap.LEVEL) / 2, count - 1) / np.sqrt(count)
    return HEADER.format(
        run=markdown(run),
        text=markdown(text),
        seeds=", ".join(seeds),
        count=count,
        reach=reach,
        low=low,
        high=high,
        few=FEW if count < ENOUGH else "",
    )


def _counts(claim: int, rows: pd.DataFrame) -> tuple[object, ...]:
    """A row of the summary, from the verdicts on a claim under each seed and on the mean."""
    title = next((known.title for known in CLAIMS if known.number == claim), "")
    verdicts = rows.set_index("seed")["verdict"]
    each, mean = verdicts.drop(MEAN), marked(verdicts[MEAN], rows["scale"].iloc[0])
    counts = ["" if (each == NOT_ASKED).any() else (each == name).sum() for name in (HOLDS, FAILS, OPEN)]
    return (claim, title, *counts, f"**{mean}**")


def _section(verdict: SeedVerdict, seeds: Sequence[int]) -> tuple[str, ...]:
    claim, named = verdict.claim, [f"seed {seed}" for seed in seeds]
    each = ", ".join(f"{seed} {v.verdict}" for seed, v in zip(seeds, verdict.of_seeds, strict=True))
    header = ("scope", "quantity", *named, "between seeds", "documents", "mean over seeds", "bounds", "verdict")
    return (
        f"## {claim.number}. {claim.title}: {verdict.verdict}",
        claim.statement,
        f"Each seed: {each}. Over seeds: **{verdict.verdict}** ({verdict.reason}).",
        table(header, map(_row, verdict.findings)) if verdict.findings else "",
    )


def _row(finding: SeedFinding) -> tuple[str, ...]:
    mean = finding.mean
    of_seeds = (_cell(found.estimate) for found in finding.of_seeds)
    spreads = (spread(value, mean.estimate.is_ratio) for value in (finding.deviation, finding.document_error))
    bounds = mean.bounds or "(for comparison)"
    return (mean.scope, mean.quantity, *of_seeds, *spreads, _cell(mean.estimate), bounds, mean.verdict)


def _cell(estimate: Estimate) -> str:
    """The value and its interval in brackets; a dash if it was not measured."""
    if np.isnan(estimate.value):
        return "–"
    return f"{number(estimate.value)} ({interval(estimate)})"


def spread(value: float, relative: bool) -> str:
    """A standard deviation, of a logarithm as a percentage. Empty if missing."""
    if np.isnan(value):
        return ""
    return f"{100 * value:.2g} %" if relative else f"{value:.2g}"
