"""What the card of a looped model on the Hugging Face hub says of its depth and its exits.

A section for README.md, and metadata `model-index` with one metric for each of its rows, in the
format of https://huggingface.co/docs/hub/model-cards: of a result, the hub requires type of the
task, type and name of the data set, and type and value of each metric.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import yaml

from twoscale import __version__
from twoscale.base import markdown
from twoscale.replay import TOLERANCE
from twoscale.replay.check import Check, check
from twoscale.replay.recording import FEWEST_DOCUMENTS
from twoscale.replay.run_tables import RunTables
from twoscale.report.render import estimated, interval, render


class Fact(NamedTuple):
    """A row of the section, and a metric of the metadata."""

    metric: str  # its type in the metadata
    name: str
    value: float | str
    shown: str  # in the section


def measured(
    findings: pd.DataFrame, run: RunTables, dtype: str, tolerance: float = TOLERANCE
) -> tuple[str, list[Fact]]:
    """What is known of a model: the sentence of `twoscale exits check`, and the facts.

    Args:
        findings: The table "depth_findings", or its rows with a group alone.
        run: Losses of fixed counts and of exits. On fewer than four documents, which `check`
            refuses, exits are left out, and the sentence says so.
        dtype: Precision of the weights that were measured.
        tolerance: Loss above full depth, in nats per token.
    """
    facts = [*_depth(findings), Fact("precision", "precision of the weights", dtype, dtype)]
    documents = len(run.tokens)
    if documents < FEWEST_DOCUMENTS:
        needed = f"at least {FEWEST_DOCUMENTS} documents"
        return f"Exits cannot be judged: found {documents}, expected {needed}.", facts
    result = check(run, lambda first: run.options(), tolerance)
    return result.sentence(), [*facts, *_exits(result)]


def _depth(findings: pd.DataFrame) -> Iterator[Fact]:
    """Useful loops, loop gain, regime and sequences that do not settle."""
    known = findings.set_index("quantity")["value"]
    for row in findings.itertuples():
        # NaN, which an interval that was not computed has, differs from itself
        ends = f" ({interval(row)})" if row.low == row.low else ""
        match row.quantity:
            case "plateau_first":
                trained, best = known["trained_loops"], known["best_loops"]
                shown = f"{row.value:g}{ends}; trained with {trained:g}, lowest loss at {best:g}"
                yield Fact("useful_loops", "useful loops", row.value, shown)
            case "loop_gain" if row.value == row.value:  # it was measured
                name = "loss without loops above that at the trained loops (nats)"
                yield Fact("loop_gain", name, round(row.value, 4), f"{estimated(row)}{ends}")
            case "regime":
                name, _, _ = row.statement.partition(":")
                yield Fact("regime", f"regime of group {row.group}", name, row.statement)
            case "unsettled_share" if row.value == row.value:
                name = f"share of sequences that do not settle in group {row.group}"
                yield Fact("unsettled_share", name, round(row.value, 4), f"{row.value:.0%}")


def _exits(result: Check) -> Iterator[Fact]:
    """Smallest fixed count and best exit rule."""
    depths, best = result.data.depths, result.best
    name = f"smallest fixed count within {result.tolerance:g} nats of full depth"
    yield Fact("smallest_fixed_count", name, result.fixed, f"{result.fixed:g} of {depths}")
    name = "best exit rule"
    if best is None:
        yield Fact("best_exit_rule", name, "none", "none is shown to save more than that")
        return
    rule = best.option.condition
    shown = f"{rule}: {best.evaluations:.2f} loop steps, {1 - best.evaluations / depths:.0%} fewer"
    yield Fact("best_exit_rule", name, rule, shown)
    gain = best.gain
    name = "saving over random exits of the same cost (nats per token)"
    shown = f"{estimated(gain)} ({interval(gain)})"
    yield Fact("saving_over_random_exits", name, round(gain.value, 4), shown)


def section(text: str, sentence: str, facts: Iterable[Fact]) -> str:
    """The section of README.md; `text` is the name of the text that was measured."""
    rows = []
    for fact in facts:
        cells = markdown(fact.name), markdown(fact.shown)
        rows.append([cell.replace(r"\|", "|") for cell in cells])  # the table escapes bars itself
    known = {"text": text, "sentence": sentence, "version": __version__}
    return render("replay/hub.md.j2", **known, rows=rows)


def model_index(model: str, dataset: str, text: str, facts: Iterable[Fact]) -> dict[str, Any]:
    """The metadata `model-index`.

    Args:
        model: Name of the model.
        dataset: Name of the data set on the hub, or a word for another text.
        text: Name of the text for readers.
        facts: The metrics.
    """
    metrics = [{"type": fact.metric, "name": fact.name, "value": fact.value} for fact in facts]
    task, data = {"type": "text-generation"}, {"type": dataset, "name": text}
    result = {"task": task, "dataset": data, "metrics": metrics}
    return {"model-index": [{"name": model, "results": [result]}]}


def readme(model: str, text: str, sentence: str, facts: list[Fact]) -> str:
    """The metadata and the section as a file, or as parts of another README.md."""
    dataset = re.sub(r"\W+", "-", text.lower()).strip("-") or "text"
    front = yaml.safe_dump(model_index(model, dataset, text, facts), sort_keys=False)
    return f"---\n{front}---\n\n{section(text, sentence, facts)}"
