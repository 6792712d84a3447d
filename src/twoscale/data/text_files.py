"""Documents of local sources: plain text, JSON Lines and parquet files of the user, and Python's documentation.

Lines are read with `datasets`, as a stream: memory grows with `data.max_document_mb` and with what `pieces` holds, not
with the file, and no copy of the text is written. `datasets` does not bound a line, so `check_lines` reads the file
first. Parquet files are read with pyarrow: in `datasets` a damaged one can abort the interpreter
(huggingface/datasets#7566, apache/arrow#45214).
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from twoscale.base import InputError, first_line
from twoscale.config import FILE_SOURCES, DataConfig
from twoscale.data import text
from twoscale.data.source_files import find_files
from twoscale.data.text import Document

LONG = 10  # a document is cut into pieces if it has more than LONG * data.piece_characters characters
BOUNDARIES = ("\n\n", "\n", ". ", " ")  # where a document may be cut, best first
LINES = 4096  # lines taken from `datasets` at a time
CHUNK = 2**20  # bytes read at a time by `check_lines`
BYTE_ORDER_MARK = "\ufeff"
READ_ERRORS = (OSError, ValueError, EOFError, zlib.error, pa.ArrowException)


def local_documents(data: DataConfig, cache: Path) -> Generator[Document]:
    """Documents of all files of a local source, in order; none is empty.

    Close the iterator if you do not exhaust it, because it may hold an open file.

    Args:
        data: Source and path.
        cache: Folder for what `datasets` writes: one empty lock file per file. The caller removes it.

    Raises:
        InputError: if the source is unknown, a file cannot be read, or a document is too large.
    """
    if data.source == "python_docs":
        yield from text.python_docs()
        return
    if data.source not in FILE_SOURCES:
        raise InputError(
            f"config key data.source: found {data.source!r}, expected python_docs, {', '.join(FILE_SOURCES)} or "
            "fineweb."
        )
    assert data.path is not None
    for file, name in find_files(Path(data.path), data.source):
        yield from _in_pieces(_documents(file, name, data, cache), data)


def _documents(file: Path, name: str, data: DataConfig, cache: Path) -> Iterator[tuple[Document, Iterable[str]]]:
    """Documents of a file without their texts, each with the consecutive parts of its text."""
    longest = data.max_document_bytes
    if data.source == "txt":
        yield Document(name, "", 0), _plain_text(file, data, cache)
        return
    rows = _rows(file, name, longest) if data.source == "parquet" else json_lines(file, name, longest, cache)
    for document in rows:
        yield document._replace(text=""), [document.text]


def _rows(file: Path, name: str, max_bytes: int) -> Iterator[Document]:
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({first_line(error)}), expected a parquet file.") from error
    with opened:
        yield from text.rows(opened, str(file), name, max_bytes)


# --- lines


def lines(file: Path, longest: int, cache: Path) -> Iterator[str]:
    r"""Lines of a UTF-8 file with their line feeds; a file that ends in .gz is decompressed.

    Line ends \r\n and \r become \n, and a byte order mark is removed.

    Raises:
        InputError: if the file cannot be read or is not UTF-8, with the offset of the first invalid byte, or has a line
            of more than `longest` characters, with its number.
    """
    # imported here, because only these sources need it and the environment of torch does not have it
    from datasets import IterableDataset
    from datasets.data_files import DataFilesDict, DataFilesList

    # without DataFilesDict, a name such as "a[1].txt" is a pattern
    files = DataFilesDict({"train": DataFilesList([str(file.resolve())], [()])})
    before = BYTE_ORDER_MARK  # what the next line may begin with
    try:
        check_lines(file, longest)
        stream = IterableDataset.from_text(
            files, split="train", cache_dir=str(cache), keep_linebreaks=True, encoding="utf-8"
        )
        for batch in stream.with_format("arrow").iter(LINES):
            for line in batch["text"].to_pylist():
                yield line.removeprefix(before) if before else line
                before = ""
    except READ_ERRORS as error:
        raise InputError(f"{file}: cannot be read as text ({first_line(error)}).") from error


def check_lines(file: Path, longest: int) -> None:
    """Refuse a file (decompressed) that is not UTF-8 or has a line of more than `longest` characters.

    Memory is bounded by CHUNK.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    offset, number, length = 0, 1, 0  # of the chunk in bytes, of the line, of the part of the line before the chunk
    with (gzip.open if file.suffix.lower() == ".gz" else open)(file, "rb") as opened:
        while True:
            chunk = opened.read(CHUNK)
            waiting = len(utf8.getstate()[0])  # bytes of an incomplete character
            try:
                *ends, rest = decoder.decode(chunk, final=not chunk).split("\n")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{file}: found a byte that is not UTF-8 at offset {offset - waiting + error.start}, expected text "
                    "in UTF-8; convert the file first, for example with iconv."
                ) from error
            for part in ends:
                _check_length(file, number, length + len(part), longest)
                number, length = number + 1, 0
            length += len(rest)
            _check_length(file, number, length, longest)
            if not chunk:
                return
            offset += len(chunk)


def _check_length(file: Path, number: int, length: int, longest: int) -> None:
    if length > longest:
        raise InputError(f"{file}, line {number}: {too_large(longest)}")


def too_large(longest: int) -> str:
    """The end of the sentence on a line or document of more than `longest` characters."""
    return (
        f"found more than {longest} characters, expected at most that many; raise data.max_document_mb or shorten "
        "the text."
    )


def _plain_text(file: Path, data: DataConfig, cache: Path) -> Iterator[str]:
    longest = data.max_document_bytes
    # a document is whole in memory until it is known to be longer than LONG pieces
    is_bounded = data.piece_characters is not None and LONG * data.piece_characters < longest
    characters = 0
    for line in lines(file, longest, cache):
        if "\0" in line:
            raise InputError(
                f"{file}: found the character NUL after {characters + line.index(chr(0))} characters, expected text in "
                "UTF-8; the file may be binary or have another encoding, such as UTF-16."
            )
        characters += len(line)
        if characters > longest and not is_bounded:
            raise InputError(f"{file}: {too_large(longest)}")
        yield line


def json_lines(file: Path, name: str, longest: int, cache: Path) -> Iterator[Document]:
    """Documents of a JSON Lines file: the field `text` of the object in each line that is not blank.

    Args:
        file: The file, which may be compressed with gzip.
        name: Name of the file in names of documents. An object without an `id` is called "name:line".
        longest: Most characters of a line.
        cache: As for `local_documents`.

    Raises:
        InputError: if a line is too long or no JSON object, or its `text` is missing, null or no string, with the
            line's number.
    """
    for number, line in enumerate(lines(file, longest, cache), start=1):
        if line.strip():
            where = f"{file}, line {number}"
            entry = _parsed(line, where)
            if entry["text"]:
                identifier = entry.get("id")
                yield Document(f"{name}:{number}" if identifier is None else str(identifier), entry["text"], number)


def _parsed(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line, whose `text` is a string that can be encoded."""
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        # its own message has a line number, that in this line
        problem = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
        raise InputError(f"{where}: cannot be read as JSON ({problem}), expected an object.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: cannot be read as JSON ({first_line(error)}), expected an object.") from error
    if not isinstance(entry, dict):
        raise InputError(
            f"{where}: found a value of type {type(entry).__name__}, expected an object with the field text."
        )
    if "text" not in entry:
        raise InputError(f"{where}: found the fields {', '.join(entry) or 'none'}; expected a field named text.")
    if not isinstance(entry["text"], str):
        found = "null" if entry["text"] is None else f"a value of type {type(entry['text']).__name__}"
        raise InputError(f"{where}: found {found} in the field text, expected a string.")
    try:
        entry["text"].encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: found an unpaired surrogate in the field text.") from error
    return entry


# --- long documents


def _in_pieces(documents: Iterable[tuple[Document, Iterable[str]]], data: DataConfig) -> Iterator[Document]:
    for document, parts in documents:
        for number, (piece, is_whole) in enumerate(pieces(parts, data.piece_characters)):
            if piece.strip():
                name = document.name if is_whole else f"{document.name}/{number}"
                yield Document(name, piece, document.row)


def pieces(parts: Iterable[str], size: int | None) -> Iterator[tuple[str, bool]]:
    """Cut a document of more than LONG * size characters into pieces of at most `size`.

    Pieces end at the last blank line in the second half of `size`, else at a line end, a sentence, a space, else
    anywhere. They depend on the document alone, not on how it is divided into `parts`. Memory grows with `size` and
    the longest part, not with the document.

    Args:
        parts: Consecutive parts of the document.
        size: Characters per piece; None never cuts.

    Yields:
        Consecutive pieces, which together are the document, and whether the piece is the whole document.
    """
    if size is None:
        yield "".join(parts), True
        return
    pending, limit = "", LONG * size  # the document is cut once `pending` exceeds `limit`
    for part in parts:
        pending += part
        if len(pending) > limit:
            limit, begin = size, 0
            while len(pending) - begin > size:
                end = _boundary(pending, begin, size)
                yield pending[begin:end], False
                begin = end
            pending = pending[begin:]
    if pending:
        yield pending, limit != size


def _boundary(pending: str, begin: int, size: int) -> int:
    """End of the piece that begins at `begin`."""
    middle, end = begin + size // 2, begin + size
    for boundary in BOUNDARIES:
        at = pending.rfind(boundary, middle, end)
        if at >= 0:
            return at + len(boundary)
    return end
