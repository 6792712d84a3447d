"""GPT-2's tokenizer from the network into one file, so that no later job needs the network.

tiktoken downloads without a time limit, so its two files are put into a cache for it; it then checks them
against the hashes in its own source.
"""

import base64
import hashlib
import os
import tempfile
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import tiktoken
from httpx2 import HTTPError
from huggingface_hub.utils import get_session, hf_raise_for_status

from twoscale.errors import InputError, first_line
from twoscale.data.hub import persistently
from twoscale.config import DownloadConfig

URLS = tuple(
    f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}" for name in ("vocab.bpe", "encoder.json")
)


def fetch(limits: DownloadConfig) -> bytes:
    """The merges in tiktoken's own format: in each line a token in Base64 and its rank.

    They come from the folder that TIKTOKEN_CACHE_DIR names where it holds them, else from the network.
    """
    try:
        with _cache() as folder:
            for url in URLS:
                path = folder / hashlib.sha1(url.encode()).hexdigest()  # tiktoken's name for it
                if not path.is_file():
                    path.write_bytes(persistently(lambda url=url: _download(url, limits), limits))
            ranks = tiktoken.get_encoding("gpt2")._mergeable_ranks
    except (HTTPError, OSError, ValueError) as error:
        raise InputError(
            f"config key tokenizer.name: gpt2 is not in tiktoken's cache and could not be downloaded "
            f"({type(error).__name__}: {first_line(error)}); expected a network connection once, or TIKTOKEN_CACHE_DIR "
            "set to a folder that holds it."
        ) from error
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=itemgetter(1)))
    return b"".join(lines)


def _download(url: str, limits: DownloadConfig) -> bytes:
    answer = get_session().get(url, timeout=limits.timeout)
    hf_raise_for_status(answer)
    return answer.content


@contextmanager
def _cache():
    """The user's cache of tiktoken, else a temporary one: its default lies outside the project."""
    if configured := os.environ.get("TIKTOKEN_CACHE_DIR"):
        yield Path(configured)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TIKTOKEN_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["TIKTOKEN_CACHE_DIR"]
