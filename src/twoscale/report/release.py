"""Released tables: figures, claims and tables of a run in one folder, with a manifest.

`snakemake snapshot` writes such a folder, and `snakemake --config release=…` draws and judges the
tables of one, in a folder or at an address. A table is read only if it has the size and the SHA-256
of the manifest. manifest.json has the keys

    run, commit, modified   the run, the commit of the checkout, whether tracked files differ
    scale                   of the run and the paper, the mark of verdicts (`twoscale.claims.scale`)
    text                    SHA-256 of the training tokens and of the held-out ones
    config                  every key of the run
    versions                of Python and of the packages that the library imports
    machine                 processor, cores and memory where the snapshot was taken
    training                iterations, tokens and hours, and the environments of the segments
    jobs                    seconds, CPU seconds and memory of each rule, by Snakemake's benchmarks
    files                   path in the folder -> bytes and SHA-256

Planning reads manifests, so nothing here imports pandas or numpy before a table is read.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.request import urlopen

from pydantic import BaseModel, Field

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, first_line, replacing, sha256
from twoscale.claims.scale import Scales
from twoscale.config import PROJECT, Config, DownloadConfig
from twoscale.config.types import FILE_NAME, JsonCount, parse_json
from twoscale.figures.catalogue import figures, snapshot_figures
from twoscale.jobs import machine
from twoscale.jobs.table_job import TableJob, job_files

if TYPE_CHECKING:
    import pandas as pd


MANIFEST = "manifest.json"
_OWN_SECTIONS = (
    "figures",
    "download",
)  # of the user's config: how the tables are fetched and drawn
# {run}/tables/{table}.parquet; the name of a run of a study contains the name of the study
TABLE = re.compile(rf"{FILE_NAME}(?:/{FILE_NAME})?/tables/{FILE_NAME}\.parquet")
# Tables that earlier releases lack -> one that they have with it. They are fetched as empty tables.
_ADDED = {"exit_costs": "exit_latency"}
_PACKAGES = (
    "datasets matplotlib numpy pandas pyarrow pydantic safetensors seaborn snakemake"
    " tiktoken tokenizers torch"
).split()


@dataclass(frozen=True)
class File:
    """Size and SHA-256 of a file, as in a manifest."""

    bytes: JsonCount
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The keys of a manifest that are read."""

    run: Annotated[str, Field(pattern=rf"^{FILE_NAME}$")]
    config: dict[str, Any]
    files: dict[str, File]
    commit: str | None = None
    text: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Release:
    """A source, a folder or an address, and what the manifest there says."""

    source: str
    manifest: Manifest
    download: DownloadConfig

    @classmethod
    def open(cls, source: Any, download: DownloadConfig) -> Self:
        """The release at a source. Raises InputError."""
        if not isinstance(source, str) or not source:
            raise InputError(
                f"config key release: found {source!r}, expected a folder or an http(s) address."
            )
        try:
            manifest = parse_json(_content(source, MANIFEST, download), Manifest)
        except ValueError as error:
            raise InputError(
                f"{source}/{MANIFEST}: found no manifest of a release ({error}),"
                f" expected the output of `snakemake snapshot`."
            ) from error
        return cls(source.rstrip("/"), manifest, download)

    @property
    def tables(self) -> dict[str, File | None]:
        """The tables by their path in the release, {run}/tables/{table}.parquet, sorted.

        Those of `_ADDED` that it lacks have no file.
        """
        found: dict[str, File | None] = {}
        for name, file in self.manifest.files.items():
            if TABLE.fullmatch(name):
                found[name] = file
        for table, other in _ADDED.items():
            for name in [*found]:
                if Path(name).stem == other:
                    found.setdefault(name.replace(f"/{other}.", f"/{table}."), None)
        return dict(sorted(found.items()))

    def runs(self, user: Mapping[str, Any]) -> dict[str, Config]:
        """Run name -> config of the released run, its seeds and its studies. Raises InputError.

        The config is the manifest's, without keys that this checkout does not have, but
        `_OWN_SECTIONS` are the user's.
        """
        # the user decides how the tables are fetched and drawn, the release what was computed
        own = {key: user[key] for key in _OWN_SECTIONS if key in user}
        layers = configs.merge(_known_keys(self.manifest.config, Config), own)
        layers |= {"preset": "paper", "run": self.manifest.run}
        try:
            return configs.runs(layers) | configs.studies(layers)
        except InputError as error:
            raise InputError(f"{self.source}/{MANIFEST}: {error}") from error


def fetch(source: str, name: str, file: File | None, path: Path, download: DownloadConfig) -> None:
    """Write a file of the release at `source` to `path`; an empty table if it has none.

    Raises InputError unless it is as the manifest says.
    """
    if file is None:
        _write_empty(path)
        return
    content = _content(source, name, download)
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise InputError(
            f"{source}/{name}: found {len(content)} bytes with the SHA-256 {found[:12]}…,"
            f" expected {file.bytes} bytes with {file.sha256[:12]}…, as {MANIFEST} says."
        )
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _write_empty(path: Path) -> None:
    """Write the table of this name without rows."""
    import pandas as pd

    columns = tables.columns(path.stem)
    tables.write(path.stem, pd.DataFrame(columns=list(columns)).astype(columns), path)


def _known_keys(values: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """`values` without the keys that a section of the config does not have."""
    known: dict[str, Any] = {}
    for key, declared in section.model_fields.items():
        kind, value = declared.annotation, values.get(key)
        # a section of its own, and not a mapping whose names are the user's, such as criteria
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, BaseModel):
            known[key] = _known_keys(value, kind)
        elif key in values:
            known[key] = value
    return known


def _content(source: str, name: str, download: DownloadConfig) -> bytes:
    try:
        if source.startswith(("http://", "https://")):
            with urlopen(f"{source.rstrip('/')}/{name}", timeout=download.timeout) as answer:
                return answer.read()
        return Path(source, name).read_bytes()
    except (OSError, HTTPException) as error:
        found = f"cannot be read ({first_line(error)})"
        raise InputError(
            f"{source}/{name}: {found}, expected a file of released tables."
        ) from error


def write_snapshot(
    folder: Path, files: Iterable[Path], results: Path, facts: Mapping[str, Any]
) -> None:
    """Copy files below the folder `results` into `folder`, and write the manifest.

    The manifest is `facts`, then the files. Files keep their paths; what is in the folder already
    stays.
    """
    digests = {}
    for file in sorted(files):
        name = file.relative_to(results)
        target = folder / name
        with replacing(target) as temporary:
            shutil.copyfile(file, temporary)
        digests[str(name)] = {"bytes": target.stat().st_size, "sha256": sha256(target)}
    manifest = json.dumps({**facts, "files": digests}, indent=1, ensure_ascii=False)
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(f"{manifest}\n", "utf-8")


def keep_snapshot(snapshot: Path, folder: Path) -> None:
    """Write a release from a snapshot: figures of the paper and of training, tables of claims.

    It takes the place of an earlier release in `folder`. Raises InputError for a snapshot of a
    checkout with changes, and for a folder that is no release.
    """
    manifest = snapshot / MANIFEST
    if not manifest.is_file():
        raise InputError(
            f"{manifest}: no such file, expected the manifest of `snakemake snapshot`."
        )
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    if facts["modified"] is not False:
        found = f"modified: {json.dumps(facts['modified'])}"
        raise InputError(f"{manifest}: found {found}, expected false; commit first.")
    if folder.exists() and not (folder / MANIFEST).is_file():
        expected = "an earlier release or none"
        raise InputError(f"{folder}: found a folder without {MANIFEST}, expected {expected}.")
    shutil.rmtree(folder, ignore_errors=True)
    drawn = snapshot_figures(figures())
    files = {f"tables/{table}.parquet" for table in ("claims", *tables.CLAIM_TABLES.values())}
    files |= {file for figure in drawn for file in figure.inputs.values()}
    names = {f"{figure.name}.svg" for figure in drawn}
    names |= {f"{facts['run']}/{file}" for file in files}
    write_snapshot(folder, [snapshot / name for name in names], snapshot, facts)


def checkout(project: Path) -> dict[str, Any]:
    """Commit of the checkout, and whether tracked files differ.

    Both are None where git cannot say.
    """

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changes = git("status", "--porcelain", "-uno")  # of tracked files
        return {"commit": git("rev-parse", "HEAD"), "modified": changes != ""}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "modified": None}


def text_digests(tokens: Path) -> dict[str, str]:
    """File of tokens -> SHA-256 of its content, from their metadata (`data/tokens.json`).

    Raises InputError.
    """
    from twoscale.data.shards import TokenMetadata, read_metadata

    parts = read_metadata(tokens, TokenMetadata).parts
    return {name: parts[name].sha256 for name in sorted(parts)}


def versions() -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    return found | {name: version(name) for name in _PACKAGES if find_spec(name)}


def training_cost(log: pd.DataFrame, segments: Iterable[Path]) -> dict[str, Any]:
    """Cost of training from the table "training": iterations, tokens, hours, environments."""
    # of each iteration; the first has no difference
    tokens = log["tokens_seen"].diff().fillna(log["tokens_seen"].iloc[0])
    return {
        "iterations": int(log["iteration"].iloc[-1]),
        "tokens": int(log["tokens_seen"].iloc[-1]),
        "hours": round(float((tokens / log["tokens_per_s"]).sum()) / 3600, 3),
        "environments": machine.distinct_environments(segments),
    }


def runtimes(benchmarks: Iterable[Path]) -> pd.DataFrame:
    """Time and memory per rule, from the files of Snakemake's `benchmark:`.

    The longest total comes first. A file is named after its rule, followed by the iteration of the
    job after "_", or its other wildcards after ".".
    """
    import pandas as pd

    jobs = [pd.DataFrame(columns=["rule", "s", "cpu_time", "max_rss"])]
    for path in sorted(benchmarks):
        rule = re.sub(r"_\d+$", "", path.name.partition(".")[0])
        # Snakemake writes NA or - for a job that ended before the first measurement
        jobs.append(pd.read_csv(path, sep="\t", na_values=["NA", "-"]).assign(rule=rule))
    rules = pd.concat(jobs[1:] or jobs).groupby("rule")
    table = rules.agg(
        jobs=("s", "size"),
        total_s=("s", "sum"),
        longest_s=("s", "max"),
        cpu_s=("cpu_time", "sum"),
        peak_memory_mb=("max_rss", "max"),
    )
    return table.sort_values("total_s", ascending=False).reset_index()


@job_files(reads="results training tokens segments", writes="snapshot")
def take_snapshot(job: TableJob) -> None:
    """Write the snapshot. The benchmark files of the run are no inputs, because no rule declares
    them.
    """
    folder, run = job.file("snapshot"), job.config.run
    jobs = runtimes((folder.parent / run / "benchmarks").glob("*.tsv"))
    facts = {
        "run": run,
        **checkout(PROJECT),
        "scale": {**job.config.scales, "mark": Scales.of(job.config.scales).mark},
        "text": text_digests(job.file("tokens")),
        "config": job.config.plain,
        "versions": versions(),
        "machine": machine.description(),
        "training": training_cost(job.read("training"), job.files["segments"]),
        "jobs": jobs.round().astype(object).to_dict("records"),  # whole seconds and megabytes
    }
    write_snapshot(folder, {*job.files["results"], job.file("training")}, folder.parent, facts)
