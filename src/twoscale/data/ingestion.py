"""Collects documents from a source in parts, and writes them as text shards.

A part is a file of consecutive documents of one source file, so an interruption loses at most one
part. The quota selects documents only when the shards are written, in one pass over the parts in
order. So the shards are a function of the source, the quota and the held-out fraction, wherever
collecting was interrupted. Parts of a data set on the Hub are kept, and another quota continues
from them; parts of local files are removed.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from twoscale import tables
from twoscale.base import InputError, first_line, meter, mismatch, replacing, sha256
from twoscale.config import DataConfig, DownloadConfig, TextQuota
from twoscale.config.types import JsonCount, parse_json
from twoscale.data.text import Document, is_held_out, local_documents, split_key

ROW_GROUP_CHARACTERS = 2**22  # buffered before a row group of a shard is written
MANIFEST = "manifest.json"
CACHE = "cache"  # in the folder of the parts, for the files that `datasets` writes
Measure = Callable[[Sequence[str]], Sequence[int]]
SourceFiles = Iterator[tuple[str, Iterator[Document]]]  # the name of each file and its documents


def count_characters(texts: Sequence[str]) -> list[int]:
    """Sizes of documents for a quota in characters."""
    return [len(text) for text in texts]


def prepare_text(
    data: DataConfig,
    quota: TextQuota,
    shards: Sequence[Path],
    folder: Path,
    download: DownloadConfig,
    measure: Measure = count_characters,
) -> None:
    """Collect documents until the quota is full or the source ends, and write them as shards.

    The shards, tables `text`, contain the documents in the order of the source: first shard 0, then
    shard 1, …, about equally many characters in each. All shards appear together. `folder` is for
    the parts; `measure` gives the sizes of documents in the unit of the quota. Raises InputError if
    there is no training or no held-out document.
    """
    is_local = data.source != "fineweb"
    keys = ("source", "path") if is_local else ("source", "repository", "subset", "revision")
    parts = Parts(folder, {key: getattr(data, key) for key in keys} | {"unit": quota.unit})
    files: SourceFiles
    if is_local:
        parts.clear()  # the files may have changed
        # all files as one, so that a part holds many small files
        files = iter([(data.source, local_documents(data, folder / CACHE))])
    else:
        files = _hub_files(data, parts, download)
    tally = Tally(quota, data)
    try:
        _collect(parts, files, tally, measure, download.part_characters)
        _check_sides(tally, data)
        # with a new tally, the quota takes the same documents again
        _write_shards(parts, Tally(quota, data), tally.characters, shards)
    except InputError as error:
        if is_local:
            raise
        left = f"{len(parts.parts)} complete parts remain in {folder}"
        raise InputError(f"{str(error).removesuffix('.')}; {left}.") from error
    finally:
        if is_local:
            parts.clear()
            shutil.rmtree(folder / CACHE, ignore_errors=True)
            folder.rmdir()


# --- the quota


@dataclass
class Side:
    """The training or the held-out documents that the quota takes."""

    name: str
    limit: int | None  # of the size, in the quota's unit; None: no limit
    size: int = 0
    documents: int = 0

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.size >= self.limit


class Tally:
    """Counts the documents that the quota takes: of each side, until it is full."""

    def __init__(self, quota: TextQuota, data: DataConfig) -> None:
        self.data = data
        self.unit = quota.unit
        # by whether documents are held out
        self.sides = (Side("training", quota.training), Side("held-out", quota.held_out))
        self.characters = 0  # of both sides

    def take(self, name: str, text: str, size: int) -> bool | None:
        """Count the next document. Returns whether it is held out, or None if its side is full."""
        key = split_key(self.data.source, name, text)
        held_out = is_held_out(key, self.data.held_out_fraction)
        side = self.sides[held_out]
        if side.is_full:
            return None
        side.size += size
        side.documents += 1
        self.characters += len(text)
        return held_out

    @property
    def documents(self) -> int:
        return sum(side.documents for side in self.sides)

    @property
    def is_full(self) -> bool:
        return all(side.is_full for side in self.sides)


def _check_sides(tally: Tally, data: DataConfig) -> None:
    """Refuse a text without training or held-out documents, and say where one is short."""
    for side in tally.sides:
        if side.documents == 0 and side.limit != 0:
            found = (
                f"no {side.name} document among {tally.documents} of data.source: {data.source}"
                f" with the fraction {data.held_out_fraction}"
            )
            expected = (
                "at least one; use more text, another fraction or smaller data.piece_characters"
            )
            raise mismatch("config key data.held_out_fraction", found, expected)
        if side.limit is not None and not side.is_full:
            short = f"{side.size} of {side.limit} {side.name} {tally.unit}"
            print(f"the source ended after {short}", file=sys.stderr)


# --- parts


@dataclass(frozen=True)
class DownloadPart:
    """An entry of the manifest: a part with the rows `first` to `end - 1` of a file."""

    name: str
    file: str
    first: JsonCount
    end: JsonCount
    sha256: str  # of the part's file


@dataclass(frozen=True)
class Manifest:
    identity: dict[str, Any]
    commit: str | None  # of a data set on the Hub
    parts: list[DownloadPart]


class Parts:
    """A folder of parts and their manifest, which lists only complete parts.

    Parts in the folder are used up to the first one that is missing or damaged. If their identity,
    the source and the unit of sizes, differs, the folder is emptied.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self.identity = folder, identity
        self.commit: str | None = None
        self.parts: list[DownloadPart] = []
        folder.mkdir(parents=True, exist_ok=True)
        try:
            saved = parse_json((folder / MANIFEST).read_bytes(), Manifest)
        except FileNotFoundError:
            saved = None
        except ValueError as error:
            problem = first_line(error)
            expected = "the list of parts; remove the folder to start again"
            raise InputError(
                f"{folder / MANIFEST}: cannot be read ({problem}), expected {expected}."
            ) from error
        if saved is None or saved.identity != identity:
            self.clear()
            return
        self.commit = saved.commit
        for part in saved.parts:
            path = folder / part.name
            # parts are consecutive, so those after a gap cannot be used
            if not path.is_file() or sha256(path) != part.sha256:
                break
            self.parts.append(part)

    def append(self, file: str, documents: Sequence[Document], sizes: Sequence[int]) -> None:
        """Store consecutive documents of a file as the next part, then add it to the manifest."""
        name = f"part_{len(self.parts):05d}.parquet"
        path = self.folder / name
        names = [document.name for document in documents]
        texts = [document.text for document in documents]
        # the part first, then the manifest: after a kill between them no manifest names a missing
        # part
        with tables.writing("text_part", path) as append:
            append({"document": names, "text": texts, "size": sizes})
        first = self.end_in(file)
        self.parts.append(DownloadPart(name, file, first, documents[-1].row + 1, sha256(path)))
        saved = asdict(Manifest(self.identity, self.commit, self.parts))
        with replacing(self.folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")

    def end_in(self, file: str) -> int:
        """The first row of a file that is in no part, if the last part is of this file."""
        last = self.parts[-1:]
        return last[0].end if last and last[0].file == file else 0

    def documents(self) -> Iterator[tuple[str, str, int]]:
        """Name, text and size of every document, in order and in constant memory."""
        for part in self.parts:
            for columns in tables.batches("text_part", self.folder / part.name):
                yield from zip(*columns, strict=True)

    def clear(self) -> None:
        """Remove the parts, the manifest and what a killed job has left of them."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for pattern in ("part_*.parquet", ".part_*.tmp", f".{MANIFEST}.*.tmp"):
            for path in self.folder.glob(pattern):
                path.unlink()
        self.parts = []


# --- from the source to the parts


def _hub_files(data: DataConfig, parts: Parts, download: DownloadConfig) -> SourceFiles:
    """The files of a data set on the Hub, from the end of the last part on.

    Lazy: no request until first iterated.
    """
    from twoscale.data import hub

    # A branch may have moved since the first part, so later runs continue at the commit of that
    # part.
    subset = hub.resolve(data.repository, data.subset, parts.commit or data.revision, download)
    parts.commit = subset.commit
    begin = subset.files.index(parts.parts[-1].file) if parts.parts else 0
    for name in subset.files[begin:]:
        yield name, hub.documents(subset, name, parts.end_in(name), download)


def _collect(
    parts: Parts, files: SourceFiles, tally: Tally, measure: Measure, part_characters: int
) -> None:
    """Append parts until the quota is full or the source ends; count all parts in `tally`."""
    for name, text, size in parts.documents():  # parts of an earlier run
        tally.take(name, text, size)
    if tally.is_full:  # the first item of `files` sends a request
        return
    unit = {"tokens": "tok", "characters": "char"}[tally.unit]
    training = tally.sides[False]
    with meter("text", training.limit, unit, initial=training.size) as bar:
        for file, group in _groups(files, part_characters):
            sizes = measure([document.text for document in group])
            parts.append(file, group, sizes)
            before = training.size
            for document, size in zip(group, sizes, strict=True):
                tally.take(document.name, document.text, size)
            bar.set_postfix_str(f"{tally.documents} documents", refresh=False)
            bar.update(training.size - before)
            if tally.is_full:
                return


def _groups(files: SourceFiles, part_characters: int) -> Iterator[tuple[str, list[Document]]]:
    """Documents in groups of at least `part_characters`; the last of a file may be smaller."""
    for file, documents in files:
        # closes the source file, also where the quota is full before its end
        with closing(documents):  # type: ignore[type-var]
            group: list[Document] = []
            characters = 0
            for document in documents:
                group.append(document)
                characters += len(document.text)
                if characters >= part_characters:
                    yield file, group
                    group = []
                    characters = 0
            if group:
                yield file, group


# --- from the parts to the shards


def _write_shards(
    parts: Parts, tally: Tally, total_characters: int, shards: Sequence[Path]
) -> None:
    """Write the documents of all parts that the quota, whose `tally` is empty, takes."""
    with ExitStack() as stack:
        appends = [stack.enter_context(tables.writing("text", path)) for path in shards]
        group: list[tuple[str, bool, str]] = []  # a row group of the shard `current`
        current = 0
        characters = 0

        def flush() -> None:
            if group:
                # from rows to columns
                columns = zip(tables.columns("text"), zip(*group, strict=True), strict=True)
                appends[current](dict(columns))
                group.clear()

        for name, text, size in parts.documents():
            # The characters before a document select its shard, so all shards get about equally
            # many.
            shard = tally.characters * len(shards) // total_characters
            held_out = tally.take(name, text, size)
            if held_out is None:
                continue
            if shard != current or characters >= ROW_GROUP_CHARACTERS:
                flush()
                current = shard
                characters = 0
            group.append((name, held_out, text))
            characters += len(text)
        flush()
