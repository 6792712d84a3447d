"""Comparison of a finished run with its release: the numbers outside their tolerance.

Where processor, cores, torch and the environment of training are as in the release, every number of
every table but times has to agree to `SAME_ARITHMETIC`. Elsewhere sums are rounded in another
order, and training amplifies what rounding changes: losses, and what claims are judged on, then
have the tolerances of `KINDS`. docs/release.md says how they were chosen.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims.evidence import UNDER_FLOOR
from twoscale.claims.exits import EQUAL
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.dynamics import aggregate
from twoscale.jobs import machine
from twoscale.report.release import Manifest, Release, fetch, text_digests

ABSOLUTE, RELATIVE, LOGARITHM = "absolute", "relative", "of natural logarithms"


class Kind(NamedTuple):
    """A kind of numbers, and how far they may be from the released ones."""

    name: str
    tolerance: float
    scale: str = ABSOLUTE  # of the difference; RELATIVE to the larger number


SCHEDULE = Kind("schedule", 0.0)
HELD_OUT = Kind("held-out loss in training", 0.1)
ENTROPY = Kind("cross-entropy with exits", 0.06)
EVALUATIONS = Kind("evaluations", 6.0)
COSINE, NATS = Kind("cosine", 0.7), Kind("cross-entropy lost to exits", 0.005)
VARIANCE = Kind("variance of a cosine", 0.1)  # of claim 3, whose other numbers are cosines
SCALE = Kind("scale of the threshold", 0.1, LOGARITHM)  # which several claims give, for all groups
CLAIM_KINDS = {  # claim -> kind of its numbers; claims that rest on times have none
    1: Kind("decay of steps", 5.0, LOGARITHM),
    2: Kind("rate of decay over training", 0.4),
    6: Kind("jump between groups", 0.5, LOGARITHM),
    12: Kind("length of steps over training", 1.2),
    13: Kind("late steps", 9.0, LOGARITHM),
    14: Kind("evaluations, KL minus acceleration", 2.0),
    **dict.fromkeys((3, 4, 5), COSINE),
    **dict.fromkeys((8, 9, 15), NATS),
}
KINDS = (
    SCHEDULE,
    HELD_OUT,
    ENTROPY,
    EVALUATIONS,
    *dict.fromkeys(CLAIM_KINDS.values()),
    VARIANCE,
    SCALE,
)
SAME_ARITHMETIC = Kind("every number but times", 1e-6, RELATIVE)

# Table -> the columns that say which row it is. Its other numbers are compared, but for
# `TIMED_COLUMNS`.
KEYS = {
    "training": ("iteration",),
    "training_loops": ("iteration", "group"),
    "loop_metrics": ("iteration", "group", "k", "measure"),
    "loop_sequences": ("iteration", "group", "k", "sequence", "measure"),
    "drift": ("iteration", "boundary", "reference_state", "measure"),
    "drift_sequences": ("iteration", "boundary", "reference_state", "sequence", "measure"),
    "state_paths": ("site", "position"),
    "exit_quality": ("criterion", "threshold", "sequence"),
    "exit_loops": ("criterion", "threshold", "sequence", "group"),
    "exit_cost_matched": ("criterion", "threshold", "reference", "draw", "sequence"),
    "claims": ("claim", "scope", "quantity"),
}
TIMED_COLUMNS = frozenset({"tokens_per_s", "tflops", "utilisation"})
Frames = Mapping[str, pd.DataFrame]  # the tables of `KEYS` by name


class Check(NamedTuple):
    """The numbers of a run compared with a release."""

    numbers: (
        pd.DataFrame
    )  # one row each: kind, number, found, released, difference, tolerance, outside
    verdicts: pd.DataFrame  # one row per claim with another verdict: claim, found, released

    @property
    def outside(self) -> pd.DataFrame:
        return self.numbers[self.numbers["outside"]]


def segments(folder: Path) -> list[Path]:
    """The logs of the segments of a run in its folder, in order."""
    return sorted((folder / "training").glob("iteration_??????.parquet"))


def tables_of_run(folder: Path) -> Frames:
    """The tables of a finished run in its folder; the logs of its segments are joined. Raises
    InputError.
    """
    logs = segments(folder)
    loops = [path.with_suffix(".loops.parquet") for path in logs]
    of_segments = {"training": logs, "training_loops": loops}
    joined = {name: aggregate.joined(name, paths) for name, paths in of_segments.items()}
    return joined | {
        name: tables.read(name, folder / f"tables/{name}.parquet")
        for name in KEYS
        if name not in joined
    }


def tables_of_release(release: Release) -> Frames:
    """The same tables of the run of a release. Raises InputError."""
    frames = {}
    with tempfile.TemporaryDirectory() as folder:
        for table in KEYS:
            name, copy = (
                f"{release.manifest.run}/tables/{table}.parquet",
                Path(folder, f"{table}.parquet"),
            )
            if name not in release.tables:
                raise InputError(
                    f"{release.source}: found no {name} in the manifest, expected a run with this"
                    f" table."
                )
            fetch(release.source, name, release.tables[name], copy, release.download)
            frames[table] = tables.read(table, copy)
    return frames


def differences(manifest: Manifest, segments: Iterable[Path]) -> list[str]:
    """Differences of machine and environments of training from the release, on which rounding
    depends.
    """
    here, there = machine.description(), manifest.machine
    names = [name for name in ("processor", "cpus") if here[name] != there.get(name)]
    found = [f"{name}: {there.get(name)!r} in the release, {here[name]!r} here" for name in names]
    released, ours = (
        manifest.training.get("environments", []),
        machine.distinct_environments(segments),
    )
    if len(released) != len(ours):
        return [
            *found,
            f"environments of training: {len(released)} in the release, {len(ours)} here",
        ]
    changes = (
        machine.differences(*pair, ("in the release", "here"))
        for pair in zip(released, ours, strict=True)
    )
    return [*found, *dict.fromkeys(text for texts in changes for text in texts)]


def check_text(release: Release, tokens: Path) -> None:
    """Refuse a run whose tokens.json is of another text than the release, where numbers need not
    agree.
    """
    for name, digest in text_digests(tokens).items():
        if (expected := release.manifest.text.get(name)) != digest:
            raise InputError(
                f"{tokens}: found {name} with the SHA-256 {digest[:12]}…, expected"
                f" {str(expected)[:12]}… as in the "
                "release; the demo's text is Python's documentation, and the release was made"
                " with Python "
                f"{release.manifest.versions.get('python', 'unknown')}."
            )


def check(found: Frames, released: Frames, same_arithmetic: bool) -> Check:
    """Compare the tables of a run with the tables of a release."""
    if not same_arithmetic:
        found, released = _measured(found, released), _measured(released, found)
    ours, theirs = (
        every_number(side) if same_arithmetic else summary(side) for side in (found, released)
    )
    none = pd.Series(dtype=np.float64)
    rows = [_compared(kind, ours.get(kind, none), theirs.get(kind, none)) for kind in ours | theirs]
    judged = {
        side: frames["claims"].set_index("claim").query("scope == @ALL")["verdict"]
        for side, frames in (("found", found), ("released", released))
    }
    verdicts = pd.concat(judged, axis="columns").reset_index()
    return Check(
        pd.concat(rows, ignore_index=True), verdicts[verdicts["found"] != verdicts["released"]]
    )


def every_number(frames: Frames) -> dict[Kind, pd.Series]:
    """All numbers of the tables but times, by name."""
    untimed = {
        name: frames[name].drop(columns=TIMED_COLUMNS & {*frames[name].columns}) for name in KEYS
    }
    untimed["claims"] = _untimed_claims(frames)
    return {
        SAME_ARITHMETIC: pd.concat(
            [found for name in KEYS for found in _columns(name, untimed[name])]
        )
    }


def summary(frames: Frames) -> dict[Kind, pd.Series]:
    """The numbers of each kind by name: losses, means over held-out text, and what claims are
    judged on.
    """
    training, quality, loops = (frames[name] for name in ("training", "exit_quality", "exit_loops"))
    point = ["criterion", "threshold"]
    weighted = (
        quality.assign(ce=quality["ce"] * quality["tokens"]).groupby(point)[["ce", "tokens"]].sum()
    )
    evaluations = loops.groupby([*point, "group"], as_index=False)["evaluations"].mean()
    held_out = training[training["held_out_loss"].notna()]
    schedule = [
        *_columns("training", training[["iteration", "tokens_seen", "learning_rate"]]),
        *_columns("training_loops", frames["training_loops"]),
        *_columns("exit_quality", quality[[*KEYS["exit_quality"], "document", "tokens"]]),
    ]
    claims = _untimed_claims(frames)
    # what follows from the losses and evaluations above, at thresholds that depend on them, has no
    # tolerance of its own
    claims = claims[~claims["quantity"].str.startswith(EQUAL)]
    kinds = claims["claim"].map(lambda claim: CLAIM_KINDS[claim].name).astype(object)
    kinds[(claims["claim"] == 3) & ~claims["quantity"].str.startswith("cosine at k = 1")] = (
        VARIANCE.name
    )
    kinds[claims["scope"] == "all groups"] = SCALE.name
    judged = {kind: claims[kinds == kind.name] for kind in KINDS}
    return {
        SCHEDULE: pd.concat(schedule),
        HELD_OUT: _labelled(
            "held-out loss, iteration", held_out["held_out_loss"], held_out[["iteration"]]
        ),
        ENTROPY: _labelled(
            "cross-entropy", weighted["ce"] / weighted["tokens"], weighted.index.to_frame()
        ),
        EVALUATIONS: _labelled(
            "evaluations", evaluations["evaluations"], evaluations[[*point, "group"]]
        ),
        **{
            k: _labelled("claim", rows["value"], rows[list(KEYS["claims"])])
            for k, rows in judged.items()
            if len(rows)
        },
    }


def _measured(side: Frames, other: Frames) -> Frames:
    """`side` without the findings that either withholds: the share of values under the floor may be
    just too large.
    """
    keys, claims = list(KEYS["claims"]), side["claims"]
    both = pd.concat([claims, other["claims"]])
    withheld = both[
        (both["scope"] != ALL) & both["reason"].astype("string").str.contains(UNDER_FLOOR, na=False)
    ]
    return {
        **side,
        "claims": claims[~claims.set_index(keys).index.isin(withheld.set_index(keys).index)],
    }


def _untimed_claims(frames: Frames) -> pd.DataFrame:
    """The claims without those about times, without verdicts and numbers that two claims give
    alike.
    """
    timed, claims = [claim.number for claim in CLAIMS if claim.timed], frames["claims"]
    claims = claims[~claims["claim"].isin(timed) & (claims["scope"] != ALL)]
    return claims[~((claims["scope"] == "all groups") & claims.duplicated(["scope", "quantity"]))]


def _columns(name: str, frame: pd.DataFrame) -> list[pd.Series]:
    keys = [key for key in KEYS[name] if key in frame]
    columns = [column for column in frame.select_dtypes("number") if column not in keys]
    return [_labelled(f"{name}.{column}", frame[column], frame[keys]) for column in columns]


def _labelled(start: str, values: pd.Series, keys: pd.DataFrame) -> pd.Series:
    """Numbers by name: `start` and the keys of the row, and a number where a name is not the first
    one.
    """
    first, *others = (keys[name].astype("string").fillna("") for name in keys)
    names = f"{start} " + first.str.cat(others, sep=", ")
    again = names.groupby(names).cumcount()
    names = names.where(again == 0, names + " (" + (again + 1).astype("string") + ")")
    return pd.Series(
        values.to_numpy(np.float64), index=pd.Index(names, name="number", dtype=object)
    )


def _compared(kind: Kind, found: pd.Series, released: pd.Series) -> pd.DataFrame:
    """One row per number; one that either side lacks, or has not measured, is outside."""
    frame = (
        pd.concat({"found": found, "released": released}, axis="columns")
        .rename_axis("number")
        .reset_index()
    )
    both = frame["number"].isin(found.index) & frame["number"].isin(released.index)
    ours, theirs = frame["found"], frame["released"]
    equal = both & ((ours == theirs) | (ours.isna() & theirs.isna()))
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind.scale == LOGARITHM:
            ours, theirs = np.log(ours), np.log(theirs)
        difference = (ours - theirs).abs()
        if kind.scale == RELATIVE:
            difference /= np.maximum(ours.abs(), theirs.abs())
    difference = difference.where(~equal, 0.0).fillna(np.inf)
    outside = difference > kind.tolerance
    return frame.assign(
        kind=kind.name, difference=difference, tolerance=kind.tolerance, outside=outside
    )


def lines(result: Check, changes: Sequence[str], most: int = 20) -> list[str]:
    """The answer: what differs in the machine, a row per kind, and the numbers that left their
    tolerance.
    """
    text = [
        "arithmetic: as in the release"
        if not changes
        else f"another arithmetic: {'; '.join(changes)}",
        "",
    ]
    text.append(f"{'kind':<40}{'numbers':>9}{'outside':>9}{'largest':>12}{'tolerance':>11}")
    for kind, rows in result.numbers.groupby("kind", sort=False):
        largest, tolerance = rows["difference"].max(), rows["tolerance"].iloc[0]
        text.append(
            f"{kind:<40}{len(rows):>9}{rows['outside'].sum():>9}{largest:>12.3g}{tolerance:>11g}"
        )
    text += ["", "times are not compared: they depend on the machine and the load on it"]
    for row in result.verdicts.itertuples():
        text.append(f"claim {row.claim}: {row.found} here, {row.released} in the release")
    shown = result.outside.sort_values("difference", ascending=False, kind="stable").head(most)
    for row in shown.itertuples():
        text.append(
            f"outside: {row.number}: {row.found:.6g} here, {row.released:.6g} in the release"
        )
    if (rest := len(result.outside) - len(shown)) > 0:
        text.append(f"and {rest} more")
    return text
