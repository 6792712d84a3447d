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
from twoscale.claims.loop_counts import NO_GROUP
from twoscale.replay import page
from twoscale.replay.check import Check, Data, Offer, check
from twoscale.replay.recording import FEWEST_DOCUMENTS
from twoscale.report.render import estimated, interval, render

TOLERANCE = 0.01  # nats per token


class Fact(NamedTuple):
    """A row of the section, and a metric of the metadata."""

    metric: str  # its type in the metadata
    name: str
    value: float | str
    shown: str  # Markdown


class Exits(NamedTuple):
    """The result of a check: a sentence, and its rows."""

    sentence: str
    facts: list[Fact]
    depths: int  # of full depth


def of_depth(findings: pd.DataFrame) -> Iterator[Fact]:
    """Useful loops, loop gain, regime and sequences that do not settle.

    `findings` is the table "depth_findings", or its rows with a group alone.
    """
    known = findings[findings["group"] == NO_GROUP].set_index("quantity")["value"]
    for row in findings.itertuples():
        if pd.isna(row.value) and row.quantity != "regime":  # not measured
            continue
        value = f"{estimated(row)} [{interval(row)}]".removesuffix(" []")
        match row.quantity:
            case "plateau_first":
                trained, best = known["trained_loops"], known["best_loops"]
                shown = f"{value}; trained with {trained:g}, lowest loss at {best:g}"
                yield Fact("useful_loops", "useful loops", int(row.value), shown)
            case "loop_gain":
                name = "loss without loops above that at the trained loops (nats)"
                yield Fact("loop_gain", name, round(row.value, 4), value)
            case "regime":
                regime, _, _ = row.statement.partition(":")
                name = f"regime of group {row.group}"
                yield Fact("regime", name, regime, _cell(row.statement))
            case "unsettled_share":
                name = f"share of sequences that do not settle in group {row.group}"
                yield Fact("unsettled_share", name, round(row.value, 4), f"{row.value:.0%}")


def precision(dtype: str) -> Fact:
    """The data type of the weights that were measured."""
    return Fact("precision", "precision of the weights", dtype, dtype)


def of_exits(data: Data, offer: Offer, tolerance: float = TOLERANCE) -> Exits:
    """Smallest fixed count and best exit rule, as `twoscale exits check` finds them."""
    documents = len(data.tokens)
    if documents < FEWEST_DOCUMENTS:
        sentence = f"Exits cannot be judged on {documents} of at least {FEWEST_DOCUMENTS} documents"
        return Exits(f"{sentence}.", [], data.depths)
    result = check(data, offer, tolerance)
    return Exits(result.sentence(), list(_facts(result)), data.depths)


def _facts(result: Check) -> Iterator[Fact]:
    depths, best = result.data.depths, result.best
    unit = page.unit(result.data.is_loss)
    name = f"smallest fixed count within {result.tolerance:g} {unit} of full depth"
    fixed = int(result.fixed) if float(result.fixed).is_integer() else result.fixed
    yield Fact("smallest_fixed_count", name, fixed, f"{fixed:g} of {depths}")
    name = "best exit rule"
    if best is None:
        is_tried = result.found or result.none_within
        none = "none is shown to save more than that" if is_tried else "none was tried"
        yield Fact("best_exit_rule", name, "none", none)
        return
    condition = best.option.condition
    cost = f"{best.evaluations:.2f} loop steps, {1 - best.evaluations / depths:.0%} fewer"
    yield Fact("best_exit_rule", name, condition, f"{_cell(condition)}: {cost}")
    name = f"saving over random exits of the same cost ({unit})"
    gain = f"{estimated(best.gain)} [{interval(best.gain)}]"
    yield Fact("saving_over_random_exits", name, round(best.gain.value, 4), gain)


def _cell(text: str) -> str:
    """Text as Markdown shows it in a table, which escapes bars itself."""
    return markdown(text).replace(r"\|", "|")


def section(text: str, exits: Exits, facts: Iterable[Fact]) -> str:
    """The section of README.md; `text` is the name of the text that was measured."""
    rows = [(_cell(fact.name), fact.shown) for fact in facts]
    values = {"sentence": exits.sentence, "depths": exits.depths, "version": __version__}
    return render("replay/hub.md.j2", text=text, rows=rows, **values)


def model_index(
    model: str, dataset: str, text: str, facts: Iterable[Fact]
) -> dict[str, list[dict[str, Any]]]:
    """The metadata `model-index`.

    Args:
        model: Name of the model.
        dataset: Name of the data set on the hub, or a word for another text.
        text: Name of the text for readers.
        facts: The metrics.
    """
    metrics = [{"type": fact.metric, "name": fact.name, "value": fact.value} for fact in facts]
    result = {
        "task": {"type": "text-generation"},
        "dataset": {"type": dataset, "name": text},
        "metrics": metrics,
    }
    return {"model-index": [{"name": model, "results": [result]}]}


def readme(model: str, text: str, exits: Exits, facts: list[Fact]) -> str:
    """The metadata and the section as a file, or as parts of another README.md."""
    dataset = re.sub(r"\W+", "-", text.lower()).strip("-") or "text"
    front = yaml.safe_dump(model_index(model, dataset, text, facts), sort_keys=False)
    return f"---\n{front}---\n\n{section(text, exits, facts)}"
