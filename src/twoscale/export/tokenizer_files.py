"""The tokenizer of a run as the files from which the transformers library loads one."""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from twoscale.data.tokenizer import CHARACTER_TO_BYTE, END_OF_TEXT, Tokenizer

PADDING = "<|padding|>"
BYTE_TO_CHARACTER = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}


def tokenizer_json(tokenizer: Tokenizer, path: Path | None) -> str:
    """tokenizer.json: the file `path` of a tokenizer that was trained here, made from the merges of the other ones."""
    if tokenizer.name != "bpe":
        return from_ranks(tokenizer)
    assert path is not None
    return path.read_text(encoding="utf-8")


def from_ranks(tokenizer: Tokenizer) -> str:
    """A tokenizer of tiktoken's engine, whose ids are ranks of merges, in the format of the library `tokenizers`."""
    ranks = tokenizer.encoding._mergeable_ranks
    vocab = {_characters(token): rank for token, rank in ranks.items()}
    engine = Engine(models.BPE(vocab=vocab, merges=[(_characters(a), _characters(b)) for a, b in merges(ranks)]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return engine.to_str(pretty=True)


def merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The two tokens that each longer token merges, in the order of the ranks."""
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = _parts(ranks, token, rank)
            yield left, right


def _parts(ranks: Mapping[bytes, int], token: bytes, rank: int) -> list[bytes]:
    """Parts into which the merges before `rank` join the bytes of a token."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while True:
        pairs = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        lowest, i = min(pairs, default=(rank, 0))
        if lowest >= rank:
            return parts
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def _characters(token: bytes) -> str:
    return "".join(BYTE_TO_CHARACTER[byte] for byte in token)


def tokenizer_config(context_length: int) -> dict[str, Any]:
    """tokenizer_config.json.

    Padding comes before a text, as decoding needs it. Its token is none of the vocabulary: transformers gives it the
    next id, and the model reads it as the end of text. A special token that is spelled out in a text is encoded as
    ordinary text, as here.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict.fromkeys(("bos_token", "eos_token"), END_OF_TEXT),
        "pad_token": PADDING,
        "model_max_length": context_length,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, int]:
    """generation_config.json: generation ends at the end of text."""
    return {
        **dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.end_of_text),
        "pad_token_id": tokenizer.vocab_size,
    }


def as_json(values: Mapping[str, Any]) -> str:
    """A file of JSON for people to read."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
