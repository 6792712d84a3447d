"""Means over tokens at each loop count, and findings about them: the tables "depth_card" and "depth_findings".

Intervals are bootstraps over documents. Best loops and plateau are found again in each resample, so their intervals
contain the choice of the best loop count. NumPy and pandas only.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import with_bounds
from twoscale.claims.regime import Exponent, regime
from twoscale.report import release
from twoscale.studies.depth_card.steps import STATE_MEASURES

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob

NO_GROUP = ""  # in the column `group`: what the prediction has
ALIKE = ["sequence", "document", "tokens"]


def run(job: "StudyJob") -> None:
    """Write the tables "depth_card" and "depth_findings"."""
    config = job.config
    quality, states = job.read("depth_quality", "quality"), job.read("depth_states", "states")
    twin = None
    if (path := job.optional("unlooped")) is not None:
        check_same_text(
            release.text_digests(job.file("text")), release.text_digests(job.file("unlooped_text")), config.unlooped
        )
        twin = tables.read("depth_quality", path)
        twin = twin[twin["loops"] == config.unlooped_loops]
    job.write("depth_card", summarise(quality, states, config.trained_loops, config.seed))
    found = findings(quality, states, config.trained_loops, config.tolerance, twin, config.seed)
    job.write("depth_findings", found)


def check_same_text(ours: dict[str, str], theirs: dict[str, str], unlooped: str) -> None:
    """Raise InputError unless both runs have the same held-out tokens: the SHA-256 of their files."""
    if ours["val.bin"] != theirs["val.bin"]:
        raise InputError(
            f"config key depth_card.unlooped: found the run {unlooped} with other held-out tokens, expected the same "
            "text and tokenizer."
        )


# --- means ----------------------------------------------------------------------------------------------------------


def summarise(quality: pd.DataFrame, states: pd.DataFrame, trained: int, seed: int) -> pd.DataFrame:
    """The table "depth_card" without its column `run`.

    Args:
        quality: Table "depth_quality" of one checkpoint.
        states: Table "depth_states" of the same; it has the loop counts of `quality`.
        trained: The trained loops.
        seed: Of the bootstrap.
    """
    best = quality[quality["loops"] == best_loops(quality)].set_index("sequence")["ce"]
    quality = quality.assign(excess=quality["ce"] - quality["sequence"].map(best), group=NO_GROUP)
    at_counts = states[states["k"].isin(quality["loops"])].rename(columns={"k": "loops"})
    parts = [_means(quality, name, seed) for name in ("ce", "excess", "entropy", "flips")]
    parts += [_means(at_counts, name, seed) for name in STATE_MEASURES]
    means = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return means.assign(multiple=means["loops"] / trained, iteration=quality["iteration"].iloc[0])


def _means(rows: pd.DataFrame, name: str, seed: int) -> pd.DataFrame:
    """Mean of one column over tokens at each (loops, group), with its interval; rows where it is null are left out."""
    rows = rows.dropna(subset=name)
    if rows.empty:
        return pd.DataFrame()
    found = pd.DataFrame(with_bounds(rows, ["loops", "group"], name, name, seed)).reset_index()
    found = found.rename(columns={name: "value", f"{name}_low": "low", f"{name}_high": "high"})
    tokens = rows.groupby(["loops", "group"])["tokens"].sum().rename("tokens")
    return found.assign(quantity=name).join(tokens, on=["loops", "group"])


def best_loops(quality: pd.DataFrame) -> int:
    """The loop count of the lowest loss over all tokens, the smallest of equal ones."""
    sums, _ = _by_document(quality)
    return int(np.sort(quality["loops"].unique())[sums.sum(0).argmin()])


# --- findings -------------------------------------------------------------------------------------------------------


def findings(
    quality: pd.DataFrame,
    states: pd.DataFrame,
    trained: int,
    tolerance: float,
    unlooped: pd.DataFrame | None,
    seed: int,
) -> pd.DataFrame:
    """The table "depth_findings" without its column `run`.

    Args:
        quality: Table "depth_quality" of one checkpoint; the trained loops are among its loop counts.
        states: Table "depth_states" of the same.
        trained: The trained loops.
        tolerance: Nats per token above the lowest loss up to which a loop count belongs to the plateau.
        unlooped: Rows of "depth_quality" of a model without loops on the same sequences, if it was measured.
        seed: Of the bootstrap.

    Raises:
        InputError: The model without loops was measured on other sequences.
    """
    rows = [*_depths(quality, trained, tolerance, seed), _gain(quality, trained, unlooped, seed)]
    rows += [row for group, own in states.groupby("group", sort=False) for row in _regime(str(group), own)]
    found = pd.DataFrame(rows)
    return found.assign(group=found["group"].fillna(NO_GROUP), iteration=quality["iteration"].iloc[0])


def _depths(quality: pd.DataFrame, trained: int, tolerance: float, seed: int) -> Iterator[dict[str, Any]]:
    """Best loops, plateau, and what the trained loops lose to the best ones."""
    counts = np.sort(quality["loops"].unique())
    sums, tokens = _by_document(quality)
    losses = sums.sum(0) / tokens.sum()
    low, high = np.full((2, 3), np.nan)
    if len(tokens) > 1:
        totals = bootstrap.totals(np.column_stack([sums, tokens]), seed)
        samples = np.array([_places(sample, tolerance) for sample in totals[:, :-1] / totals[:, -1:]])
        ends = (1 - bootstrap.LEVEL) / 2, (1 + bootstrap.LEVEL) / 2
        low, high = (counts[np.quantile(samples, end, axis=0, method="nearest").astype(int)] for end in ends)
    yield {"quantity": "trained_loops", "value": trained, "statement": "loops of training, or as published"}
    statements = ("lowest loss", f"first loop count in a row within {tolerance:g} nats of it", "last one")
    for i, name in enumerate(("best_loops", "plateau_first", "plateau_last")):
        value = counts[_places(losses, tolerance)[i]]
        yield {"quantity": name, "value": value, "low": low[i], "high": high[i], "statement": statements[i]}
    best = losses.argmin()
    differences = sums[:, list(counts).index(trained)] - sums[:, best]
    yield _ratio("trained_excess", differences, tokens, seed) | {
        "statement": "loss at the trained loops minus the lowest one"
    }


def _places(losses: np.ndarray, tolerance: float) -> tuple[int, int, int]:
    """Best loop count and both ends of the plateau, as places in the losses (L,) by loop count."""
    best = first = last = int(losses.argmin())
    within = losses <= losses[best] + tolerance
    while first > 0 and within[first - 1]:
        first -= 1
    while last + 1 < len(losses) and within[last + 1]:
        last += 1
    return best, first, last


def _by_document(quality: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Summed losses (D, L) of the documents at each loop count, ascending, and their tokens (D,)."""
    rows = quality.assign(sum=quality["ce"] * quality["tokens"])
    sums = rows.pivot_table(index="document", columns="loops", values="sum", aggfunc="sum")
    tokens = rows[rows["loops"] == rows["loops"].min()].groupby("document")["tokens"].sum()
    return sums.to_numpy(np.float64), tokens.loc[sums.index].to_numpy(np.float64)


def _gain(quality: pd.DataFrame, trained: int, unlooped: pd.DataFrame | None, seed: int) -> dict[str, Any]:
    if unlooped is None:
        return {"quantity": "loop_gain", "statement": "not measured: there is no model without loops to compare with"}
    own, other = (
        rows.sort_values("sequence", ignore_index=True) for rows in (quality[quality["loops"] == trained], unlooped)
    )
    if not own[ALIKE].equals(other[ALIKE]):
        raise InputError("unlooped model: the table depth_quality has other sequences than the looped model.")
    difference = (other["ce"] - own["ce"]) * own["tokens"]
    units = pd.DataFrame({"sum": difference, "tokens": own["tokens"]}).groupby(own["document"]).sum()
    gain = _ratio("loop_gain", units["sum"].to_numpy(), units["tokens"].to_numpy(np.float64), seed)
    return gain | {"statement": "loss without loops minus that at the trained loops"}


def _ratio(quantity: str, sums: np.ndarray, tokens: np.ndarray, seed: int) -> dict[str, Any]:
    """The mean over tokens with its interval, from sums and tokens of the documents (D,)."""
    units = np.column_stack([sums, tokens])
    low, high = np.nan, np.nan
    if len(units) > 1:
        low, high = bootstrap.interval(bootstrap.ratio_of_sums, units, seed, tokens)
    return {"quantity": quantity, "value": sums.sum() / tokens.sum(), "low": low, "high": high}


def _regime(group: str, states: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The regime of a group with its evidence, over sequences."""
    steps, norms, directions = (
        states.pivot(index="sequence", columns="k", values=name).to_numpy(np.float64)
        for name in ("step_norm", "state_norm", "direction_step_norm")
    )
    found = regime(steps[:, :-1], norms, directions[:, :-1])
    last = Exponent(found.last_step, np.nan, np.nan)
    evidence = {"step_exponent": found.step_exponent, "norm_exponent": found.norm_exponent}
    evidence |= {"direction_exponent": found.direction_exponent, "last_step": last}
    yield {"group": group, "quantity": "regime", "statement": found.sentence}
    for name, exponent in evidence.items():
        yield {"group": group, "quantity": name, "statement": found.name} | exponent._asdict()


def sentence(table: pd.DataFrame) -> str:
    """Best loop count of the table "depth_card", for the report."""
    losses = table[table["quantity"] == "ce"].set_index("loops")["value"]
    best, trained = losses.idxmin(), losses.index[np.isclose(table[table["quantity"] == "ce"]["multiple"], 1)]
    at = f", {losses[trained[0]]:.3f} at the trained {trained[0]}" if len(trained) else ""
    return f"Lowest cross-entropy {losses[best]:.3f} nats per token at {best} loops{at}."
