"""From text to tokens: the ids of each text shard, and all of them joined without near-duplicates.

Held-out near-duplicates of the training text are found by their n-grams of tokens. The hashes of
all held-out n-grams are in memory; the training tokens are read in chunks. Every match is verified
token by token. A match is missed only if two different held-out n-grams have the same 64-bit hash:
below 1e-7 for 1.5 million n-grams.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twoscale.base import canonical_json, meter, mismatch, replacing, sha256
from twoscale.data.shards import DTYPES, IdMetadata, TokenShard, id_dtype, read_metadata
from twoscale.data.text import iter_shards
from twoscale.data.tokenizer import Tokenizer
from twoscale.rng import stream

_CHUNK = 2**20  # training ids in memory when shards are joined
_BASE = 0x9E3779B97F4A7C15  # of the polynomial hash modulo 2**64; odd
_BITMAP_RATIO = 16  # least bits of the prefilter per held-out n-gram
_MAX_BITMAP = 2**26

Chunks = Iterable[np.ndarray]  # consecutive ids, uint16 (tokens,) each


@dataclass(frozen=True)
class DroppedDocuments:
    """Result of `drop_near_duplicates`, as in the metadata of join_tokens."""

    ngram_tokens: int
    documents: int  # examined
    tokens: int
    dropped_documents: int
    dropped_tokens: int
    share_before: float  # of the examined tokens that are inside an n-gram of the training tokens
    share_after: float  # of the tokens that remain


def tokenize_text(text_shard: Path, tokenizer: Tokenizer, token_shard: TokenShard) -> None:
    """Write the documents of a text shard as a token shard.

    Documents keep their order, and each is followed by the end of text. The files appear together.
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

    A held-out document in which `near_duplicate_tokens` tokens in a row occur in the training
    tokens is dropped; the first `held_out_tokens` ids that remain are written. `context_length` is
    None where nothing is trained and there may be no training tokens. The held-out ids are in
    memory, the training ids are not. The files appear together.

    Raises InputError if there are too few training ids or held-out ids, or the shards are from
    different tokenizers.
    """
    kinds = {read_metadata(shard.metadata, IdMetadata) for shard in shards}
    if len(kinds) != 1:
        raise mismatch("token shards", f"ids of {len(kinds)} tokenizers", "those of one")
    (ids,) = kinds
    dtype = DTYPES[ids.dtype]
    end_of_text = ids.end_of_text
    training = [shard.train for shard in shards]
    held_out = np.concatenate([np.fromfile(shard.val, dtype) for shard in shards])
    # contexts exit in reverse order, so the metadata appears last
    with (
        replacing(joined.metadata) as metadata,
        replacing(joined.train) as train,
        replacing(joined.val) as val,
    ):
        with train.open("wb") as file:
            for chunk in _token_chunks(training, dtype):
                file.write(chunk.data)
        of_train = _described(train, dtype, end_of_text)
        if context_length is not None and of_train["count"] <= context_length:
            expected = (
                f"at least {context_length + 1}, model.context_length tokens and a target; raise"
                f" data.train_tokens or data.train_characters, or use more text"
            )
            raise mismatch(joined.train.name, f"{of_train['count']} tokens", expected)
        # a new iterator over the training ids for each search
        kept, dropped = drop_near_duplicates(
            held_out, end_of_text, near_duplicate_tokens, lambda: _token_chunks(training, dtype)
        )
        if len(kept) < held_out_tokens:
            found = (
                f"{len(kept)} held-out tokens after {dropped.dropped_documents} of"
                f" {dropped.documents} documents were dropped as near-duplicates of training text"
            )
            expected = (
                f"data.held_out_tokens = {held_out_tokens}; raise data.held_out_margin or"
                f" data.held_out_fraction"
            )
            raise mismatch(joined.val.name, found, expected)
        kept[:held_out_tokens].tofile(val)
        of_val = _described(val, dtype, end_of_text) | {"near_duplicates": asdict(dropped)}
        described = asdict(ids) | {
            "parts": {joined.train.name: of_train, joined.val.name: of_val},
            "digest": _digest(ids, of_train["sha256"]),
        }
        metadata.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return dropped


def _digest(ids: IdMetadata, sha256: str) -> str:
    """Identifies the training data of a checkpoint."""
    known = asdict(ids)
    # the name in the first version of the file, so that digests of existing runs hold
    known["vocabulary"] = known.pop("vocab_size")
    return hashlib.sha256(canonical_json([known, sha256]).encode()).hexdigest()


def _token_chunks(paths: Iterable[Path], dtype: np.dtype) -> Iterator[np.ndarray]:
    """The ids in the files, at most _CHUNK at a time."""
    for path in paths:
        with path.open("rb") as file:
            while len(ids := np.fromfile(file, dtype, _CHUNK)):
                yield ids


def _described(path: Path, dtype: np.dtype, end_of_text: int) -> dict[str, Any]:
    """Metadata of a file of ids; its documents include a last one that is cut."""
    count, documents, last = 0, 0, end_of_text
    for ids in _token_chunks([path], dtype):
        count += len(ids)
        documents += int(np.count_nonzero(ids == end_of_text))
        last = int(ids[-1])
    return {"count": count, "documents": documents + (last != end_of_text), "sha256": sha256(path)}


# --- near-duplicates


def drop_near_duplicates(
    held_out: np.ndarray, end_of_text: int, n: int, training: Callable[[], Chunks]
) -> tuple[np.ndarray, DroppedDocuments]:
    """Drop every held-out document with an n-gram that occurs in the training tokens.

    N-grams run across the ends of documents on both sides, as the sequences do that a model reads;
    one that is in several documents counts for the document of its middle token. Dropping documents
    creates new neighbours, so the search is repeated until no n-gram is found; the last search
    gives `share_after`.

    `held_out` has the ids of the held-out documents, each with its end of text: uint16 (tokens,).
    `n` is at least 2. `training` returns an iterator over the training ids, once per search.
    Returns the ids of the documents that remain, in order, and the counts.
    """
    kept = held_out
    shares = []
    while True:
        found = HeldOutNgrams(kept, n).found_in(training())
        begins = np.flatnonzero(found)
        # changes of the number of found n-grams that a token is in
        changes = np.zeros(len(kept) + 1, dtype=np.int64)
        changes[begins] += 1
        changes[begins + n] -= 1
        inside = np.count_nonzero(changes[:-1].cumsum())  # tokens
        shares.append(inside / max(len(kept), 1))
        if not found.any():
            break
        ends = kept == end_of_text
        documents = np.cumsum(ends) - ends  # (tokens,); an end of text belongs to its document
        dropped = np.unique(documents[begins + n // 2])
        kept = kept[~np.isin(documents, dropped)]
    examined = int(np.count_nonzero(held_out == end_of_text))
    remaining = int(np.count_nonzero(kept == end_of_text))
    return kept, DroppedDocuments(
        ngram_tokens=n,
        documents=examined,
        tokens=len(held_out),
        dropped_documents=examined - remaining,
        dropped_tokens=len(held_out) - len(kept),
        share_before=shares[0],
        share_after=shares[-1],
    )


class HeldOutNgrams:
    """The n-grams of the held-out tokens, uint16 (tokens,), prepared for the search in others."""

    def __init__(self, ids: np.ndarray, n: int) -> None:
        self.ids = ids
        self.n = n
        # distinct hashes ascending, the first position of each, and at each position its index
        found = np.unique(ngram_hashes(ids, n), return_index=True, return_inverse=True)
        self.hashes, self.first, self.index = found
        # so many that few other hashes pass the prefilter
        bits = min(_MAX_BITMAP, _BITMAP_RATIO * max(len(self.hashes), 1)).bit_length()
        self.shift = np.uint64(64 - bits)
        self.bitmap = np.zeros(2**bits, dtype=bool)
        self.bitmap[self._prefix(self.hashes)] = True

    def found_in(self, chunks: Chunks) -> np.ndarray:
        """Whether the n-gram at each position occurs in the chunks: bool (tokens - n + 1,)."""
        found = np.zeros(len(self.hashes), dtype=bool)
        if not len(self.hashes):
            return found
        before = self.ids[:0]
        for chunk in chunks:
            ids = np.concatenate([before, chunk])  # with the last n - 1 ids before it
            found[self._search(ids)] = True
            before = ids[-(self.n - 1) :]
        return found[self.index]

    def _search(self, ids: np.ndarray) -> np.ndarray:
        """Indices into `hashes` of the n-grams that occur in `ids`."""
        hashes = ngram_hashes(ids, self.n)
        positions = np.flatnonzero(self.bitmap[self._prefix(hashes)])  # a prefilter
        wanted = hashes[positions]
        index = np.searchsorted(self.hashes, wanted)
        # larger than all: any index is safe, because the hashes are compared next
        index[index == len(self.hashes)] = 0
        equal = self.hashes[index] == wanted
        index, rows = np.unique(index[equal], return_index=True)  # each n-gram once
        positions = positions[equal][rows]
        # token by token, (found, n) each
        theirs = self._windows(ids)[positions]
        ours = self._windows(self.ids)[self.first[index]]
        return index[(theirs == ours).all(axis=1)]

    def _prefix(self, hashes: np.ndarray) -> np.ndarray:  # the highest bits
        return (hashes >> self.shift).view(np.int64)

    def _windows(self, ids: np.ndarray) -> np.ndarray:
        """View of all n-grams: (tokens - n + 1, n); empty if there are fewer than n tokens."""
        if len(ids) < self.n:
            return np.empty((0, self.n), dtype=ids.dtype)
        return np.lib.stride_tricks.sliding_window_view(ids, self.n)


# Random values of the ids make the hashes of similar n-grams independent.
_ID_HASHES = stream("n-grams").integers(2**64, size=2**16, dtype=np.uint64)


def ngram_hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """Polynomial hash of every n-gram of ids (tokens,) modulo 2**64: uint64 (tokens - n + 1,).

    The hash of a longer n-gram is the hash of its first part times _BASE to the length of the
    second, plus the hash of the second part. So log2(n) additions suffice.
    """
    if ids.dtype.itemsize <= 2:
        single = _ID_HASHES[ids]
    else:  # both halves of an id above 65535 are in its hash
        high = (_ID_HASHES[ids >> 16] ^ _ID_HASHES[0]) >> np.uint64(1)  # 0 below 65536
        single = _ID_HASHES[ids & 0xFFFF] ^ high
    hashes = single
    length = 1
    # n bit by bit: each bit doubles the length, and a 1 adds one id
    for bit in f"{n:b}"[1:]:
        hashes = _joined(hashes, hashes, length, length)
        length *= 2
        if bit == "1":
            hashes = _joined(hashes, single, length, 1)
            length += 1
    return hashes


def _joined(
    first: np.ndarray, second: np.ndarray, first_length: int, second_length: int
) -> np.ndarray:
    """Hashes of n-grams of both lengths together, from those of the parts at every position."""
    # h(ab) = h(a) B^|b| + h(b); uint64 computes modulo 2**64
    hashes = first[:-second_length] * np.uint64(pow(_BASE, second_length, 2**64))
    hashes += second[first_length:]
    return hashes
