"""Write docs/which-exit.md and docs/which-exit.tsv: loop steps saved within 0.01 nats, by model.

    python -m docs.which_exit

Sources are released tables of runs (docs/demo-release, docs/gpu-release, docs/gpu-ten-minutes), what
`twoscale exits check` wrote for models of others (docs/arena/*.json), the recording of the solver, and
depth cards (docs/zoo). Of chains and IMDb only the table "arena" is kept: there the threshold is chosen
on the documents that it is reported on.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from docs.results import releases

from twoscale.base import InputError, markdown, replacing
from twoscale.claims.scale import scales
from twoscale.config import PROJECT
from twoscale.replay import TOLERANCE
from twoscale.replay.check import IS_WORSE, NOT_SHOWN, SHOWN, check
from twoscale.replay.gains import BETTER, ORACLE, WORSE, judged
from twoscale.replay.page import as_dict
from twoscale.replay.recording import read_exits, read_recording
from twoscale.replay.rules import options_of_exits
from twoscale.replay.run_tables import read_run
from twoscale.report.render import number, render, table

DOCS = PROJECT / "docs"
Result = dict[str, Any]  # as `replay.page.as_dict` gives it
# table "arena" or result in docs/arena -> model, its scale
ARENA = {
    "imdb": ("longer demo, IMDb", "0.7 M, 1.0 M"),
    "chains_until": ("chains, to the end", "0.07 M"),
    "chains_count": ("chains, to a given step", "0.07 M"),
}
CHECKED = {
    "recur2": ("recur2", "3.1 M"),
    "recur3": ("recur3", "2.9 M"),
    "core1recur4": ("core1recur4", "2.1 M"),
}
SOLVER = ("solver", "0.2 M")
TEN_MINUTES = ("GPU, ten minutes", "128 M, 32 M")
# run in docs/zoo -> model, its scale
CARDS = {"demo": ("longer demo", "0.7 M, 1.0 M")}


@dataclass(frozen=True)
class Row:
    """A model. What is None was not measured."""

    model: str
    scale: str
    documents: int | None  # on which numbers are reported
    full_depth: float
    fixed_count: float
    rule: str | None = None
    loop_steps: float | None = None
    excess: float | None = None
    verdict: str | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    would_have_been_shown: float | None = None
    is_recommended: bool = False


def rows() -> Iterator[Row]:
    for name, release in releases(DOCS).items():
        run = Path(release.source) / release.manifest.run
        scale = release.runs({})[release.manifest.run]
        try:
            yield _row(name, _scale(scale), _of_run(run))
        except InputError:  # no random exits among its tables
            continue
    yield _row(*TEN_MINUTES, _of_run(DOCS / "gpu-ten-minutes"))
    for name, (model, scale) in CARDS.items():
        yield _of_card(name, model, scale)
    for name, (model, scale) in CHECKED.items():
        yield _row(model, scale, json.loads((DOCS / "arena" / f"{name}.json").read_text()))
    yield _row(*SOLVER, _of_solver())
    for name, (model, scale) in ARENA.items():
        yield _row(model, scale, _of_arena(pd.read_parquet(DOCS / "arena" / f"{name}.parquet")))


def _scale(config: Any) -> str:
    run = scales(config).run
    return f"{run.parameters / 1e6:.3g} M, {run.tokens / 1e6:.2g} M"


def _of_run(folder: Path) -> Result:
    run = read_run(folder)
    return as_dict(check(run, lambda first: run.options(), TOLERANCE))


def _of_solver() -> Result:
    recording = read_recording(DOCS / "arena" / "solver_losses.parquet")
    exits = read_exits(DOCS / "arena" / "solver_depths.parquet", recording)
    return as_dict(check(recording, lambda first: options_of_exits(exits), TOLERANCE))


def _of_arena(arena: pd.DataFrame) -> Result:
    """What the table "arena" says, on all of its documents.

    The excess of a rule is that of fixed loops at the same evaluations, without the rule's gain.
    """
    fixed = arena[(arena["reference"] == ORACLE) & (arena["criterion"] == "fixed")]
    fixed = fixed.sort_values("threshold")
    depths = fixed["threshold"].iloc[-1]
    of_fixed = fixed["ce"] - fixed["ce"].iloc[-1]
    smallest = _smallest(fixed["threshold"].to_numpy(), of_fixed.to_numpy())
    gains = judged(arena).set_index(["criterion", "threshold"])
    random = gains[gains["reference"] == "random"]
    over_fixed = gains[gains["reference"] == "fixed"]["gain"]
    excess = np.interp(random["evaluations"], fixed["threshold"], of_fixed) - over_fixed
    words = {BETTER: SHOWN, WORSE: IS_WORSE}
    rules = []
    within = random[excess.reindex(random.index) <= TOLERANCE]
    for (criterion, threshold), row in within.iterrows():
        rules.append(
            {
                "condition": f"{criterion} at {threshold:.3g}",
                "loop_steps": row["evaluations"],
                "excess": excess[criterion, threshold],
                "gain_over_random": row["gain"],
                "gain_interval": [row["gain_low"], row["gain_high"]],
                "verdict": words.get(row["verdict"], NOT_SHOWN),
                "would_have_been_shown": row["least"],
            }
        )
    rules.sort(key=lambda rule: rule["loop_steps"])
    best = next((rule for rule in rules if rule["verdict"] == SHOWN), None)
    is_cheaper = best is not None and best["loop_steps"] < smallest
    return {
        "depths": depths,
        "smallest_fixed_count": smallest,
        "reported_documents": int(arena["documents"].max()),
        "recommended": best["condition"] if best is not None and is_cheaper else None,
        "rules": rules,
    }


def _smallest(counts: np.ndarray, excess: np.ndarray) -> float:
    """The smallest count within the tolerance, from the means of all documents.

    Between two counts it is a mixture of them, as in `replay.check.fixed_excess`.
    """
    above = int(np.argmax(excess <= TOLERANCE))
    if above == 0:
        return float(counts[0])
    low, high = excess[above - 1 : above + 1]
    share = (low - TOLERANCE) / (low - high)
    return float(counts[above - 1] + share * (counts[above] - counts[above - 1]))


def _of_card(run: str, model: str, scale: str) -> Row:
    """Only the fixed count, against the loss at the trained loops."""
    findings = pd.read_parquet(DOCS / "zoo" / "depth_findings.parquet")
    of_run = findings[findings["run"] == run].set_index("quantity")["value"]
    trained = of_run["trained_loops"]
    card = pd.read_parquet(DOCS / "zoo" / "depth_card.parquet")
    card = card[(card["run"] == run) & (card["quantity"] == "ce") & (card["loops"] <= trained)]
    ce = card.sort_values("loops").set_index("loops")["value"]
    fixed = _smallest(ce.index.to_numpy(), (ce - ce.loc[trained]).to_numpy())
    return Row(model, scale, None, trained, fixed)


def _row(model: str, scale: str, result: Result) -> Row:
    """The recommended rule, or else the one with the fewest loop steps within the tolerance."""
    recommended = result["recommended"]
    within = [rule for rule in result["rules"] if rule["excess"] <= TOLERANCE]
    chosen = [rule for rule in within if rule["condition"] == recommended] or within
    best = chosen[0]
    low, high = best["gain_interval"]
    return Row(
        model,
        scale,
        result["reported_documents"],
        result["depths"],
        result["smallest_fixed_count"],
        best["condition"],
        best["loop_steps"],
        best["excess"],
        best["verdict"],
        best["gain_over_random"],
        low,
        high,
        best["would_have_been_shown"],
        recommended is not None,
    )


# --- page -----------------------------------------------------------------------------------------

HEADER = (
    "model",
    "parameters, tokens",
    "full depth",
    "fixed count",
    "rule",
    "loop steps",
    "saved",
)
HEADER += ("over random exits, nats",)


def _cells(row: Row) -> tuple[str, ...]:
    fixed = f"{row.fixed_count:.3g}"
    if row.rule is None:
        return (row.model, row.scale, f"{row.full_depth:g}", fixed, "not measured", "", "", "")
    rule = markdown(row.rule)
    return (
        row.model,
        row.scale,
        f"{row.full_depth:g}",
        fixed,
        f"**{rule}**" if row.is_recommended else rule,
        f"{row.loop_steps:.2f}",
        f"{1 - row.loop_steps / row.full_depth:.0%}",
        _over_random(row),
    )


def _over_random(row: Row) -> str:
    if row.verdict == NOT_SHOWN:
        return f"not shown (least: {number(row.would_have_been_shown)})"
    width = row.gain_high - row.gain_low
    low, high = number(row.gain_low, width), number(row.gain_high, width)
    return f"{row.verdict}: {number(row.gain, width)} [{low}, {high}]"


def pages() -> dict[str, str]:
    """Name of each file in docs/ -> its text."""
    found = list(rows())
    shown = table(HEADER, map(_cells, found))
    values = pd.DataFrame(map(asdict, found))
    return {
        "which-exit.md": render("which-exit.md.j2", table_of_models=shown),
        "which-exit.tsv": values.to_csv(sep="\t", index=False, float_format="%.5g"),
    }


def main() -> None:
    for name, text in pages().items():
        with replacing(DOCS / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(DOCS / name)


if __name__ == "__main__":
    main()
