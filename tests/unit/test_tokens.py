import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
import tokenizers

from twoscale import tables
from twoscale.data import tokens
from twoscale.errors import InputError

SCRIPTS = Path(__file__).parents[2] / "scripts"
BLOCK = 16
CORPUS = [
    "The state of a loop is the state before it, and one step more.",
    "def step(state, injected):\n    return state + injected  # 12 times\n",
    "Der Zustand läuft im Kreis; 状態は回る; состояние ходит по кругу 😀",
    "  \n\n\t spaces   and\r\n line ends \u00a0\u2003 of every kind  ",
    "it's we'll they've I'd 1234567890 !!! ???",
] * 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """File of a tokenizer of 300 ids."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokens.train_tokenizer(CORPUS, 300), encoding="utf-8")
    return path


@pytest.fixture
def shards(tmp_path):
    """Two shards of text; documents are named by their number, every fourth one is held out."""
    paths = [tmp_path / "shard_0.parquet", tmp_path / "shard_1.parquet"]
    for first, path in enumerate(paths):
        numbers = range(first, 40, 2)
        with tables.writing("text", path) as append:
            append(
                {
                    "document": [str(number) for number in numbers],
                    "held_out": [number % 4 == 0 for number in numbers],
                    "text": [f"document {number} says {CORPUS[number % 5]}" for number in numbers],
                }
            )
    return paths


def documents(shards, held_out):
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    return [row["text"] for row in rows if row["held_out"] == held_out]


def outputs(tmp_path):
    return tmp_path / "data/train.bin", tmp_path / "data/val.bin", tmp_path / "data/tokens.json"


def pieces_of(shards, tmp_path, tokenizer):
    """Tokenize each shard by itself."""
    folder = tmp_path / "pieces"
    pieces = [tokens.TokenShard(*(folder / f"{s.stem}{end}" for end in (".train", ".val", ".json"))) for s in shards]
    for shard, piece in zip(shards, pieces, strict=True):
        tokens.tokenize_text(shard, tokenizer, piece)
    return pieces


def tokenize(shards, tmp_path, tokenizer=None, held_out_tokens=200):
    pieces = pieces_of(shards, tmp_path, tokenizer or tokens.byte_level())
    joined = tokens.TokenShard(*outputs(tmp_path))
    tokens.join_tokens(pieces, joined, held_out_tokens, BLOCK)
    return joined


def strange_texts(count):
    """Texts of random pieces: letters of several scripts, spaces of every kind, digits, controls."""
    draw = random.Random(0)
    pieces = [*"abest  \n\t\r'.,_-0189", "'ll", "é", "ß", "中", "я", "😀", "\u0301", "\u00a0", "\u2003", "\x00", "\x85"]
    for _ in range(count):
        yield "".join(draw.choice(pieces) for _ in range(draw.randrange(40)))
        yield "".join(chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(5))


def test_what_trains_and_what_draws_can_both_import_the_module():
    """The environment of analysis has no torch, that of torch neither `datasets` nor `tokenizers`."""
    code = "import sys, twoscale.tokens; print(sorted({'torch', 'datasets', 'tokenizers'} & set(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "[]\n"


# --- tokenizers


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_decoding_undoes_encoding(name, trained):
    tokenizer = tokens.load_tokenizer(name, trained)
    for text in ["", *CORPUS, *strange_texts(300)]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_level_ids_are_the_bytes():
    tokenizer = tokens.byte_level()
    text = CORPUS[2]
    assert tokenizer.encode(text) == list(text.encode())
    assert (tokenizer.end_of_text, tokenizer.vocabulary) == (256, 257)


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_special_tokens_in_a_document_are_ordinary_text(name, trained):
    tokenizer = tokens.load_tokenizer(name, trained)
    text = f"so {tokens.END_OF_TEXT} is text"
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
    with pytest.raises(InputError, match=r"gpt2\.tiktoken: (cannot be read|found other bytes)"):
        tokens.load_tokenizer("gpt2", path)


@pytest.mark.parametrize("name", ["bpe", "gpt2"])
def test_tokenizer_without_its_file_is_refused(name):
    with pytest.raises(InputError, match=rf"--tokenizer: found nothing, expected the file of .*: {name}"):
        tokens.load_tokenizer(name)


def test_unknown_tokenizer_is_refused():
    with pytest.raises(InputError, match="found 'gpt3', expected gpt2, bpe or bytes"):
        tokens.load_tokenizer("gpt3")


# --- training a tokenizer


def test_own_tokenizer_has_all_its_entries_and_the_end_of_text_last(trained):
    tokenizer = tokens.load_bpe(trained)
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (300, 299)
    assert tokenizer.decode([299]) == tokens.END_OF_TEXT


def test_tiktoken_gives_the_ids_of_the_library_that_trained(trained):
    ours, theirs = tokens.load_bpe(trained), tokenizers.Tokenizer.from_file(str(trained))
    for text in [*CORPUS, *strange_texts(2000)]:
        assert ours.encode(text) == theirs.encode(text).ids


def test_frequent_words_become_one_token(trained):
    tokenizer = tokens.load_bpe(trained)
    assert len(tokenizer.encode(" state")) == 1
    assert len(tokenizer.encode(" zqxj")) == 5


def test_training_is_a_function_of_the_texts(trained):
    assert tokens.train_tokenizer(iter(CORPUS), 300) == trained.read_text()
    assert tokens.train_tokenizer(reversed(CORPUS), 300) == trained.read_text()


def test_too_few_pairs_for_the_entries_is_refused():
    with pytest.raises(InputError, match=r"tokens\.entries: found 1000, expected at most 2\d\d, the number of ids"):
        tokens.train_tokenizer(["a text of few words, a text"], 1000)


def test_fewer_entries_than_bytes_is_refused():
    with pytest.raises(InputError, match=r"tokens\.entries: found 100, expected at least 257"):
        tokens.train_tokenizer(CORPUS, 100)


def test_an_error_of_the_text_is_not_swallowed_by_the_trainer():
    def broken():
        yield CORPUS[0]
        raise InputError("shard 1 is broken.")

    with pytest.raises(InputError, match="shard 1 is broken"):
        tokens.train_tokenizer(broken(), 260)


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
def test_tokenizer_files_of_another_make_are_refused(tmp_path, trained, change):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(spoil(json.loads(trained.read_text()), change)))
    with pytest.raises(InputError, match=r"other\.json: found no tokenizer that can be used"):
        tokens.load_bpe(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", None])
def test_unreadable_tokenizer_files_are_refused(tmp_path, content):
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.json: found no tokenizer that can be used"):
        tokens.load_bpe(path)


# --- token shards


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_training_shard_is_the_documents_in_order_each_with_an_end_of_text(shards, tmp_path, trained, name):
    tokenizer = tokens.load_tokenizer(name, trained)
    train, _, metadata = tokenize(shards, tmp_path, tokenizer)
    ids = tokens.open_shard(train, metadata)
    assert ids.dtype == np.uint16
    expected = "".join(text + tokens.END_OF_TEXT for text in documents(shards, held_out=False))
    assert tokenizer.decode(ids.tolist()) == expected
    assert np.count_nonzero(ids == tokenizer.end_of_text) == 30


@pytest.mark.parametrize("wanted", [BLOCK + 1, 200])
def test_held_out_shard_is_the_first_tokens_of_the_held_out_documents(shards, tmp_path, wanted):
    tokenizer = tokens.byte_level()
    _, val, metadata = tokenize(shards, tmp_path, held_out_tokens=wanted)
    expected = [i for text in documents(shards, held_out=True) for i in [*tokenizer.encode(text), 256]]
    assert tokens.open_shard(val, metadata).tolist() == expected[:wanted]


def test_held_out_shard_is_shorter_where_there_is_less_text(shards, tmp_path):
    _, val, metadata = tokenize(shards, tmp_path, held_out_tokens=10**9)
    expected = sum(len(text.encode()) + 1 for text in documents(shards, held_out=True))
    assert len(tokens.open_shard(val, metadata)) == expected


def test_shards_are_little_endian_uint16(shards, tmp_path):
    train, _, metadata = tokenize(shards, tmp_path)
    content = train.read_bytes()
    ids = tokens.open_shard(train, metadata)
    assert [low + 256 * high for low, high in zip(content[::2], content[1::2], strict=True)] == ids.tolist()


def test_sidecar_says_what_the_shards_hold(shards, tmp_path):
    train, val, metadata = tokenize(shards, tmp_path)
    said = json.loads(metadata.read_text())
    assert {key: said[key] for key in ("dtype", "tokenizer", "vocabulary", "end_of_text")} == {
        "dtype": "uint16",
        "tokenizer": "bytes",
        "vocabulary": 257,
        "end_of_text": 256,
    }
    for path in (train, val):
        part = said["parts"][path.name]
        assert part["count"] == path.stat().st_size // 2
        assert part["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert said["parts"]["train.bin"]["documents"] == 30
    assert said["parts"]["val.bin"]["documents"] < 10


def test_digest_names_the_training_tokens_and_their_meaning(shards, tmp_path, trained):
    def digest(*arguments):
        return json.loads(tokenize(shards, tmp_path, *arguments)[2].read_text())["digest"]

    first = digest()
    assert digest(None, 100) == first  # the held-out part trains nothing
    assert digest(tokens.load_bpe(trained)) != first
    shards.pop()
    assert digest() != first


def test_tokenizing_twice_gives_the_same_bytes(shards, tmp_path):
    first = [path.read_bytes() for path in tokenize(shards, tmp_path)]
    assert [path.read_bytes() for path in tokenize(shards, tmp_path)] == first


@pytest.mark.parametrize(
    ("kept", "held_out_tokens", "message"),
    [
        (True, 200, r"train\.bin: found 0 tokens, expected at least 17, .* data\.characters"),
        (False, 200, r"val\.bin: found 0 tokens, expected at least 17, .* tokens\.held_out or data\.held_out_fraction"),
        (None, BLOCK, r"val\.bin: found 16 tokens, expected at least 17"),
    ],
)
def test_a_part_shorter_than_a_block_and_a_target_is_refused(shards, tmp_path, kept, held_out_tokens, message):
    if kept is not None:
        for path in shards:
            table = pq.read_table(path)
            pq.write_table(table.filter(pa.compute.equal(table["held_out"], kept)), path)
    with pytest.raises(InputError, match=message):
        tokenize(shards, tmp_path, held_out_tokens=held_out_tokens)
    assert list((tmp_path / "data").iterdir()) == []


def test_joining_in_chunks_of_any_size_gives_the_same_files(shards, tmp_path, monkeypatch):
    first = [path.read_bytes() for path in tokenize(shards, tmp_path)]
    for chunk in (1, 7, 100):
        monkeypatch.setattr(tokens, "CHUNK", chunk)
        assert [path.read_bytes() for path in tokenize(shards, tmp_path)] == first


def test_pieces_of_different_tokenizers_are_refused(shards, tmp_path, trained):
    pieces = pieces_of(shards, tmp_path, tokens.byte_level())
    tokens.tokenize_text(shards[1], tokens.load_bpe(trained), pieces[1])
    with pytest.raises(InputError, match="found 2 kinds of ids, expected one tokenizer"):
        tokens.join_tokens(pieces, tokens.TokenShard(*outputs(tmp_path)), 200, BLOCK)


def test_counting_gives_the_length_in_a_shard(trained):
    tokenizer = tokens.load_bpe(trained)
    texts = ["", *CORPUS, *strange_texts(50)]
    assert tokens.count_tokens(tokenizer, texts) == [len(tokenizer.encode(text)) + 1 for text in texts]


def test_a_shard_of_text_that_breaks_late_leaves_the_files_of_before(shards, tmp_path):
    paths = tokenize(shards, tmp_path)
    before = [path.read_bytes() for path in paths]
    shards[1].write_bytes(shards[1].read_bytes()[:-50])
    with pytest.raises(InputError, match=r"shard_1\.parquet: cannot be read"):
        tokenize(shards, tmp_path, held_out_tokens=100)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


def test_more_ids_than_uint16_holds_is_refused(shards, tmp_path):
    many = {bytes([byte]): byte for byte in range(256)} | {f"~{n:06}".encode(): n for n in range(256, 2**16)}
    encoding = tiktoken.Encoding(
        "many", pat_str=r"\S+|\s+", mergeable_ranks=many, special_tokens={tokens.END_OF_TEXT: 2**16}
    )
    with pytest.raises(InputError, match="found 65537 ids, expected at most 65536"):
        tokenize(shards, tmp_path, tokens.Tokenizer("many", encoding))


def test_open_shard_refuses_another_length_than_the_sidecar_says(shards, tmp_path):
    train, _, metadata = tokenize(shards, tmp_path)
    count = train.stat().st_size // 2
    for content, found in ((train.read_bytes()[:-2], count - 1), (b"", 0), (train.read_bytes()[:-1], f"{count - 0.5}")):
        train.write_bytes(content)
        with pytest.raises(InputError, match=rf"train\.bin: found \d+ bytes, {found} tokens, expected {count} tokens"):
            tokens.open_shard(train, metadata)


def test_open_shard_refuses_a_missing_shard(shards, tmp_path):
    train, _, metadata = tokenize(shards, tmp_path)
    train.unlink()
    with pytest.raises(InputError, match=r"train\.bin: found no file, expected a token shard of \d+ tokens"):
        tokens.open_shard(train, metadata)


def test_open_shard_refuses_another_dtype(shards, tmp_path):
    train, _, metadata = tokenize(shards, tmp_path)
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"dtype": "uint32"}))
    with pytest.raises(InputError, match="found the dtype 'uint32', expected 'uint16'"):
        tokens.open_shard(train, metadata)


@pytest.mark.parametrize("content", [None, "", "[]", '{"dtype": "uint16", "parts": {}}', '{"dtype": "uint16"}'])
def test_open_shard_refuses_a_sidecar_without_the_shard(shards, tmp_path, content):
    train, _, metadata = tokenize(shards, tmp_path)
    metadata.unlink()
    if content is not None:
        metadata.write_text(content)
    with pytest.raises(InputError, match=r"tokens\.json: found no description of train\.bin"):
        tokens.open_shard(train, metadata)


def test_open_shard_cannot_be_written_to(shards, tmp_path):
    train, _, metadata = tokenize(shards, tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        tokens.open_shard(train, metadata)[0] = 1
