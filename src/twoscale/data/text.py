"""Documents of Python's documentation and of parquet files, and the text shards that all later steps read.

Whether a document is held out is a function of its text alone, so copies of a document are all held out or all used
for training. For Python's documentation it is a function of the family of pages, because pages of a family quote one
another. Near-duplicates are dropped later, see `twoscale.data.near_duplicates`.
"""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from twoscale import tables
from twoscale.base import InputError, first_line
from twoscale.data.bounded_parquet import BoundedParquet

# Packages of the standard library whose docstrings are fixtures, or that some installations lack.
SKIPPED_PACKAGES = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"})

TOPIC = "topic "  # beginning of the names of help topics
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)  # nodes that can contain a definition


class Document(NamedTuple):
    name: str
    text: str
    row: int  # in its file, where empty documents count


def python_docs() -> Iterator[Document]:
    """The documentation of the running Python: its help topics, then one document of docstrings per module.

    The sources are parsed, never imported. The text depends on the version of Python and on the modules that it was
    built with, not on its folder.
    """
    for row, (name, text) in enumerate(_documentation()):
        yield Document(name, text, row)


def _documentation() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError(
            f"config key data.source: found python_docs, but this Python ({sys.prefix}) has no help topics (module "
            "pydoc_data.topics), expected an installation with its documentation, or another source."
        ) from error
    for topic in sorted(topics):
        yield f"{TOPIC}{topic}", topics[topic]
    for module, path in _standard_library():
        sections = [f"{name}\n\n{docstring}" for name, docstring in _docstrings(ast.parse(path.read_bytes()), module)]
        if sections:
            yield module, "\n\n\n".join(sections)


def _standard_library() -> list[tuple[str, Path]]:
    """Dotted name and path of the modules of the standard library, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for folder, subfolders, files in os.walk(root):
        # skips site-packages, lib-dynload and config-3.x, which are no identifiers
        subfolders[:] = [name for name in subfolders if name.isidentifier() and name not in SKIPPED_PACKAGES]
        for path in (Path(folder, name) for name in files):
            if path.suffix == ".py" and path.stem.isidentifier():
                parts = path.relative_to(root).with_suffix("").parts
                modules.append((".".join(parts).removesuffix(".__init__"), path))
    return sorted(modules)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Qualified name and docstring of a module, class or function and of all definitions in it, in source order."""
    if isinstance(node, (ast.Module, *DEFINITIONS)) and (docstring := ast.get_docstring(node)):
        yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, BLOCKS):
            yield from _docstrings(child, f"{name}.{child.name}" if isinstance(child, DEFINITIONS) else name)


def rows(opened: BinaryIO, file: str, short_name: str, max_bytes: int, first: int = 0) -> Generator[Document]:
    """Documents of a parquet file: its rows whose `text` is neither null nor empty.

    Memory grows with `max_bytes`, not with the file, and row groups before `first` are not read.

    Args:
        opened: The file.
        file: Name of the file in error messages.
        short_name: Name of the file in names of documents. A row without an `id` is called "short_name:row".
        max_bytes: Largest decompressed page, and so largest document.
        first: First row to read.

    Raises:
        InputError: if the file is damaged, has no column of text, or a page is too large.
    """
    try:
        table = BoundedParquet(opened, file, max_bytes)
        columns = _text_columns(table.schema, file)
        for row, batch in table.batches(columns, first):
            if batch["text"].null_count == len(batch):  # a column of nulls has no size, so they have to cost no time
                continue
            identifiers = batch["id"] if "id" in columns else pa.nulls(len(batch))
            for number, (identifier, value) in enumerate(zip(identifiers, batch["text"], strict=True), start=row):
                text = _checked_text(value, file, number)
                if text and number >= first:
                    name = f"{short_name}:{number}" if identifier.as_py() is None else str(identifier)
                    yield Document(name, text, number)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{file}: cannot be read as a parquet file ({first_line(error)}).") from error


def _text_columns(schema: pa.Schema, file: str) -> list[str]:
    """The columns to read: text, and id where each row has one value of it."""
    if "text" not in schema.names:
        raise InputError(f"{file}: found the columns {', '.join(schema.names)}; expected a column named text.")
    if pa.types.is_nested(schema.field("text").type):
        raise InputError(f"{file}: found the type {schema.field('text').type} in the column text, expected strings.")
    return [name for name in ("id", "text") if name in schema.names and not pa.types.is_nested(schema.field(name).type)]


def _checked_text(value: pa.Scalar, file: str, row: int) -> str | None:
    try:
        text: Any = value.as_py()
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: found text that is not UTF-8 ({error}) in row {row}.") from error
    if text is not None and not isinstance(text, str):
        raise InputError(
            f"{file}: found a value of type {value.type} in row {row} of the column text, expected a string."
        )
    return text


def split_key(source: str, name: str, text: str) -> str:
    """Key that decides whether a document of `source` is held out: its text, or the family of a page of python_docs."""
    return f"family {family(name)}" if source == "python_docs" else text


def family(name: str) -> str:
    """Pages of Python's documentation that stay together: all help topics, or the modules of a top-level package."""
    return "help topics" if name.startswith(TOPIC) else name.partition(".")[0]


def is_held_out(key: str, fraction: float) -> bool:
    """Whether the documents with a `split_key` are held out; true for `fraction` of all keys."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) < fraction * 2**64


def iter_shards(shards: Iterable[Path]) -> Iterator[tuple[list[bool], list[str]]]:
    """Read the text shards that `prepare_text` writes, in order and in constant memory.

    Yields:
        Flags (whether each document is held out) and texts of consecutive documents.

    Raises:
        InputError: if a file is no text shard or cannot be read.
    """
    expected = list(tables.columns("text"))
    for shard in shards:
        try:
            with Path(shard).open("rb") as opened:
                table = BoundedParquet(opened, str(shard))
                if table.schema.names != expected:
                    raise InputError(
                        f"{shard}: found the columns {', '.join(table.schema.names)}; expected "
                        f"{', '.join(expected)}, as prepare_text writes them."
                    )
                for _, batch in table.batches(["held_out", "text"]):
                    yield batch["held_out"].to_pylist(), batch["text"].to_pylist()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(f"{shard}: cannot be read as a shard of text ({first_line(error)}).") from error


def training_texts(shards: Iterable[Path]) -> Iterator[str]:
    """Texts that are not held out."""
    for held_out, texts in iter_shards(shards):
        yield from (text for text, excluded in zip(texts, held_out, strict=True) if not excluded)
