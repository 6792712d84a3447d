"""Token shards: tokenizing text shards, joining them, and opening the result."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken

from tests.texts import CORPUS
from twoscale import tables
from twoscale.base import InputError
from twoscale.data import tokens
from twoscale.data.shards import TokenShard, id_dtype, open_shard
from twoscale.data.tokenizer import END_OF_TEXT, Tokenizer, byte_level, load_bpe, load_tokenizer
from twoscale.data.tokens import join_tokens, tokenize_text

CONTEXT = 16
NGRAM = 32


def distinct_text(number):
    """A text that shares no long run of bytes with that of another number."""
    digits = "".join(
        f"{hashlib.sha256(f'{number} {part}'.encode()).hexdigest()[:20]} " for part in range(3)
    )
    return f"{digits}{CORPUS[number % 5][:8]}"


@pytest.fixture
def shards(tmp_path):
    """Two text shards; documents are named by their number, every fourth one is held out."""
    return write_shards(tmp_path, [distinct_text(number) for number in range(40)])


def write_shards(tmp_path, texts):
    paths = [tmp_path / "shard_0.parquet", tmp_path / "shard_1.parquet"]
    for first, path in enumerate(paths):
        numbers = range(first, len(texts), 2)
        with tables.writing("text", path) as append:
            append(
                {
                    "document": [str(number) for number in numbers],
                    "held_out": [number % 4 == 0 for number in numbers],
                    "text": [texts[number] for number in numbers],
                }
            )
    return paths


def documents(shards, held_out):
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    return [row["text"] for row in rows if row["held_out"] == held_out]


def outputs(tmp_path):
    return tmp_path / "data/train.bin", tmp_path / "data/val.bin", tmp_path / "data/tokens.json"


def tokenize_each(shards, tmp_path, tokenizer):
    """The token shard of each text shard."""
    folder = tmp_path / "separate"
    separate = [
        TokenShard(*(folder / f"{shard.stem}{end}" for end in (".train", ".val", ".json")))
        for shard in shards
    ]
    for text_shard, token_shard in zip(shards, separate, strict=True):
        tokenize_text(text_shard, tokenizer, token_shard)
    return separate


def tokenize(shards, tmp_path, tokenizer=None, held_out_tokens=200):
    separate = tokenize_each(shards, tmp_path, tokenizer or byte_level())
    joined = TokenShard(*outputs(tmp_path))
    join_tokens(separate, joined, held_out_tokens, NGRAM, CONTEXT)
    return joined


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_training_shard_is_the_documents_in_order_each_with_an_end_of_text(
    shards, tmp_path, trained, name
):
    tokenizer = load_tokenizer(name, trained)
    train, _, metadata = tokenize(shards, tmp_path, tokenizer)
    ids = open_shard(train, metadata)
    assert ids.dtype == np.uint16
    assert ids.tolist() == [
        low + 256 * high for low, high in zip(*[iter(train.read_bytes())] * 2, strict=True)
    ]
    expected = "".join(text + END_OF_TEXT for text in documents(shards, held_out=False))
    assert tokenizer.decode(ids.tolist()) == expected
    assert np.count_nonzero(ids == tokenizer.end_of_text) == 30


def test_held_out_text_that_is_too_short_is_refused_with_the_number_of_dropped_documents(tmp_path):
    texts = [distinct_text(number) for number in range(40)]
    texts[1] += texts[8][3:40]
    tokens = sum(len(text.encode()) + 1 for text in texts[::4]) - len(texts[8]) - 1
    shards = write_shards(tmp_path, texts)
    with pytest.raises(InputError) as caught:
        tokenize(shards, tmp_path, held_out_tokens=tokens + 1)
    for part in (
        f"val.bin: found {tokens} held-out tokens after 1 of 10 documents were dropped as"
        f" near-duplicates",
        f"expected data.held_out_tokens = {tokens + 1}; raise data.held_out_margin or"
        f" data.held_out_fraction",
    ):
        assert part in str(caught.value)
    assert list((tmp_path / "data").iterdir()) == []
    _, val, metadata = tokenize(shards, tmp_path, held_out_tokens=tokens)
    assert len(open_shard(val, metadata)) == tokens


def test_near_duplicates_are_dropped_and_counted_in_the_metadata(tmp_path):
    texts = [distinct_text(number) for number in range(40)]
    texts[1] = texts[8]  # a copy
    texts[23] = "before " + texts[36][5 : 5 + NGRAM] + " after"  # a quotation
    texts[30] = "before " + texts[16][5 : 4 + NGRAM] + " after"  # a quotation that is too short
    shards = write_shards(tmp_path, texts)
    _, val, metadata = tokenize(shards, tmp_path, held_out_tokens=300)
    remain = [texts[number] for number in (0, 4, 12, 16, 20, 24, 28, 32)]
    expected = [i for text in remain for i in [*byte_level().encode(text), 256]]
    assert open_shard(val, metadata).tolist() == expected[:300]
    examined, dropped = sum(map(len, texts[::4])) + 10, len(texts[8]) + len(texts[36]) + 2
    assert json.loads(metadata.read_text())["parts"]["val.bin"]["near_duplicates"] == {
        "ngram_tokens": NGRAM,
        "documents": 10,
        "tokens": examined,
        "dropped_documents": 2,
        "dropped_tokens": dropped,
        "share_before": (1 + len(texts[8]) + 1 + NGRAM)
        / examined,  # the copy between two ends of text
        "share_after": 0.0,
    }


@pytest.mark.parametrize("chunk", [50, 2**20])
def test_metadata_describes_the_ids_and_the_files(shards, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(tokens, "_CHUNK", chunk)
    train, val, metadata = tokenize(shards, tmp_path)
    content = json.loads(metadata.read_text())
    # the digest is the SHA-256 of literal JSON, so that renamed keys change no digest
    of_train = hashlib.sha256(train.read_bytes()).hexdigest()
    hashed = f'[{{"dtype":"uint16","end_of_text":256,"tokenizer":"bytes","vocabulary":257}},"{of_train}"]'
    assert content["digest"] == hashlib.sha256(hashed.encode()).hexdigest()
    assert {key: content[key] for key in ("dtype", "tokenizer", "vocab_size", "end_of_text")} == {
        "dtype": "uint16",
        "tokenizer": "bytes",
        "vocab_size": 257,
        "end_of_text": 256,
    }
    for path in (train, val):
        part = content["parts"][path.name]
        assert part["count"] == path.stat().st_size // 2
        assert part["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert content["parts"]["train.bin"]["documents"] == 30
    # the last one is cut
    ends = np.flatnonzero(np.fromfile(val, np.uint16) == 256)
    assert ends[-1] < 199
    assert content["parts"]["val.bin"]["documents"] == len(ends) + 1 < 10


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (True, r"train\.bin: found 0 tokens, expected at least 17, .* data\.train_characters"),
        (False, r"val\.bin: found 0 held-out tokens after 0 of 0 documents"),
    ],
)
def test_ids_shorter_than_a_sequence_and_a_target_is_refused(shards, tmp_path, kept, message):
    for path in shards:
        table = pq.read_table(path)
        pq.write_table(table.filter(pa.compute.equal(table["held_out"], kept)), path)
    with pytest.raises(InputError, match=message):
        tokenize(shards, tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_token_shards_of_different_tokenizers_are_refused(shards, tmp_path, trained):
    separate = tokenize_each(shards, tmp_path, byte_level())
    tokenize_text(shards[1], load_bpe(trained), separate[1])
    with pytest.raises(InputError, match="found ids of 2 tokenizers, expected those of one"):
        join_tokens(separate, TokenShard(*outputs(tmp_path)), 200, NGRAM, CONTEXT)


def test_more_ids_than_uint16_holds_are_stored_in_uint32(shards, tmp_path):
    many = {bytes([byte]): byte for byte in range(256)} | {
        f"~{n:06}".encode(): n for n in range(256, 2**16)
    }
    encoding = tiktoken.Encoding(
        "many", pat_str=r"\S+|\s+", mergeable_ranks=many, special_tokens={END_OF_TEXT: 2**16}
    )
    train, val, metadata = tokenize(shards, tmp_path, Tokenizer("many", encoding))
    assert json.loads(metadata.read_text())["dtype"] == "uint32"
    for path, held_out in ((train, False), (val, True)):
        ids = open_shard(path, metadata)
        assert ids.dtype == np.uint32
        assert path.stat().st_size == 4 * len(ids)
        kept = [encoding.encode_ordinary(document) for document in documents(shards, held_out)]
        assert ids.tolist()[: len(kept[0]) + 1] == [*kept[0], 2**16]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_uint16_holds_65536_ids_and_no_more(vocab_size, dtype):
    assert id_dtype(vocab_size) == dtype
    assert np.array([vocab_size - 1]).astype(id_dtype(vocab_size))[0] == vocab_size - 1


GOOD = {
    "dtype": "uint16",
    "end_of_text": 1,
    "digest": "",
    "parts": {"train.bin": {"count": 1, "sha256": ""}},
}
NO_DESCRIPTION = r"tokens\.json: found no description of t"


def flipped(content):
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


OTHER_IDS = r"train\.bin: found \d+ tokens, expected the \d+ tokens with the SHA-256 \w{12}…"
WRONG_METADATA = (
    {"digest": None},
    {"parts": {}},
    {"dtype": "int64"},
    {"parts": {"train.bin": {"count": 1.0}}},
)
# what is done to train.bin, what tokens.json then holds (None: as written), what is found
WRONG = [
    (lambda content: content[:-2], None, OTHER_IDS),
    (flipped, None, OTHER_IDS),
    (lambda content: None, None, r"train\.bin: found no file, expected the"),
    (bytes, "", NO_DESCRIPTION),
    *((bytes, GOOD | changes, NO_DESCRIPTION) for changes in WRONG_METADATA),
]


@pytest.mark.parametrize(("change", "metadata", "found"), WRONG)
def test_open_shard_refuses_files_that_do_not_fit_together(
    shards, tmp_path, change, metadata, found
):
    train, _, described = tokenize(shards, tmp_path)
    content = change(train.read_bytes())
    train.unlink() if content is None else train.write_bytes(content)
    if metadata is not None:
        described.write_text(metadata if isinstance(metadata, str) else json.dumps(metadata))
    with pytest.raises(InputError, match=found):
        open_shard(train, described)


def test_an_empty_shard_is_opened_as_no_ids(tmp_path):
    (tmp_path / "val.bin").touch()
    parts = {"val.bin": {"count": 0, "sha256": hashlib.sha256().hexdigest()}}
    (tmp_path / "tokens.json").write_text(json.dumps(GOOD | {"parts": parts}))
    assert open_shard(tmp_path / "val.bin", tmp_path / "tokens.json").shape == (0,)


def test_open_shard_refuses_ids_that_the_vocabulary_or_the_model_lacks(shards, tmp_path):
    train, _, metadata = tokenize(shards, tmp_path)
    assert len(open_shard(train, metadata, 257))
    for stated, known, least in ((257, 256, 256), (200, 257, 200)):
        metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"vocab_size": stated}))
        with pytest.raises(
            InputError, match=rf"train\.bin: found the token id 256, expected ids below .* {least}"
        ):
            open_shard(train, metadata, known)
