"""A snapshot of a run: its figures, claims and tables in one folder, and a manifest of what they come from.

manifest.json has the keys

    run, commit, modified   the run, the commit of the checkout, and whether tracked files differ from it
    scale                   of the run and of the paper, and the mark of verdicts (`twoscale.claims.scale`)
    text                    SHA-256 of the training tokens and of the held-out ones
    config                  every key of the run
    versions                of Python and of the packages that the library imports
    machine                 processor, cores and memory where the snapshot was taken
    training                iterations, tokens and hours, and the environments of the segments
    jobs                    seconds, CPU seconds and memory of each rule, from Snakemake's benchmark files
    files                   path in the folder -> bytes and SHA-256
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from twoscale.base import InputError, first_line, replacing, sha256
from twoscale.claims.scale import Scales
from twoscale.config import PROJECT
from twoscale.jobs import environment, machine
from twoscale.report import pages
from twoscale.report.release import MANIFEST

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob


PACKAGES = (
    "datasets",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "safetensors",
    "seaborn",
    "snakemake",
    "tiktoken",
    "tokenizers",
    "torch",
)


def write(folder: Path, files: Iterable[Path], results: Path, facts: Mapping[str, Any]) -> None:
    """Copy files below the folder `results` into `folder`, where they keep their paths, and write the manifest.

    Args:
        folder: Created if it is missing; what is in it already stays.
        files: Files of the snapshot.
        results: Folder that their paths are relative to.
        facts: Further keys of the manifest, before `files`.
    """
    digests = {}
    for file in sorted(files):
        name = file.relative_to(results)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(file, temporary)
        digests[str(name)] = {"bytes": target.stat().st_size, "sha256": sha256(target)}
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps({**facts, "files": digests}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def checkout(project: Path) -> dict[str, Any]:
    """Commit of the checkout, and whether tracked files differ from it; null for both where git cannot say."""
    commit, changes = (_git(project, *words) for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"]))
    return {"commit": commit, "modified": None if changes is None else changes != ""}


def excerpt(snapshot: Path, folder: Path, names: Iterable[str], most_bytes: int) -> None:
    """Copy some files of a snapshot into `folder`, with a manifest of them; others that its old one lists are removed.

    Raises InputError for a snapshot without these files, one of a checkout with changes, or one that is too large, and
    for a folder with files but no manifest.
    """
    old = _listed(folder)
    facts = json.loads((snapshot / MANIFEST).read_text(encoding="utf-8"))
    listed, names = facts.pop("files"), list(names)
    if absent := sorted({*names} - {*listed}):
        raise InputError(f"{snapshot / MANIFEST}: found no file {', '.join(absent)} in the snapshot.")
    if facts["modified"] is not False:
        raise InputError(
            f"{snapshot / MANIFEST}: found modified: {json.dumps(facts['modified'])}, expected false; commit your "
            "changes and take the snapshot again."
        )
    if (size := sum(listed[name]["bytes"] for name in names)) > most_bytes:
        raise InputError(f"{snapshot}: found {size} bytes in the files to keep, expected at most {most_bytes}.")
    write(folder, [snapshot / name for name in names], snapshot, facts)
    for path in (folder / name for name in sorted(old - {*names})):
        if path.resolve().is_relative_to(folder.resolve()):
            path.unlink(missing_ok=True)


def _listed(folder: Path) -> set[str]:
    """The files that the manifest in a folder lists; none for an empty or absent folder."""
    if (folder / MANIFEST).is_file():
        return {*json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]}
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: found files without a {MANIFEST}, expected an empty folder or an earlier release.")
    return set()


def text(tokens: Path) -> dict[str, str]:
    """File of tokens -> SHA-256 of its content, from the metadata of the tokens (`data/tokens.json`).

    Raises InputError for a file that is missing or of another form.
    """
    if not tokens.is_file():
        raise InputError(f"{tokens}: found no such file, expected the token metadata of a finished run.")
    try:
        parts = json.loads(tokens.read_text(encoding="utf-8"))["parts"]
        return {name: str(part["sha256"]) for name, part in sorted(parts.items())}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{tokens}: found no token metadata ({first_line(error)}).") from error


def _git(project: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=project, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages; one that is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def training(log: pd.DataFrame, segments: Iterable[Path]) -> dict[str, Any]:
    """Cost of training: iterations, tokens, hours of its iterations alone, and each change of environment.

    Args:
        log: Table "training", not empty.
        segments: Logs of the segments in order, which name their environments.
    """
    tokens = log["tokens_seen"].diff().fillna(log["tokens_seen"].iloc[0])
    return {
        "iterations": int(log["iteration"].iloc[-1]),
        "tokens": int(log["tokens_seen"].iloc[-1]),
        "hours": round(float((tokens / log["tokens_per_s"]).sum()) / 3600, 3),
        "environments": environment.distinct(segments),
    }


def jobs(benchmarks: Iterable[Path]) -> list[dict[str, Any]]:
    """Time and memory of each rule (`pages.runtimes`), rounded to whole seconds and megabytes."""
    return pages.runtimes(benchmarks).round().astype(object).to_dict("records")


def run(job: "StudyJob") -> None:
    """The job of the workflow. The benchmark files of the run are no inputs, as in `pages.runtimes_page`."""
    folder, run = job.file("snapshot"), job.config.run
    scale = {**job.config.scales, "mark": Scales.of(job.config.scales).mark}
    facts = {
        "run": run,
        **checkout(PROJECT),
        "scale": scale,
        "text": text(job.file("tokens")),
        "config": job.config.plain,
        "versions": versions(),
        "machine": machine.description(),
        "training": training(job.read("training"), job.files["segments"]),
        "jobs": jobs((folder.parent / run / "benchmarks").glob("*.tsv")),
    }
    write(folder, {*job.files["results"], job.file("training")}, folder.parent, facts)
