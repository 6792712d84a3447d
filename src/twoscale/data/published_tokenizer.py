"""The tokenizer of a published model: tokenizer.json of its repository, run by the library `tokenizers`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Engine

from twoscale.base import InputError, first_line
from twoscale.data.token_files import id_dtype
from twoscale.data.token_ids import CHARACTER_TO_BYTE
from twoscale.json import parse

# Files next to tokenizer.json that may name the end of text, each with the key of its name or its id.
SETTINGS = (
    ("tokenizer_config.json", "eos_token"),
    ("generation_config.json", "eos_token_id"),
    ("config.json", "eos_token_id"),
)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's form of a space


@dataclass(frozen=True)
class PublishedTokenizer:
    """Converts text to ids and back, with the interface of `twoscale.data.tokenizer.Tokenizer`.

    A text gets what the post-processor of tokenizer.json puts before it, such as a begin of text, and not what it puts
    behind. A special token that is spelled out in a text is encoded as ordinary text.

    prefix: ids before every text. end_of_text: id after every document.
    """

    engine: Engine
    prefix: tuple[int, ...]
    end_of_text: int
    name: str = "published"

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return 1 + max(self.engine.get_vocab(with_added_tokens=True).values())

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether pieces are spelled in GPT-2's text form of bytes."""
        return '"ByteLevel"' in json.dumps(json.loads(self.engine.to_str())["decoder"])

    def encode(self, text: str) -> list[int]:
        return [*self.prefix, *_ids(self.engine, text, special=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens. Bytes that are not UTF-8 become replacement characters."""
        return self.engine.decode(list(ids), skip_special_tokens=True)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one id, which may be part of a character."""
        piece = self.engine.id_to_token(token)
        if piece is None:  # a row of the embedding that no token has
            return b""
        if self.is_byte_level and all(character in CHARACTER_TO_BYTE for character in piece):
            return bytes(map(CHARACTER_TO_BYTE.__getitem__, piece))
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:5])
        return piece.replace(SPACE, " ").encode()

    def encode_document(self, text: str) -> np.ndarray:
        """Ids of a document, with the prefix before and the end of text after it: uint16 or uint32 (tokens,)."""
        return np.array([*self.encode(text), self.end_of_text], dtype=id_dtype(self.vocab_size))


def load_published(path: Path) -> PublishedTokenizer:
    """Load tokenizer.json; other files of its folder name the end of text.

    Raises:
        InputError: if the file cannot be read, or no file names an end of text that the tokenizer has.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file, expected the tokenizer of a published model.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}), expected a tokenizer.json.") from error
    with _refusing(f"{path}: cannot be read", "a tokenizer.json"):
        engine = Engine.from_str(text)
    engine.encode_special_tokens = True
    engine.no_truncation()
    engine.no_padding()
    return PublishedTokenizer(engine, _prefix(engine), _end_of_text(engine, path.parent))


def _ids(engine: Engine, text: str, special: bool) -> list[int]:
    """Ids of a text, with or without what the post-processor adds."""
    with _refusing("tokenizer.json: found a tokenizer that cannot encode a text", "one that encodes any text"):
        return engine.encode(text, add_special_tokens=special).ids


@contextmanager
def _refusing(found: str, expected: str) -> Iterator[None]:
    """An InputError for what the library raises: plain Exceptions, and panics, which are no Exceptions."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{found} ({first_line(error)}), expected {expected}.") from error


def _prefix(engine: Engine) -> tuple[int, ...]:
    """Ids that the post-processor puts before a text."""
    plain, whole = (_ids(engine, "a", special) for special in (False, True))
    starts = [start for start in range(len(whole)) if whole[start : start + len(plain)] == plain]
    return tuple(whole[: starts[-1]]) if starts else ()


def _end_of_text(engine: Engine, folder: Path) -> int:
    for name, key in SETTINGS:
        value = _setting(folder / name, key)
        token = engine.token_to_id(value) if isinstance(value, str) else value
        if isinstance(token, int) and 0 <= token < 2**32 and engine.id_to_token(token) is not None:
            return token
    names = ", ".join(name for name, _ in SETTINGS)
    raise InputError(f"{folder}: found no end-of-text token in {names}, expected one of the tokens in tokenizer.json.")


def _setting(path: Path, key: str) -> Any:
    """The value of a key of a JSON file: a name or an id, the first of several; None where there is none."""
    try:
        value = parse(path.read_bytes(), dict[str, Any]).get(key)
    except (OSError, ValueError):
        return None
    value = value[0] if isinstance(value, list) and value else value
    return value.get("content") if isinstance(value, dict) else value
