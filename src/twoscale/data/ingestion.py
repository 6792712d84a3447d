"""From a source of documents to the shards of text: collected in parts, so that a cut costs one part at most.

A part is a run of documents of one file. Parts hold the source as it is; which documents a run takes is
decided when the shards are written, by one pass over the parts in order. So the shards are a function of the
source, the budget and the held-out fraction, however often collecting was cut. Parts of a data set on the
Hub stay, and another budget goes on from them; those of local files are removed.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from twoscale import progress, tables
from twoscale.errors import InputError
from twoscale.files import replacing
from twoscale.config import TextQuota, DataConfig, DownloadConfig
from twoscale.data.text import ROWS, Document, is_held_out, local_files, rows

ROW_GROUP_CHARACTERS = 2**22  # held back before a row group of a shard is written
MANIFEST = "manifest.json"

Sizes = Callable[[Sequence[str]], Sequence[int]]
# file, its entity tag, its documents
Files = Iterator[tuple[str, str | None, Iterator[Document]]]


class Batch(NamedTuple):
    """Documents that follow one another in a file, to become a part."""

    file: str
    version: str | None
    documents: list[Document]


def lengths(texts: Sequence[str]) -> list[int]:
    """Sizes of documents where the budget counts characters."""
    return [len(text) for text in texts]


class Tally:
    """What has been taken of the budget; a document is taken while its part, training or held-out, is not full."""

    def __init__(self, wanted: TextQuota, fraction: float) -> None:
        self.fraction, self.unit = fraction, wanted.unit
        self.wanted = {False: wanted.training, True: wanted.held_out}
        self.found = {False: 0, True: 0}
        self.documents = {False: 0, True: 0}
        self.characters = 0

    def take(self, text: str, size: int) -> bool | None:
        """Count the next document; whether it is held out, None where that part is full."""
        held_out = is_held_out(text, self.fraction)
        if self.is_full(held_out):
            return None
        self.found[held_out] += size
        self.documents[held_out] += 1
        self.characters += len(text)
        return held_out

    @property
    def full(self) -> bool:
        return self.is_full(False) and self.is_full(True)

    @property
    def progress(self) -> int:
        """Training text found, as far as it is wanted."""
        return self.found[False] if self.wanted[False] is None else min(self.found[False], self.wanted[False])

    def is_full(self, held_out: bool) -> bool:
        wanted = self.wanted[held_out]
        return wanted is not None and self.found[held_out] >= wanted


@dataclass(frozen=True)
class DownloadPart:
    """One entry of the manifest: rows `first` … `end` - 1 of a file, without the empty ones."""

    name: str
    file: str
    version: str | None  # entity tag of the file
    first: int
    end: int
    documents: int
    characters: int
    sha256: str  # of the part's own file


class Parts:
    """A folder of parts and its manifest, which names only parts that are complete.

    `identity` says what the parts hold. A folder that holds something else is emptied; from the first part
    that is missing or damaged on, parts are forgotten.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self.identity = folder, identity
        self.commit: str | None = None
        self.parts: list[DownloadPart] = []
        folder.mkdir(parents=True, exist_ok=True)
        saved = self._saved()
        if saved.get("identity") == identity:
            self.commit = saved["commit"]
            self.parts = list(self._intact(DownloadPart(**entry) for entry in saved["parts"]))
        else:
            self.clear()

    def append(self, batch: Batch, sizes: Sequence[int]) -> None:
        """Store the next part, then name it in the manifest."""
        name = f"part_{len(self.parts):05d}.parquet"
        columns = {"document": [document.name for document in batch.documents]}
        columns["text"] = texts = [document.text for document in batch.documents]
        with tables.writing("text_part", self.folder / name) as append:
            append(columns | {"size": sizes})
        digest = _digest(self.folder / name)
        end = batch.documents[-1].row + 1
        characters = sum(map(len, texts))
        self.parts.append(
            DownloadPart(name, batch.file, batch.version, self._end_of(batch.file), end, len(texts), characters, digest)
        )
        self._save()

    def _end_of(self, file: str) -> int:
        """The row of `file` that the parts have come to."""
        return self.parts[-1].end if self.parts and self.parts[-1].file == file else 0

    def documents(self) -> Iterator[tuple[str, str, int]]:
        """Name, text and size of every document, in order and in constant memory."""
        for part in self.parts:
            with pq.ParquetFile(self.folder / part.name, pre_buffer=False) as table:
                for batch in table.iter_batches(ROWS):
                    yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def clear(self) -> None:
        """Remove the parts and the manifest, and nothing else."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for path in self.folder.glob("part_*.parquet"):
            path.unlink()
        self.parts = []

    def _saved(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InputError(
                f"{self.folder / MANIFEST}: cannot be read as JSON ({error}), expected the list of parts; remove the "
                "folder to begin again."
            ) from error

    def _save(self) -> None:
        saved = {"identity": self.identity, "commit": self.commit, "parts": [asdict(part) for part in self.parts]}
        with replacing(self.folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")

    def _intact(self, parts: Iterable[DownloadPart]) -> Iterator[DownloadPart]:
        for part in parts:
            path = self.folder / part.name
            if not path.is_file() or _digest(path) != part.sha256:
                return
            yield part


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prepare_text(
    data: DataConfig, wanted: TextQuota, shards: Sequence[Path], folder: Path, limits: DownloadConfig, sizes: Sizes = lengths
) -> None:
    """Collect documents until both budgets are full, or the source ends, and write them as shards of the table `text`.

    The shards hold the documents in the order of the source: first those of shard 0, then shard 1, …, about
    equally many characters in each. All shards appear together. `sizes` measures documents in `wanted.unit`;
    `folder` keeps the parts. Raises InputError where the source is wrong, cannot be reached, or leaves a part
    of the text empty; complete parts are then kept.
    """
    local = data.source != "fineweb"
    names = ("source", "path") if local else ("source", "repository", "subset", "revision")
    parts = Parts(folder, {name: getattr(data, name) for name in names} | {"unit": wanted.unit})
    if local:
        parts.clear()  # the files may have changed
    files = _local_files(data) if local else _hub_files(data, parts, limits)
    try:
        taken = _collect(parts, files, Tally(wanted, data.held_out_fraction), limits.part_characters, sizes)
    except InputError as error:
        raise InputError(
            f"{str(error).removesuffix('.')}; {len(parts.parts)} complete parts are kept in {folder}."
        ) from error
    for held_out, side in ((False, "training"), (True, "held-out")):
        if not taken.documents[held_out]:
            raise InputError(
                f"config key data.held_out_fraction: found no {side} document among {sum(taken.documents.values())} at "
                f"{data.held_out_fraction}, expected at least one; take more text or another fraction."
            )
    _write_shards(parts, Tally(wanted, data.held_out_fraction), taken.characters, shards)
    if local:
        parts.clear()
        folder.rmdir()


def _local_files(data: DataConfig) -> Files:
    return ((name, None, documents) for name, documents in local_files(data))


def _hub_files(data: DataConfig, parts: Parts, limits: DownloadConfig) -> Files:
    """The files of a data set on the Hub, from where the parts end; asks the Hub for nothing before it is asked."""
    from twoscale.data import hub

    subset = hub.resolve(data.repository, data.subset, parts.commit or data.revision, limits)
    parts.commit = subset.commit
    last = parts.parts[-1] if parts.parts else None
    for name in subset.files[subset.files.index(last.file) if last else 0 :]:
        first, version = (last.end, last.version) if last and last.file == name else (0, None)
        with hub.open_file(subset, name, limits, version) as opened:
            title = f"{data.repository}/{name}"
            yield name, opened.raw.version, rows(opened, title, name.rpartition("/")[2], first)


def _collect(parts: Parts, files: Files, taken: Tally, part_characters: int, sizes: Sizes) -> Tally:
    """Add parts until the budget is full; `taken` with what it takes of all of them."""
    for _, text, size in parts.documents():
        taken.take(text, size)
    unit = {"tokens": "tok", "characters": "char"}[taken.unit]
    with progress.meter("text", taken.wanted[False], unit, initial=taken.progress) as shown, closing(files):
        started, resumed = time.monotonic(), sum(taken.documents.values())
        for batch in () if taken.full else _batches(files, part_characters):
            measured = sizes([document.text for document in batch.documents])
            parts.append(batch, measured)
            before = taken.progress
            for document, size in zip(batch.documents, measured, strict=True):
                taken.take(document.text, size)
            documents = sum(taken.documents.values())
            speed = (documents - resumed) / (time.monotonic() - started)
            shown.set_postfix_str(f"{documents} documents, {speed:.0f} documents/s", refresh=False)
            shown.update(taken.progress - before)
            if taken.full:
                return taken
    for held_out, side in ((False, "training"), (True, "held-out")):
        if taken.wanted[held_out] is not None and not taken.is_full(held_out):
            print(
                f"the source ended after {taken.found[held_out]} of {taken.wanted[held_out]} {side} {taken.unit}",
                file=sys.stderr,
            )
    return taken


def _batches(files: Files, characters: int) -> Iterator[Batch]:
    """Documents of one file at a time, `characters` of them together or what is left of the file."""
    for file, version, documents in files:
        with closing(documents):
            batch: list[Document] = []
            collected = 0
            for document in documents:
                batch.append(document)
                collected += len(document.text)
                if collected >= characters:
                    yield Batch(file, version, batch)
                    batch, collected = [], 0
            if batch:
                yield Batch(file, version, batch)


def _write_shards(parts: Parts, taken: Tally, characters: int, shards: Sequence[Path]) -> None:
    """Deal the documents that the budget takes out to the shards, in runs of about equally many characters.

    `characters` counts those of all documents taken.
    """
    with ExitStack() as stack:
        writers = [_ShardWriter(stack.enter_context(tables.writing("text", path))) for path in shards]
        for name, text, size in parts.documents():
            shard = min(taken.characters * len(shards) // characters, len(shards) - 1)
            held_out = taken.take(text, size)
            if held_out is not None:
                writers[shard].add(name, held_out, text)
        for writer in writers:
            writer.flush()


class _ShardWriter:
    """Gathers documents into row groups; `append` is the function that `tables.writing` yields."""

    def __init__(self, append) -> None:
        self.append = append
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[str, list] = {"document": [], "held_out": [], "text": []}
        self.characters = 0

    def add(self, name: str, held_out: bool, text: str) -> None:
        for column, value in zip(self.rows.values(), (name, held_out, text), strict=True):
            column.append(value)
        self.characters += len(text)
        if self.characters >= ROW_GROUP_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if self.characters:
            self.append(self.rows)
            self._clear()
