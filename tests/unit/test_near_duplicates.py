"""Near-duplicates: matches of n-grams against a set of tuples, and the documents that are
dropped.
"""

import sysconfig

import numpy as np
import pytest

from twoscale.data import text
from twoscale.data import tokens as near_duplicates
from twoscale.data.tokenizer import byte_level
from twoscale.data.tokens import HeldOutNgrams, drop_near_duplicates

END = 9


def random_documents(draw, tokens, vocab_size=END, mean_length=8):
    """Ids of documents of random lengths, each with its end of text."""
    ids = draw.integers(vocab_size, size=tokens)
    ids[draw.random(tokens) < 1 / mean_length] = END
    ids[-1] = END
    return ids.astype(np.uint16)


def unlike(draw, tokens):
    """Ids of one document that share no n-gram with another draw, up to chance."""
    ids = draw.integers(1000, 60000, size=tokens).astype(np.uint16)
    ids[-1] = END
    return ids


def chunks(ids, size):
    return lambda: (ids[start : start + size] for start in range(0, len(ids), size))


def drop(held_out, training, n, size=7):
    return drop_near_duplicates(held_out, END, n, chunks(training, size))


def ngrams(ids, n):
    return [tuple(ids[start : start + n].tolist()) for start in range(len(ids) - n + 1)]


def split(ids):
    """Documents as lists, each with its end of text."""
    documents = [[]]
    for token in ids.tolist():
        documents[-1].append(token)
        if token == END:
            documents.append([])
    return documents[:-1]


def share_inside(held_out, training, n):
    known, inside = set(ngrams(training, n)), set()
    for start, ngram in enumerate(ngrams(held_out, n)):
        if ngram in known:
            inside.update(range(start, start + n))
    return len(inside) / len(held_out)


def naive_drop(held_out, training, n):
    """The documents that remain, from sets of tuples; an n-gram counts for the document of its
    middle token.
    """
    known, documents = set(ngrams(training, n)), split(held_out)
    while True:
        kept = np.array([token for document in documents for token in document], dtype=np.uint16)
        owners = [number for number, document in enumerate(documents) for _ in document]
        found = {
            owners[start + n // 2] for start, ngram in enumerate(ngrams(kept, n)) if ngram in known
        }
        if not found:
            return kept
        documents = [document for number, document in enumerate(documents) if number not in found]


def test_a_collision_of_hashes_is_no_match(monkeypatch):
    monkeypatch.setattr(
        near_duplicates,
        "ngram_hashes",
        lambda ids, n: np.zeros(max(len(ids) - n + 1, 0), np.uint64),
    )
    held_out, training = np.arange(10, dtype=np.uint16), np.arange(20, 40, dtype=np.uint16)
    assert not HeldOutNgrams(held_out, 4).found_in([training]).any()


@pytest.mark.parametrize("size", [1, 5, 13, 1000])
def test_a_copy_at_every_offset_and_across_chunks_is_found(size):
    draw, n = np.random.default_rng(0), 8
    copied = unlike(draw, 40)
    for offset in range(len(copied) - n + 1):
        training = unlike(draw, 30)
        begin = int(draw.integers(0, len(training) - n))
        training[begin : begin + n] = copied[offset : offset + n]
        found = HeldOutNgrams(copied, n).found_in(chunks(training, size)())
        assert np.flatnonzero(found).tolist() == [offset]
        training[begin + n - 1] = 0
        assert not HeldOutNgrams(copied, n).found_in(chunks(training, size)()).any()


@pytest.mark.parametrize("seed", range(12))
def test_dropped_documents_and_shares_are_those_of_a_set_of_ngrams(seed):
    draw = np.random.default_rng(seed)
    n, size = int(draw.integers(2, 7)), int(draw.integers(1, 60))
    held_out, training = (random_documents(draw, tokens, vocab_size=6) for tokens in (200, 120))
    kept, counts = drop(held_out, training, n, size)
    expected = naive_drop(held_out, training, n)
    assert kept.tolist() == expected.tolist()
    assert (counts.ngram_tokens, counts.documents, counts.tokens) == (
        n,
        len(split(held_out)),
        len(held_out),
    )
    assert counts.dropped_documents == len(split(held_out)) - len(split(expected))
    assert counts.dropped_tokens == len(held_out) - len(expected)
    assert counts.share_before == pytest.approx(share_inside(held_out, training, n))
    assert counts.share_after == 0


@pytest.mark.runs
def test_no_held_out_page_of_the_running_pythons_documentation_stands_in_its_training_text():
    """Split as in the demo; 150 bytes are about 32 tokens of its tokenizer."""
    tokenizer, sides = byte_level(), {False: [], True: []}
    for page in text.python_docs():
        held_out = text.is_held_out(text.split_key("python_docs", page.name, page.text), 0.05)
        sides[held_out].append(tokenizer.encode_document(page.text))
    assert len(sides[True]) >= 16, sysconfig.get_path("stdlib")
    training, examined = np.concatenate(sides[False]), np.concatenate(sides[True])
    kept, counts = drop_near_duplicates(
        examined, tokenizer.end_of_text, 150, chunks(training, 2**20)
    )
    assert counts.share_after == 0
    assert not HeldOutNgrams(kept, 150).found_in([training]).any()
    assert len(sides[True]) - counts.dropped_documents >= 8
    assert counts.dropped_tokens < len(examined) / 2


def test_ids_above_65535_are_told_apart_from_those_that_share_their_lower_half():
    ids = np.arange(200, dtype=np.uint32)
    high = ids + np.uint32(2**16)
    assert HeldOutNgrams(high, 5).found_in([high]).all()
    assert not HeldOutNgrams(high, 5).found_in([ids]).any()
    assert HeldOutNgrams(ids, 5).found_in([ids.astype(np.uint16)]).all()
    assert (
        len(np.unique(near_duplicates.ngram_hashes(np.arange(2**18, dtype=np.uint32), 2)))
        == 2**18 - 1
    )
