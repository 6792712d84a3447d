"""Released tables: a snapshot (`twoscale.report.snapshot`) with a manifest, in a folder or at an address.

A release comes from elsewhere and is not trusted. Only its manifest and the tables that the manifest lists are read, a
table only if it has the size and the SHA-256 of the manifest, fits into memory, and has names without markup. This
module imports neither pandas nor torch, because planning reads manifests.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, first_line, replacing
from twoscale.config import Config, DownloadConfig
from twoscale.config.types import FILE_NAME
from twoscale.discovery import study_parts
from twoscale.json import Count, parse

if TYPE_CHECKING:
    import pandas as pd


MANIFEST = "manifest.json"
FOLDER = "results/released"  # where the tables of a release are put
OWN_SECTIONS = ("figures", "download")  # of the user's config: how the tables are fetched and drawn
MAX_MANIFEST = 2**22  # bytes
MAX_TABLE = 2**28  # bytes of the file of a table
MAX_DECODED = 2**31  # bytes of a table in memory, by the upper bound of `_decoded_bytes`
NUMBER_BYTES = 16  # of a number in memory, or of the source of a string, at most
SLOWEST = 50_000  # bytes per second of an answer; a slower one is given up
MAX_VALUES = 10_000  # in the config of a manifest, at all depths; every one is checked
MAX_COMBINATIONS = 2000  # of seeds and the values of a study; each is a run that is planned
ADDRESS = re.compile(r"https?://[^\s?#@\x00-\x1f]+")  # @: passwords do not belong into commands and sentences
# {run}/tables/{table}.parquet; the name of a run of a study contains the name of the study
TABLE = re.compile(rf"(?P<run>{FILE_NAME}(?:/{FILE_NAME})?)/tables/(?P<table>{FILE_NAME})\.parquet")
# Texts in a table: names of groups, criteria and measures, and in some columns sentences or tokens. Without control
# characters, markup of pages, and what matplotlib takes for mathematics.
NAME = re.compile(r"[\w .:,+()/=>–→-]{0,100}")
PROSE = re.compile(r"(?:[^<$\x00-\x1f\x7f-\x9f\u2028\u2029]|<(?= )){0,10000}")
PROSE_COLUMNS = {
    **dict.fromkeys(("claims", "seeds"), ("bounds", "quantity", "reason", "scope", "statement", "where")),
    "starts": ("reason",),
}
TOKEN_COLUMNS = {"state_paths": ("token",)}  # any character, drawn as it is


@dataclass(frozen=True)
class File:
    """Size and SHA-256 of a file, as in a manifest."""

    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Manifest:
    """The keys of a manifest that are read; `twoscale.report.snapshot` describes them."""

    run: Annotated[str, Field(pattern=rf"^{FILE_NAME}$")]
    config: dict[str, Any]
    files: dict[str, File]
    commit: str | None = None
    text: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """The files at a source, a folder or an address, and what their manifest says of them."""

    source: str
    manifest: Manifest
    download: DownloadConfig

    @classmethod
    def open(cls, source: Any, download: DownloadConfig) -> Self:
        """The release at a source. Raises InputError for a source without a manifest, or one of another form."""
        if not isinstance(source, str) or not source:
            raise InputError(f"config key release: found {source!r}, expected a folder or an http(s) address.")
        if "://" in source and not ADDRESS.fullmatch(source):
            raise InputError(
                f"config key release: found {source}, expected a folder, or an http:// or https:// address "
                "without spaces, ?, # or @."
            )
        source = source.rstrip("/") or source
        try:
            manifest = parse(_read(source, MANIFEST, MAX_MANIFEST, download), Manifest)
        except ValueError as error:
            raise InputError(
                f"{source}/{MANIFEST}: found no manifest of a release ({error}), expected the output of "
                "`snakemake snapshot`."
            ) from error
        return cls(source, manifest, download)

    @classmethod
    def of(cls, source: str, files: Mapping[str, Mapping[str, Any]], download: DownloadConfig) -> Self:
        """The release at a source with these files of its manifest, which a job gets as values of JSON."""
        return cls(source, Manifest("released", {}, {name: File(**facts) for name, facts in files.items()}), download)

    @property
    def tables(self) -> dict[str, File]:
        """The tables by their path in the release, {run}/tables/{table}.parquet, sorted."""
        return {name: file for name, file in sorted(self.manifest.files.items()) if TABLE.fullmatch(name)}

    def layers(self, user: Mapping[str, Any]) -> dict[str, Any]:
        """The config of the released run, with `OWN_SECTIONS` of the user, in the form that `config.runs` takes."""
        # sections of studies that this checkout does not have are left out
        released = {key: value for key, value in self.manifest.config.items() if key in configs.Config.model_fields}
        own = {key: user[key] for key in OWN_SECTIONS if key in user}
        return configs.merge(released, own) | {"preset": "paper", "run": self.manifest.run}

    def runs(self, user: Mapping[str, Any]) -> dict[str, Config]:
        """Run name -> Config of the released run, its seeds and its studies (`config.studies`). Raises InputError."""
        layers = self.layers(user)
        self._check_size(layers)
        try:
            found = configs.runs(layers) | configs.studies(layers)
        except InputError as error:
            raise InputError(f"{self.source}/{MANIFEST}: {error}") from error
        if found[self.manifest.run].model.source != "trained":
            raise InputError(f"{self.source}/{MANIFEST}: found a published model, expected a run trained here.")
        return found

    def _check_size(self, layers: Mapping[str, Any]) -> None:
        """Refuse a config of more values, or of more runs, than could be planned in seconds."""
        if (values := _count(layers)) > MAX_VALUES:
            raise InputError(
                f"{self.source}/{MANIFEST}: found {values} values in the config, expected at most {MAX_VALUES}."
            )
        names = list(study_parts("runs"))
        studies = sum(_combinations(_mapping(layers.get(key)).values()) for key in names)
        found = _combinations([layers.get("seeds")]) * (1 + studies)
        if found > MAX_COMBINATIONS:
            raise InputError(
                f"{self.source}/{MANIFEST}: found {found} combinations of seeds with the run and the values of "
                f"{' and of '.join(names)}, expected at most {MAX_COMBINATIONS}."
            )

    def read(self, name: str) -> bytes:
        """The content of a table of `tables`.

        Raises InputError for one that cannot be read, has not the size and the SHA-256 of the manifest, is no parquet
        file of bounded size, or has other texts than `NAME` and `PROSE` allow.
        """
        file, what = self.tables[name], f"{self.source}/{name}"
        if file.bytes > MAX_TABLE:
            raise InputError(
                f"{what}: found a size of {file.bytes} bytes stated in {MANIFEST}, expected at most {MAX_TABLE}."
            )
        content = _read(self.source, name, file.bytes, self.download)
        if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
            raise InputError(
                f"{what}: found {len(content)} bytes with the SHA-256 {found[:12]}…, expected {file.bytes} bytes with "
                f"{file.sha256[:12]}…, as {MANIFEST} says."
            )
        _check_parquet(what, TABLE.fullmatch(name)["table"], content)  # type: ignore[index]
        return content

    def table(self, run: str, table: str, folder: Path) -> pd.DataFrame:
        """A table of a run, by way of a copy in `folder`. Raises InputError as `read` does, or if there is none."""
        name = f"{run}/tables/{table}.parquet"
        if name not in self.tables:
            raise InputError(f"{self.source}/{MANIFEST}: found no entry for the file {name}, expected one.")
        self.fetch(name, folder / name)
        return tables.read(table, folder / name)

    def fetch(self, name: str, path: Path) -> None:
        """Write a table of `tables` to `path`. Raises InputError as `read` does."""
        content = self.read(name)
        with replacing(path) as temporary:
            temporary.write_bytes(content)


def _read(source: str, name: str, most: int, download: DownloadConfig) -> bytes:
    """The content of a file at a source, which has at most so many bytes. Raises InputError."""
    if ADDRESS.fullmatch(source):
        # here, because planning without a network should not wait for the client
        from twoscale.data.hub import get_address

        return _in_time(f"{source}/{name}", most, download, get_address)
    path = Path(source, name)
    try:
        folder = Path(source).resolve()
        if folder.parent.name == "snapshots":  # of the hub's cache, whose files are links to its folder `blobs`
            folder = folder.parents[1]
        if not path.resolve().is_relative_to(folder):
            raise InputError(f"{path}: found a link that leads out of the release, expected a file in {source}.")
        if path.exists() and not path.is_file():  # a named pipe would never end
            raise InputError(f"{path}: found no regular file, expected one in the release {source}.")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        model = Path(source, "config.json").is_file() and Path(source, "model.safetensors").is_file()
        hint = "; this release has a model and no tables" if model else ""
        raise InputError(
            f"{path}: cannot be read ({first_line(error)}), expected a file of released tables{hint}."
        ) from error
    if len(content) > most:
        source = "" if name == MANIFEST else f", as {MANIFEST} says"
        raise InputError(f"{path}: found {path.stat().st_size} bytes, expected at most {most}{source}.")
    return content


def _in_time(address: str, most: int, download: DownloadConfig, read: Callable[..., bytes]) -> bytes:
    """The content at an address, however slowly the server answers: `read` in a thread that may be given up."""
    answer: Future[bytes] = Future()
    seconds = 10 * download.timeout + most / SLOWEST

    def run() -> None:
        try:
            answer.set_result(read(address, most, download))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()  # the interpreter does not wait for it
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        raise InputError(
            f"{address}: found no complete answer within {seconds:.0f} s, expected a faster server, or a larger value "
            "of config key download.timeout."
        ) from error


def _count(value: Any) -> int:
    """The number of values in nested lists and mappings of JSON, with the lists and mappings."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _combinations(values: Iterable[Any]) -> int:
    """How many combinations lists have; an empty one counts as a list of one value, anything else not at all."""
    return math.prod(max(len(value), 1) for value in values if isinstance(value, list))


def _check_parquet(what: str, table: str, content: bytes) -> None:
    """Refuse a file that no table can be read from, one that memory cannot hold, and texts that are no names."""
    from pyarrow import ArrowException

    try:
        found = _decoded_bytes(BytesIO(content))
        if found <= MAX_DECODED:
            _check_texts(what, table, content)
    except (ValueError, OSError, ArrowException) as error:
        raise InputError(f"{what}: cannot be read as a parquet table ({first_line(error)}).") from error
    if found > MAX_DECODED:
        raise InputError(
            f"{what}: found a table of up to {found / 1e9:.1f} GB in memory, expected at most {MAX_DECODED / 1e9:.1f} "
            "GB."
        )


def _decoded_bytes(opened: BytesIO) -> int:
    """An upper bound of the memory of a whole table, from the headers of its pages.

    A page of 20 bytes can repeat a value a million times, and the value can be a long string of a dictionary. Raises
    ValueError, OSError or pa.ArrowException for a damaged file.
    """
    import pyarrow.parquet as pq

    from twoscale.data.bounded_parquet import pages

    metadata = pq.ParquetFile(opened, pre_buffer=False).metadata
    total = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            found = list(pages(opened, chunk))
            values, stored = sum(page.values for page in found), sum(page.uncompressed for page in found)
            if chunk.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
                longest = NUMBER_BYTES
            elif any(page.has_differences for page in found):
                longest = stored
            else:
                dictionary = sum(page.uncompressed for page in found if not page.values)
                first = found[0].uncompressed if found and chunk.has_dictionary_page else 0
                longest = NUMBER_BYTES + max(first, dictionary)
            total += stored + values * longest
    return total


def _check_texts(what: str, table: str, content: bytes) -> None:
    """Refuse columns of other types than numbers and texts, and texts that are no names or sentences."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(BytesIO(content))
    for column in file.schema_arrow:
        name, kind = column.name, column.type
        if not NAME.fullmatch(name):
            raise InputError(f"{what}: found the column {name[:100]!r}, expected a name without markup.")
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            continue
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{what}: found the column {name!r} of type {kind}, expected numbers or text.")
        if name in TOKEN_COLUMNS.get(table, ()):
            continue
        form, expected = (PROSE, "a sentence") if name in PROSE_COLUMNS.get(table, ()) else (NAME, "a name")
        for text in file.read([name])[name].unique().to_pylist():
            if text is not None and not form.fullmatch(text):
                shown = text if len(text) <= 100 else f"{text[:100]}…"
                raise InputError(
                    f"{what}: found {shown!r} in the column {name!r}, expected {expected} without control characters "
                    "or markup."
                )
