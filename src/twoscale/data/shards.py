"""Token shards: the ids of a text, as training reads them.

A token shard is three files. Two hold little-endian ids and nothing else, uint16 or, where a
vocabulary needs it, uint32: of the training documents and of the held-out documents. The third, the
metadata, is JSON.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from twoscale.base import first_line, mismatch, sha256
from twoscale.config.types import JsonCount, parse_json

T = TypeVar("T")
DTYPES = {dtype.name: dtype for dtype in (np.dtype("<u2"), np.dtype("<u4"))}  # of ids on disk


class TokenShard(NamedTuple):
    """Paths of the three files of a token shard."""

    train: Path
    val: Path
    metadata: Path


@dataclass(frozen=True, kw_only=True)
class IdMetadata:
    """Metadata of the ids, in the order of the file; old files lack the size of the vocabulary."""

    dtype: Literal["uint16", "uint32"]
    tokenizer: str | None = None
    vocab_size: JsonCount | None = None
    end_of_text: JsonCount


@dataclass(frozen=True)
class FileMetadata:
    count: JsonCount
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TokenMetadata(IdMetadata):
    """The keys that are read of the metadata of join_tokens; `digest` is of the training data."""

    parts: dict[str, FileMetadata]
    digest: str


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype of token shards that holds ids below `vocab_size`: uint16 or uint32."""
    return DTYPES["uint16" if vocab_size <= 2**16 else "uint32"]


def read_metadata(path: Path, form: type[T]) -> T:
    """The part of the metadata of a token shard that `form`, a dataclass, has."""
    try:
        return parse_json(path.read_bytes(), form)
    except (OSError, ValueError) as error:
        found = f"no description of tokens ({first_line(error)})"
        raise mismatch(path, found, "metadata written by join_tokens") from error


def open_shard(path: Path, metadata_path: Path, vocab_size: int | None = None) -> np.ndarray:
    """Open a file of ids as a read-only memory map: uint16 or uint32 (tokens,).

    Raises InputError if the file is not the one that the metadata describes, or an id is not below
    `vocab_size`, the number of ids that the reader knows, and that in the metadata.
    """
    metadata = read_metadata(metadata_path, TokenMetadata)
    described = metadata.parts.get(path.name)
    dtype = DTYPES[metadata.dtype]
    if described is None:
        raise mismatch(metadata_path, f"no description of {path.name}", "that of join_tokens")
    if not path.is_file() or sha256(path) != described.sha256:
        found = f"{path.stat().st_size / dtype.itemsize:g} tokens" if path.is_file() else "no file"
        expected = (
            f"the {described.count} tokens with the SHA-256 {described.sha256[:12]}…, as"
            f" {metadata_path.name} says; remove the file and run `snakemake {path}`"
        )
        raise mismatch(path, found, expected)
    if not described.count:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    shard = np.memmap(path, dtype=dtype, mode="r")
    # the file was just read for its SHA-256, so the highest id costs little
    highest = int(shard.max())
    for limit in (vocab_size, metadata.vocab_size):
        if limit is not None and highest >= limit:
            expected = f"ids below the vocabulary size {limit}"
            raise mismatch(path, f"the token id {highest}", expected)
    return shard
