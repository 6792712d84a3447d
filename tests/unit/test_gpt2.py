"""Download of GPT-2's tokenizer. The project does not contain its files, so ids are tested only with a cache."""

import hashlib
import os

import pytest
import tiktoken

from twoscale.config import DownloadConfig
from twoscale.data import gpt2
from twoscale.data.tokenizer import load_tokenizer
from twoscale.errors import InputError

DOWNLOAD = DownloadConfig(retries=1, delay=0.01, max_delay=0.01, timeout=1.0, part_characters=1)


@pytest.fixture
def no_network(monkeypatch):
    """Every download fails at once, and tiktoken has not cached the encoding in memory."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)


def cached(folder):
    return [folder / hashlib.sha1(url.encode()).hexdigest() for url in gpt2.URLS]


def test_without_cache_and_network_the_error_names_both(no_network, monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    with pytest.raises(InputError, match=r"tokenizer\.name: gpt2 .* network connection once, or TIKTOKEN_CACHE_DIR"):
        gpt2.fetch(DOWNLOAD)
    assert "TIKTOKEN_CACHE_DIR" not in os.environ


def test_files_with_other_hashes_than_tiktoken_knows_are_refused(no_network, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for path in cached(tmp_path):
        path.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"gpt2 is not in tiktoken's cache and could not be downloaded"):
        gpt2.fetch(DOWNLOAD)


def test_the_downloaded_file_gives_the_ids_of_gpt2(no_network, tmp_path):
    folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    if not folder or not all(map(os.path.isfile, cached(tmp_path.__class__(folder)))):
        pytest.skip("TIKTOKEN_CACHE_DIR names no folder with GPT-2's files")
    path = tmp_path / "gpt2.tiktoken"
    path.write_bytes(gpt2.fetch(DOWNLOAD))
    tokenizer = load_tokenizer("gpt2", path)
    assert tokenizer.encode("hello world") == [31373, 995]
    assert (tokenizer.end_of_text, tokenizer.vocab_size) == (50256, 50257)
    text = "Two-scale  dynamics\n\n don't 12345 état 状態"
    assert tokenizer.encode(text) == tiktoken.get_encoding("gpt2").encode_ordinary(text)
