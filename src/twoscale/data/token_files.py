"""Token shards: the ids of a text, as training reads them.

A token shard is three files. Two hold little-endian ids and nothing else, uint16 or, where a vocabulary needs it,
uint32: of the training documents and of the held-out documents. The third, the metadata, is JSON that
describes the ids.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from twoscale.base import InputError, first_line, sha256
from twoscale.json import Count, parse

T = TypeVar("T")
M = TypeVar("M", bound="IdMetadata")
DTYPES = {dtype.name: dtype for dtype in (np.dtype("<u2"), np.dtype("<u4"))}  # of ids on disk


class TokenShard(NamedTuple):
    """Paths of the three files of a token shard."""

    train: Path
    val: Path
    metadata: Path


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype of token shards that holds ids below `vocab_size`: uint16 or uint32."""
    return next(dtype for dtype in DTYPES.values() if vocab_size <= np.iinfo(dtype).max + 1)


@dataclass(frozen=True)
class IdMetadata:
    """Metadata of the ids; old files lack the size of the vocabulary."""

    dtype: str
    end_of_text: Count
    tokenizer: str | None = None
    vocab_size: Count | None = None


@dataclass(frozen=True)
class PartMetadata:
    """Metadata of one file of ids."""

    count: Count
    sha256: str


@dataclass(frozen=True)
class TokenMetadata(IdMetadata):
    """The keys that are read of the metadata of join_tokens."""

    parts: dict[str, PartMetadata] = field(default_factory=dict)
    digest: str | None = None


def read_metadata(path: Path, form: type[T]) -> T:
    """The part of the metadata of a token shard that `form`, a dataclass, has. Raises InputError."""
    try:
        return parse(path.read_bytes(), form)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: found no description of tokens ({first_line(error)}), expected metadata written by join_tokens."
        ) from error


def read_ids(path: Path, form: type[M]) -> M:
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
        vocab_size: Number of ids that the reader knows; None for the number in the metadata.

    Raises:
        InputError: if the metadata does not describe the file, or the file is missing or has another content.
    """
    metadata = read_ids(metadata_path, TokenMetadata)
    if path.name not in metadata.parts:
        raise InputError(
            f"{metadata_path}: found no description of {path.name}, expected metadata written by join_tokens."
        )
    dtype, part = DTYPES[metadata.dtype], metadata.parts[path.name]
    _check_file(path, part, dtype, metadata_path)
    if not part.count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    shard = np.memmap(path, dtype=dtype, mode="r")
    known = [size for size in (vocab_size, metadata.vocab_size) if size is not None]
    if known and (highest := int(shard.max())) >= min(known):
        raise InputError(f"{path}: found the token id {highest}, expected ids below the vocabulary size {min(known)}.")
    return shard


def _check_file(path: Path, part: PartMetadata, dtype: np.dtype, metadata_path: Path) -> None:
    """Refuse a file that has not the length and the SHA-256 that the metadata says."""
    expected, digest, itemsize = part.count, part.sha256, dtype.itemsize
    if not path.is_file():
        raise InputError(f"{path}: found no file, expected a token shard of {expected} tokens.")
    size = path.stat().st_size
    if size != expected * itemsize:
        raise InputError(
            f"{path}: found {size / itemsize:g} tokens ({size} bytes), expected {expected} tokens, as in "
            f"{metadata_path.name}."
        )
    if (found := sha256(path)) != digest:
        raise InputError(
            f"{path}: found tokens with the SHA-256 {found[:12]}…, expected {digest[:12]}…, as {metadata_path.name} "
            f"says; remove the file and run `snakemake {path}`."
        )


def read_digest(metadata_path: Path) -> str:
    """Digest of the training data that the metadata describes."""
    digest = read_ids(metadata_path, TokenMetadata).digest
    if digest is None:
        raise InputError(f"{metadata_path}: found no digest, expected metadata written by join_tokens.")
    return digest


def read_end_of_text(metadata_path: Path) -> int:
    """Id of the end of text in the token shards that the metadata describes."""
    return read_ids(metadata_path, TokenMetadata).end_of_text
