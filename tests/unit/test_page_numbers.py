"""Numbers in the prose of pages are those of the released tables.

`SENTENCES` has the sentences with numbers from a table, each with a function that computes them.
Every other number with a unit is listed in `OTHERS` with the reason why no table has it.
"""

import json
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest
from docs import results

from twoscale.config import PROJECT

DOCS = PROJECT / "docs"
FIRST = DOCS / "gpu-release/half-hour/tables"  # H100
THIRD = DOCS / "gpu-ten-minutes/tables"  # H200
GENERATED = ("docs/results.md", "docs/which-exit.md")
UNITS = r"(?:nats|%|ms|tokens/s|TFLOP/s|million|M tokens|evaluations|loop steps)"
NUMBER = re.compile(rf"[−-]?\d[\d.,]*(?: (?:to|or|and|of) [\d.,]+)*\s*{UNITS}")


@cache
def judged():
    return results.judged(DOCS)


def full_depth(folder):
    """Cross-entropy with all loop steps."""
    rows = pd.read_parquet(folder / "exit_quality.parquet").query("criterion == 'fixed'")
    rows = rows[rows["threshold"] == rows["threshold"].max()]
    return np.average(rows["ce"], weights=rows["tokens"])


def at_trained_depth(folder):
    return pd.read_parquet(folder / "training.parquet")["held_out_loss"].dropna().iloc[-1]


def tokens(folder):
    return pd.read_parquet(folder / "training.parquet")["tokens_seen"].iloc[-1] / 1e6


def speed(folder):
    return pd.read_parquet(folder / "training.parquet")["tflops"].mean()


def utilisation(folder):
    return 100 * pd.read_parquet(folder / "training.parquet")["utilisation"].mean()


def trial(name):
    """Tokens per second by setting."""
    lines = (DOCS / "gpu-ten-minutes" / name).read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row]
    return {row["setting"]: row["tokens_per_s"] for row in rows}


def dlr(folder, iteration):
    drift = pd.read_parquet(folder / "drift.parquet")
    rows = drift.query("measure == 'dlr' and reference_state == 'first_state'")
    wanted = rows["iteration"].min() if iteration == 0 else rows["iteration"].max()
    return sorted(rows.loc[rows["iteration"] == wanted, "mean"], reverse=True)


def loop_steps(folder, criterion):
    """Evaluations of a criterion at the paper's thresholds, fewest and most."""
    rows = pd.read_parquet(folder / "exit_loops.parquet").query("criterion == @criterion")
    by_threshold = rows.groupby("threshold")["evaluations"].mean()
    paper = by_threshold[by_threshold.index <= 0.0101]
    return paper.min(), paper.max()


def gain(run):
    rows = judged()[run].query("claim == 8 and role == 'premise'")
    return rows["value"].item()


def excess(folder, criterion, threshold):
    """Cross-entropy at an operating point above that at full depth."""
    rows = pd.read_parquet(folder / "exit_quality.parquet")
    rows = rows[(rows["criterion"] == criterion) & np.isclose(rows["threshold"], threshold)]
    return np.average(rows["ce"], weights=rows["tokens"]) - full_depth(folder)


def fewest_evaluations(folder):
    rows = pd.read_parquet(folder / "exit_loops.parquet")
    return rows.groupby(["criterion", "threshold"])["evaluations"].mean().min()


def token_time(folder):
    rows = pd.read_parquet(folder / "exit_latency.parquet").query("criterion == 'fixed'")
    return rows["latency_ms"].median()


def arena(model, criterion, evaluations):
    """Gain over random exits of a criterion, nearest to so many evaluations from below."""
    rows = pd.read_parquet(DOCS / "arena" / f"{model}.parquet")
    rows = rows.query("criterion == @criterion and reference == 'random'")
    rows = rows[rows["evaluations"] <= evaluations]
    return rows.loc[rows["evaluations"].idxmax(), "gain"]


@cache
def over_random(run, tau):
    quantity = f"CE({tau:g}) − CE of random exits of the same cost in nats"
    rows = judged()[run]
    return rows.loc[(rows["claim"] == 8) & (rows["quantity"] == quantity), "value"].item()


def which_exit(model, column):
    rows = pd.read_csv(DOCS / "which-exit.tsv", sep="\t").set_index("model")
    return rows.loc[model, column]


def far_excess():
    """Loss at eight times the trained loop count above that at the trained one, by model."""
    card = pd.read_parquet(DOCS / "zoo" / "depth_card.parquet")
    rows = card[(card["quantity"] == "excess") & np.isclose(card["multiple"], 8)]
    return rows.set_index("run")["value"]


OTHERS_MODELS = ["recur2", "recur3", "core1recur4"]


def runs():
    return [run for run in results.columns(DOCS, judged()) if not run.is_over_seeds]


def share_of_tokens():
    shares = [100 * run.scales.run.tokens / run.scales.paper.tokens for run in runs()]
    return min(shares), max(shares)


def sizes():
    return sorted(run.scales.run.parameters / 1e6 for run in runs())


# page, sentence with the places of its numbers, their values
SENTENCES: list[tuple[str, str, Callable]] = [
    ("README.md", "have {:.1f}, {:.1f} and {:.0f} million parameters", sizes),
    ("README.md", "and saw {:.1f} to {:.0f} % of its tokens", share_of_tokens),
    (
        "README.md",
        "in one of eight models ({:.2f} against {:.2f})",
        lambda: (which_exit("recur3", "loop_steps"), which_exit("recur3", "fixed_count")),
    ),
    (
        "README.md",
        "exiting on entropy takes {:.0f} of {:.0f} loop steps, a fixed count {:.0f}",
        lambda: [
            which_exit("chains, to the end", name)
            for name in ("loop_steps", "full_depth", "fixed_count")
        ],
    ),
    (
        "README.md",
        "three language models by others lose {:.2f} to {:.2f} nats",
        lambda: (far_excess()[OTHERS_MODELS].min(), far_excess()[OTHERS_MODELS].max()),
    ),
    ("docs/results.md", "with {:.1f} to {:.0f} % of the paper's tokens", share_of_tokens),
    (
        "docs/results.md",
        "In the demo τ = 1e-2 is {:.1f} % of a step at k = 1",
        lambda: [
            100
            * judged()["demo"]
            .query("claim == 7 and quantity.str.contains('step norm at k = 1')")["value"]
            .item()
        ],
    ),
    (
        "docs/which-exit.md",
        "recur2, recur3 and core1recur4 lose {:.3f} to {:.2f} nats",
        lambda: (far_excess()[OTHERS_MODELS].min(), far_excess()[OTHERS_MODELS].max()),
    ),
    (
        "docs/which-exit.md",
        "min-p KL in recur3 ({:.2f} against {:.2f})",
        lambda: (which_exit("recur3", "loop_steps"), which_exit("recur3", "fixed_count")),
    ),
    (
        "docs/which-exit.md",
        "at its largest thresholds loses {:.3f} (demo) and {:.3f} nats (FineWeb)",
        lambda: (over_random("demo", 31.6), over_random("overnight", 31.6)),
    ),
    (
        "docs/which-exit.md",
        "in chains, the fixed count {:.0f} and {:.0f} %",
        lambda: [
            100
            * (
                1
                - which_exit(f"chains, to {end}", "fixed_count")
                / which_exit(f"chains, to {end}", "full_depth")
            )
            for end in ("the end", "a given step")
        ],
    ),
    (
        "docs/gpu.md",
        "| 40 sequences, tokens/s: eager, compiled | not measured | not measured, {:,.0f} | {:,.0f}, {:,.0f} |",
        lambda: (
            round(trial("trial-h100.json")["compiled, 40 sequences"], -2),
            round(trial("trial-h200.json")["eager, 40 sequences"], -2),
            round(trial("trial-h200.json")["compiled, 40 sequences"], -2),
        ),
    ),
    (
        "docs/gpu.md",
        "| whole run | {:.1f} M tokens, {:.0f} TFLOP/s | | {:.1f} M tokens, {:.0f} TFLOP/s ({:.0f} %) |",
        lambda: (tokens(FIRST), speed(FIRST), tokens(THIRD), speed(THIRD), utilisation(THIRD)),
    ),
    (
        "docs/gpu.md",
        "| held-out loss at training's depth | {:.2f} | | {:.2f} |",
        lambda: (at_trained_depth(FIRST), at_trained_depth(THIRD)),
    ),
    (
        "docs/gpu.md",
        "| held-out loss at full depth | {:.2f} | | {:.2f} |",
        lambda: (full_depth(FIRST), full_depth(THIRD)),
    ),
    (
        "docs/gpu.md",
        "grows from {:.0f} untrained to {:.0f} and {:.0f}",
        lambda: (dlr(THIRD, 0)[0], *dlr(THIRD, 1)),
    ),
    (
        "docs/gpu.md",
        "KL takes {:.1f} to {:.1f} loop steps, acceleration {:.1f} to {:.1f}.",
        lambda: (*loop_steps(THIRD, "kl"), *loop_steps(THIRD, "acceleration")),
    ),
    (
        "docs/gpu.md",
        "One evaluation loses {:.1f} nats",
        lambda: [excess(THIRD, "step_norm", 100)],
    ),
    ("docs/gpu.md", "whose grid ends at {:.1f} evaluations", lambda: [fewest_evaluations(FIRST)]),
    ("docs/gpu.md", "{:.3f} nats are at stake there", lambda: [gain("half-hour")]),
    ("docs/gpu.md", "| token at 30 loop steps | {:.1f} ms |", lambda: [token_time(FIRST)]),
    (
        "docs/arena.md",
        "cosine {:.3f} in recur3",
        lambda: [arena("recur3", "cosine", 3)],
    ),
    (
        "docs/arena.md",
        "min-p KL {:.3f} and KL {:.3f} in core1recur4",
        lambda: [arena("core1recur4", name, 4) for name in ("minp_kl", "kl")],
    ),
]

# page -> texts with numbers that no table has: tolerances, the paper's numbers, definitions, text
OTHERS = {
    "README.md": ["within 0.01 nats of full depth", "(a gain of 0.019 nats would have been)"],
    "docs/results.md": [
        "whole 95 % interval",
        "300 M tokens",
        "5–10 loop steps",
        "360 ms per token",
        "0.01 nats worse than at full depth",
        "0.6 to 0.7 nats",  # docs/arena, in words
        "none and 6 %",
    ],
    "docs/which-exit.md": ["take 3 loop steps", "within 0.01 nats"],
    "docs/gpu.md": [
        "more than 0.001 nats there",
        "(about 40 %)",  # of the two texts, which are not kept
        "(11 %)",
    ],
    "docs/arena.md": [
        "0.0003 nats at most",  # of losses by depth, rounded up
        "below 0.18 nats per problem",
        "nats after 4 evaluations",
        "within ±0.0004 nats",
        "trained with 3 loop steps",
        "gains 0.2 nats on all",
        "at most 5 %",
        "in 80 % of samples",
        "exceeds 0.02 nats",
        "a gain of 0.02 nats is found in at least 90 % of draws, and a gain of 0 in about 5 %",
        "within 0.01 nats",
        "38% fewer loop steps",
    ],
}


def plain(page):
    text = (PROJECT / page).read_text(encoding="utf-8")
    return " ".join(text.split())


@pytest.mark.parametrize(("page", "sentence", "values"), SENTENCES)
def test_a_number_of_a_page_is_that_of_its_table(page, sentence, values):
    assert sentence.format(*values()) in plain(page)


@pytest.mark.parametrize("page", OTHERS)
def test_every_number_with_a_unit_has_a_table_or_a_reason(page):
    text = plain(page)
    told = [sentence.format(*values()) for name, sentence, values in SENTENCES if name == page]
    for known in [*told, *OTHERS[page]]:
        assert known in text
        text = text.replace(known, "")
    if page in GENERATED:  # whose tables are compared whole
        text = re.sub(r"\|[^|]*(?=\|)", "|", text)
    assert NUMBER.findall(text) == []
