"""Comparison of a finished run with its release: the numbers outside their tolerance.

Where processor, cores, torch and the environment of training are as in the release, every number of every table but
times has to agree to `SAME_ARITHMETIC`. Elsewhere sums are rounded in another order, and training amplifies what
rounding changes: losses, and what claims are judged on, then have the tolerances of `KINDS`. docs/release.md says how
they were chosen.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.config import Config, training_identity
from twoscale.dynamics import aggregate
from twoscale.jobs import machine
from twoscale.report.release import Manifest, Release

ABSOLUTE, RELATIVE, LOGARITHM = "absolute", "relative", "of natural logarithms"


@dataclass(frozen=True)
class Kind:
    """A kind of numbers, and how far they may be from the released ones."""

    name: str
    tolerance: float
    scale: str = ABSOLUTE  # of the difference; RELATIVE to the larger number


SCHEDULE = Kind("schedule", 0.0)
HELD_OUT = Kind("held-out loss in training", 0.1)
ENTROPY = Kind("cross-entropy with exits", 0.06)
EVALUATIONS = Kind("evaluations", 6.0)
DECAY = Kind("decay of steps", 5.0, LOGARITHM)
RATE = Kind("rate of decay over training", 0.4)
COSINE = Kind("cosine", 0.7)
VARIANCE = Kind("variance of a cosine", 0.1)
JUMP = Kind("jump between groups", 0.5, LOGARITHM)
NATS = Kind("cross-entropy lost to exits", 0.005)
LENGTH = Kind("length of steps over training", 1.2)
LATE = Kind("late steps", 9.0, LOGARITHM)
RESPONSE = Kind("evaluations, KL minus acceleration", 2.0)
SCALE = Kind("scale of the threshold", 0.1, LOGARITHM)
KINDS = (
    *(SCHEDULE, HELD_OUT, ENTROPY, EVALUATIONS),
    *(DECAY, RATE, COSINE, VARIANCE, JUMP, NATS, LENGTH, LATE, RESPONSE, SCALE),
)
SAME_ARITHMETIC = Kind("every number but times", 1e-6, RELATIVE)

# claim -> kind of its numbers; claims that rest on times have none
CLAIM_KINDS = {
    **{1: DECAY, 2: RATE, 6: JUMP, 12: LENGTH, 13: LATE, 14: RESPONSE},
    **dict.fromkeys((3, 4, 5), COSINE),
    **dict.fromkeys((8, 9, 15), NATS),
}
TIMED = frozenset(claim.number for claim in CLAIMS if claim.timed)
ALL_GROUPS = "all groups"  # scope of the threshold in units of the states, which several claims give for comparison
UNLIKE_VARIANCE = "cosine at k = 1"  # beginning of the quantity of claim 3 that is no variance

# Table -> the columns that say which row it is. Its other numbers are compared, but for `TIMED_COLUMNS`.
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


@dataclass(frozen=True)
class Check:
    """The numbers of a run compared with a release."""

    numbers: pd.DataFrame  # one row each: kind, number, found, released, difference, tolerance, outside
    verdicts: pd.DataFrame  # one row per claim with another verdict: claim, found, released

    @property
    def outside(self) -> pd.DataFrame:
        return self.numbers[self.numbers["outside"]]

    def kinds(self) -> pd.DataFrame:
        """One row per kind: kind, numbers, outside, largest (difference), tolerance."""
        found = self.numbers.groupby("kind", sort=False).agg(
            numbers=("number", "size"),
            outside=("outside", "sum"),
            largest=("difference", "max"),
            tolerance=("tolerance", "first"),
        )
        return found.reset_index()


def segments(folder: Path) -> list[Path]:
    """The logs of the segments of a run in its folder, in order."""
    return sorted((folder / "training").glob("iteration_??????.parquet"))


def tables_of_run(folder: Path) -> Frames:
    """The tables of a finished run in its folder; the logs of its segments are joined. Raises InputError."""
    logs = segments(folder)
    loops = [path.with_suffix(".loops.parquet") for path in logs]
    joined = {"training": aggregate.training(logs), "training_loops": aggregate.training_loops(loops)}
    return joined | {name: tables.read(name, folder / f"tables/{name}.parquet") for name in KEYS if name not in joined}


def tables_of_release(release: Release) -> Frames:
    """The same tables of the run of a release. Raises InputError."""
    frames = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in KEYS:
            copy = Path(folder, f"{name}.parquet")
            release.fetch(f"{release.manifest.run}/tables/{name}.parquet", copy)
            frames[name] = tables.read(name, copy)
    return frames


def check_text(manifest: Manifest, found: Mapping[str, str], where: str) -> None:
    """Refuse a run on other tokens than the release, whose numbers need not agree. Raises InputError."""
    for name, digest in sorted(manifest.text.items()):
        if (other := found.get(name, "none")) != digest:
            raise InputError(
                f"{where}: found {name} with the SHA-256 {other[:12]}…, expected {digest[:12]}… as in the release; "
                "the demo's text is Python's documentation, and the release was made with Python "
                f"{manifest.versions.get('python', 'unknown')}."
            )


def differences(manifest: Manifest, segments: Iterable[Path]) -> list[str]:
    """Differences of machine and environments of training from the release, on which rounding depends."""
    here, there = machine.description(), manifest.machine
    names = [name for name in ("processor", "cpus") if here[name] != there.get(name)]
    found = [f"{name}: {there.get(name)!r} in the release, {here[name]!r} here" for name in names]
    ours = machine.distinct_environments(segments)
    released = machine.valid_environments(manifest.training.get("environments"))
    if len(released) != len(ours):
        return [*found, f"environments of training: {len(released)} in the release, {len(ours)} here"]
    changes = (machine.differences(*pair, ("in the release", "here")) for pair in zip(released, ours, strict=True))
    return [*found, *dict.fromkeys(text for texts in changes for text in texts)]


def check_config(identity: Mapping[str, Any], released: Config, where: str) -> None:
    """Refuse a run, by the identity of a checkpoint in the file `where`, of another training config. InputError."""
    theirs = training_identity(released)
    ours = {section: identity.get(section) for section in theirs}
    if keys := _differing(ours, theirs):
        raise InputError(f"{where}: found other values of {', '.join(keys)}, expected those of the release.")


def _differing(ours: Any, theirs: Any, name: str = "") -> list[str]:
    """Dotted names of the keys whose values differ."""
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        return [] if ours == theirs else [name]
    keys = sorted({*ours, *theirs})
    dotted = {key: f"{name}.{key}" if name else key for key in keys}
    return [found for key in keys for found in _differing(ours.get(key), theirs.get(key), dotted[key])]


def check(found: Frames, released: Frames, same_arithmetic: bool) -> Check:
    """Compare the tables of a run with the tables of a release."""
    numbers = every_number if same_arithmetic else summary
    ours, theirs, none = numbers(found), numbers(released), pd.Series(dtype=np.float64)
    rows = [_compared(kind, ours.get(kind, none), theirs.get(kind, none)) for kind in ours | theirs]
    judged = [frames["claims"].set_index("claim").query("scope == @ALL")["verdict"] for frames in (found, released)]
    verdicts = pd.concat(dict(zip(("found", "released"), judged, strict=True)), axis="columns").reset_index()
    return Check(pd.concat(rows, ignore_index=True), verdicts[verdicts["found"] != verdicts["released"]])


def every_number(frames: Frames) -> dict[Kind, pd.Series]:
    """All numbers of the tables but times, by name."""
    return {SAME_ARITHMETIC: pd.concat([found for name in KEYS for found in _columns(name, _untimed(name, frames))])}


def summary(frames: Frames) -> dict[Kind, pd.Series]:
    """The numbers of each kind by name: losses, means over held-out text, and what claims are judged on."""
    training, quality, loops = (frames[name] for name in ("training", "exit_quality", "exit_loops"))
    point = ["criterion", "threshold"]
    weighted = quality.assign(ce=quality["ce"] * quality["tokens"]).groupby(point)[["ce", "tokens"]].sum()
    evaluations = loops.groupby([*point, "group"], as_index=False)["evaluations"].mean()
    held_out = training[training["held_out_loss"].notna()]
    schedule = [
        *_columns("training", training[["iteration", "tokens_seen", "learning_rate"]]),
        *_columns("training_loops", frames["training_loops"]),
        *_columns("exit_quality", quality[[*KEYS["exit_quality"], "document", "tokens"]]),
    ]
    claims = _untimed("claims", frames)
    by_kind = claims.groupby([_kind_of_claim(row).name for row in claims.itertuples()])
    judged = {kind: _labelled("claim", rows["value"], rows[list(KEYS["claims"])]) for kind, rows in by_kind}
    return {
        SCHEDULE: pd.concat(schedule),
        HELD_OUT: _labelled("held-out loss, iteration", held_out["held_out_loss"], held_out[["iteration"]]),
        ENTROPY: _labelled("cross-entropy", weighted["ce"] / weighted["tokens"], weighted.index.to_frame()),
        EVALUATIONS: _labelled("evaluations", evaluations["evaluations"], evaluations[[*point, "group"]]),
        **{kind: judged[kind.name] for kind in KINDS if kind.name in judged},
    }


def _untimed(name: str, frames: Frames) -> pd.DataFrame:
    """A table without times; of the claims, without verdicts and numbers that two claims give alike."""
    frame = frames[name].drop(columns=TIMED_COLUMNS & {*frames[name].columns})
    if name != "claims":
        return frame
    frame = frame[~frame["claim"].isin(TIMED) & (frame["scope"] != ALL)]
    return frame[~((frame["scope"] == ALL_GROUPS) & frame.duplicated(["scope", "quantity"]))]


def _kind_of_claim(row: Any) -> Kind:
    if row.scope == ALL_GROUPS:
        return SCALE
    if row.claim == 3 and not row.quantity.startswith(UNLIKE_VARIANCE):
        return VARIANCE
    if row.claim not in CLAIM_KINDS:
        raise InputError(f"table claims: found claim {row.claim}, expected one of {', '.join(map(str, CLAIM_KINDS))}.")
    return CLAIM_KINDS[row.claim]


def _columns(name: str, frame: pd.DataFrame) -> list[pd.Series]:
    keys = [key for key in KEYS[name] if key in frame]
    columns = [column for column in frame.select_dtypes("number") if column not in keys]
    return [_labelled(f"{name}.{column}", frame[column], frame[keys]) for column in columns]


def _labelled(start: str, values: pd.Series, keys: pd.DataFrame) -> pd.Series:
    """Numbers by name: `start` and the keys of the row, and a number where a name is not the first one."""
    first, *others = (keys[name].astype("string").fillna("") for name in keys)
    names = f"{start} " + first.str.cat(others, sep=", ")
    again = names.groupby(names).cumcount()
    names = names.where(again == 0, names + " (" + (again + 1).astype("string") + ")")
    return pd.Series(values.to_numpy(np.float64), index=pd.Index(names, name="number", dtype=object))


def _compared(kind: Kind, found: pd.Series, released: pd.Series) -> pd.DataFrame:
    """One row per number; one that either side lacks, or has not measured, is outside."""
    frame = pd.concat({"found": found, "released": released}, axis="columns").rename_axis("number").reset_index()
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
    return frame.assign(kind=kind.name, difference=difference, tolerance=kind.tolerance, outside=outside)


def lines(result: Check, changes: Sequence[str], most: int = 20) -> list[str]:
    """The answer: what differs in the machine, a row per kind, and the numbers that left their tolerance."""
    text = ["arithmetic: as in the release" if not changes else f"another arithmetic: {'; '.join(changes)}", ""]
    text.append(f"{'kind':<40}{'numbers':>9}{'outside':>9}{'largest':>12}{'tolerance':>11}")
    for row in result.kinds().itertuples():
        text.append(f"{row.kind:<40}{row.numbers:>9}{row.outside:>9}{row.largest:>12.3g}{row.tolerance:>11g}")
    text += ["", "times are not compared: they depend on the machine and the load on it"]
    for row in result.verdicts.itertuples():
        text.append(f"claim {row.claim}: {row.found} here, {row.released} in the release")
    shown = result.outside.sort_values("difference", ascending=False, kind="stable").head(most)
    for row in shown.itertuples():
        text.append(f"outside: {row.number}: {row.found:.6g} here, {row.released:.6g} in the release")
    if (rest := len(result.outside) - len(shown)) > 0:
        text.append(f"and {rest} more")
    return text
