"""Download of GPT-2's tokenizer. The project does not contain its files, so ids are tested only with a cache."""

import hashlib
import os
import socket
from contextlib import contextmanager

import pytest
import tiktoken
from huggingface_hub import close_session
from tiktoken_ext import openai_public

from twoscale.base import InputError
from twoscale.config import DownloadConfig
from twoscale.data import gpt2
from twoscale.data.tokenizer import load_tokenizer

DOWNLOAD = DownloadConfig(retries=1, delay=0.01, max_delay=0.01, timeout=1.0, part_characters=1)


@pytest.fixture
def no_network(monkeypatch):
    """Every download fails at once, and tiktoken has not cached the encoding in memory."""
    use_proxy(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)
    yield
    close_session()


def use_proxy(monkeypatch, address):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, address)
    close_session()  # its proxy is that of its first use


def cached(folder):
    return [folder / hashlib.sha1(url.encode()).hexdigest() for url in gpt2.FILES]


def test_without_cache_and_network_the_error_names_both(no_network, monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    with pytest.raises(
        InputError, match=r"tokenizer\.name: gpt2 .* connect to the network once, or set TIKTOKEN_CACHE_DIR"
    ):
        gpt2.fetch(DOWNLOAD)
    assert "TIKTOKEN_CACHE_DIR" not in os.environ


def test_files_with_other_hashes_than_tiktoken_knows_are_refused(no_network, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for path in cached(tmp_path):
        path.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"gpt2 is not in tiktoken's cache and could not be downloaded"):
        gpt2.fetch(DOWNLOAD)


@contextmanager
def silent_proxy():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_wrong_bytes_in_the_cache_are_not_downloaded_again_without_a_time_limit(no_network, tmp_path, monkeypatch):
    """tiktoken itself would remove them and wait for ever."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for path in cached(tmp_path):
        path.write_bytes(b"something else")
    with silent_proxy() as address:
        use_proxy(monkeypatch, address)
        with pytest.raises(InputError, match=r"could not be downloaded \(\w*Timeout"):
            gpt2.fetch(DOWNLOAD)
    assert [path.read_bytes() for path in cached(tmp_path)] == [b"something else"] * 2


def test_the_addresses_and_digests_are_those_of_tiktoken(monkeypatch):
    asked = {}
    monkeypatch.setattr(openai_public, "data_gym_to_mergeable_bpe_ranks", lambda **files: asked.update(files) or {})
    openai_public.gpt2()
    for file in ("vocab_bpe", "encoder_json"):
        assert gpt2.FILES[asked[f"{file}_file"]] == asked[f"{file}_hash"]


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
