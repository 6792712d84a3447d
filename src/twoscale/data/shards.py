"""Token shards: the ids of a text, as training reads them.

A token shard is three files. Two hold little-endian ids and nothing else, uint16 or, where a vocabulary needs it,
uint32: those of the training documents and those of the held-out documents. The third, the metadata, is JSON that
describes the ids.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from twoscale import progress
from twoscale.canonical import canonical_json
from twoscale.data.near_duplicates import DroppedDocuments, drop_near_duplicates
from twoscale.data.text import iter_shards
from twoscale.data.token_ids import DTYPES, id_dtype
from twoscale.data.tokenizer import Tokenizer
from twoscale.errors import InputError, first_line
from twoscale.files import replacing, sha256
from twoscale.json import Count, parse

T = TypeVar("T")
M = TypeVar("M", bound="IdMetadata")
CHUNK = 2**20  # training ids in memory when shards are joined


class TokenShard(NamedTuple):
    """Paths of the three files of a token shard."""

    train: Path
    val: Path
    metadata: Path


def tokenize_text(text_shard: Path, tokenizer: Tokenizer, token_shard: TokenShard) -> None:
    """Write the documents of a text shard as a token shard, on one thread.

    Documents keep their order, and each is followed by the end of text. The files appear together.

    Raises:
        InputError: if the text shard cannot be read.
    """
    with ExitStack() as stack:
        # Contexts exit in reverse order: the metadata is entered first, so it appears last.
        metadata = stack.enter_context(replacing(token_shard.metadata))
        train = stack.enter_context(_writer(token_shard.train, tokenizer.end_of_text))
        val = stack.enter_context(_writer(token_shard.val, tokenizer.end_of_text))
        bar = stack.enter_context(progress.meter(f"tokens {text_shard.stem}", None, "tok"))
        for held_out, texts in iter_shards([text_shard]):
            for excluded, text in zip(held_out, texts, strict=True):
                ids = tokenizer.encode_document(text)
                (val if excluded else train).append(ids)
                bar.update(len(ids))
        metadata.write_text(json.dumps(_id_metadata(tokenizer)) + "\n", encoding="utf-8")


def join_tokens(
    shards: Sequence[TokenShard],
    joined: TokenShard,
    held_out_tokens: int,
    near_duplicate_tokens: int,
    context_length: int | None,
) -> DroppedDocuments:
    """Concatenate the token shards of all text shards, in order, without held-out near-duplicates.

    A held-out document in which `near_duplicate_tokens` tokens in a row occur in the training tokens is dropped. The
    held-out ids are in memory, the training ids are not. The files appear together.

    Args:
        shards: One token shard per text shard.
        joined: The token shard to write.
        held_out_tokens: Number of held-out ids to write: the first ones that remain.
        near_duplicate_tokens: Tokens per n-gram of the search for near-duplicates.
        context_length: Tokens per sequence; None where nothing is trained and there may be no training tokens.

    Returns:
        The counts of the dropped documents, which are in the metadata too.

    Raises:
        InputError: if training ids are fewer than one sequence and a target, fewer held-out ids than
            `held_out_tokens` remain, or the shards are from different tokenizers.
    """
    id_metadata = _common_id_metadata([shard.metadata for shard in shards])
    with ExitStack() as stack:
        # Contexts exit in reverse order: the metadata is entered first, so it appears last.
        metadata = stack.enter_context(replacing(joined.metadata))
        train = stack.enter_context(_writer(joined.train, id_metadata["end_of_text"]))
        val = stack.enter_context(_writer(joined.val, id_metadata["end_of_text"], held_out_tokens))
        training, dtype = [shard.train for shard in shards], DTYPES[id_metadata["dtype"]]
        for ids in token_chunks(training, dtype):
            train.append(ids)
        if context_length is not None:
            _check_training(train, context_length)
        held_out = np.concatenate([np.fromfile(shard.val, dtype) for shard in shards])
        kept, dropped = drop_near_duplicates(
            held_out, id_metadata["end_of_text"], near_duplicate_tokens, lambda: token_chunks(training, dtype)
        )
        val.append(kept)
        _check_held_out(val, dropped, held_out_tokens)
        metadata.write_text(json.dumps(_metadata(id_metadata, train, val, dropped), indent=2) + "\n", encoding="utf-8")
    return dropped


def token_chunks(paths: Iterable[Path], dtype: np.dtype) -> Iterator[np.ndarray]:
    """The ids in the files, at most CHUNK at a time."""
    for path in paths:
        with path.open("rb") as file:
            while len(ids := np.fromfile(file, dtype, CHUNK)):
                yield ids


class ShardWriter:
    """Writes one file of ids; counts ids and documents and updates the file's hash."""

    def __init__(self, path: Path, file: BinaryIO, end_of_text: int, limit: int | None) -> None:
        self.path, self.file, self.end_of_text, self.limit = path, file, end_of_text, limit
        self.count = self._complete_documents = 0
        self._inside_document = False  # whether the last id is not an end of text
        self.hash = hashlib.sha256()

    @property
    def documents(self) -> int:
        """Number of documents, including a last one that the limit cuts."""
        return self._complete_documents + self._inside_document

    def append(self, ids: np.ndarray) -> None:
        """Append ids up to the limit and ignore the rest."""
        if self.limit is not None:
            ids = ids[: self.limit - self.count]
        if not len(ids):
            return
        self.file.write(ids)
        self.hash.update(ids)
        self.count += len(ids)
        self._complete_documents += int(np.count_nonzero(ids == self.end_of_text))
        self._inside_document = bool(ids[-1] != self.end_of_text)


@contextmanager
def _writer(path: Path, end_of_text: int, limit: int | None = None) -> Iterator[ShardWriter]:
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield ShardWriter(path, file, end_of_text, limit)


def _check_training(train: ShardWriter, context_length: int) -> None:
    if train.count < context_length + 1:
        raise InputError(
            f"{train.path.name}: found {train.count} tokens, expected at least {context_length + 1}, one sequence of "
            "model.context_length tokens and a target; use more text, or raise data.train_tokens or "
            "data.train_characters."
        )


def _check_held_out(val: ShardWriter, dropped: DroppedDocuments, held_out_tokens: int) -> None:
    if val.count >= held_out_tokens:
        return
    lost = (
        f"after {dropped.dropped_documents} of {dropped.documents} documents were dropped for {dropped.ngram_tokens} "
        "tokens in a row that stand in the training text (data.near_duplicate_tokens)"
        if dropped.dropped_documents
        else f"in {dropped.documents} documents"
    )
    raise InputError(
        f"{val.path.name}: found {val.count} held-out tokens {lost}, expected data.held_out_tokens = "
        f"{held_out_tokens}; use more text or raise data.held_out_margin or data.held_out_fraction: text is collected "
        "for data.held_out_tokens * data.held_out_margin."
    )


# --- metadata


def _id_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """Metadata of the ids of a tokenizer; all token shards that are joined have the same."""
    return {
        "dtype": id_dtype(tokenizer.vocab_size).name,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "end_of_text": tokenizer.end_of_text,
    }


def _common_id_metadata(paths: Iterable[Path]) -> dict[str, Any]:
    kinds = {_read_ids(path, IdMetadata): path for path in paths}
    if len(kinds) != 1:
        raise InputError(f"token shards: found {len(kinds)} kinds of ids, expected one tokenizer.")
    return json.loads(kinds.popitem()[1].read_text(encoding="utf-8"))


def _metadata(
    id_metadata: dict[str, Any], train: ShardWriter, val: ShardWriter, dropped: DroppedDocuments
) -> dict[str, Any]:
    """Metadata of joined shards: that of the ids and of each file, and the digest of the training data."""
    parts: dict[str, dict[str, Any]] = {
        writer.path.name: {"count": writer.count, "documents": writer.documents, "sha256": writer.hash.hexdigest()}
        for writer in (train, val)
    }
    parts[val.path.name]["near_duplicates"] = asdict(dropped)
    return id_metadata | {"parts": parts, "digest": _training_digest(id_metadata, train.hash.hexdigest())}


def _training_digest(id_metadata: dict[str, Any], train_sha256: str) -> str:
    """Digest of the training ids and their tokenizer, which identifies the data of a checkpoint.

    It is the SHA-256 of the canonical JSON of [id metadata, SHA-256 of the training ids]. In this form the key
    `vocab_size` is called "vocabulary", as in the first version of the file, so that digests of existing runs hold.
    """
    hashed = {"vocabulary" if key == "vocab_size" else key: value for key, value in id_metadata.items()}
    return hashlib.sha256(canonical_json([hashed, train_sha256]).encode()).hexdigest()


@dataclass(frozen=True)
class IdMetadata:
    """What the metadata says of the ids; old files lack the size of the vocabulary."""

    dtype: str
    end_of_text: Count
    tokenizer: str | None = None
    vocab_size: Count | None = None


@dataclass(frozen=True)
class PartMetadata:
    """What the metadata says of one file of ids."""

    count: Count
    sha256: str


@dataclass(frozen=True)
class TokenMetadata(IdMetadata):
    """What is read of the metadata that join_tokens writes."""

    parts: dict[str, PartMetadata] = field(default_factory=dict)
    digest: str | None = None


def read_metadata(path: Path, form: type[T]) -> T:
    """The part of the metadata of a token shard that `form`, a dataclass, has. Raises InputError."""
    try:
        return parse(path.read_bytes(), form)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: found no description of tokens ({first_line(error)}), expected the metadata that join_tokens "
            "writes."
        ) from error


def _read_ids(path: Path, form: type[M]) -> M:
    """Metadata with a known dtype."""
    metadata = read_metadata(path, form)
    if metadata.dtype not in DTYPES:
        raise InputError(f"{path}: found the dtype {metadata.dtype!r}, expected one of {', '.join(DTYPES)}.")
    return metadata


def open_shard(path: Path, metadata_path: Path, vocab_size: int | None = None) -> np.ndarray:
    """Open a file of ids as a read-only memory map: uint16 or uint32 (tokens,).

    Length and SHA-256 are checked against the metadata, and the ids against the vocabulary. Once the file is read for
    its SHA-256, the highest id costs little.

    Args:
        path: The file.
        metadata_path: Its metadata.
        vocab_size: Number of ids that the reader knows; None for those of the metadata.

    Raises:
        InputError: if the metadata does not describe the file, or the file is missing or has another content.
    """
    metadata = _read_ids(metadata_path, TokenMetadata)
    if path.name not in metadata.parts:
        raise InputError(
            f"{metadata_path}: found no description of {path.name}, expected the metadata that join_tokens writes."
        )
    dtype, part = DTYPES[metadata.dtype], metadata.parts[path.name]
    _check_file(path, part, dtype, metadata_path)
    if not part.count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    shard = np.memmap(path, dtype=dtype, mode="r")
    known = [size for size in (vocab_size, metadata.vocab_size) if size is not None]
    if known and (highest := int(shard.max())) >= min(known):
        raise InputError(f"{path}: found the token id {highest}, expected ids below {min(known)}, the vocabulary.")
    return shard


def _check_file(path: Path, part: PartMetadata, dtype: np.dtype, metadata_path: Path) -> None:
    """Refuse a file that has not the length and the SHA-256 that the metadata says."""
    expected, digest, itemsize = part.count, part.sha256, dtype.itemsize
    if not path.is_file():
        raise InputError(f"{path}: found no file, expected a token shard of {expected} tokens.")
    size = path.stat().st_size
    if size != expected * itemsize:
        raise InputError(
            f"{path}: found {size} bytes, {size / itemsize:g} tokens, expected {expected} tokens, as "
            f"{metadata_path.name} says."
        )
    if (found := sha256(path)) != digest:
        raise InputError(
            f"{path}: found tokens with the SHA-256 {found[:12]}…, expected {digest[:12]}…, as {metadata_path.name} "
            f"says; remove the file and call `snakemake {path}`."
        )


def read_digest(metadata_path: Path) -> str:
    """Digest of the training data that the metadata describes."""
    digest = _read_ids(metadata_path, TokenMetadata).digest
    if digest is None:
        raise InputError(f"{metadata_path}: found no digest, expected the metadata that join_tokens writes.")
    return digest


def read_end_of_text(metadata_path: Path) -> int:
    """Id of the end of text in the token shards that the metadata describes."""
    return _read_ids(metadata_path, TokenMetadata).end_of_text
