"""Gain of the loops: the looped model and models without loops, as the table "baselines" and the page baselines.md.

Every difference is between two models with the same seed, on the same documents. The interval of the mean over seeds
joins the bootstrap over documents, as if the seeds were fixed, and Student's t over seeds, as if the documents were, by
the root of the sum of their squared lengths on either side (Zou and Donner 2008, "Construction of confidence limits
about effect measures"). Variation with both is counted twice, which is conservative.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import markdown
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import with_bounds
from twoscale.report import render
from twoscale.studies.baselines.runs import BASELINES, LOOPED, UNTRAINED

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob

MEAN = -1  # in the place of a seed: the mean over seeds
POINT = ["model", "of_seed"]
# model: as the page and the figure call it
NAMES = {LOOPED: "looped", "parameters": "same parameters", "flops": "same training FLOPs", UNTRAINED: "untrained"}

HEADER = """\
# Baselines without loops

The looped model of the run **{run}** on {text}, compared with models without loops.
All are trained in the same way: the same batches, {training_tokens} tokens in {iterations} iterations, the same
optimizer and learning rates, under {seeds}.

- **{parameters_name}**: the same number of layers, each applied once, with a wider MLP in place of the projections.
- **{flops_name}**: more layers of the same size, so that training costs as much per token as the looped model at its
  mean of {mean_loops} loop steps.
- **{untrained_name}**: the looped model before training.

Held-out cross-entropy in nats per token, over {tokens} tokens of {documents} documents; the looped model runs {loops}
loop steps of every group. Positive differences are in favour of the loops. They compare models with the same seed, on
the same documents. All intervals are 95 % intervals: bootstrap over documents, Student's t over seeds, combined as the
root of the sum of squares. A single seed has no interval over seeds and says nothing about other seeds.
"""


def run(job: "StudyJob") -> None:
    """Write the table "baselines" and results/baselines.md."""
    table = compare(job.config.compared, job.files["quality"], job.config.run, job.config.seed)
    job.write("baselines", table)
    job.write_text("page", page(table, job.config.page))


def compare(models: Sequence[Mapping[str, Any]], paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "baselines".

    Args:
        models: Columns model, seed, iteration, layers, parameters, flops of each model; the looped ones among them.
        paths: The table "scaling_quality" of each, at one loop count.
        run: Name of the selected run.
        seed: Of the bootstrap.
    """
    described = pd.DataFrame(models).set_index(["model", "seed"])
    parts = [
        tables.read("scaling_quality", path).assign(model=model["model"], of_seed=model["seed"])
        for model, path in zip(models, paths, strict=True)
    ]
    rows = pd.concat(parts, ignore_index=True)
    keys = ["of_seed", "sequence"]
    looped = rows[rows["model"] == LOOPED].set_index(keys)["ce"]
    rows["difference"] = rows["ce"] - rows.join(looped.rename("looped"), on=keys)["looped"]
    by_sequence = rows.groupby(["model", "sequence", "document", "tokens"], sort=False)
    means = by_sequence[["ce", "difference"]].mean().reset_index().assign(of_seed=MEAN)
    summary = _summary(pd.concat([rows, means], ignore_index=True), seed)
    first = described.groupby("model", sort=False).first()
    return summary.join(first[["layers", "parameters", "flops", "iteration"]], on="model").assign(run=run)[
        list(tables.columns("baselines"))
    ]


def _summary(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Per model and seed the columns of the table that follow from cross-entropies."""
    by_point = rows.groupby(POINT, sort=False)
    columns = {"tokens": by_point["tokens"].sum(), "documents": by_point["document"].nunique()}
    columns |= with_bounds(rows, POINT, "ce", "ce", seed) | with_bounds(rows, POINT, "difference", "difference", seed)
    summary = pd.DataFrame(columns).reset_index()
    summary = summary.rename(columns={f"difference_{end}": f"documents_{end}" for end in ("low", "high")})
    each = summary[summary["of_seed"] != MEAN].groupby("model", sort=False)["difference"]
    is_mean = summary["of_seed"] == MEAN
    summary["seeds"] = summary["model"].map(each.size()).where(is_mean, 1)
    over_seeds = {model: bootstrap.t_interval(values.to_numpy()) for model, values in each}
    for place, end in enumerate(("low", "high")):
        bounds = summary["model"].map({model: interval[place] for model, interval in over_seeds.items()})
        summary[f"seeds_{end}"] = bounds.where(is_mean)
    value = summary["difference"]
    parts = [[summary[f"{part}_{end}"] for end in ("low", "high")] for part in ("documents", "seeds")]
    parts[1] = [bound.fillna(value) for bound in parts[1]]  # where there is no interval over seeds
    summary["difference_low"], summary["difference_high"] = bootstrap.joined(value, *map(tuple, parts))
    summary["seed"] = summary["of_seed"].where(~is_mean)
    return summary


# --- page -----------------------------------------------------------------------------------------------------------


def page(table: pd.DataFrame, values: Mapping[str, Any]) -> str:
    """Markdown: the means over seeds, then each seed.

    Args:
        table: Table "baselines".
        values: run, text, loops, mean_loops, iterations, training_tokens.
    """
    means, each = table[table["seed"].isna()], table[table["seed"].notna()]
    seeds = ", ".join(map(str, sorted(each["seed"].astype(int).unique())))
    seeds = f"the seeds {seeds}" if "," in seeds else f"the seed {seeds}"
    names = {f"{name}_name": NAMES[name][0].upper() + NAMES[name][1:] for name in (*BASELINES, UNTRAINED)}
    counts = {"tokens": means["tokens"].iloc[0], "documents": means["documents"].iloc[0]}
    text = {name: markdown(str(value)) for name, value in values.items()}
    header = HEADER.format(**text | names | counts, seeds=seeds)
    return render.blocks(header, _models(means), "## Mean over seeds", _means(means), *_per_seed(each))


def _models(means: pd.DataFrame) -> str:
    """Size and cost of the trained models, with their distance from the looped one."""
    rows = means[means["model"] != UNTRAINED].set_index("model")
    looped = rows.loc[LOOPED]
    header = ("model", "layers", "parameters", "relative to looped", "training FLOPs per token", "relative to looped")
    lines = [
        (
            *(NAMES[model], f"{row.layers}"),
            *(f"{row.parameters:,}", _beside(row.parameters, looped.parameters)),
            *(f"{row.flops:.4g}", _beside(row.flops, looped.flops)),
        )
        for model, row in rows.iterrows()
    ]
    return render.table(header, lines)


def _beside(value: float, looped: float) -> str:
    return f"{100 * (value / looped - 1):+.2f} %"


def _means(means: pd.DataFrame) -> str:
    header = ("model", "cross-entropy", "over documents", "minus looped", "interval", "over documents", "over seeds")
    lines = [
        (NAMES[row.model], f"{row.ce:.4f}", _interval(row.ce_low, row.ce_high, ".4f"), *_difference(row))
        for row in means.itertuples()
    ]
    return render.table(header, lines)


def _difference(row: Any) -> tuple[str, ...]:
    if row.model == LOOPED:
        return ("",) * 4
    ends = [
        (getattr(row, f"{part}_low"), getattr(row, f"{part}_high")) for part in ("difference", "documents", "seeds")
    ]
    return (f"{row.difference:+.4f}", *(_interval(*pair, "+.4f") for pair in ends))


def _per_seed(each: pd.DataFrame) -> Iterator[str]:
    header = ("model", "cross-entropy", "over documents", "minus looped", "interval over documents")
    for seed, rows in each.groupby("seed"):
        cells = [
            (NAMES[row.model], f"{row.ce:.4f}", _interval(row.ce_low, row.ce_high, ".4f"), *_difference(row)[:2])
            for row in rows.itertuples()
        ]
        yield from (f"## Seed {int(seed)}", render.table(header, cells))


def _interval(low: float, high: float, digits: str) -> str:
    return "" if np.isnan(low) else f"{low:{digits}} … {high:{digits}}"


def sentence(table: pd.DataFrame) -> str:
    """Results for the report."""
    means = table[table["seed"].isna() & table["model"].isin(BASELINES)]
    parts = [
        f"{row.difference:+.3f} [{row.difference_low:+.3f}, {row.difference_high:+.3f}] with the {NAMES[row.model]}"
        for row in means.itertuples()
    ]
    return f"Held-out cross-entropy without loops minus that of the looped model, nats per token: {'; '.join(parts)}."
