"""Comparison of a finished run with its release: numbers outside their tolerance, other verdicts.

Where processor, cores, torch and the environment of training are as in the release, every number of
every table but times has to agree to a relative `SAME_ARITHMETIC`. Elsewhere sums are rounded in
another order, and training amplifies what rounding changes: then only losses, evaluations and the
schedule are compared, to the absolute `TOLERANCES`. docs/release.md says how they were chosen. The
verdict on every claim that does not rest on times has to be the same.
"""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims.verdicts import ALL, CLAIMS, READING
from twoscale.dynamics import aggregate
from twoscale.jobs import machine
from twoscale.report.release import Manifest, Release, fetch, text_digests

SAME_ARITHMETIC = 1e-6  # relative to the larger number
# Table and column -> largest difference with another arithmetic. Of exits they are means over the
# tokens of all sequences.
TOLERANCES = {
    "training.tokens_seen": 0.0,
    "training.learning_rate": 0.0,
    "training.held_out_loss": 0.1,
    "training_loops.loops": 0.0,
    "exit_quality.tokens": 0.0,
    "exit_quality.ce": 0.06,
    "exit_loops.evaluations": 6.0,
}

# Table -> the columns that say which row it is. Its other numbers are compared, but for
# `TIMED_COLUMNS`.
KEYS = {
    "training": ["iteration"],
    "training_loops": ["iteration", "group"],
    "loop_metrics": ["iteration", "group", "k", "measure"],
    "loop_sequences": ["iteration", "group", "k", "sequence", "measure"],
    "drift": ["iteration", "boundary", "reference_state", "measure"],
    "drift_sequences": ["iteration", "boundary", "reference_state", "sequence", "measure"],
    "state_paths": ["site", "position"],
    "exit_quality": ["criterion", "threshold", "sequence"],
    "exit_loops": ["criterion", "threshold", "sequence", "group"],
    "exit_cost_matched": ["criterion", "threshold", "reference", "draw", "sequence"],
    "claims": ["claim", "scope", "quantity"],
}
TIMED_COLUMNS = ["tokens_per_s", "tflops", "utilisation"]
Frames = Mapping[str, pd.DataFrame]  # the tables of `KEYS` by name


class Check(NamedTuple):
    """The numbers and verdicts of a run compared with a release."""

    # one row per number: kind, tolerance, column, row, found, released, difference, outside
    numbers: pd.DataFrame
    verdicts: pd.DataFrame  # one row per claim with another verdict: claim, found, released

    @property
    def outside(self) -> pd.DataFrame:
        return self.numbers[self.numbers["outside"]]

    @property
    def agrees(self) -> bool:
        return self.outside.empty and self.verdicts.empty


# --- the tables of both sides ---------------------------------------------------------------------


def segments(folder: Path) -> list[Path]:
    """The logs of the segments of a run in its folder, in order."""
    return sorted((folder / "training").glob("iteration_??????.parquet"))


def tables_of_run(folder: Path) -> Frames:
    """The tables of a finished run in its folder. Raises InputError.

    The logs of the segments of its training are joined.
    """
    logs = segments(folder)
    frames = {
        "training": aggregate.joined("training", logs),
        "training_loops": aggregate.joined(
            "training_loops", [log.with_suffix(".loops.parquet") for log in logs]
        ),
    }
    for name in KEYS.keys() - frames.keys():
        frames[name] = tables.read(name, folder / f"tables/{name}.parquet")
    return frames


def tables_of_release(release: Release) -> Frames:
    """The same tables of the run of a release. Raises InputError."""
    frames = {}
    with tempfile.TemporaryDirectory() as folder:
        for table in KEYS:
            name = f"{release.manifest.run}/tables/{table}.parquet"
            if name not in release.tables:
                raise InputError(
                    f"{release.source}: found no {name} in the manifest,"
                    f" expected a run with this table."
                )
            copy = Path(folder, f"{table}.parquet")
            fetch(release.source, name, release.tables[name], copy, release.download)
            frames[table] = tables.read(table, copy)
    return frames


def check_text(release: Release, tokens: Path) -> None:
    """Refuse a run whose tokens.json is of another text, of which numbers need not agree."""
    for name, digest in text_digests(tokens).items():
        expected = release.manifest.text.get(name)
        if expected != digest:
            python = release.manifest.versions.get("python", "unknown")
            raise InputError(
                f"{tokens}: found {name} with the SHA-256 {digest[:12]}…, expected"
                f" {str(expected)[:12]}… as in the release; the demo's text is Python's"
                f" documentation, and the release was made with Python {python}."
            )


def differences(manifest: Manifest, segments: Sequence[Path]) -> list[str]:
    """Differences from the release on which rounding depends: machine, environments of training."""
    no_memory = {"memory_gb": None}  # bits do not depend on it
    released = [manifest.machine | no_memory, *manifest.training.get("environments", [])]
    ours = [machine.description() | no_memory, *machine.distinct_environments(segments)]
    none: machine.Environment = {}
    found: list[str] = []
    for there, here in zip_longest(released, ours, fillvalue=none):
        found += machine.differences(there, here, ("in the release", "here"))
    return list(dict.fromkeys(found))


# --- what is compared -----------------------------------------------------------------------------


def check(found: Frames, released: Frames, same_arithmetic: bool) -> Check:
    """Compare the tables of a run with the tables of a release."""
    if same_arithmetic:
        compared = [
            _compared(name, _numbers(name, found), _numbers(name, released), SAME_ARITHMETIC, True)
            for name in KEYS
        ]
    else:
        ours, theirs = _summaries(found), _summaries(released)
        compared = [
            _compared(name, ours[name], theirs[name], tolerance)
            for name, tolerance in TOLERANCES.items()
        ]
    verdicts = pd.DataFrame(
        {"found": _verdicts(found["claims"]), "released": _verdicts(released["claims"])}
    )
    changed = verdicts[verdicts["found"] != verdicts["released"]].reset_index()
    return Check(pd.concat(compared, ignore_index=True), changed)


def _verdicts(claims: pd.DataFrame) -> pd.Series:
    untimed = _untimed(claims)
    return untimed[untimed["scope"] == ALL].set_index("claim")["verdict"]


def _untimed(claims: pd.DataFrame) -> pd.DataFrame:
    """The rows of claims that do not rest on times."""
    return claims[~claims["claim"].isin([claim.number for claim in CLAIMS if claim.timed])]


def _numbers(name: str, frames: Frames) -> pd.DataFrame:
    """The numbers of a table but times, by the keys of their row."""
    frame = frames[name]
    if name == "claims":  # verdicts have no number
        frame = _untimed(frame)
        frame = frame[~frame["scope"].isin((ALL, READING))]
    numbers = frame.drop_duplicates(KEYS[name]).set_index(KEYS[name]).select_dtypes("number")
    return numbers.drop(columns=TIMED_COLUMNS, errors="ignore")


def _summaries(frames: Frames) -> dict[str, pd.DataFrame]:
    """The columns of `TOLERANCES`, without numbers that were not measured."""
    point = ["criterion", "threshold"]
    quality = _numbers("exit_quality", frames)
    # each sequence weighs as many as its tokens
    sums = quality.assign(ce=quality["ce"] * quality["tokens"]).groupby(point).sum()
    summaries = {
        "training": _numbers("training", frames),
        "training_loops": _numbers("training_loops", frames),
        "exit_quality": sums.assign(ce=sums["ce"] / sums["tokens"]),
        "exit_loops": _numbers("exit_loops", frames).groupby([*point, "group"]).mean(),
    }
    parts = {name: name.split(".") for name in TOLERANCES}
    return {name: summaries[table][[column]].dropna() for name, (table, column) in parts.items()}


def _compared(
    kind: str,
    found: pd.DataFrame,
    released: pd.DataFrame,
    tolerance: float,
    relative: bool = False,
) -> pd.DataFrame:
    """One row per number; one that either side lacks, or has not measured, is outside.

    `kind` is a table, or a table and its column.
    """
    found, released = found.align(released)
    ours = found.to_numpy(np.float64).ravel()  # NaN where a side lacks a row or a number
    theirs = released.to_numpy(np.float64).ravel()
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
        if relative:
            difference /= np.maximum(np.abs(ours), np.abs(theirs))
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    difference = np.where(equal, 0.0, np.nan_to_num(difference, nan=np.inf))
    rows, columns = found.shape
    table = kind.partition(".")[0]
    return pd.DataFrame(
        {
            "kind": kind,
            "tolerance": tolerance,
            "column": np.tile([f"{table}.{name}" for name in found.columns], rows),
            "row": np.repeat(found.index.to_numpy(), columns),
            "found": ours,
            "released": theirs,
            "difference": difference,
            "outside": difference > tolerance,
        }
    )


# --- the answer -----------------------------------------------------------------------------------


def lines(result: Check, changes: Sequence[str], most: int = 20) -> list[str]:
    """What differs in the machine, a row per kind, and the numbers that left their tolerance."""
    kinds = result.numbers.groupby("kind", sort=False).agg(
        numbers=("outside", "size"),
        outside=("outside", "sum"),
        largest=("difference", "max"),
        tolerance=("tolerance", "first"),
    )
    machines = f"another arithmetic: {'; '.join(changes)}"
    text = [
        machines if changes else "arithmetic: as in the release",
        kinds.rename_axis(None).to_string(float_format="{:.3g}".format),
        "times are not compared: they depend on the machine and the load on it",
    ]
    for row in result.verdicts.itertuples():
        text.append(f"claim {row.claim}: {row.found} here, {row.released} in the release")
    outside = result.outside.sort_values("difference", ascending=False, kind="stable")
    for row in outside.head(most).itertuples():
        values = f"{row.found:.6g} here, {row.released:.6g} in the release"
        text.append(f"outside: {row.column} {row.row}: {values}")
    if len(outside) > most:
        text.append(f"and {len(outside) - most} more")
    return text
