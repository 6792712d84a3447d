"""Tokenizers, all run by tiktoken's engine, and the token shards that training reads.

A token shard is a file of little-endian uint16 ids and nothing else; what they mean stands in a JSON
metadata beside it, one for the training and the held-out part of a text.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str as GPT2_PATTERN

from twoscale import progress
from twoscale.errors import InputError, first_line
from twoscale.files import replacing
from twoscale.config import BYTES_VOCABULARY
from twoscale.json import canonical_json
from twoscale.data.text import iter_shards

END_OF_TEXT = "<|endoftext|>"
DTYPE = np.dtype("<u2")
COUNTING_THREADS = 4
CHUNK = 2**22  # ids held in memory when shards are joined
# of the file that the rule fetch_gpt2 makes of the two files whose hashes tiktoken knows
GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"

# GPT-2's way to write bytes as text: a printable byte as its Latin-1 character, the others from U+0100 on.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted(set(range(256)) - set(PRINTABLE)))
}


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back. Special tokens that a text spells out are ordinary text."""

    name: str
    encoding: tiktoken.Encoding

    @property
    def end_of_text(self) -> int:
        return self.encoding.eot_token

    @property
    def vocabulary(self) -> int:
        """Number of ids, the end of text included."""
        return self.encoding.n_vocab

    def encode(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become replacement characters."""
        return self.encoding.decode(ids)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one id; a character may be spread over several."""
        return self.encoding.decode_single_token_bytes(token)

    def encode_document(self, text: str) -> np.ndarray:
        """Ids of one document and the end of text, as a shard stores them."""
        # the one call of tiktoken that makes no Python list; releases the interpreter lock
        ids = self.encoding.encode_to_numpy(text, disallowed_special=())
        return np.append(ids, np.uint32(self.end_of_text)).astype(DTYPE)


def gpt2(path: Path) -> Tokenizer:
    """GPT-2's tokenizer, from the file that the rule fetch_gpt2 writes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}), expected GPT-2's tokenizer.") from error
    if hashlib.sha256(content).hexdigest() != GPT2_SHA256:
        raise InputError(f"{path}: found other bytes than GPT-2's tokenizer has, expected what fetch_gpt2 writes.")
    pairs = (line.split() for line in content.splitlines())
    return Tokenizer("gpt2", _encoding("gpt2", {base64.b64decode(token): int(rank) for token, rank in pairs}))


def byte_level() -> Tokenizer:
    """One id a byte, and the end of text."""
    return Tokenizer("bytes", _encoding("bytes", {bytes([byte]): byte for byte in range(BYTES_VOCABULARY - 1)}))


def load_bpe(path: Path) -> Tokenizer:
    """A byte-level BPE that `train_tokenizer` made, from a file in the format of the `tokenizers` library."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        (end,) = saved["added_tokens"]
        ranks = {bytes(map(BYTES.__getitem__, token)): rank for token, rank in saved["model"]["vocab"].items()}
        if (end["content"], end["id"]) != (END_OF_TEXT, len(ranks)) or set(ranks.values()) != set(range(len(ranks))):
            raise ValueError(f"{END_OF_TEXT} is not the last of consecutive ids")
        if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
            raise ValueError(f"no id for the byte {missing[0]}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: found no tokenizer that can be used ({type(error).__name__}: {error}), expected a byte-level BPE "
            "as train_tokenizer writes it."
        ) from error
    return Tokenizer("bpe", _encoding("bpe", ranks))


def load_tokenizer(name: str, path: Path | None = None) -> Tokenizer:
    """The tokenizer of `tokenizer.name`; `path` is its file, where it has one."""
    if path is None and name in ("gpt2", "bpe"):
        raise InputError(f"option --tokenizer: found nothing, expected the file of tokenizer.name: {name}.")
    match name:
        case "gpt2":
            return gpt2(path)
        case "bytes":
            return byte_level()
        case "bpe":
            return load_bpe(path)
        case _:
            raise InputError(f"config key tokenizer.name: found {name!r}, expected gpt2, bpe or bytes.")


def _encoding(name: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """tiktoken's engine on merges ranked by their ids, with the end of text as the id after the last."""
    return tiktoken.Encoding(
        name, pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
    )


def train_tokenizer(texts: Iterable[str], entries: int) -> str:
    """A byte-level BPE of `entries` ids, the end of text included, in the JSON format of `tokenizers`.

    Texts are split as GPT-2 splits them. The merges are a function of the texts; memory grows with the
    number of different words, not with the text. Raises InputError where the text has too few pairs.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trainee

    if entries < BYTES_VOCABULARY:
        raise InputError(
            f"config key tokenizer.vocab_size: found {entries}, expected at least {BYTES_VOCABULARY}, the bytes and the end "
            "of text."
        )
    trainee = Trainee(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainee.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries - 1,
        min_frequency=2,  # a pair seen once is a word learnt by heart
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trainee.train_from_iterator(_counted(texts), trainer)
    # after training, so that the end of text has the last id and the rank of a merge is its id
    trainee.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if trainee.get_vocab_size() != entries:
        raise InputError(
            f"config key tokenizer.vocab_size: found {entries}, expected at most {trainee.get_vocab_size()}, "
            "the number of ids that the training text yields; take more text or fewer entries."
        )
    return trainee.to_str(pretty=True)


def _counted(texts: Iterable[str]) -> Iterator[str]:
    with progress.meter("tokenizer", None, "char") as shown:
        for text in texts:
            yield text
            shown.update(len(text))


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Number of ids that each document takes in a shard, its end of text included."""
    with ThreadPoolExecutor(COUNTING_THREADS) as pool:
        return list(pool.map(lambda text: len(tokenizer.encode_document(text)), texts))


class TokenShard(NamedTuple):
    """The files that the tokens of one text shard become."""

    train: Path
    val: Path
    metadata: Path


def tokenize_text(shard: Path, tokenizer: Tokenizer, shard_files: TokenShard) -> None:
    """Write the documents of a text shard as ids, training and held-out ones apart, on one thread.

    Documents keep their order, each followed by the end of text. The files appear together.
    """
    if tokenizer.vocabulary > np.iinfo(DTYPE).max + 1:
        raise InputError(
            f"tokenizer {tokenizer.name}: found {tokenizer.vocabulary} ids, expected at most 65536 (shards are uint16)."
        )
    with ExitStack() as stack:
        metadata = stack.enter_context(replacing(shard_files.metadata))  # entered first, so renamed last
        train = stack.enter_context(_writing_part(shard_files.train, tokenizer.end_of_text))
        val = stack.enter_context(_writing_part(shard_files.val, tokenizer.end_of_text))
        shown = stack.enter_context(progress.meter(f"tokens {shard.stem}", None, "tok"))
        for held_out, texts in iter_shards([shard]):
            for out, text in zip(held_out, texts, strict=True):
                ids = tokenizer.encode_document(text)
                (val if out else train).append(ids)
                shown.update(len(ids))
        metadata.write_text(json.dumps(_vocabulary_metadata(tokenizer)) + "\n", encoding="utf-8")


def join_tokens(shards: Sequence[TokenShard], joined: TokenShard, held_out_tokens: int, block: int) -> None:
    """Join the shards of all text shards in their order: the two token shards and the metadata that describes them.

    The held-out shard ends after `held_out_tokens` ids. The files appear together. Raises InputError where
    one of the two is shorter than one block and a target, or shards are of different tokenizers.
    """
    meaning = _common_vocabulary_metadata([shard_files.metadata for shard_files in shards])
    with ExitStack() as stack:
        metadata = stack.enter_context(replacing(joined.metadata))  # entered first, so renamed last
        train = stack.enter_context(_writing_part(joined.train, meaning["end_of_text"]))
        val = stack.enter_context(_writing_part(joined.val, meaning["end_of_text"], held_out_tokens))
        for part, paths in ((train, [p.train for p in shards]), (val, [p.val for p in shards])):
            for ids in _chunks(paths):
                part.append(ids)
        for part, keys in (
            (train, "data.train_tokens or data.train_characters"),
            (val, "data.held_out_tokens or data.held_out_fraction"),
        ):
            if part.count < block + 1:
                raise InputError(
                    f"{part.path.name}: found {part.count} tokens, expected at least {block + 1}, one block of "
                    f"model.context_length tokens and a target; take more text, or raise {keys}."
                )
        metadata.write_text(json.dumps(_metadata(meaning, train, val), indent=2) + "\n", encoding="utf-8")


def _chunks(paths: Iterable[Path]) -> Iterator[np.ndarray]:
    """The ids in the files, CHUNK of them at a time."""
    for path in paths:
        with path.open("rb") as file:
            while len(ids := np.fromfile(file, DTYPE, CHUNK)):
                yield ids


def _common_vocabulary_metadata(metadata_files: Iterable[Path]) -> dict[str, Any]:
    meanings = {path.read_text(encoding="utf-8") for path in metadata_files}
    if len(meanings) != 1:
        raise InputError(f"shards of the token shards: found {len(meanings)} kinds of ids, expected one tokenizer.")
    return json.loads(meanings.pop())


class ShardWriter:
    """A token shard that is being written: its file, its length, and the running hash."""

    def __init__(self, path: Path, file: BinaryIO, end_of_text: int, limit: int | None) -> None:
        self.path, self.file, self.end_of_text, self.limit = path, file, end_of_text, limit
        self.count = self._ends = 0
        self._cut = False  # inside a document
        self.hash = hashlib.sha256()

    @property
    def documents(self) -> int:
        """Documents begun."""
        return self._ends + self._cut

    def append(self, ids: np.ndarray) -> None:
        """Append ids as far as they fit."""
        kept = ids if self.limit is None else ids[: self.limit - self.count]
        if not len(kept):
            return
        self.file.write(kept)
        self.hash.update(kept)
        self.count += len(kept)
        self._ends += int(np.count_nonzero(kept == self.end_of_text))
        self._cut = bool(kept[-1] != self.end_of_text)


@contextmanager
def _writing_part(path: Path, end_of_text: int, limit: int | None = None) -> Iterator[ShardWriter]:
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield ShardWriter(path, file, end_of_text, limit)


def _vocabulary_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "dtype": DTYPE.name,
        "tokenizer": tokenizer.name,
        "vocabulary": tokenizer.vocabulary,
        "end_of_text": tokenizer.end_of_text,
    }


def _metadata(meaning: dict[str, Any], train: ShardWriter, val: ShardWriter) -> dict[str, Any]:
    """What the ids mean, and for each part its length and hash; `digest` names what a model is trained on."""
    parts = {
        part.path.name: {"count": part.count, "documents": part.documents, "sha256": part.hash.hexdigest()}
        for part in (train, val)
    }
    trained_on = canonical_json([meaning, train.hash.hexdigest()])
    return meaning | {"parts": parts, "digest": hashlib.sha256(trained_on.encode()).hexdigest()}


def open_shard(path: Path, metadata_path: Path) -> np.ndarray:
    """Ids of a token shard as a read-only memory map: uint16 (tokens,).

    The length is checked against the metadata; the hash is not, so that a large shard opens at once.
    """
    try:
        metadata = json.loads(metadata_path.read_text(encoding="utf-8"))
        dtype, expected = metadata["dtype"], int(metadata["parts"][path.name]["count"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{metadata_path}: found no description of {path.name} ({type(error).__name__}: {error}), expected the "
            "metadata that tokenize_text writes."
        ) from error
    if dtype != DTYPE.name:
        raise InputError(f"{metadata_path}: found the dtype {dtype!r}, expected {DTYPE.name!r}.")
    if not path.is_file():
        raise InputError(f"{path}: found no file, expected a token shard of {expected} tokens.")
    if path.stat().st_size != expected * DTYPE.itemsize:
        raise InputError(
            f"{path}: found {path.stat().st_size} bytes, {path.stat().st_size / DTYPE.itemsize:g} tokens, expected "
            f"{expected} tokens, as {metadata_path.name} says."
        )
    return np.memmap(path, dtype=DTYPE, mode="r")
