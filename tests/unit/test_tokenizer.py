"""Tokenizers: encoding, loading and training; those of published models; GPT-2's file."""

import base64
import hashlib
import json
import os
import subprocess
import sys

import pytest
import tiktoken
import tiktoken_ext.openai_public
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from tests.texts import CORPUS, SOURCE, strange_texts
from twoscale.base import InputError
from twoscale.data import tokenizer
from twoscale.data.tokenizer import (
    END_OF_TEXT,
    count_tokens,
    fetch_gpt2,
    load_bpe,
    load_tokenizer,
    train_bpe,
)


def test_both_environments_can_import_the_modules():
    """The environment of analysis has no torch, that of torch neither `datasets` nor
    `tokenizers`.
    """
    absent = {"torch", "datasets", "tokenizers"}
    code = f"import sys, twoscale.data.tokens; print(sorted({absent} & set(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_decoding_undoes_encoding_and_a_special_token_in_a_document_is_text(name, trained):
    tokenizer = load_tokenizer(name, trained)
    for text in ["", *CORPUS, *strange_texts(300), f"so {END_OF_TEXT} is text"]:
        *ids, last = tokenizer.encode_document(text).tolist()
        assert ids == tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.bytes_of, ids)) == text.encode()
        assert last == tokenizer.end_of_text
        assert last not in ids


def test_trained_tokenizer_has_vocab_size_ids_and_the_end_of_text_last(trained):
    tokenizer = load_bpe(trained)
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (300, 299)
    assert tokenizer.decode([299]) == END_OF_TEXT
    assert len(tokenizer.encode(" state")) == 1  # a frequent word
    assert len(tokenizer.encode(" zqxj")) == 5


def test_tiktoken_gives_the_ids_of_the_library_that_trained(trained):
    ours, theirs = load_bpe(trained), tokenizers.Tokenizer.from_file(str(trained))
    for text in [*CORPUS, *strange_texts(2000)]:
        assert ours.encode(text) == theirs.encode(text).ids


def test_training_is_a_function_of_the_texts(trained):
    assert train_bpe(iter(CORPUS), 300) == trained.read_text()
    assert train_bpe(reversed(CORPUS), 300) == trained.read_text()


def test_too_few_pairs_for_the_vocab_size_is_refused():
    with pytest.raises(
        InputError, match=r"tokenizer\.vocab_size: found 1000, expected at most 2\d\d"
    ):
        train_bpe(["a text of few words, a text"], 1000)


def test_a_pair_is_merged_that_is_seen_twice_but_not_once():
    assert len(tokenizers.Tokenizer.from_str(train_bpe(["xy xy"], 258)).encode("xy").ids) == 1
    with pytest.raises(InputError, match=r"found 258, expected at most 257"):
        train_bpe(["xy zw"], 258)


def test_counting_gives_the_length_in_a_shard(trained):
    tokenizer = load_bpe(trained)
    texts = ["", *CORPUS, *strange_texts(50), END_OF_TEXT]
    assert count_tokens(tokenizer, texts) == [
        len(tokenizer.encode_document(text)) for text in texts
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved["added_tokens"][0].update(id=0),
        lambda saved: saved["model"]["vocab"].update({"中": saved["model"]["vocab"].pop("a")}),
        lambda saved: saved.pop("model"),
        None,
    ],
)
def test_a_file_that_is_no_trained_tokenizer_is_refused(tmp_path, trained, change):
    path, saved = tmp_path / "other.json", json.loads(trained.read_text())
    if change is not None:
        change(saved)
        path.write_text(json.dumps(saved))
    with pytest.raises(InputError, match=r"other\.json: cannot be used"):
        load_bpe(path)


@pytest.mark.parametrize("name", ["bpe", "gpt2", "published"])
def test_a_tokenizer_without_its_file_is_refused(name):
    with pytest.raises(
        InputError, match=rf"--tokenizer: found nothing, expected the tokenizer file for .*: {name}"
    ):
        load_tokenizer(name)


# --- published models


def pieces_of_bytes(begin):
    """A byte-level BPE with two special tokens; `begin`: whether its post-processor puts <|begin|>
    before a text.
    """
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<|begin|>", "<|end|>")])
    if begin:
        special = [("<|begin|>", made.token_to_id("<|begin|>"))]
        made.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=special
        )
    return made


def sentence_pieces():
    """Pieces as SentencePiece spells them, with a byte for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    made = tokenizers.Tokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)},
            [("▁", "a")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return made


def load(folder, made, **settings):
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    for name, value in settings.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return load_tokenizer("published", folder / "tokenizer.json")


@pytest.mark.parametrize("begin", [False, True])
def test_a_text_has_the_prefix_of_the_post_processor_and_a_document_its_end(tmp_path, begin):
    made = pieces_of_bytes(begin)
    tokenizer = load(tmp_path, made, tokenizer_config={"eos_token": "<|end|>"})
    prefix = [made.token_to_id("<|begin|>")] if begin else []
    ids = tokenizer.encode(CORPUS[0])
    assert ids == [*prefix, *made.encode(CORPUS[0], add_special_tokens=False).ids]
    assert tokenizer.end_of_text == made.token_to_id("<|end|>")
    assert tokenizer.encode_document(CORPUS[0]).tolist() == [*ids, tokenizer.end_of_text]
    assert tokenizer.vocab_size == made.get_vocab_size()


def test_sentence_pieces_have_their_bytes_and_what_is_put_behind_a_text_is_left_out(tmp_path):
    tokenizer = load(tmp_path, sentence_pieces(), config={"eos_token_id": [2, 7]})
    ids = tokenizer.encode("a é")
    assert (ids[0], ids[-1], tokenizer.end_of_text) == (1, 3 + 0xA9, 2)
    assert b"".join(map(tokenizer.bytes_of, ids[1:])) == " a é".encode()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tokenizer_config": {"eos_token": "<|end|>"}, "config": {"eos_token_id": 3}}, "<|end|>"),
        (
            {
                "tokenizer_config": {"eos_token": "<|no|>"},
                "generation_config": {"eos_token_id": 300},
            },
            "<|begin|>",
        ),
    ],
)
def test_the_end_of_text_is_the_first_that_the_tokenizer_has(tmp_path, settings, expected):
    tokenizer = load(tmp_path, pieces_of_bytes(False), **settings)
    assert tokenizer.engine.id_to_token(tokenizer.end_of_text) == expected


def test_a_text_is_neither_cut_nor_padded_and_a_special_token_in_it_is_text(tmp_path):
    engine = pieces_of_bytes(True)
    engine.enable_truncation(4)
    engine.enable_padding(length=64)
    loaded = load(tmp_path, engine, tokenizer_config={"eos_token": {"content": "<|end|>"}})
    assert loaded.end_of_text == engine.token_to_id("<|end|>")
    text = "a text <|end|> that is longer than four tokens"
    ids = loaded.encode(text)
    assert loaded.end_of_text not in ids
    assert loaded.decode(ids) == text
    assert loaded.bytes_of(loaded.vocab_size) == b""  # a row of the embedding that no token has


def test_a_prefix_may_be_a_token_of_text(tmp_path):
    engine = pieces_of_bytes(False)
    a = engine.token_to_id("a")
    engine.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", a)])
    loaded = load(tmp_path, engine, tokenizer_config={"eos_token": "<|end|>"})
    assert loaded.encode("a") == [a, a]


def test_a_published_tokenizer_that_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"found no end-of-text token in "):
        load(tmp_path, pieces_of_bytes(False))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read"):
        load_tokenizer("published", tmp_path / "tokenizer.json")


# --- GPT-2's, whose files the project does not contain


@pytest.fixture
def no_network(monkeypatch):
    """Every download fails at once, and tiktoken has not cached the encoding in memory."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)


def test_without_cache_and_network_the_error_names_both(no_network, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        InputError,
        match=r"tokenizer\.name: gpt2 .* connect to the network once, or set TIKTOKEN_CACHE_DIR",
    ):
        fetch_gpt2()


def test_without_network_the_names_of_the_files_and_damaged_ones_are_told(
    no_network, tmp_path, monkeypatch
):
    """tiktoken's cache names a file by the SHA-1 of its address."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    names = {
        "vocab.bpe": "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
        "encoder.json": "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
    }
    for plain_name in names:
        (tmp_path / plain_name).write_bytes(b"whole, but under another name")
    with pytest.raises(InputError) as caught:
        fetch_gpt2()
    for plain_name, name in names.items():
        assert f"{plain_name} as {name}" in str(caught.value)
    assert "damaged" not in str(caught.value)
    (tmp_path / names["vocab.bpe"]).write_bytes(b"cut")
    with pytest.raises(InputError, match=f"; {names['vocab.bpe']} was damaged, and tiktoken .*"):
        fetch_gpt2()


def test_the_file_of_gpt2_lists_tokens_by_rank_and_is_loaded_again(tmp_path, monkeypatch):
    """Another small encoding under GPT-2's name, which tiktoken has read already."""
    # like GPT-2's, ranks do not ascend with the bytes
    tokens = [*(bytes([byte]) for byte in reversed(range(256))), b"st", b"at", b"stat"]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    unordered = {token: ranks[token] for token in sorted(ranks, key=lambda token: token[::-1])}
    pattern = tiktoken_ext.openai_public.r50k_pat_str
    special = {END_OF_TEXT: len(ranks)}
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=unordered, special_tokens=special
    )
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "gpt2", encoding)
    content = fetch_gpt2()
    lines = [line.split() for line in content.splitlines()]
    assert [base64.b64decode(token) for token, _ in lines] == tokens
    assert [int(rank) for _, rank in lines] == list(range(len(tokens)))
    path = tmp_path / "gpt2.tiktoken"
    path.write_bytes(content)
    monkeypatch.setattr(tokenizer, "_GPT2_SHA256", hashlib.sha256(content).hexdigest())
    loaded = load_tokenizer("gpt2", path)
    assert (loaded.vocab_size, loaded.end_of_text) == (len(tokens) + 1, len(tokens))
    for text in ["", *CORPUS, *strange_texts(50)]:
        assert loaded.encode(text) == encoding.encode_ordinary(text)


def test_another_file_than_gpt2s_is_refused(tmp_path):
    (tmp_path / "gpt2.tiktoken").write_bytes(b"IQ== 0\n")
    with pytest.raises(
        InputError, match=r"gpt2\.tiktoken: found another tokenizer, expected GPT-2"
    ):
        load_tokenizer("gpt2", tmp_path / "gpt2.tiktoken")
