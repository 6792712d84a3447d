"""From text to token files: the ids of each text shard, and all of them joined."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from twoscale.base import InputError, canonical_json, meter, replacing
from twoscale.data.near_duplicates import DroppedDocuments, drop_near_duplicates
from twoscale.data.text import iter_shards
from twoscale.data.token_files import DTYPES, IdMetadata, TokenShard, id_dtype, read_ids
from twoscale.data.tokenizer import Tokenizer
from twoscale.json import Count

CHUNK = 2**20  # training ids in memory when shards are joined
CHARACTERS = "held_out_characters"  # in the metadata of a shard, not in that of joined shards


@dataclass(frozen=True)
class ShardMetadata(IdMetadata):
    """Metadata of one token shard; shards are of one kind whatever the length of their text."""

    held_out_characters: Count = field(default=0, compare=False)


@dataclass(frozen=True)
class HeldOutQuota:
    """How much held-out text is collected: `size` in `unit`, and the config keys data.held_out_*."""

    unit: str
    size: int
    margin: float
    fraction: float


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
        bar = stack.enter_context(meter(f"tokens {text_shard.stem}", None, "tok"))
        characters = 0
        for held_out, texts in iter_shards([text_shard]):
            for excluded, text in zip(held_out, texts, strict=True):
                ids = tokenizer.encode_document(text)
                (val if excluded else train).append(ids)
                characters += len(text) if excluded else 0
                bar.update(len(ids))
        described = _id_metadata(tokenizer) | {CHARACTERS: characters}
        metadata.write_text(json.dumps(described) + "\n", encoding="utf-8")


def join_tokens(
    shards: Sequence[TokenShard],
    joined: TokenShard,
    held_out_tokens: int,
    near_duplicate_tokens: int,
    context_length: int | None,
    collected: HeldOutQuota,
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
        collected: How much held-out text was to be collected, for the advice on too little of it.

    Returns:
        The counts of the dropped documents, which are in the metadata too.

    Raises:
        InputError: if training ids are fewer than one sequence and a target, fewer held-out ids than
            `held_out_tokens` remain, or the shards are from different tokenizers.
    """
    id_metadata, characters = _common_id_metadata([shard.metadata for shard in shards])
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
        size = characters if collected.unit == "characters" else dropped.tokens - dropped.documents
        _check_held_out(val, dropped, held_out_tokens, collected, is_full=size >= collected.size)
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
        self.file.write(ids)  # type: ignore[call-overload]
        self.hash.update(ids)  # type: ignore[arg-type]
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


def _check_held_out(
    val: ShardWriter, dropped: DroppedDocuments, held_out_tokens: int, collected: HeldOutQuota, is_full: bool
) -> None:
    """Refuse too few held-out tokens; the advice is about the limit that binds, and has values that work."""
    if val.count >= held_out_tokens:
        return
    lost = (
        f"after {dropped.dropped_documents} of {dropped.documents} documents were dropped for {dropped.ngram_tokens} "
        "tokens in a row that also occur in the training text (data.near_duplicate_tokens)"
        if dropped.dropped_documents
        else f"in {dropped.documents} documents"
    )
    raise InputError(
        f"{val.path.name}: found {val.count} held-out tokens {lost}, expected data.held_out_tokens = "
        f"{held_out_tokens}; {_limit(collected, is_full)}{_fewer(val.count, held_out_tokens, collected.margin)}."
    )


def _limit(collected: HeldOutQuota, is_full: bool) -> str:
    if is_full:
        key, value, limit = "margin", collected.margin, "text was collected up to this multiple of data.held_out_tokens"
    else:
        key, value, limit = "fraction", collected.fraction, "the source has no further held-out text; or use more text"
    return f"raise data.held_out_{key} (now {value:g}): {limit}"


def _fewer(found: int, wanted: int, margin: float) -> str:
    """Advice to ask for what was found: with at least the same text collected, it is found again."""
    same = math.ceil(100 * margin * wanted / found) / 100 if found else 0
    keys = f"data: {{held_out_tokens: {found}, held_out_margin: {same}}}"
    return f"; or request only as many as this text has, with {keys}" if found else ""


# --- metadata


def _id_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """Metadata of the ids of a tokenizer; all token shards that are joined have the same."""
    return {
        "dtype": id_dtype(tokenizer.vocab_size).name,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "end_of_text": tokenizer.end_of_text,
    }


def _common_id_metadata(paths: Sequence[Path]) -> tuple[dict[str, Any], int]:
    """The metadata of ids that the shards share, and the characters of their held-out text."""
    shards = [read_ids(path, ShardMetadata) for path in paths]
    if (kinds := len(set(shards))) != 1:
        raise InputError(f"token shards: found ids of {kinds} tokenizers, expected those of one.")
    id_metadata = json.loads(paths[0].read_text(encoding="utf-8"))
    id_metadata.pop(CHARACTERS, None)
    return id_metadata, sum(shard.held_out_characters for shard in shards)


def _metadata(
    id_metadata: dict[str, Any], train: ShardWriter, val: ShardWriter, dropped: DroppedDocuments
) -> dict[str, Any]:
    """Metadata of joined shards: about the ids and each file, and the digest of the training data."""
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
