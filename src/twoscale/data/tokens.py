"""From text to tokens: the ids of each text shard, and all of them joined without near-duplicates."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from twoscale.base import InputError, canonical_json, meter, replacing
from twoscale.data.near_duplicates import DroppedDocuments, drop_near_duplicates
from twoscale.data.shards import DTYPES, IdMetadata, TokenShard, id_dtype, read_metadata
from twoscale.data.text import iter_shards
from twoscale.data.tokenizer import Tokenizer

CHUNK = 2**20  # training ids in memory when shards are joined


def tokenize_text(text_shard: Path, tokenizer: Tokenizer, token_shard: TokenShard) -> None:
    """Write the documents of a text shard as a token shard, on one thread.

    Documents keep their order, and each is followed by the end of text. The files appear together. Raises InputError
    if the text shard cannot be read.
    """
    with ExitStack() as stack:
        # Contexts exit in reverse order: the metadata is entered first, so it appears last.
        metadata = stack.enter_context(replacing(token_shard.metadata))
        train = stack.enter_context(_writer(token_shard.train, tokenizer.end_of_text))
        val = stack.enter_context(_writer(token_shard.val, tokenizer.end_of_text))
        bar = stack.enter_context(meter(f"tokens {text_shard.stem}", None, "tok"))
        for held_out, texts in iter_shards([text_shard]):
            for excluded, text in zip(held_out, texts, strict=True):
                ids = tokenizer.encode_document(text)
                (val if excluded else train).append(ids)
                bar.update(len(ids))
        described = {
            "dtype": id_dtype(tokenizer.vocab_size).name,
            "tokenizer": tokenizer.name,
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text,
        }
        metadata.write_text(json.dumps(described) + "\n", encoding="utf-8")


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
        InputError: if there are too few training ids or held-out ids, or the shards are from different tokenizers.
    """
    described = {read_metadata(shard.metadata, IdMetadata) for shard in shards}
    if len(described) != 1:
        raise InputError(f"token shards: found ids of {len(described)} tokenizers, expected those of one.")
    id_metadata = asdict(described.pop())
    end_of_text, dtype = id_metadata["end_of_text"], DTYPES[id_metadata["dtype"]]
    training = [shard.train for shard in shards]
    with ExitStack() as stack:
        # Contexts exit in reverse order: the metadata is entered first, so it appears last.
        metadata = stack.enter_context(replacing(joined.metadata))
        train = stack.enter_context(_writer(joined.train, end_of_text))
        val = stack.enter_context(_writer(joined.val, end_of_text))
        for ids in token_chunks(training, dtype):
            train.append(ids)
        if context_length is not None and train.count < context_length + 1:
            raise InputError(
                f"{train.path.name}: found {train.count} tokens, expected at least {context_length + 1}, one sequence "
                "of model.context_length tokens and a target; use more text, or raise data.train_tokens or "
                "data.train_characters."
            )
        held_out = np.concatenate([np.fromfile(shard.val, dtype) for shard in shards])
        kept, dropped = drop_near_duplicates(
            held_out, end_of_text, near_duplicate_tokens, lambda: token_chunks(training, dtype)
        )
        val.append(kept[:held_out_tokens])
        if val.count < held_out_tokens:
            raise InputError(
                f"{val.path.name}: found {val.count} held-out tokens after {dropped.dropped_documents} of "
                f"{dropped.documents} documents were dropped for {near_duplicate_tokens} tokens in a row that also "
                f"occur in the training text, expected data.held_out_tokens = {held_out_tokens}; raise "
                "data.held_out_margin or data.held_out_fraction, use more text, or request fewer tokens."
            )
        parts = {writer.path.name: writer.described for writer in (train, val)}
        parts[val.path.name]["near_duplicates"] = asdict(dropped)
        digest = _training_digest(id_metadata, train.hash.hexdigest())
        metadata.write_text(
            json.dumps(id_metadata | {"parts": parts, "digest": digest}, indent=2) + "\n", encoding="utf-8"
        )
    return dropped


def token_chunks(paths: Iterable[Path], dtype: np.dtype) -> Iterator[np.ndarray]:
    """The ids in the files, at most CHUNK at a time."""
    for path in paths:
        with path.open("rb") as file:
            while len(ids := np.fromfile(file, dtype, CHUNK)):
                yield ids


class ShardWriter:
    """Writes one file of ids; counts ids and documents and updates the file's hash."""

    def __init__(self, path: Path, file: BinaryIO, end_of_text: int) -> None:
        self.path, self.file, self.end_of_text = path, file, end_of_text
        self.count = self._complete_documents = 0
        self._inside_document = False  # whether the last id is not an end of text
        self.hash = hashlib.sha256()

    @property
    def described(self) -> dict[str, Any]:
        """Metadata of the file; its documents include a last one that is cut."""
        documents = self._complete_documents + self._inside_document
        return {"count": self.count, "documents": documents, "sha256": self.hash.hexdigest()}

    def append(self, ids: np.ndarray) -> None:
        if not len(ids):
            return
        self.file.write(ids)  # type: ignore[call-overload]
        self.hash.update(ids)  # type: ignore[arg-type]
        self.count += len(ids)
        self._complete_documents += int(np.count_nonzero(ids == self.end_of_text))
        self._inside_document = bool(ids[-1] != self.end_of_text)


@contextmanager
def _writer(path: Path, end_of_text: int) -> Iterator[ShardWriter]:
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield ShardWriter(path, file, end_of_text)


def _training_digest(id_metadata: dict[str, Any], train_sha256: str) -> str:
    """Digest of the training ids and their tokenizer, which identifies the data of a checkpoint.

    It is the SHA-256 of the canonical JSON of [id metadata, SHA-256 of the training ids]. In this form the key
    `vocab_size` is called "vocabulary", as in the first version of the file, so that digests of existing runs hold.
    """
    hashed = {"vocabulary" if key == "vocab_size" else key: value for key, value in id_metadata.items()}
    return hashlib.sha256(canonical_json([hashed, train_sha256]).encode()).hexdigest()
