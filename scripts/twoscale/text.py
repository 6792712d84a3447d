"""Text: three sources behind one interface, and the shards of documents that everything else reads.

A source is a generator of documents in a fixed order. Whether a document is held out is a function of its
text alone, so two copies of one document never stand on both sides.
"""

import ast
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from twoscale import progress, tables
from twoscale.errors import InputError, first_line
from twoscale.settings import Data

# Rows read from a parquet file at a time, and characters held back before a row group is written.
ROWS = 256
ROW_GROUP_CHARACTERS = 2**22

# Packages of the standard library whose docstrings are fixtures, or that not every installation has.
SKIPPED_PACKAGES = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"})

DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)  # what a definition can stand in


class Document(NamedTuple):
    name: str
    text: str


def documents(data: Data) -> Iterator[Document]:
    """Documents of `data.source` in their order, none of them empty.

    Close the generator after an early stop: it may hold a file or a connection.
    """
    match data.source:
        case "python_docs":
            return python_docs()
        case "parquet":
            return parquet(Path(data.path))
        case "fineweb":
            return fineweb(data.repository, data.subset, data.revision)
        case _:
            raise InputError(
                f"config key data.source: found {data.source!r}, expected python_docs, parquet or fineweb."
            )


def python_docs() -> Iterator[Document]:
    """The documentation inside the running Python: help topics, then docstrings, a document a module.

    The sources are parsed, never imported. The text depends on the version of Python and on which modules
    it was built with, not on where it is installed.
    """
    from pydoc_data.topics import topics

    for topic in sorted(topics):
        yield Document(f"topic {topic}", topics[topic])
    for module, path in _standard_library():
        sections = [f"{name}\n\n{docstring}" for name, docstring in _docstrings(ast.parse(path.read_bytes()), module)]
        if sections:
            yield Document(module, "\n\n\n".join(sections))


def _standard_library() -> list[tuple[str, Path]]:
    """Dotted name and path of the modules of the standard library, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for folder, subfolders, files in os.walk(root):
        # site-packages, lib-dynload and config-3.x are no identifiers
        subfolders[:] = [name for name in subfolders if name.isidentifier() and name not in SKIPPED_PACKAGES]
        for path in (Path(folder, name) for name in files):
            if path.suffix == ".py" and path.stem.isidentifier():
                parts = path.relative_to(root).with_suffix("").parts
                modules.append((".".join(parts).removesuffix(".__init__"), path))
    return sorted(modules)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Qualified name and docstring of a module, class or function and of all inside it, in source order."""
    if isinstance(node, (ast.Module, *DOCUMENTED)) and (docstring := ast.get_docstring(node)):
        yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, BLOCKS):
            yield from _docstrings(child, f"{name}.{child.name}" if isinstance(child, DOCUMENTED) else name)


def parquet(path: Path) -> Iterator[Document]:
    """Documents of a parquet file, or of every *.parquet file under a folder, sorted by path."""
    if path.is_dir():
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise InputError(f"config key data.path: found no *.parquet file under {path}, expected at least one.")
    elif path.is_file():
        files = [path]
    else:
        raise InputError(f"config key data.path: found nothing at {path}, expected a parquet file or a folder of them.")
    root = path if path.is_dir() else path.parent
    for file in files:
        with file.open("rb") as opened:
            try:
                yield from _rows(opened, str(file), file.relative_to(root).as_posix())
            except (OSError, ValueError, pa.ArrowException) as error:
                raise InputError(f"{file}: cannot be read as a parquet file ({first_line(error)}).") from error


def fineweb(repository: str, subset: str, revision: str) -> Iterator[Document]:
    """Documents of a parquet data set on the Hugging Face Hub, streamed.

    `datasets` resolves subset and revision to files; they are read as local ones are, because its own
    parquet stream leaves Arrow threads behind that can abort the interpreter at exit, closed or not.
    """
    import fsspec
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(repository, subset, revision=revision)
        for url in builder.config.data_files["train"]:
            with fsspec.open(url, "rb") as opened:
                yield from _rows(opened, url, url.rpartition("/")[2])
    except InputError:
        raise
    except Exception as error:  # of the Hub's client, its HTTP library, fsspec or Arrow
        raise InputError(
            f"{repository}: could not be read from the Hugging Face Hub at subset {subset!r}, revision {revision!r} "
            f"({type(error).__name__}: {first_line(error)}); expected a parquet data set within reach of the "
            "network, or data.source: parquet for local files."
        ) from error


def _rows(opened: BinaryIO, file: str, short_name: str) -> Iterator[Document]:
    """Rows of one parquet file whose `text` is neither null nor empty; memory does not grow with the file.

    A row is named by its `id`, else "file:row".
    """
    table = pq.ParquetFile(opened)
    names = table.schema_arrow.names
    if "text" not in names:
        raise InputError(f"{file}: found the columns {', '.join(names)}; expected one named text.")
    row = -1
    for batch in table.iter_batches(ROWS, columns=[name for name in ("id", "text") if name in names]):
        identifiers = batch["id"] if "id" in names else pa.nulls(len(batch))
        for identifier, value in zip(identifiers, batch["text"], strict=True):
            row += 1
            text = _checked_text(value, file, row)
            if text:
                yield Document(f"{short_name}:{row}" if identifier.as_py() is None else str(identifier), text)


def _checked_text(value: pa.Scalar, file: str, row: int) -> str | None:
    try:
        text: Any = value.as_py()
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: found bytes that are not UTF-8 ({error}) as text in row {row}.") from error
    if text is not None and not isinstance(text, str):
        raise InputError(f"{file}: found a value of type {value.type} in row {row}, expected text to be a string.")
    return text


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out part, which takes `fraction` of all documents."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) < fraction * 2**64


def up_to(source: Iterable[Document], characters: int | None) -> Iterator[Document]:
    """Whole documents until they hold `characters` characters together; None takes all."""
    collected = 0
    for document in source:
        yield document
        collected += len(document.text)
        if characters is not None and collected >= characters:
            return


def prepare_text(data: Data, shards: Sequence[Path]) -> None:
    """Collect `data.characters` of the source into parquet shards of the table `text`.

    Documents are dealt out one by one, so the shards are balanced whatever the source holds; the order
    from here on is that of shard 0, then shard 1, … All shards appear together, after the last document.
    Raises InputError where the source is wrong, or leaves the training or the held-out part empty.
    """
    found = {"training": 0, "held-out": 0}
    with ExitStack() as stack:
        writers = [_ShardWriter(stack.enter_context(tables.writing("text", path))) for path in shards]
        source = stack.enter_context(closing(documents(data)))
        shown = stack.enter_context(progress.meter("text", data.characters, "char"))
        for number, document in enumerate(up_to(source, data.characters)):
            held_out = is_held_out(document.text, data.held_out_fraction)
            writers[number % len(writers)].add(document, held_out)
            found["held-out" if held_out else "training"] += 1
            shown.set_postfix_str(f"{number + 1} documents", refresh=False)
            shown.update(len(document.text))
        for writer in writers:
            writer.flush()
        for part, count in found.items():
            if not count:
                raise InputError(
                    f"config key data.held_out_fraction: found no {part} document among {sum(found.values())} at "
                    f"{data.held_out_fraction}, expected at least one; take more text or another fraction."
                )


class _ShardWriter:
    """Gathers documents into row groups; `append` is the function that `tables.writing` yields."""

    def __init__(self, append) -> None:
        self.append = append
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[str, list] = {"document": [], "held_out": [], "text": []}
        self.characters = 0

    def add(self, document: Document, held_out: bool) -> None:
        for column, value in zip(self.rows.values(), (document.name, held_out, document.text), strict=True):
            column.append(value)
        self.characters += len(document.text)
        if self.characters >= ROW_GROUP_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if self.characters:
            self.append(self.rows)
            self._clear()


def stored(shards: Iterable[Path]) -> Iterator[tuple[list[bool], list[str]]]:
    """Batches of (held out, text) from shards of `prepare_text`, in order and in constant memory."""
    expected = list(tables.columns("text"))
    for shard in shards:
        try:
            with pq.ParquetFile(shard) as table:
                if table.schema_arrow.names != expected:
                    raise InputError(
                        f"{shard}: found the columns {', '.join(table.schema_arrow.names)}; expected "
                        f"{', '.join(expected)}, as prepare_text writes them."
                    )
                for batch in table.iter_batches(ROWS, columns=["held_out", "text"]):
                    yield batch["held_out"].to_pylist(), batch["text"].to_pylist()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(f"{shard}: cannot be read as a shard of text ({first_line(error)}).") from error


def training_texts(shards: Iterable[Path]) -> Iterator[str]:
    """Texts that are not held out."""
    for held_out, texts in stored(shards):
        yield from (text for text, out in zip(texts, held_out, strict=True) if not out)
