"""Comparison of a finished run with its release: the numbers outside their tolerance.

Where processor, cores, torch and the environment of training are as in the release, every number of
every table but times has to agree to `_SAME_ARITHMETIC`. Elsewhere sums are rounded in another
order, and training amplifies what rounding changes: losses, and what claims are judged on, then
have the tolerances of `KINDS`. docs/release.md says how they were chosen.
"""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims.evidence import UNDER_FLOOR, Role
from twoscale.claims.exits import AT_EQUAL_QUALITY, IN_KEPT_STEPS
from twoscale.claims.verdicts import ALL, CLAIMS, READING
from twoscale.dynamics import aggregate
from twoscale.jobs import machine
from twoscale.report.release import Manifest, Release, fetch, text_digests

_ABSOLUTE, _RELATIVE, _LOGARITHM = "absolute", "relative", "of natural logarithms"


class Kind(NamedTuple):
    """A kind of numbers, and how far they may be from the released ones."""

    name: str
    tolerance: float
    scale: str = _ABSOLUTE  # of the difference; _RELATIVE to the larger number


_AT_EQUAL_QUALITY = (AT_EQUAL_QUALITY.name, IN_KEPT_STEPS.name)
_SAME_ARITHMETIC = Kind("every number but times", 1e-6, _RELATIVE)
# With another arithmetic
SCHEDULE = Kind("schedule", 0.0)
HELD_OUT = Kind("held-out loss in training", 0.1)
_ENTROPY = Kind("cross-entropy with exits", 0.06)
_EVALUATIONS = Kind("evaluations", 6.0)
_VARIANCE = Kind("variance of a cosine", 0.1)
_SCALE = Kind("scale of the threshold", 0.1, _LOGARITHM)
_RANDOM = Kind("cross-entropy lost to random exits", 0.013)
# Kind -> the claims whose numbers it has; claims that rest on times have none
CLAIM_KINDS = {
    Kind("decay of steps", 5.0, _LOGARITHM): (1,),
    Kind("rate of decay over training", 0.4): (2,),
    Kind("jump between groups", 0.5, _LOGARITHM): (6,),
    Kind("length of steps over training", 1.2): (12,),
    Kind("late steps", 9.0, _LOGARITHM): (13,),
    Kind("evaluations, KL minus acceleration", 2.0): (14,),
    Kind("cosine", 0.7): (3, 4, 5),
    Kind("cross-entropy lost to exits", 0.005): (8, 9, 15),
    _VARIANCE: (),  # of claim 3, whose other numbers are cosines
    _SCALE: (),  # several claims give it, for all groups
    _RANDOM: (),  # of claim 8
}
KINDS = (SCHEDULE, HELD_OUT, _ENTROPY, _EVALUATIONS, *CLAIM_KINDS)

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
# Kind and table -> numbers in columns, by the keys of their row
Numbers = dict[tuple[Kind, str], pd.DataFrame]


class Check(NamedTuple):
    """The numbers of a run compared with a release."""

    # one row per number: kind, tolerance, column, row, found, released, difference, outside
    numbers: pd.DataFrame
    verdicts: pd.DataFrame  # one row per claim with another verdict: claim, found, released

    @property
    def outside(self) -> pd.DataFrame:
        return self.numbers[self.numbers["outside"]]


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
        ours = _every_number(found)
        theirs = _every_number(released)
    else:
        withheld = _withheld(found["claims"]) | _withheld(released["claims"])
        ours = _summary(found, withheld)
        theirs = _summary(released, withheld)
    numbers = [_compared(*of, ours[of], theirs[of]) for of in ours]
    verdicts = pd.DataFrame(
        {"found": _verdicts(found["claims"]), "released": _verdicts(released["claims"])}
    )
    changed = verdicts[verdicts["found"] != verdicts["released"]].reset_index()
    return Check(pd.concat(numbers, ignore_index=True), changed)


def _verdicts(claims: pd.DataFrame) -> pd.Series:
    return claims[claims["scope"] == ALL].set_index("claim")["verdict"]


def _every_number(frames: Frames) -> Numbers:
    """All numbers of the tables but times."""
    return {(_SAME_ARITHMETIC, name): _by_key(name, frames) for name in KEYS}


def _summary(frames: Frames, withheld: set[tuple]) -> Numbers:
    """Losses, means over held-out text, and the findings of claims that are not `withheld`."""
    training = _by_key("training", frames)
    quality = _by_key("exit_quality", frames)
    evaluations = _by_key("exit_loops", frames)[["evaluations"]]
    point = ["criterion", "threshold"]
    # each sequence weighs as many as its tokens
    nats = quality["ce"] * quality["tokens"]
    mean_ce = nats.groupby(point).sum() / quality["tokens"].groupby(point).sum()
    numbers = {
        (SCHEDULE, "training"): training[["tokens_seen", "learning_rate"]],
        (SCHEDULE, "training_loops"): _by_key("training_loops", frames),
        (SCHEDULE, "exit_quality"): quality[["document", "tokens"]],
        (HELD_OUT, "training"): training[["held_out_loss"]].dropna(),
        (_ENTROPY, "exit_quality"): mean_ce.to_frame("ce"),
        (_EVALUATIONS, "exit_loops"): evaluations.groupby([*point, "group"]).mean(),
    }
    rows = _findings(frames["claims"]).drop_duplicates(KEYS["claims"]).set_index(KEYS["claims"])
    findings = rows[["value"]]
    kinds = [None if row.Index in withheld else _kind_of_finding(row) for row in rows.itertuples()]
    # a kind may be empty: a claim that is not asked has no numbers
    for kind in (_ENTROPY, *CLAIM_KINDS):
        numbers[kind, "claims"] = findings[[found == kind for found in kinds]]
    return numbers


def _kind_of_finding(row: Any) -> Kind | None:
    """The kind of a number of a claim, a row with the index `KEYS`; None without a tolerance."""
    claim, scope, quantity = row.Index
    if row.reading in _AT_EQUAL_QUALITY:
        # it follows from losses and evaluations, at thresholds that depend on them
        return None
    if row.role == Role.PREMISE:
        return _ENTROPY
    if scope == "all groups":
        return _SCALE
    if row.role == Role.CHANCE:
        return _RANDOM
    if claim == 3 and not quantity.startswith("cosine at k = 1"):
        return _VARIANCE
    return next(kind for kind, claims in CLAIM_KINDS.items() if claim in claims)


def _withheld(claims: pd.DataFrame) -> set[tuple]:
    """Keys of the findings withheld because more than 10 % of their values are under the floor.

    On the other side it may be just less.
    """
    reasons = claims["reason"].astype("string")
    rows = claims[
        ~claims["scope"].isin((ALL, READING)) & reasons.str.contains(UNDER_FLOOR, na=False)
    ]
    return set(rows[KEYS["claims"]].itertuples(index=False, name=None))


def _by_key(name: str, frames: Frames) -> pd.DataFrame:
    """The numbers of a table but times, by the keys of their row."""
    frame = frames[name]
    if name == "claims":
        frame = _findings(frame)
    numbers = frame.drop_duplicates(KEYS[name]).set_index(KEYS[name]).select_dtypes("number")
    return numbers.drop(columns=TIMED_COLUMNS, errors="ignore")


def _findings(claims: pd.DataFrame) -> pd.DataFrame:
    """The rows of numbers that are not times; verdicts are compared apart, and times not at all."""
    timed = [claim.number for claim in CLAIMS if claim.timed]
    return claims[~claims["claim"].isin(timed) & ~claims["scope"].isin((ALL, READING))]


def _compared(kind: Kind, table: str, found: pd.DataFrame, released: pd.DataFrame) -> pd.DataFrame:
    """One row per number; one that either side lacks, or has not measured, is outside."""
    found, released = found.align(released)
    ours = found.to_numpy(np.float64).ravel()  # NaN where a side lacks a row or a number
    theirs = released.to_numpy(np.float64).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind.scale == _LOGARITHM:
            difference = np.abs(np.log(ours) - np.log(theirs))
        else:
            difference = np.abs(ours - theirs)
        if kind.scale == _RELATIVE:
            difference /= np.maximum(np.abs(ours), np.abs(theirs))
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    difference = np.where(equal, 0.0, np.nan_to_num(difference, nan=np.inf))
    rows, columns = found.shape
    return pd.DataFrame(
        {
            "kind": kind.name,
            "tolerance": kind.tolerance,
            "column": np.tile([f"{table}.{name}" for name in found.columns], rows),
            "row": np.repeat(found.index.to_numpy(), columns),
            "found": ours,
            "released": theirs,
            "difference": difference,
            "outside": difference > kind.tolerance,
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
