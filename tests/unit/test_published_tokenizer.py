"""Tokenizers of published models: what is before a text, where it ends, and bytes of ids."""

import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.texts import CORPUS
from twoscale.base import InputError
from twoscale.data.tokenizer import load_tokenizer

TEXT = "The loop, näive: 数 <|end|> twice"


def byte_level(begin):
    """A byte-level BPE with two special tokens; `begin`: whether its post-processor puts <|begin|> before a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<|begin|>", "<|end|>")])
    if begin:
        special = [("<|begin|>", made.token_to_id("<|begin|>"))]
        made.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=special)
    return made


def sentence_pieces():
    """Pieces as SentencePiece spells them, with a byte for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    made = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return made


def load(folder, made, **settings):
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    for name, value in settings.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return load_tokenizer("published", folder / "tokenizer.json")


@pytest.mark.parametrize("begin", [False, True])
def test_a_text_has_the_prefix_of_the_post_processor_and_a_document_its_end(tmp_path, begin):
    made = byte_level(begin)
    tokenizer = load(tmp_path, made, tokenizer_config={"eos_token": "<|end|>"})
    prefix = [made.token_to_id("<|begin|>")] if begin else []
    ids = tokenizer.encode(CORPUS[0])
    assert ids == [*prefix, *made.encode(CORPUS[0], add_special_tokens=False).ids]
    assert tokenizer.end_of_text == made.token_to_id("<|end|>")
    assert tokenizer.encode_document(CORPUS[0]).tolist() == [*ids, tokenizer.end_of_text]
    assert tokenizer.vocab_size == made.get_vocab_size()


def test_text_and_bytes_come_back_and_a_special_token_in_a_text_is_text(tmp_path):
    tokenizer = load(tmp_path, byte_level(False), tokenizer_config={"eos_token": {"content": "<|end|>"}})
    ids = tokenizer.encode(TEXT)
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == TEXT
    assert b"".join(map(tokenizer.bytes_of, ids)) == TEXT.encode()


def test_sentence_pieces_have_their_bytes_and_what_is_put_behind_a_text_is_left_out(tmp_path):
    tokenizer = load(tmp_path, sentence_pieces(), config={"eos_token_id": [2, 7]})
    ids = tokenizer.encode("a é")
    assert (ids[0], ids[-1], tokenizer.end_of_text) == (1, 3 + 0xA9, 2)
    assert b"".join(map(tokenizer.bytes_of, ids[1:])) == " a é".encode()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tokenizer_config": {"eos_token": "<|end|>"}, "config": {"eos_token_id": 3}}, "<|end|>"),
        ({"tokenizer_config": {"eos_token": "<|no|>"}, "generation_config": {"eos_token_id": 300}}, "<|begin|>"),
    ],
)
def test_the_end_of_text_is_the_first_that_the_tokenizer_has(tmp_path, settings, expected):
    tokenizer = load(tmp_path, byte_level(False), **settings)
    assert tokenizer.engine.id_to_token(tokenizer.end_of_text) == expected


def test_a_tokenizer_that_cannot_be_used_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer\.json: no such file"):
        load_tokenizer("published", tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match=r"found no end-of-text token in "):
        load(tmp_path, byte_level(False))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read"):
        load_tokenizer("published", tmp_path / "tokenizer.json")


def test_ids_above_65535_are_uint32(tmp_path):
    made = byte_level(False)
    small = load(tmp_path, made, tokenizer_config={"eos_token": "<|end|>"})
    assert small.encode_document("a").dtype == np.uint16
    made.add_tokens([f"token{number}" for number in range(2**16)])
    large = load(tmp_path, made)
    assert large.encode_document("token65535").tolist()[0] > 65535
    assert large.encode_document("a").dtype == np.uint32
