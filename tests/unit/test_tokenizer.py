"""Tokenizers: encoding, loading and training."""

import json
import os
import subprocess
import sys

import pytest
import tokenizers

from tests.texts import CORPUS, SOURCE, strange_texts
from twoscale.base import InputError
from twoscale.data.tokenizer import END_OF_TEXT, byte_level, count_tokens, load_bpe, load_tokenizer, train_bpe


@pytest.mark.parametrize("module", ["tokenizer", "shards"])
def test_both_environments_can_import_the_modules(module):
    """The environment of analysis has no torch, that of torch neither `datasets` nor `tokenizers`."""
    code = (
        f"import sys, twoscale.data.{module}; print(sorted({{'torch', 'datasets', 'tokenizers'}} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_decoding_undoes_encoding(name, trained):
    tokenizer = load_tokenizer(name, trained)
    for text in ["", *CORPUS, *strange_texts(300)]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_level_ids_are_the_bytes():
    tokenizer = byte_level()
    text = CORPUS[2]
    assert tokenizer.encode(text) == list(text.encode())
    assert (tokenizer.end_of_text, tokenizer.vocab_size) == (256, 257)


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_special_tokens_in_a_document_are_ordinary_text(name, trained):
    tokenizer = load_tokenizer(name, trained)
    text = f"so {END_OF_TEXT} is text"
    *ids, last = tokenizer.encode_document(text).tolist()
    assert ids == tokenizer.encode(text)
    assert tokenizer.end_of_text not in ids
    assert last == tokenizer.end_of_text
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("content", [None, b"", b"IQ== 0\n"])
def test_another_file_than_gpt2s_is_refused(tmp_path, content):
    path = tmp_path / "gpt2.tiktoken"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"gpt2\.tiktoken: (cannot be read|found another tokenizer, expected GPT-2)"):
        load_tokenizer("gpt2", path)


@pytest.mark.parametrize("name", ["bpe", "gpt2"])
def test_tokenizer_without_its_file_is_refused(name):
    with pytest.raises(InputError, match=rf"--tokenizer: found nothing, expected the tokenizer file for .*: {name}"):
        load_tokenizer(name)


def test_unknown_tokenizer_is_refused():
    with pytest.raises(InputError, match="found 'gpt3', expected gpt2, bpe, bytes or published"):
        load_tokenizer("gpt3")


def test_trained_tokenizer_has_vocab_size_ids_and_the_end_of_text_last(trained):
    tokenizer = load_bpe(trained)
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (300, 299)
    assert tokenizer.decode([299]) == END_OF_TEXT


def test_tiktoken_gives_the_ids_of_the_library_that_trained(trained):
    ours, theirs = load_bpe(trained), tokenizers.Tokenizer.from_file(str(trained))
    for text in [*CORPUS, *strange_texts(2000)]:
        assert ours.encode(text) == theirs.encode(text).ids


def test_frequent_words_become_one_token(trained):
    tokenizer = load_bpe(trained)
    assert len(tokenizer.encode(" state")) == 1
    assert len(tokenizer.encode(" zqxj")) == 5


def test_training_is_a_function_of_the_texts(trained):
    assert train_bpe(iter(CORPUS), 300) == trained.read_text()
    assert train_bpe(reversed(CORPUS), 300) == trained.read_text()


def test_too_few_pairs_for_the_vocab_size_is_refused():
    with pytest.raises(
        InputError, match=r"tokenizer\.vocab_size: found 1000, expected at most 2\d\d, the number of ids"
    ):
        train_bpe(["a text of few words, a text"], 1000)


def test_a_vocab_size_below_the_bytes_is_refused():
    with pytest.raises(InputError, match=r"tokenizer\.vocab_size: found 100, expected at least 257"):
        train_bpe(CORPUS, 100)


def test_the_smallest_vocab_size_is_the_bytes_and_the_end_of_text(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(train_bpe(CORPUS, 257))
    assert load_bpe(path).vocab_size == 257
    with pytest.raises(InputError, match=r"tokenizer\.vocab_size: found 256, expected at least 257"):
        train_bpe(CORPUS, 256)


def test_an_error_of_the_text_is_not_swallowed_by_the_trainer():
    def broken():
        yield CORPUS[0]
        raise InputError("shard 1 is broken.")

    with pytest.raises(InputError, match="shard 1 is broken"):
        train_bpe(broken(), 260)


def spoil(saved, change):
    match change:
        case "no end":
            saved["added_tokens"] = []
        case "end elsewhere":
            saved["added_tokens"][0]["id"] = 0
        case "gap":
            del saved["model"]["vocab"][next(reversed(saved["model"]["vocab"]))]
        case "byte missing":
            vocabulary = saved["model"]["vocab"]
            vocabulary["ab" * 9] = vocabulary.pop("a")
        case "not byte-level":
            vocabulary = saved["model"]["vocab"]
            vocabulary["中"] = vocabulary.pop("a")
        case "no model":
            saved.pop("model")
        case "a list":
            return [saved]
    return saved


@pytest.mark.parametrize(
    "change", ["no end", "end elsewhere", "gap", "byte missing", "not byte-level", "no model", "a list"]
)
def test_tokenizer_files_in_another_format_are_refused(tmp_path, trained, change):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(spoil(json.loads(trained.read_text()), change)))
    with pytest.raises(InputError, match=r"other\.json: cannot be used as a tokenizer"):
        load_bpe(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", None])
def test_unreadable_tokenizer_files_are_refused(tmp_path, content):
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.json: cannot be used as a tokenizer"):
        load_bpe(path)


def test_counting_gives_the_length_in_a_shard(trained):
    tokenizer = load_bpe(trained)
    texts = ["", *CORPUS, *strange_texts(50)]
    assert count_tokens(tokenizer, texts) == [len(tokenizer.encode(text)) + 1 for text in texts]
