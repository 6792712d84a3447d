"""Tokenizers: GPT-2's, a byte-level BPE trained on the run's text, and bytes. tiktoken's engine runs all of them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twoscale.base import InputError, first_line, meter
from twoscale.config import BYTES_VOCAB_SIZE, TOKENIZERS
from twoscale.data.token_files import id_dtype
from twoscale.data.token_ids import CHARACTER_TO_BYTE
from twoscale.json import parse

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"
COUNTING_THREADS = 4
# SHA-256 of the file that the rule fetch_gpt2 writes; tiktoken checks the two files from which it is made.
GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


@dataclass(frozen=True)
class Tokenizer:
    """Converts text to ids and back. A special token that is spelled out in a text is encoded as ordinary text."""

    name: str
    encoding: tiktoken.Encoding

    @property
    def end_of_text(self) -> int:
        return self.encoding.eot_token

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the end of text."""
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
        """Ids of a document and its end of text, as stored in a token shard: uint16 or uint32 (tokens,)."""
        # encode_to_numpy is the only call of tiktoken that builds no Python list; it releases the interpreter lock.
        ids = self.encoding.encode_to_numpy(text, disallowed_special=())
        return np.append(ids, np.uint32(self.end_of_text)).astype(id_dtype(self.vocab_size))


def load_tokenizer(name: str, path: Path | None = None) -> Tokenizer:
    """Load the tokenizer called `name` in the config key tokenizer.name.

    Args:
        name: "gpt2", "bpe", "bytes" or "published".
        path: File of the tokenizer. "bytes" needs none.

    Returns:
        A Tokenizer, for "published" a PublishedTokenizer with the same methods.

    Raises:
        InputError: if the name is unknown, or the file is missing or not the tokenizer's.
    """
    if path is None and name in ("gpt2", "bpe", "published"):
        raise InputError(f"option --tokenizer: found nothing, expected the tokenizer file for tokenizer.name: {name}.")
    match name:
        case "gpt2":
            return load_gpt2(path)  # type: ignore[arg-type]
        case "bytes":
            return byte_level()
        case "bpe":
            return load_bpe(path)  # type: ignore[arg-type]
        case "published":
            # imported here, because the environment of torch does not have its library
            return import_module(TOKENIZERS[name]).load_published(path)
        case _:
            raise InputError(f"config key tokenizer.name: found {name!r}, expected gpt2, bpe, bytes or published.")


def load_gpt2(path: Path) -> Tokenizer:
    """Load GPT-2's tokenizer from the file that the rule fetch_gpt2 writes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}), expected GPT-2's tokenizer.") from error
    if hashlib.sha256(content).hexdigest() != GPT2_SHA256:
        raise InputError(f"{path}: found another tokenizer, expected GPT-2's as written by fetch_gpt2.")
    pairs = (line.split() for line in content.splitlines())
    return Tokenizer("gpt2", _encoding("gpt2", {base64.b64decode(token): int(rank) for token, rank in pairs}))


def byte_level() -> Tokenizer:
    """The tokenizer with one id per byte and one for the end of text."""
    return Tokenizer("bytes", _encoding("bytes", {bytes([byte]): byte for byte in range(BYTES_VOCAB_SIZE - 1)}))


def load_bpe(path: Path) -> Tokenizer:
    """Load a byte-level BPE that `train_bpe` trained, from a file in the format of the `tokenizers` library."""
    try:
        saved = parse(path.read_bytes(), dict[str, Any])
        (end,) = saved["added_tokens"]
        # tiktoken merges by rank, `tokenizers` by a list of merges. The two agree if ranks are ids: the bytes first,
        # then the merges in the order of training, then the end of text.
        vocabulary = saved["model"]["vocab"].items()
        ranks = {bytes(map(CHARACTER_TO_BYTE.__getitem__, token)): rank for token, rank in vocabulary}
        if (end["content"], end["id"]) != (END_OF_TEXT, len(ranks)) or set(ranks.values()) != set(range(len(ranks))):
            raise ValueError(f"{END_OF_TEXT} is not the last of consecutive ids")
        if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
            raise ValueError(f"no id for the byte {missing[0]}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: cannot be used as a tokenizer ({type(error).__name__}: {error}), expected a byte-level BPE "
            "as written by train_tokenizer."
        ) from error
    return Tokenizer("bpe", _encoding("bpe", ranks))


def _encoding(name: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """tiktoken's engine for merges whose ranks are their ids; the end of text has the next id."""
    # imported here, because training opens token shards without a tokenizer
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str as GPT2_PATTERN

    return tiktoken.Encoding(
        name, pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
    )


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE on texts that are split as GPT-2 splits them.

    The merges are a function of the texts. Memory grows with the number of distinct words, not with the text.

    Args:
        texts: Documents.
        vocab_size: Number of ids, including the end of text, which is the last one.

    Returns:
        The tokenizer in the JSON format of the `tokenizers` library.

    Raises:
        InputError: if `vocab_size` is below the number of bytes, or the texts have too few pairs to reach it.
    """
    if vocab_size < BYTES_VOCAB_SIZE:
        raise InputError(
            f"config key tokenizer.vocab_size: found {vocab_size}, expected at least {BYTES_VOCAB_SIZE}, the bytes and "
            "the end-of-text token."
        )
    # imported here, because the environment of torch does not have this library
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Trainee

    trainee = Trainee(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainee.decoder = decoders.ByteLevel()
    trainee.train_from_iterator(_with_progress(texts), _bpe_trainer(vocab_size - 1))
    # added after training, so that the end of text has the last id and the rank of a merge is its id
    trainee.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if trainee.get_vocab_size() != vocab_size:
        raise InputError(
            f"config key tokenizer.vocab_size: found {vocab_size}, expected at most {trainee.get_vocab_size()}, "
            "the number of ids found in the training text; use more text or a smaller vocabulary."
        )
    return trainee.to_str(pretty=True)


def _bpe_trainer(vocab_size: int):
    from tokenizers import pre_tokenizers, trainers

    return trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # skip merges seen once
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _with_progress(texts: Iterable[str]) -> Iterator[str]:
    with meter("tokenizer", None, "char") as bar:
        for text in texts:
            yield text
            bar.update(len(text))


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Number of ids of each document in a token shard, including its end of text."""
    with ThreadPoolExecutor(COUNTING_THREADS) as pool:
        return list(pool.map(lambda text: len(tokenizer.encode_document(text)), texts))
