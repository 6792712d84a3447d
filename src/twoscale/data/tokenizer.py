"""Tokenizers: GPT-2's, a byte-level BPE trained on the run's text, bytes, and published ones.

tiktoken's engine runs the first three, the library `tokenizers` the last. Both are imported where
they are used: training opens token shards without a tokenizer, and the environment of torch does
not have `tokenizers`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twoscale.base import InputError, first_line, mismatch
from twoscale.config.types import parse_json
from twoscale.data.shards import id_dtype

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
_COUNTING_THREADS = 4
# SHA-256 of the file that `fetch_gpt2` makes; tiktoken checks the two files from which it is made.
_GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"

# GPT-2's text form of bytes: a printable byte is its Latin-1 character, the others are characters
# from U+0100 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
CHARACTER_TO_BYTE = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + number): byte
    for number, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's form of a space

# Files next to tokenizer.json that may name the end of text, each with the key of its name or its
# id.
_SETTINGS = (
    ("tokenizer_config.json", "eos_token"),
    ("generation_config.json", "eos_token_id"),
    ("config.json", "eos_token_id"),
)


@dataclass(frozen=True)
class Tokenizer:
    """Converts text to ids and back.

    A special token that is spelled out in a text is encoded as ordinary text.
    """

    name: str
    encoding: tiktoken.Encoding

    @property
    def end_of_text(self) -> int:
        return self.encoding.eot_token

    @property
    def vocab_size(self) -> int:
        return self.encoding.n_vocab

    def encode(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become replacement characters."""
        return self.encoding.decode(ids)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one id, which may be part of a character."""
        return self.encoding.decode_single_token_bytes(token)

    def encode_document(self, text: str) -> np.ndarray:
        """Ids of a document and its end of text: uint16 or uint32 (tokens,)."""
        # the only call of tiktoken that builds no Python list
        ids = self.encoding.encode_to_numpy(text, disallowed_special=())
        return np.append(ids, np.uint32(self.end_of_text)).astype(id_dtype(self.vocab_size))


@dataclass(frozen=True)
class PublishedTokenizer:
    """The tokenizer of a published model, with the interface of `Tokenizer`.

    A text gets what the post-processor of tokenizer.json puts before it, such as a begin of text,
    and not what it puts after it.
    """

    engine: tokenizers.Tokenizer
    prefix: tuple[int, ...]  # ids before every text
    end_of_text: int  # id after every document
    name: str = "published"

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return 1 + max(self.engine.get_vocab(with_added_tokens=True).values())

    @cached_property
    def is_byte_level(self) -> bool:
        # a decoder may be one of a sequence of decoders
        return '"ByteLevel"' in json.dumps(json.loads(self.engine.to_str())["decoder"])

    def encode(self, text: str) -> list[int]:
        return [*self.prefix, *self.engine.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens."""
        return self.engine.decode(list(ids), skip_special_tokens=True)

    def bytes_of(self, token: int) -> bytes:
        piece = self.engine.id_to_token(token)
        if piece is None:  # a row of the embedding that no token has
            return b""
        if self.is_byte_level and CHARACTER_TO_BYTE.keys() >= set(piece):
            return _bytes_of(piece)
        # SentencePiece's form of a single byte, such as <0x0A>
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:5])
        return piece.replace(SPACE, " ").encode()

    def encode_document(self, text: str) -> np.ndarray:
        """Ids of a document with prefix and end of text: uint16 or uint32 (tokens,)."""
        ids = [*self.encode(text), self.end_of_text]
        return np.array(ids, dtype=id_dtype(self.vocab_size))


# --- loading


def load_tokenizer(name: str, path: Path | None = None) -> Tokenizer:
    """Load the tokenizer called `name` in the config key tokenizer.name from its file; "bytes"
    needs none.

    For "published" it is a PublishedTokenizer, which has the same methods.
    """
    if name == "bytes":
        return byte_level()
    if path is None:
        expected = f"the tokenizer file for tokenizer.name: {name}"
        raise mismatch("option --tokenizer", "nothing", expected)
    load: Any = {"gpt2": load_gpt2, "bpe": load_bpe, "published": _load_published}[name]
    return load(path)


def byte_level() -> Tokenizer:
    """One id per byte, and one for the end of text."""
    return Tokenizer("bytes", _encoding("bytes", {bytes([byte]): byte for byte in range(256)}))


def load_gpt2(path: Path) -> Tokenizer:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != _GPT2_SHA256:
        raise mismatch(path, "another tokenizer", "GPT-2's as written by fetch_gpt2")
    ranks = {}
    for line in content.splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return Tokenizer("gpt2", _encoding("gpt2", ranks))


def load_bpe(path: Path) -> Tokenizer:
    """Load a byte-level BPE that `train_bpe` trained, a file of the `tokenizers` library."""
    try:
        saved = parse_json(path.read_bytes(), dict[str, Any])
        (end,) = saved["added_tokens"]  # the only one
        # tiktoken merges by rank, `tokenizers` by a list of merges. The two agree if ranks are ids:
        # the bytes first, then the merges in the order of training, then the end of text.
        vocabulary = saved["model"]["vocab"].items()
        ranks = {_bytes_of(token): rank for token, rank in vocabulary}
        consecutive = list(range(len(ranks)))
        if sorted(ranks.values()) != consecutive or end["id"] != len(ranks):
            raise ValueError(f"{END_OF_TEXT} is not the last of consecutive ids")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{path}: cannot be used ({found}), expected a BPE as written by train_tokenizer."
        ) from error
    return Tokenizer("bpe", _encoding("bpe", ranks))


def _bytes_of(piece: str) -> bytes:
    """The bytes of a token in GPT-2's text form; KeyError for another form."""
    return bytes(CHARACTER_TO_BYTE[character] for character in piece)


def _encoding(name: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """tiktoken's engine for merges whose ranks are their ids; the end of text has the next id."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str as GPT2_PATTERN

    end = {END_OF_TEXT: len(ranks)}
    return tiktoken.Encoding(name, pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=end)


def _load_published(path: Path) -> PublishedTokenizer:
    """Load tokenizer.json; other files of its folder name the end of text."""
    import tokenizers

    try:
        engine = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises nothing more specific
        found = first_line(error)
        raise InputError(f"{path}: cannot be read ({found}), expected a tokenizer.json.") from error
    # special tokens that a text spells out are encoded as ordinary text
    engine.encode_special_tokens = True
    engine.no_truncation()
    engine.no_padding()
    # what the post-processor puts before a text
    plain = engine.encode("a", add_special_tokens=False).ids
    whole = engine.encode("a", add_special_tokens=True).ids
    starts = [start for start in range(len(whole)) if whole[start : start + len(plain)] == plain]
    prefix = whole[: starts[-1]] if starts else ()  # before the last "a"
    return PublishedTokenizer(engine, tuple(prefix), _end_of_text(engine, path.parent))


def _end_of_text(engine: tokenizers.Tokenizer, folder: Path) -> int:
    """The first end of text in the files of _SETTINGS that the tokenizer has."""
    for name, key in _SETTINGS:
        try:
            value = parse_json((folder / name).read_bytes(), dict[str, Any]).get(key)
        except (OSError, ValueError):
            continue
        # a name or an id, the first of several, or an object with the name
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            value = value.get("content")
        token = engine.token_to_id(value) if isinstance(value, str) else value
        # the library takes unsigned ids of 32 bits
        if isinstance(token, int) and 0 <= token < 2**32 and engine.id_to_token(token) is not None:
            return token
    names = ", ".join(name for name, _ in _SETTINGS)
    found = f"no end-of-text token in {names}"
    raise mismatch(folder, found, "one of the tokens in tokenizer.json")


# --- GPT-2's file, training, counting


def fetch_gpt2() -> bytes:
    """Download GPT-2's tokenizer, or read it from the folder that TIKTOKEN_CACHE_DIR names.

    Returns the merges in tiktoken's format: one line per token, the token in Base64 and its rank.
    """
    import tiktoken
    from tiktoken_ext.openai_public import gpt2

    constants = gpt2.__code__.co_consts
    addresses = [value for value in constants if isinstance(value, str) and "://" in value]
    # tiktoken calls a file in its cache by the SHA-1 of its address
    names = {hashlib.sha1(address.encode()).hexdigest(): address for address in addresses}
    cache = Path(os.environ.get("TIKTOKEN_CACHE_DIR", ""))
    present = [name for name in names if (cache / name).exists()]
    try:
        ranks = tiktoken.get_encoding("gpt2")._mergeable_ranks
    except (OSError, ValueError) as error:  # also of the network, and for other hashes
        wanted = " and ".join(
            f"{address.rpartition('/')[2]} as {name}" for name, address in names.items()
        )
        damaged = " and ".join(name for name in present if not (cache / name).exists())
        removed = f"; {damaged} was damaged, and tiktoken has removed it" if damaged else ""
        raise InputError(
            f"config key tokenizer.name: gpt2 is not in tiktoken's cache and could not be"
            f" downloaded ({first_line(error)}); connect to the network once, or set"
            f" TIKTOKEN_CACHE_DIR to a folder with {wanted}{removed}."
        ) from error
    by_rank = sorted(ranks.items(), key=itemgetter(1))
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in by_rank)


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE on texts that are split as GPT-2 splits them.

    The merges are a function of the texts. Memory grows with the number of distinct words, not with
    the text. The end of text is the last of the `vocab_size` ids. Returns the tokenizer in the JSON
    format of the `tokenizers` library.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trainee

    trainee = Trainee(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainee.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,  # skip merges seen once
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trainee.train_from_iterator(texts, trainer)
    # added after training, so that it has the last id, and the rank of a merge is its id
    trainee.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    found = trainee.get_vocab_size()
    if found != vocab_size:
        expected = (
            f"at most {found}, the number of ids found in the training text; use more text or a"
            f" smaller vocabulary"
        )
        raise mismatch("config key tokenizer.vocab_size", vocab_size, expected)
    return trainee.to_str(pretty=True)


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Number of ids of each document in a token shard, including its end of text."""
    encode = tokenizer.encoding.encode_ordinary_batch
    return [len(ids) + 1 for ids in encode(list(texts), num_threads=_COUNTING_THREADS)]
