"""From text to tokens: the ids of each text shard, and all of them joined without near-duplicates."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from twoscale.base import InputError, canonical_json, meter, replacing, sha256
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
    # contexts exit in reverse order, so the metadata appears last
    with (
        replacing(token_shard.metadata) as metadata,
        replacing(token_shard.train) as train_path,
        replacing(token_shard.val) as val_path,
        train_path.open("wb") as train,
        val_path.open("wb") as val,
        meter(f"tokens {text_shard.stem}", None, "tok") as bar,
    ):
        for held_out, texts in iter_shards([text_shard]):
            for excluded, text in zip(held_out, texts, strict=True):
                ids = tokenizer.encode_document(text)
                (val if excluded else train).write(ids.data)
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

    Returns the counts of the dropped documents, which are in the metadata too. Raises InputError if there are too few
    training ids or held-out ids, or the shards are from different tokenizers.
    """
    kinds = {read_metadata(shard.metadata, IdMetadata) for shard in shards}
    if len(kinds) != 1:
        raise InputError(f"token shards: found ids of {len(kinds)} tokenizers, expected those of one.")
    id_metadata = asdict(kinds.pop())
    end_of_text, dtype = id_metadata["end_of_text"], DTYPES[id_metadata["dtype"]]
    training = [shard.train for shard in shards]
    held_out = np.concatenate([np.fromfile(shard.val, dtype) for shard in shards])
    # contexts exit in reverse order, so the metadata appears last
    with replacing(joined.metadata) as metadata, replacing(joined.train) as train, replacing(joined.val) as val:
        with train.open("wb") as file:
            for ids in token_chunks(training, dtype):
                file.write(ids.data)
        parts = {joined.train.name: _described(train, dtype, end_of_text)}
        if context_length is not None and parts[joined.train.name]["count"] < context_length + 1:
            raise InputError(
                f"{joined.train.name}: found {parts[joined.train.name]['count']} tokens, expected at least "
                f"{context_length + 1}, one sequence of model.context_length tokens and a target; use more text, or "
                "raise data.train_tokens or data.train_characters."
            )
        kept, dropped = drop_near_duplicates(
            held_out, end_of_text, near_duplicate_tokens, lambda: token_chunks(training, dtype)
        )
        if len(kept) < held_out_tokens:
            raise InputError(
                f"{joined.val.name}: found {len(kept)} held-out tokens after {dropped.dropped_documents} of "
                f"{dropped.documents} documents were dropped for {near_duplicate_tokens} tokens in a row that also "
                f"occur in the training text, expected data.held_out_tokens = {held_out_tokens}; raise "
                "data.held_out_margin or data.held_out_fraction, use more text, or request fewer tokens."
            )
        kept[:held_out_tokens].tofile(val)
        parts[joined.val.name] = _described(val, dtype, end_of_text) | {"near_duplicates": asdict(dropped)}
        digest = _training_digest(id_metadata, parts[joined.train.name]["sha256"])
        described = id_metadata | {"parts": parts, "digest": digest}
        metadata.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return dropped


def token_chunks(paths: Iterable[Path], dtype: np.dtype) -> Iterator[np.ndarray]:
    """The ids in the files, at most CHUNK at a time."""
    for path in paths:
        with path.open("rb") as file:
            while len(ids := np.fromfile(file, dtype, CHUNK)):
                yield ids


def _described(path: Path, dtype: np.dtype, end_of_text: int) -> dict[str, Any]:
    """Metadata of a file of ids; its documents include a last one that is cut."""
    count, documents, last = 0, 0, end_of_text
    for ids in token_chunks([path], dtype):
        count += len(ids)
        documents += int(np.count_nonzero(ids == end_of_text))
        last = int(ids[-1])
    return {"count": count, "documents": documents + (last != end_of_text), "sha256": sha256(path)}


def _training_digest(id_metadata: dict[str, Any], train_sha256: str) -> str:
    """Digest of the training ids and their tokenizer, which identifies the data of a checkpoint.

    It is the SHA-256 of the canonical JSON of [id metadata, SHA-256 of the training ids]. In this form the key
    `vocab_size` is called "vocabulary", as in the first version of the file, so that digests of existing runs hold.
    """
    hashed = {"vocabulary" if key == "vocab_size" else key: value for key, value in id_metadata.items()}
    return hashlib.sha256(canonical_json([hashed, train_sha256]).encode()).hexdigest()
