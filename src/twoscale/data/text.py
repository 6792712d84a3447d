"""Documents of Python's documentation and of a user's files, and the text shards of later steps.

Whether a document is held out is a function of its text alone, so copies of a document are all held
out or all used for training. For Python's documentation it is a function of the family of pages,
because pages of a family quote one another. Near-duplicates are dropped later, see
`twoscale.data.tokens`.

Lines are read with `datasets`, as a stream. Parquet files are read with pyarrow, because in
`datasets` a stream of parquet that is not read to its end can abort the interpreter
(huggingface/datasets#7566, apache/arrow#45214). Planning imports this module for `find_files` and
`digest_files`, so libraries are imported where they are used.
"""

import ast
import hashlib
import json
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from twoscale import tables
from twoscale.base import InputError, first_line, json_digest, mismatch, sha256
from twoscale.config import DataConfig

# data.source -> endings of its files in a folder
ENDINGS = {"txt": (".txt", ".txt.gz"), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}
DIGESTED = 2**26  # bytes of all files together whose contents are read for a digest

# Packages of the standard library whose docstrings are fixtures, or that some installations lack.
_SKIPPED_PACKAGES = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"})
_TOPIC = "topic "  # beginning of the names of help topics
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)  # nodes that can contain a definition

ROWS = 256  # of a parquet file at a time
_BUFFER = 2**20  # bytes of a parquet column at a time
LINES = 4096  # taken from `datasets` at a time

# a document is cut into pieces if it has more than LONG * data.piece_characters characters
LONG = 10
BOUNDARIES = ("\n\n", "\n", ". ", " ")  # where a document may be cut, best first


class Document(NamedTuple):
    name: str
    text: str
    row: int = 0  # in its file, where empty documents count


def local_documents(data: DataConfig, cache: Path) -> Iterator[Document]:
    """Documents of Python's documentation or of all files of `data.path`, in order; none is empty.

    `cache` is a folder for what `datasets` writes, one empty lock file per file; the caller removes
    it.
    """
    if data.source == "python_docs":
        yield from python_docs()
        return
    assert data.path is not None
    files, hidden = find_files(Path(data.path), data.source)
    if hidden:
        print(f"{data.path}: hidden files passed over: {hidden}", file=sys.stderr)
    for file, name in files:
        try:
            for document, parts in _read(file, name, data.source, cache):
                for number, (piece, is_whole) in enumerate(pieces(parts, data.piece_characters)):
                    if piece.strip():
                        own = document.name if is_whole else f"{document.name}/{number}"
                        yield Document(own, piece, document.row)
        except UnicodeDecodeError as error:
            found = f"a byte that is not UTF-8 ({error.reason})"
            raise mismatch(file, found, "text in UTF-8, as iconv converts it") from error
        except (OSError, ValueError, EOFError, zlib.error) as error:  # also those of pyarrow
            found = first_line(error)
            raise InputError(
                f"{file}: cannot be read ({found}), expected {data.source}."
            ) from error


def _read(
    file: Path, name: str, source: str, cache: Path
) -> Iterator[tuple[Document, Iterable[str]]]:
    """The documents of a file, each with consecutive parts of its text."""
    if source == "txt":
        yield Document(name, ""), lines(file, cache)
        return
    is_parquet = source == "parquet"
    found = rows(file, str(file), name) if is_parquet else _json_lines(file, name, cache)
    for document in found:
        yield document, [document.text]


# --- the files of data.path


def find_files(path: Path, source: str) -> tuple[list[tuple[Path, str]], int]:
    """The file, or the files of the source under a folder; each with its name in the folder.

    Files are passed over whose name, or that of a folder on the way, begins with a full stop, as
    notebooks, macOS and Git write them next to a user's files. Also returns their number.
    """
    if path.is_file():
        # a single file may have any name but one that ends as the files of another source
        for other, endings in ENDINGS.items():
            if other != source and path.name.lower().endswith(endings):
                raise mismatch("config key data.source", f"{source} for {path}", other)
        return [(path, path.name)], 0
    endings = ENDINGS[source]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    named = [
        (file, file.relative_to(path).as_posix())
        for file in files
        if file.name.lower().endswith(endings)
    ]
    visible = [(file, name) for file, name in named if "/." not in f"/{name}"]
    hidden = len(named) - len(visible)
    if not visible:
        what = "only hidden files" if hidden else "no file" if path.is_dir() else "nothing"
        names = " or ".join(f"*{ending}" for ending in endings)
        expected = f"{names} for data.source: {source}; a single file may have any name"
        raise mismatch("config key data.path", f"{what} at {path}", expected)
    return visible, hidden


def digest_files(path: Path, source: str) -> str:
    """Digest of the names and contents of the files; above DIGESTED bytes, of sizes and times."""
    files = [(name, file, file.stat()) for file, name in find_files(path, source)[0]]
    if sum(status.st_size for _, _, status in files) <= DIGESTED:
        return json_digest([(name, sha256(file)) for name, file, _ in files])
    return json_digest([(name, (each.st_size, each.st_mtime_ns)) for name, _, each in files])


# --- Python's documentation


def python_docs() -> Iterator[Document]:
    """The documentation of the running Python: its help topics, then a document per module.

    The sources are parsed, never imported. The text depends on the version of Python and on the
    modules that it was built with, not on its folder.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        found = f"python_docs, but this Python ({sys.prefix}) has no module pydoc_data.topics"
        expected = "an installation with its documentation, or another source"
        raise mismatch("config key data.source", found, expected) from error
    for topic in sorted(topics):
        yield Document(f"{_TOPIC}{topic}", topics[topic])
    root = Path(sysconfig.get_path("stdlib"))
    modules = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        # skips site-packages, lib-dynload and config-3.x, which are no identifiers
        is_module = all(part.isidentifier() for part in parts)
        if is_module and _SKIPPED_PACKAGES.isdisjoint(parts[:-1]):
            # __init__.py is the package itself
            modules[".".join(parts).removesuffix(".__init__")] = path
    for module, path in sorted(modules.items()):
        found_here = _docstrings(ast.parse(path.read_bytes()), module)
        sections = [f"{name}\n\n{docstring}" for name, docstring in found_here]
        if sections:
            yield Document(module, "\n\n\n".join(sections))


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Qualified name and docstring of a module and of all definitions in it, in source order."""
    if isinstance(node, (ast.Module, *_DEFINITIONS)) and (docstring := ast.get_docstring(node)):
        yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _BLOCKS):
            own = f"{name}.{child.name}" if isinstance(child, _DEFINITIONS) else name
            yield from _docstrings(child, own)


# --- parquet


def rows(source: Path | BinaryIO, file: str, short_name: str, first: int = 0) -> Iterator[Document]:
    """Documents of a parquet file: its rows from `first` on whose `text` is neither null nor empty.

    A row without an `id` is called "short_name:row". Row groups before `first` are not read, and
    the others in batches. Raises OSError or ValueError if the file is damaged or text is not UTF-8.
    """
    import pyarrow.parquet as pq

    # pre-buffering would fetch a whole file and keep it in memory
    with pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER) as table:
        known = table.schema_arrow.names
        if "text" not in known:
            raise mismatch(file, f"the columns {', '.join(known)}", "a column named text")
        columns = [name for name in ("id", "text") if name in known]
        row = 0
        for group in range(table.num_row_groups):
            size = table.metadata.row_group(group).num_rows
            if row + size <= first:
                row += size
                continue
            for batch in table.iter_batches(ROWS, row_groups=[group], columns=columns):
                for entry in batch.to_pylist():
                    text = entry["text"]
                    if not isinstance(text, str | None):
                        found = f"{type(text).__name__} in the column text"
                        raise mismatch(file, found, "strings")
                    if text and row >= first:
                        yield Document(_name(entry, f"{short_name}:{row}"), text, row)
                    row += 1


def _name(entry: Mapping[str, Any], default: str) -> str:
    identifier = entry.get("id")
    return default if identifier is None else str(identifier)


# --- lines


def lines(file: Path, cache: Path) -> Iterator[str]:
    r"""Lines of a UTF-8 file with their line feeds; a file that ends in .gz is decompressed.

    Line ends \r\n and \r become \n, and a byte order mark is removed.
    """
    # the environment of torch does not have this library
    from datasets import IterableDataset
    from datasets.data_files import DataFilesDict, DataFilesList

    # without DataFilesDict, a name such as "a[1].txt" is a pattern
    files = DataFilesDict({"train": DataFilesList([str(file.resolve())], [()])})
    options = {"cache_dir": str(cache), "keep_linebreaks": True, "encoding": "utf-8"}
    stream = IterableDataset.from_text(files, split="train", **options)
    mark = "\ufeff"  # the first line may begin with a byte order mark
    for batch in stream.with_format("arrow").iter(LINES):
        for line in batch["text"].to_pylist():
            yield line.removeprefix(mark) if mark else line
            mark = ""


def _json_lines(file: Path, name: str, cache: Path) -> Iterator[Document]:
    """Documents of a JSON Lines file: the field `text` of each line that is not blank.

    An object without an `id` is called "name:line".
    """
    for number, line in enumerate(lines(file, cache), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text = entry.get("text") if isinstance(entry, dict) else None
            if not isinstance(text, str):
                raise TypeError("no text" if text is None else f"{type(text).__name__} as text")
            text.encode()  # refuses an unpaired surrogate
        except (ValueError, TypeError, RecursionError) as error:
            expected = "a JSON object with a string in the field text"
            raise mismatch(f"{file}, line {number}", first_line(error), expected) from error
        if text:
            yield Document(_name(entry, f"{name}:{number}"), text, number)


# --- long documents


def pieces(parts: Iterable[str], size: int | None) -> Iterator[tuple[str, bool]]:
    """Cut a document of more than LONG * size characters into pieces of at most `size`.

    Pieces end at the last blank line in the second half of `size`, else at a line end, a sentence,
    a space, else anywhere. They depend on the document alone, not on how it is divided into
    `parts`. Memory grows with `size` and the longest part, not with the document. Yields each
    piece, and whether it is the whole document, as all are where `size` is None.
    """
    if size is None:
        yield "".join(parts), True
        return
    pending = ""
    limit = LONG * size  # the document is cut once `pending` exceeds it
    for part in parts:
        pending += part
        if len(pending) > limit:
            limit = size
            begin = 0
            while len(pending) - begin > size:
                end = _end_of_piece(pending, begin, size)
                yield pending[begin:end], False
                begin = end
            pending = pending[begin:]
    if pending:
        yield pending, limit != size  # whole if it was never cut


def _end_of_piece(text: str, begin: int, size: int) -> int:
    """The end of the piece of at most `size` characters at `begin`."""
    for boundary in BOUNDARIES:
        at = text.rfind(boundary, begin + size // 2, begin + size)
        if at >= 0:
            return at + len(boundary)
    return begin + size


# --- held-out documents, and the shards of text


def split_key(source: str, name: str, text: str) -> str:
    """Key that decides whether a document is held out: its text, or its family of pages.

    Pages of python_docs have families: the help topics, and the modules of each top-level package.
    """
    if source != "python_docs":
        return text
    family = "help topics" if name.startswith(_TOPIC) else name.partition(".")[0]
    return f"family {family}"


def is_held_out(key: str, fraction: float) -> bool:
    """Whether the documents with a `split_key` are held out: true for `fraction` of all keys."""
    digest = hashlib.sha256(key.encode()).digest()
    # the first 64 bits of a digest are uniform
    return int.from_bytes(digest[:8]) < fraction * 2**64


def iter_shards(shards: Iterable[Path]) -> Iterator[tuple[list[bool], list[str]]]:
    """Flags, whether each document is held out, and texts of consecutive documents of shards."""
    for shard in shards:
        for _, held_out, texts in tables.batches("text", shard):
            yield held_out, texts


def training_texts(shards: Iterable[Path]) -> Iterator[str]:
    for held_out, texts in iter_shards(shards):
        yield from (text for text, excluded in zip(texts, held_out, strict=True) if not excluded)
